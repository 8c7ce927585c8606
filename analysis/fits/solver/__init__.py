"""Fits that say when they failed, by numpy and scipy: a `problem`, many starts (`solve`), rows with
`shared_errors`, and how well the result is known (`uncertainty`)."""
