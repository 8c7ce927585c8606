"""The studies that this package can run. `catalogue` lists them by name and loads one.

`grid` defines what a study declares: above all, a function from a scale to the runs. `setting`
defines a set-up, which is a training configuration without its superposition and seed. `scales` has
a set-up for each scale, and the paper's set-ups. Studies that only combine set-ups, arms and seeds
are in `comparisons`; most of them are the paper's. Every other study has a module of its own, and
`campaign` holds the largest part of `laptop`.
"""
