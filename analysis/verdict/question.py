"""What a study asks, in code and before its runs: which arm is held against which.

`tst-study submit` writes a study's questions to `questions.json` beside its runs, each with the
commit that first held it; they travel with the archive of the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tst_study.atomic_files import write_json
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError, first_problem

if TYPE_CHECKING:
    import pandas as pd

FILE = "questions.json"


Value = int | float | str | bool


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arm(_Strict):
    """Runs that differ in their seeds alone."""

    name: str
    """In sentences: `power-law weights`."""
    setting: str
    """Label of the setting (`SuperpositionSetting.label`): `baseline`, `s = 4, r = 0.25`, …"""
    where: dict[str, Value | tuple[Value, ...]] = {}
    """Values of other columns of the run table; of several, any one."""

    def runs(self, table: pd.DataFrame) -> pd.DataFrame:
        """The arm's rows of a run table. Raises `UserError` for a column that it lacks."""
        from analysis.tables.columns import rows_of  # pandas, which planning a study does not need

        labels = [SuperpositionSetting.of_row(row).label for row in rows_of(table)]
        kept = table.loc[[label == self.setting for label in labels]]
        for column, value in self.where.items():
            if column not in kept:
                raise UserError(f"arm {self.name!r}: the run table has no column {column!r}")
            kept = kept[kept[column].isin(value if isinstance(value, tuple) else (value,))]
        return kept


class Question(_Strict):
    """Is `arm` better than `against`, by final held-out next-token loss?"""

    name: str
    """Unique in its family."""
    arm: Arm
    against: Arm
    family: str
    """Questions whose intervals hold together; a family of one allows for nothing else."""
    primary: bool = False
    """The one that the study was made for."""
    method: Literal["simultaneous", "paired"] = "simultaneous"
    """How intervals are made: `analysis.verdict.intervals`, or a t-test over seeds alone."""
    predicted: tuple[float, float] | None = None
    """The gain, in nats, that was expected: an interval."""
    registered: Annotated[str | None, Field(pattern="^[0-9a-f]{40}$")] = None
    """The commit that first held the question, as it stands; None where that is not known."""


class Questions(_Strict):
    """`questions.json`."""

    schema_version: Literal[1] = 1
    questions: tuple[Question, ...]


def read_questions(folder: str | Path) -> tuple[Question, ...]:
    """Those of a folder of runs or an archive; none where it has no `questions.json`.

    Raises `UserError` for a damaged one.
    """
    path = Path(folder) / FILE
    try:
        return Questions.model_validate_json(path.read_bytes()).questions
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}; restore it from the archive") from None


def questions_of(roots: Iterable[Path]) -> tuple[Question, ...]:
    """Those of folders, and of the archives and studies in them, each once."""
    files = (path for root in roots for path in (root / FILE, *sorted(root.glob(f"*/{FILE}"))))
    found = (one for path in files for one in read_questions(path.parent))
    return tuple({one.model_dump_json(): one for one in found}.values())


def add_questions(folder: Path, questions: Sequence[Question]) -> None:
    """Write questions beside those that a folder holds; the same question stands there once."""
    there = {_unstamped(question): question for question in (*read_questions(folder), *questions)}
    _write(folder, list(there.values()))


def register(folder: Path, questions: Sequence[Question], code: Mapping[str, Any]) -> None:
    """Write the questions that a folder of runs is to answer; one that stands there already, word
    for word, keeps its commit.

    code: `launch_facts.code_version()`. A checkout with uncommitted changes stamps nothing.
    """
    commit = None if code["dirty"] else code["commit"]
    there = {_unstamped(question): question for question in read_questions(folder)}
    stamped = [
        there.get(_unstamped(question))
        or question.model_copy(update={"registered": question.registered or commit})
        for question in questions
    ]
    _write(folder, stamped)


def _write(folder: Path, questions: Sequence[Question]) -> None:
    if questions:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, Questions(questions=tuple(questions)).model_dump(mode="json"))


def _unstamped(question: Question) -> str:
    return question.model_dump_json(exclude={"registered"})
