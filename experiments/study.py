"""A study is code: a pure function from the results so far to the runs that can be decided now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Protocol

from tst_study.config import Config
from tst_study.errors import UserError


class Results(Protocol):
    """What a study may ask of the runs that are done."""

    def held_out(self, config: Config) -> float | None:
        """Final next-token loss on held-out text, in nats; infinite where the run diverged,
        None as long as it is not known."""


class Recipe(Protocol):
    """A corpus that a study reads, and how to make it."""

    @property
    def folder(self) -> Path: ...

    def prepare(self) -> None:
        """Make the folder, or go on making it; returns at once where it is whole."""


@dataclass(frozen=True)
class Study:
    """Everything a launcher needs to know.

    `runs` lists, most urgent first, all runs that the results so far decide; the launcher asks
    again whenever a run is done, until nothing new comes. So a learning rate that the baseline
    chooses is an ordinary function of the baseline's results.
    """

    name: str
    scale: str
    title: str
    claims: str
    """One sentence: what this scale can show, and what it cannot."""
    corpora: Sequence[Recipe]
    runs: Callable[[Results], list[Config]]

    @property
    def folder(self) -> Path:
        """Where its run folders lie, unless the user names another place."""
        return Path("runs") / f"{self.name}-{self.scale}"


STUDIES = {"laptop": "experiments.laptop"}
"""Module of each study: it has `SCALES` (names) and `study(scale)`."""


def load(name: str, scale: str) -> Study:
    """The study of that name at that scale. Raises `UserError` for names that do not exist."""
    module = import_module(STUDIES[_known(name, STUDIES, "study")])
    study: Study = module.study(_known(scale, module.SCALES, f"scale of study {name!r}"))
    return study


def _known(name: str, names: Sequence[str] | dict[str, str], kind: str) -> str:
    if name in names:
        return name
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
    raise UserError(f"{kind} {name!r} is not known; {hint}")


def best_learning_rate(sweep: dict[float, Config], results: Results) -> float | None:
    """The rate whose run has the lowest held-out loss; None until all runs of the sweep are done.

    Ties go to the lower rate. Raises `UserError` where every run of the sweep diverged.
    """
    losses = {rate: results.held_out(config) for rate, config in sweep.items()}
    known = {rate: loss for rate, loss in losses.items() if loss is not None}
    if len(known) < len(sweep):
        return None
    best = min(sorted(known), key=known.__getitem__)
    if known[best] == float("inf"):
        raise UserError(
            f"learning rates {sorted(sweep)}: every baseline diverged; sweep lower ones"
        )
    return best
