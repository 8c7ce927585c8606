"""How many logits are in memory at once where head and loss are one pass (`linear_loss.py`)."""

CHUNK_ELEMENTS_CPU = 2**19
"""Two megabytes of float32, which stay in a processor's caches."""
CHUNK_ELEMENTS_GPU = 2**26
"""Enough rows to fill a GPU."""
