"""Loss against size, data and compute: which runs count (`points`), the `laws` of the field, the
compute-optimal `frontier`, and the `compute_multiplier` between two methods."""
