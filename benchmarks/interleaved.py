"""Time several candidates side by side, so that a busy machine slows all of them alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def interleaved_seconds(
    candidates: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    warm_up: int = 3,
    seconds: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call of each candidate: each once per repeat, in a new order every time.

    A candidate that works on a GPU waits for it itself.
    Stops early, at the end of a repeat, once `seconds` have passed; one repeat is always made.
    `clock`: `time.process_time` counts processor time, which other processes on the machine
    hardly touch; it says nothing of several threads or of a GPU.
    """
    began = time.perf_counter()
    order = random.Random(0)
    for call in candidates.values():
        for _ in range(warm_up):
            call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name in order.sample(list(candidates), len(candidates)):
            start = clock()
            candidates[name]()
            times[name].append(clock() - start)
        if time.perf_counter() - began > seconds:
            break
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def median_ratio(times: Mapping[str, list[float]], candidate: str, reference: str) -> float:
    """Median over the repeats of candidate over reference within one repeat.

    Within a repeat both met the same load, so this moves less than a ratio of medians.
    """
    pairs = zip(times[candidate], times[reference], strict=True)
    return statistics.median(mine / other for mine, other in pairs)
