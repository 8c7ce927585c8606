"""Laws fitted to runs: a `solver` with checks and intervals, `scaling` laws of baselines, the best
`bag_size`, the `law` of superposition, `mutual_information` in text."""
