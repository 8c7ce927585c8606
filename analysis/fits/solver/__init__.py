"""Fits that say when they failed, by numpy and scipy: a `problem`, many starts (`solve`), and how
well the result is known (`uncertainty`)."""
