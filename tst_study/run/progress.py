"""The live line of one run: phase, step, loss, tokens per second, time left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich import progress


class Progress(progress.Progress):
    """A rich progress line where a terminal is."""

    def __init__(self, name: str, steps: int, *, enabled: bool) -> None:
        super().__init__(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[facts]}"),
            progress.TimeRemainingColumn(),
            disable=not enabled,
        )
        self._steps = steps
        self._line = self.add_task(name, total=steps, facts="")
        self._first: tuple[int, float] | None = None

    def evaluating(self, tokens: int, of: int) -> str:
        """Draw how far an evaluation is; returns the same in words."""
        facts = f"evaluating {tokens:,} of {of:,} held-out tokens"
        self.update(self._line, facts=facts)
        return facts

    def show(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Draw where a run is, by a row of `Metrics`; returns the same for its `status.json`."""
        step, now = row["step"], time.perf_counter()
        first, began = self._first = self._first or (step, now)
        seconds_per_step = (now - began) / (step - first) if step > first else None
        facts = f"{row['phase']}  {row['loss_name']} {row['loss']:.4f}  "
        facts += f"{row['tokens_per_second']:,.0f} tokens/s"
        self.update(self._line, completed=step, facts=facts)
        return {
            **{key: row[key] for key in ("step", "phase", "loss", "tokens_per_second")},
            "seconds_left": seconds_per_step and seconds_per_step * (self._steps - step),
        }
