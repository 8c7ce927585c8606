"""Scaling laws, of loss against size, data and compute. `points` selects the runs that are fitted,
`laws` fits Chinchilla's law (approach 3), `frontier` finds compute-optimal sizes (approach 2),
`compute_multiplier` compares the compute that two methods need for one loss, and `repetition` fits
what repeated text is worth."""
