"""Loss against size, data and compute: the `points` that are fitted, the `laws` of the field, the
compute-optimal `frontier`, the `compute_multiplier` between two methods, and `repetition` of
text."""
