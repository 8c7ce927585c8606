"""Studies by name (`catalogue`): each a function from a scale to the configs of its runs.

`setting` is a training configuration on which studies vary what they study; `scales` has one for
each scale and the paper's own; `grid` says what a study declares. The paper's products of arms are
in `comparisons`; a study with more to it has a file of its own.
"""
