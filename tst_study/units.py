"""Times and sizes as people read them, the same on the screen, in tables and in reports."""

from __future__ import annotations

import math


def duration(seconds: float | None) -> str:
    """`42 s`, `12.3 min`, `7.5 h`; a dash for what is not known."""
    if seconds is None or math.isnan(seconds):
        return "–"
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


def memory_size(size: float) -> str:
    """`79.6 GB`, `34 MB`: of 10^9 and 10^6 bytes, as memory of GPUs is sold."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
