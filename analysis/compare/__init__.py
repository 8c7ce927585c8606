"""Superposition against the baseline: paired by seed (`comparison`, `paired`), at equal FLOPs,
data or loss (`matched`, `equal_loss`, `length_curve`, `compute_multiplier`), where curves cross
(`crossings`), whether the comparison was fair (`learning_rate`), and at which set-up to make it
(`set_ups`)."""
