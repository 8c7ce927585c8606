"""Superposition against the baseline: paired by seed (`comparison`), at equal FLOPs,
data or loss (`matched`, `length_curve`, `compute_multiplier`), and whether the comparison was fair
(`learning_rate`). Verdicts are `analysis.verdict`'s."""
