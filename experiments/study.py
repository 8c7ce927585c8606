"""A study: in essence a pure function that takes the results so far and returns a list of runs."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from tst_study.analysis.verdict.question import Question
from tst_study.atomic_files import read_json, write_json, written_atomically
from tst_study.config.architecture import HUGGING_FACE
from tst_study.config.schema import Config
from tst_study.errors import UserError
from tst_study.experiments.corpora import Recipe

BUNDLED = Path(__file__).parent / "studies"
"""The folder of the bundled studies."""


class Results(Protocol):
    """The results that a study may ask for."""

    def held_out(self, config: Config) -> float | None:
        """Final next-token loss of a run on held-out text, in nats per token; infinite if the run
        diverged, None while it is not known."""

    def dead_end(self, why: str) -> None:
        """Take note that a choice among set-ups cannot be made, because all candidates diverged.
        `why` says which choice that is."""

    def remark(self, what: str) -> None:
        """Take note of something that a person should know about a choice that was made."""


@dataclass(frozen=True)
class Study:
    """Everything that a launcher needs to know about a study.

    `runs` lists all runs that can be planned with the results so far, most urgent first. The local
    launcher calls it again whenever a run is over, until it lists nothing new; the Slurm launcher
    calls it only when runs are submitted. So a study that tunes a learning rate simply computes it
    from the results of the runs that it asked for before."""

    name: str
    scale: str
    title: str
    claims: str
    """One or two sentences: what the study can show, and what it cannot show at this scale."""
    corpora: Mapping[Path, Recipe]
    """A recipe for each corpus that can be made; its key is the folder in which runs look for the
    corpus."""
    runs: Callable[[Results], list[Config]]
    folder: Path = Path("runs")
    """The parent of the run folders."""
    share: bool = True
    """Whether steps that several runs have in common are trained only once."""
    recorded: tuple[Path, ...] = ()
    """Archives of runs. A run that one of them records as over is not trained again."""
    questions: Sequence[Question] = ()
    """The questions that the runs are to answer. They are declared before any run."""
    asks: str = ""
    """What a user's study asks, in its own words."""
    sources: tuple[str, ...] = ()
    """The words that name the study on the command line: its name, or its files."""
    home: Path = Path()
    """The folder from which relative paths in the study's files start."""
    files: tuple[Path, ...] = ()
    """The files of the study: its own, its base, the Python that it imports and the modules of its
    own losses; empty for a bundled study in Python. They are registered with the questions, and
    copied to where Slurm's jobs run."""
    resources_of: Callable[[Config], Mapping[str, Any]] = lambda config: {}
    """Returns what the study asks of a cluster for a run, such as `{"gpus_per_node": 8}`; it counts
    before everything in the launcher's profile."""

    def placed(self, config: Config) -> Config:
        """Return a config whose relative paths start from `home`, if that is not where the command
        is run."""
        home = self.home.absolute()
        if home == Path.cwd():
            return config
        data, weights = config.data, config.weights_folder
        corpora = (one.model_copy(update={"path": str(home / one.path)}) for one in data.corpora)
        held_out = None if data.validation is None else str(home / data.validation)
        data = data.model_copy(update={"corpora": tuple(corpora), "validation": held_out})
        fork = None if weights is None else f"{HUGGING_FACE}{home / weights}"
        return config.model_copy(update={"data": data, "fork_from": fork})

    def check_folder(self) -> None:
        """Raise `UserError` if the study's folder holds the runs of another file. A bundled study
        has the same file in every installation of this package."""
        there = read_json(self.folder / "study" / "study.json", TypeAdapter(dict[str, str]))
        own = str(self.files[0].absolute()) if self.files else ""
        other = (there or {}).get("file", own)
        if Path(own).parent == BUNDLED and Path(other).parts[-3:] == Path(own).parts[-3:]:
            return
        if Path(other).exists() and not (own and Path(other).samefile(own)):
            raise UserError(f"{self.folder}: holds the runs of {other}; name another --runs")

    def keep_files(self) -> None:
        """Copy the study's files into `study/` in its folder, for whoever reads its runs later.
        Raises `UserError` as `check_folder` does."""
        if not self.files:
            return
        self.check_folder()
        kept, own = self.folder / "study", str(self.files[0].absolute())
        for place, path in below_one_folder(self.files).items():
            place = kept / place
            place.parent.mkdir(parents=True, exist_ok=True)
            with written_atomically(place) as file:
                file.write(path.read_bytes())
        write_json(kept / "study.json", {"file": own})


def below_one_folder(files: Sequence[Path]) -> dict[Path, Path]:
    """Return files by their paths below the nearest folder that holds them all."""
    places = [Path(os.path.abspath(path)) for path in files]  # without `..`
    above = os.path.commonpath([place.parent for place in places]) if places else ""
    return {place.relative_to(above): path for place, path in zip(places, files, strict=True)}
