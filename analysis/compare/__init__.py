"""Superposition against the baseline: paired by seed (`comparison`, `paired`), at equal FLOPs,
data or loss (`matched`, `equal_loss`, `length_curve`, `compute_multiplier`), and whether the
comparison was fair (`learning_rate`)."""
