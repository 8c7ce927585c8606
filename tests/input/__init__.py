"""Clumsy and hostile input, at every boundary: one line that names what is wrong, and no more."""
