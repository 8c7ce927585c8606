"""A study is code: a pure function from the results so far to the runs that can be decided now."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tst_study.analysis.verdict.question import Question
from tst_study.config.schema import Config
from tst_study.experiments.corpora import Recipe


class Results(Protocol):
    """The results that a study may ask for."""

    def held_out(self, config: Config) -> float | None:
        """Final next-token loss on held-out text, in nats; infinite where the run diverged,
        None as long as it is not known."""

    def dead_end(self, why: str) -> None:
        """Take note of a choice that nothing can follow, because all its candidates diverged. `why`
        says which choice."""


@dataclass(frozen=True)
class Study:
    """Everything a launcher needs to know.

    `runs` lists, most urgent first, all runs that the results so far decide. The local launcher
    asks again whenever a run is over, until nothing new comes; Slurm's asks once per submission. So
    a learning rate that the baseline chooses is an ordinary function of the baseline's results.
    """

    name: str
    scale: str
    title: str
    claims: str
    """One sentence: what this scale can show, and what it cannot."""
    corpora: Mapping[Path, Recipe]
    """Recipes by the folder in which the runs read the corpus."""
    runs: Callable[[Results], list[Config]]
    folder: Path = Path("runs")
    """The parent of the run folders."""
    share: bool = True
    """Train the steps that several runs have in common only once."""
    recorded: Path | None = None
    """An archive; runs that it holds are not trained again."""
    questions: Sequence[Question] = ()
    """The questions that the runs are to answer, declared before them."""

    def prepare(self) -> None:
        """Make the corpora that are not complete. Raises `UserError` for one from the Hugging Face
        hub, which must be prepared beforehand."""
        for folder, recipe in self.corpora.items():
            recipe.prepare(folder)
