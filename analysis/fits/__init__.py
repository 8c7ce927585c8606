"""Fits to many runs, or to a text: the `law` of superposition, `scaling` laws of baselines, the
best `bag_size`, and the decay of `mutual_information`. `solver` fits the laws, checks that each fit
converged, and estimates its uncertainty."""
