"""The questions of a study: pairs of arms to compare, declared in the study's file.

`tst-study submit` writes a study's questions to `questions.json` beside its runs, each with its
registration: when it was first submitted, from which files and which commit. Nothing else registers
a question. Whether it was asked before its runs began follows from that (`registration`). When
runs are kept in an archive, their questions are copied there, too.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from tst_study.atomic_files import write_json
from tst_study.config.schema import of_record
from tst_study.errors import UserError, first_problem
from tst_study.record.launch_facts import code_version, commit_of
from tst_study.record.reader import find_run_folders, is_over, read_header

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

FILE = "questions.json"
"""Name of the file that holds the questions, in a folder of runs or an archive."""


Value = int | float | str | bool
"""A value that the runs of an arm have in a column of the run table, or for a key of the config."""
Method = Literal["paired", "simultaneous", "moderated-1"]
"""The name, as a study registers it, of the method by which intervals are made.

`paired` is a t-test over the seeds of each pair of arms, and `moderated-1` is described in
`analysis.verdict.intervals`. Questions that name `simultaneous` are judged by `moderated-1`,
because a single run could blow up the intervals of `simultaneous` (`docs/analysis.md`). No other
name changes its meaning; a better method gets a new name."""
DEFAULT_METHOD: Method = "moderated-1"
"""The method of questions that name none, and of everything that was not planned."""


OVER = ("done", "diverged", "failed")
"""States of runs for which nobody waits any more."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arm(_Strict):
    """Runs that differ in their seeds alone."""

    name: str
    """The name in sentences, such as `power-law weights`."""
    setting: str | tuple[str, ...] | None = None
    """Label of the setting (`SuperpositionSetting.label`): `baseline`, `s = 4, r = 0.25`, …; None
    for any setting. If several are given, a run may have any of them. This is for studies in which
    a pilot sweep chooses the setting that is trained."""
    where: dict[str, Value | tuple[Value, ...]] = {}
    """The values of the arm's runs in columns of the run table and, under names with a dot, for
    keys of the config as declared: `superposition.step_ratio`. If several are given, a run may have
    any of them. In a column, a single text may be a pattern (`primary-*`); one of several may not.
    A list, a table or null in the config is given as JSON text. Runs without a config, which
    imported runs are, have no such keys."""

    def runs(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the arm's rows of a run table that has a column `setting` (each run's label).

        Raises `UserError` for a column that the table lacks.
        """
        return table[self.among(table, np.ones(len(table), bool))]

    def among(self, table: pd.DataFrame, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the chosen rows are the arm's, as `runs` does. Each column is looked at
        alone: to select rows of a whole run table takes as long as all else."""
        if self.setting is not None:
            chosen = chosen & table["setting"].isin(_several(self.setting)).to_numpy()
        for name, value in self.where.items():
            values = _several(value)
            if "." in name:
                if name == "data.corpora":
                    values = tuple(json.dumps(_by_name(json.loads(str(one)))) for one in values)
                declared = [_declared(config, name) for config in table["config"].array[chosen]]
                chosen = chosen.copy()
                chosen[chosen] = [any(_same(cell, one) for one in values) for cell in declared]
                continue
            if name not in table:
                raise UserError(f"arm {self.name!r}: the run table has no column {name!r}")
            cells = table[name]
            if isinstance(value, str):
                cells = cells.astype(str)
                values = tuple(cell for cell in cells.unique() if fnmatchcase(cell, value))
            chosen = chosen & cells.isin(values).to_numpy()
        return chosen


def _several(value: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


_ABSENT = object()
REMOVED = {"superposition.pooling": "mean"}
"""Keys that a config no longer has, which registered questions name, and the value that is in
effect without them."""


NULL = "null"
"""The text by which questions name null. Older questions do not name every key that is null."""


def _declared(config: Any, key: str) -> Any:
    """Return the value of a dotted key in a config (JSON text); `_ABSENT` without config or key."""
    if key in REMOVED and isinstance(config, str):
        section, name = key.split(".")
        return json.loads(config).get(section, {}).get(name, REMOVED[key])
    value: Any = declared(config) if isinstance(config, str) else {}
    for name in key.split("."):
        if value is None:
            break  # keys of a section that is null
        value = value.get(name, _ABSENT) if isinstance(value, dict) else _ABSENT
    return _by_name(value) if key == "data.corpora" and value is not _ABSENT else value


def _by_name(texts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return texts by the names of their folders, which lie elsewhere on every machine."""
    return [{**text, "path": Path(text["path"]).name} for text in texts]


@functools.lru_cache(4096)
def declared(text: str) -> dict[str, Any]:
    """Return a run's config, which is JSON text, with today's keys."""
    return of_record(json.loads(text))


def _same(cell: Any, value: Value) -> bool:
    """Return whether a value of a config is the one that an arm names. True is no 1."""
    if isinstance(value, str) and not isinstance(cell, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return isinstance(cell, bool) is isinstance(value, bool) and bool(cell == value)


MOST_SEEDS = 12
"""The most pairs of runs of one size that a pilot may have."""


class StopRule(_Strict):
    """The rule by which a pilot goes on or stops, registered before its runs with its question's
    `smallest_gain`. No gain of such a pilot is read before all its runs are over."""

    deviation: Annotated[float, Field(gt=0)]
    """Standard deviation of a pair's difference, in nats, for which the seeds were planned."""
    step_time: Annotated[float, Field(gt=0)]
    """The most time that a superposed step may take, as a multiple of the baseline's."""

    @staticmethod
    def looks(pairs: int) -> int:
        """Return how often the rule may look at a pilot that was planned with so many pairs: at
        these, and if they do not decide, at `MOST_SEEDS`."""
        return 1 if pairs >= MOST_SEEDS else 2


class Registration(_Strict):
    """When and from what a question was first submitted. Its commit is `Question.registered`."""

    time: AwareDatetime
    files: str | None = None
    """sha256 of the content of the study's files; None for a study of this package."""
    seeds: tuple[int, ...] | None = None
    """The seeds that the question named before any run had ended, if it names more today. None if
    it names no more, or no seeds at all."""


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
    matched: Literal["flops", "data", "loss"] = "flops"
    """In what the arms are equal. With `loss`, `against` covers baselines of all lengths, and the
    answer is an interval of the number of baseline steps that the arm's loss is worth, without a
    verdict."""
    smallest_gain: Annotated[float | None, Field(gt=0)] = None
    """The smallest gain, in nats, that is worth having. A gain that is shown to lie below it is
    answered `no worthwhile gain`."""
    rule: StopRule | None = None
    """The stop rule, if the question is that of a pilot."""
    registered: Annotated[str | None, Field(pattern="^[0-9a-f]{40}$")] = None
    """A commit that holds the question: the one that the study names, or else the one from which it
    was first submitted. None if there were uncommitted changes or the commit is not known."""
    registration: Registration | None = None
    """None if the question was not submitted, or by a version that kept no time."""
    within: str = Field(default="", exclude=True, repr=False)
    """Path prefix of the run folders that the question covers; set on reading."""
    study: str = Field(default="", exclude=True, repr=False)
    """Name of the folder of its file, if several have questions; set on reading."""

    def runs(
        self, table: pd.DataFrame, columns: Sequence[str] | None = None
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the runs of `arm` and of `against` among those that the question covers, as
        `Arm.runs` does. Runs of a pilot sweep are never among them.

        `columns`: those to return, by default all, which takes far longer."""
        covered = (table["role"] != "pilot").to_numpy()
        if self.within:
            covered = covered & table["folder"].str.startswith(self.within).to_numpy()
        own, against = (arm.among(table, covered) for arm in (self.arm, self.against))
        shown = table if columns is None else table[list(columns)]
        return shown[own], shown[against]

    def unfinished(self, table: pd.DataFrame) -> list[str]:
        """Return the names of the question's runs that are not over, and `arm, seed n` for those of
        its seeds that have no run. A run that was taken out counts as over."""
        names: list[str] = []
        for arm, runs in zip((self.arm, self.against), self.runs(table), strict=True):
            open_ = ~runs["state"].isin(OVER) & (runs["exclusion"] == "")
            names += runs["run_id"][open_].tolist()
            missing = {*_several(arm.where.get("seed", ()))} - {*runs["seed"]}
            names += (f"{arm.name}, seed {seed}" for seed in sorted(missing))
        return names


class Questions(_Strict):
    """The content of `questions.json`."""

    schema_version: Literal[1] = 1
    asks: str = ""
    """What the study asks, in its own words; a report begins with it."""
    questions: tuple[Question, ...] = ()


def read_questions(folder: str | Path) -> tuple[Question, ...]:
    """Read the questions of a folder of runs or an archive; none if it has no `questions.json`.

    Raises `UserError` if that file is damaged.
    """
    return _read(Path(folder)).questions


def asks_of(roots: Iterable[Path]) -> list[str]:
    """Return what the studies at and below some folders ask, in their own words."""
    files = (path for root in roots for path in sorted(root.rglob(FILE)))
    return list(dict.fromkeys(asks for path in files if (asks := _read(path.parent).asks)))


def _read(folder: Path) -> Questions:
    path = folder / FILE
    try:
        return Questions.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Questions()
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}; restore it from a backup") from None


def questions_of(roots: Iterable[Path]) -> tuple[Question, ...]:
    """Read the questions of folders, and of the archives and studies below them.

    Each question is about the runs below the folder of its file. If several folders have questions,
    the name of a family begins with that of its folder, or with the whole path if two folders have
    one name. A question whose seeds grew after runs had ended is two: one of the seeds that were
    registered first, and one of all, which is not registered.
    """
    files = ((root, path) for root in roots for path in sorted(root.rglob(FILE)))
    # An archive that is being written has folders whose names begin with a dot.
    by_folder = {
        path.parent: read_questions(path.parent)
        for root, path in files
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    }
    names = Counter(folder.name for folder in by_folder)
    studies = {one: one.name if names[one.name] == 1 else str(one) for one in by_folder}
    if len(by_folder) == 1:
        studies = dict.fromkeys(by_folder, "")
    return tuple(
        question.model_copy(
            update={
                "within": "" if folder == Path() else f"{folder}/",
                "study": studies[folder],
                "family": ": ".join(filter(None, (studies[folder], question.family))),
            }
        )
        for folder, questions in by_folder.items()
        for question in (part for whole in questions for part in _by_registration(whole))
    )


def _by_registration(question: Question) -> list[Question]:
    first = question.registration.seeds if question.registration else None
    if first is None:
        return [question]
    arms = {
        side: arm.model_copy(update={"where": {**arm.where, "seed": first}})
        for side, arm in (("arm", question.arm), ("against", question.against))
    }
    family = f"{question.family}, with the seeds that were added later"
    every: dict[str, Any] = {"family": family, "primary": False}
    every |= {"registered": None, "registration": None}
    return [question.model_copy(update=arms), question.model_copy(update=every)]


def add_questions(folder: Path, questions: Sequence[Question], asks: str = "") -> None:
    """Add questions to those of a folder, without duplicates: a question that differs in nothing
    but its name, its registration and its number of seeds replaces the old one. Raises `UserError`
    if two questions that differ otherwise have one name in one family."""
    old = _read(folder)
    kept: list[Question] = []
    for question in (*old.questions, *questions):
        place = len(kept)
        for index, one in enumerate(kept):
            if _asked(one) == _asked(question) and _seeds(one) <= _seeds(question):
                place = index
            elif (one.family, one.name) == (question.family, question.name):
                raise UserError(
                    f"question {question.name!r} of family {question.family!r}: the archive holds "
                    "another version of it; keep these runs in an archive of their own"
                )
        kept[place : place + 1] = [question]
    _write(folder, kept, asks or old.asks)


def register(
    folder: Path,
    questions: Sequence[Question],
    files: Sequence[Path] = (),
    asks: str = "",
    archives: Sequence[Path] = (),
) -> None:
    """Replace the questions of a folder of runs by these, each with its registration. Without
    questions the folder stays as it is.

    A question that the folder already holds keeps its registration; only `name` may differ. So does
    one that now names further seeds, but if a measured run has ended, the seeds that were named
    before are kept in `Registration.seeds`. Every other change makes a new registration.

    archives: where a question that a new folder does not hold may have been registered before.
    files: the study's file, its base, the Python that it imports and the modules of losses of its
    own; none for a study of this package. asks: what the study asks, in words. A question that
    names no commit gets that of the files' repository, if all of them are tracked and unmodified
    there; without files, that of this package's checkout, unless it has uncommitted changes.

    Raises `UserError` if the folder has questions, but none of the names of these.
    """
    there = read_questions(folder)
    known = there or [one for archive in archives for one in read_questions(archive)]
    earlier = [_earlier(question, known) for question in questions]
    names = {question.name for question in questions}
    if there and names.isdisjoint(one.name for one in there) and names and not any(earlier):
        raise UserError(f"{folder}: holds the questions of another study; name another --runs")
    content = sha256(b"".join(sha256(path.read_bytes()).digest() for path in files)).hexdigest()
    now = Registration(time=datetime.now(UTC), files=content if files else None)
    code = code_version()
    commit = commit_of(files) if files else None if code["dirty"] else code["commit"]
    ended = any(map(_has_ended, find_run_folders(folder))) if there else bool(known)
    stamped = []
    for question, old in zip(questions, earlier, strict=True):
        stamp = {"registered": question.registered or commit, "registration": now}
        if old is not None:
            kept = old.registration
            if kept and ended and kept.seeds is None and _seeds(question) > _seeds(old):
                kept = kept.model_copy(update={"seeds": tuple(sorted(_seeds(old)))})
            stamp = {"registered": old.registered, "registration": kept}
        stamped.append(question.model_copy(update=stamp))
    _write(folder, stamped, asks)


def _earlier(question: Question, there: Sequence[Question]) -> Question | None:
    """Return the registered question that a question continues: one that asks the same, of the same
    seeds or, if the time of its registration is known, of some of them."""
    own = _seeds(question)
    same = [
        one
        for one in there
        if _asked(one) == _asked(question)
        and (_seeds(one) == own or (one.registration and set() < _seeds(one) < own))
    ]
    return max(same, key=lambda one: (_seeds(one) == own, one.name == question.name), default=None)


def _has_ended(run: Path) -> bool:
    """Return whether a run is measured and has ended; True if its record is damaged."""
    with suppress(UserError):
        return is_over(run) and read_header(run)["role"] not in ("trunk", "pilot")
    return True


def _write(folder: Path, questions: Sequence[Question], asks: str) -> None:
    if questions or asks:
        folder.mkdir(parents=True, exist_ok=True)
        content = Questions(questions=tuple(questions), asks=asks)
        write_json(folder / FILE, content.model_dump(mode="json"))


def _asked(question: Question) -> str:
    """Return what a question asks, as text: all that it says but its name, its seeds and its
    registration."""
    arms = {
        side: {
            **arm.model_dump(),
            "where": {
                key: value
                for key, value in arm.where.items()
                if key != "seed" and value not in (REMOVED.get(key), NULL)
            },
        }
        for side, arm in (("arm", question.arm), ("against", question.against))
    }
    rest = question.model_dump(exclude={"name", "arm", "against", "registered", "registration"})
    return json.dumps(rest | arms, sort_keys=True)


def _seeds(question: Question) -> frozenset[int]:
    """Return the seeds that a question names; none if it covers all."""
    sides = (question.arm.where.get("seed", ()), question.against.where.get("seed", ()))
    return frozenset(int(seed) for side in sides for seed in _several(side))
