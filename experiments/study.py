"""A study is code: a pure function from the results so far to the runs that can be decided now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Protocol

from experiments.corpora import Recipe
from tst_study.config import Config
from tst_study.errors import UserError


class Results(Protocol):
    """What a study may ask of the runs that are done."""

    def held_out(self, config: Config) -> float | None:
        """Final next-token loss on held-out text, in nats; infinite where the run diverged,
        None as long as it is not known."""


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
    published_gpu_hours: Mapping[str, float] = field(default_factory=dict)
    """What a paper says that its runs took, by role."""

    @property
    def folder(self) -> Path:
        """Where its run folders lie, unless the user names another place."""
        return Path("runs") / f"{self.name}-{self.scale}"


STUDIES = {
    "laptop": "laptop",
    "bag-grid": "bag_grid",
    "power-law": "power_law",
    "headline": "headline",
    "equal-cost": "equal_cost",
    "input-output": "input_output",
    "weightings": "weightings",
    "reinitialise": "reinitialise",
    "optimizer-at-switch": "optimizer_at_switch",
    "learning-rates": "learning_rates",
    "loss-against-compute": "loss_against_compute",
    "data-constrained": "data_constrained",
    "seed-noise": "seed_noise",
    "mixture-10b-a1b": "mixture_10b_a1b",
}
"""Module of each study in `experiments.studies`. It has `parts(scale)`, with a title and claims; or
`SCALES` and `study(scale)`, where results decide which runs there are."""


def load(name: str, scale: str) -> Study:
    """The study of that name at that scale. Raises `UserError` for names that do not exist."""
    module = import_module(f"experiments.studies.{STUDIES[known(name, STUDIES, 'study')]}")
    kind = f"scale of study {name!r}"
    if hasattr(module, "study"):
        chosen: Study = module.study(known(scale, module.SCALES, kind))
        return chosen
    from experiments.studies.scales import SCALES, scale_of

    parts = module.parts(scale_of(known(scale, SCALES, kind)))
    runs = [config for part in parts for config in part.runs(name)]
    corpora = {recipe.folder: recipe for part in parts for recipe in part.corpora()}
    return Study(
        name=name,
        scale=scale,
        title=f"{module.TITLE} ({scale})",
        claims=module.CLAIMS,
        corpora=tuple(corpora.values()),
        runs=lambda results: runs,
        published_gpu_hours=getattr(module, "PUBLISHED_GPU_HOURS", {}) if scale == "paper" else {},
    )


def known(name: str, names: Sequence[str] | dict[str, str], kind: str) -> str:
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
