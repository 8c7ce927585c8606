"""The questions of a study: pairs of arms to compare, declared in code before any run.

`tst-study submit` writes a study's questions to `questions.json` beside its runs. Each names a
commit that holds it, if one is known (`Question.registered`). When runs are kept in an archive,
their questions are copied there, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tst_study.atomic_files import write_json
from tst_study.errors import UserError, first_problem

if TYPE_CHECKING:
    import pandas as pd

FILE = "questions.json"
"""Name of the file that holds the questions, in a folder of runs or an archive."""


Value = int | float | str | bool
"""A value that the runs of an arm have in a column of the run table."""
Method = Literal["paired", "simultaneous", "moderated-1"]
"""The name, as a study registers it, of the method by which intervals are made.

`paired` is a t-test over the seeds of each pair of arms, and `moderated-1` is described in
`analysis.verdict.intervals`. Questions that name `simultaneous` are judged by `moderated-1`,
because a single run could blow up the intervals of `simultaneous` (`docs/analysis.md`). No other
name changes its meaning; a better method gets a new name."""
DEFAULT_METHOD: Method = "moderated-1"
"""The method of questions that name none, and of everything that was not planned."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arm(_Strict):
    """Runs that differ in their seeds alone."""

    name: str
    """The name in sentences, such as `power-law weights`."""
    setting: str | tuple[str, ...]
    """Label of the setting (`SuperpositionSetting.label`): `baseline`, `s = 4, r = 0.25`, …. If
    several are given, a run may have any of them. This is for studies in which a pilot sweep
    chooses the setting that is trained."""
    where: dict[str, Value | tuple[Value, ...]] = {}
    """The values of the arm's runs in other columns of the run table. If several are given for a
    column, a run may have any of them. A single text may be a pattern (`primary-*`); one of several
    may not."""

    def runs(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the arm's rows of a run table that has a column `setting` (each run's label).

        Raises `UserError` for a column that the table lacks.
        """
        kept = table["setting"].isin(_several(self.setting))
        for column, value in self.where.items():
            if column not in table:
                raise UserError(f"arm {self.name!r}: the run table has no column {column!r}")
            if isinstance(value, str):
                cells = table[column].astype(str)
                kept &= cells.isin([cell for cell in cells.unique() if fnmatchcase(cell, value)])
            else:
                kept &= table[column].isin(_several(value))
        return table[kept]


def _several(value: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


class Question(_Strict):
    """The question whether `arm` has a lower final held-out next-token loss than `against`."""

    name: str
    """The name, which is unique in its family."""
    arm: Arm
    against: Arm
    """The comparison arm."""
    family: str
    """Name of the family. The intervals of a family are widened so that all of them hold together
    with a probability of 95%; the interval of a single question is not widened."""
    primary: bool = False
    """Whether the study was made for this question."""
    method: Method = DEFAULT_METHOD
    """How intervals are made (`Method`)."""
    predicted: tuple[float, float] | None = None
    """The interval in which the gain, in nats, was expected."""
    registered: Annotated[str | None, Field(pattern="^[0-9a-f]{40}$")] = None
    """A commit that holds the question: the one that the study names, or else the one from which it
    was first submitted. None if there were uncommitted changes or the commit is not known."""
    within: str = Field(default="", exclude=True, repr=False)
    """Path prefix of the run folders that the question covers; set on reading."""

    def runs(self, table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the runs of `arm` and of `against` among those that the question covers, as
        `Arm.runs` does."""
        if self.within:
            table = table[table["folder"].str.startswith(self.within)]
        return self.arm.runs(table), self.against.runs(table)


class Questions(_Strict):
    """The content of `questions.json`."""

    schema_version: Literal[1] = 1
    questions: tuple[Question, ...]


def read_questions(folder: str | Path) -> tuple[Question, ...]:
    """Read the questions of a folder of runs or an archive; none if it has no `questions.json`.

    Raises `UserError` if that file is damaged.
    """
    path = Path(folder) / FILE
    try:
        return Questions.model_validate_json(path.read_bytes()).questions
    except FileNotFoundError:
        return ()
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}; restore it from a backup") from None


def questions_of(roots: Iterable[Path]) -> tuple[Question, ...]:
    """Read the questions of folders, and of the archives and studies below them.

    Each question is about the runs below the folder of its file. If several folders have questions,
    the name of a family begins with that of its folder, or with the whole path if two folders have
    one name.
    """
    files = ((root, path) for root in roots for path in sorted(root.rglob(FILE)))
    # An archive that is being written has folders whose names begin with a dot.
    by_folder = {
        path.parent: read_questions(path.parent)
        for root, path in files
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    }
    names = Counter(folder.name for folder in by_folder)
    return tuple(
        question.model_copy(
            update={
                "within": "" if folder == Path() else f"{folder}/",
                "family": f"{folder.name if names[folder.name] == 1 else folder}: {question.family}"
                if len(by_folder) > 1
                else question.family,
            }
        )
        for folder, questions in by_folder.items()
        for question in questions
    )


def add_questions(folder: Path, questions: Sequence[Question]) -> None:
    """Add questions to those of a folder, without duplicates: a question that differs in nothing
    but its `registered` replaces the old one. Raises `UserError` if two questions that differ
    otherwise have one name in one family."""
    merged: dict[tuple[str, str], Question] = {}
    for question in (*read_questions(folder), *questions):
        old = merged.setdefault((question.family, question.name), question)
        if _unstamped(old) != _unstamped(question):
            raise UserError(
                f"question {question.name!r} of family {question.family!r}: the archive holds "
                "another version of it; keep these runs in an archive of their own"
            )
        merged[question.family, question.name] = question
    _write(folder, list(merged.values()))


def register(folder: Path, questions: Sequence[Question], code: Mapping[str, Any]) -> None:
    """Replace the questions of a folder of runs by these; an unchanged one keeps the commit that it
    was registered with. Without questions the folder stays as it is.

    code: the result of `launch_facts.code_version()`. A new question keeps the commit that it
    names. One that names none gets the commit of the code, or none if there are uncommitted
    changes. Raises `UserError` if the folder has questions, but none of the names of these."""
    commit = None if code["dirty"] else code["commit"]
    there = read_questions(folder)
    names = {question.name for question in questions}
    if there and names and names.isdisjoint(one.name for one in there):
        raise UserError(f"{folder}: holds the questions of another study; name another --runs")
    existing = {_unstamped(question): question for question in there}
    stamped = [
        existing.get(_unstamped(question))
        or question.model_copy(update={"registered": question.registered or commit})
        for question in questions
    ]
    _write(folder, stamped)


def _write(folder: Path, questions: Sequence[Question]) -> None:
    if questions:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, Questions(questions=tuple(questions)).model_dump(mode="json"))


def _unstamped(question: Question) -> str:
    """Return everything that a question says, without its commit."""
    return question.model_dump_json(exclude={"registered"})
