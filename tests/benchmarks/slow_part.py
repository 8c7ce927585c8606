"""A part of `benchmarks/gpu.py` that needs no torch and does not end by itself."""

import time
from collections.abc import Iterator
from typing import Any


def slow(request: Any) -> Iterator[tuple[str, Any]]:
    """Yield a result, then wait."""
    yield "begun", True
    time.sleep(3600)
