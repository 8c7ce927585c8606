"""Figures that the paper does not have, made from its numbers and, for one of them, from runs
too."""
