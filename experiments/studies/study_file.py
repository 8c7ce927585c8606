"""Reads a study from a file of the user's: a grid in TOML (docs/your_own_study.md).

A grid is a set-up (`base`, and overrides of it in `[setups]`), arms, crossed keys and seeds; every
combination is a run. Where keys are tuned, a sweep of pilot runs chooses their values first.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from tst_study.analysis.tables.columns import RUN_COLUMNS
from tst_study.analysis.verdict.question import DEFAULT_METHOD, Arm, Method, Question, StopRule
from tst_study.config.identity import digest, identity_form
from tst_study.config.keys import dotted_keys, meant, problem_of, sections_of
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import (
    RIVALS,
    Config,
    FolderName,
    NotNegative,
    PathText,
    Positive,
    PositiveFloat,
    Seed,
    Strict,
    SuperposedPhase,
    read_toml,
    to_dict,
)
from tst_study.cost.compute import steps_at_equal_flops
from tst_study.errors import UserError, one_of
from tst_study.experiments.corpora import Recipe, Text, TextSource, by_folder
from tst_study.experiments.slurm.profile import Resources
from tst_study.experiments.studies.grid import ALL_DIVERGED, Tuning, mean_loss, one_or_all
from tst_study.experiments.studies.setting import LABELS, Setting
from tst_study.experiments.study import Results

MOST_RUNS = 20_000
RATE, STEPS = "optimizer.learning_rate", "schedule.steps"
ALWAYS_SELECTED = (
    *("superposition.bag_size", "superposition.step_ratio", "superposition.mode", STEPS, RATE),
    *("batch.sequences", "batch.sequence_length", "model.layers", "model.hidden_size"),
)
"""Keys of the config by which every question selects its runs, beside those that the grid varies
between set-ups, arms or crossed values."""
KEYS = tuple(
    key for key in (*dotted_keys(Config), "model.preset") if key.partition(".")[0] not in LABELS
)
"""Keys of the config that a grid may change. The others are labels, or have tables of their own."""
Table = dict[str, Any]
Schema = TypeVar("Schema", bound=BaseModel)


class Tune(Strict, extra="allow"):
    """Keys whose best value a sweep chooses before the measured runs, which are those that are not
    listed here, each with the values to try."""

    per: Literal["arm", "baseline"] = "arm"
    """Whether every arm has a sweep of its own, or takes over the baseline's best values."""
    steps: Positive | None = None
    """Steps of the sweep's runs; by default those of the shortest measured ones."""
    seeds: tuple[Seed, ...] = Field(min_length=1)
    extend: NotNegative = 2
    """How often a ladder of learning rates goes on beyond its edge, by √2, if that is the best."""


class Matched(Strict):
    """Longer and shorter baselines that comparisons at equal data and at equal loss need."""

    data: bool = False
    loss: tuple[PositiveFloat, ...] = ()
    """Lengths, as multiples of each arm's own."""


class SetUp(Strict, extra="allow"):
    """A named set-up; its other keys are overrides of the base."""

    arms: tuple[str, ...] | None = None
    seeds: tuple[Seed, ...] | None = None
    cross: Table = Field({})
    """Crossed keys of this set-up alone, beside those of `[cross]`."""
    best_of: tuple[str, ...] = ()
    """Set-ups to choose from. This set-up begins from the one whose baselines have the lowest mean
    loss, with its crossed values, and not from the base."""
    times: dict[str, PositiveFloat] = Field({})
    """Factors by which values of that set-up are multiplied."""
    pilot: bool = False
    """Whether its runs only help to choose, and are never results."""
    name: FolderName | None = None
    """The beginning of its runs' names; by default the name of its table."""
    tag: FolderName | None = None
    """The end of its runs' names, before the seed."""
    skip: bool = False


class Asked(Strict):
    """A question of the file, about one or more arms."""

    family: str
    name: str = ""
    arm: Table
    against: Table = Field({})
    called: tuple[str, str] | None = None
    """The names of the two arms; like `name`, made of the declared values by default."""
    matched: tuple[Literal["flops", "data", "loss"], ...] = ("flops",)
    where: Table = Field({})
    predicted: tuple[float, float] | None = None
    method: Method = DEFAULT_METHOD
    smallest_gain: PositiveFloat | None = None
    rule: StopRule | None = None
    registered: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None = None
    """The commit that first held the question, if it was asked before this file was written."""


class Grid(Strict):
    """The file itself."""

    study: FolderName
    asks: str = ""
    caveat: str = ""
    """A sentence of caution, which the report prints after what the study asks."""
    base: PathText
    seeds: tuple[Seed, ...] = Field((0,), min_length=1)
    order: Literal["seeds", "setups"] = "seeds"
    """Whether runs of one seed, or of one set-up, come before those of the next."""
    arms: dict[FolderName, Table]
    cross: Table = Field({})
    tune: Tune | None = None
    matched: Matched = Matched()
    setups: dict[FolderName, SetUp] = Field({})
    resources: Table = Field({})
    questions: tuple[Asked, ...] = ()
    existing: tuple[PathText, ...] = ()
    text: dict[FolderName, TextSource] = Field({})


@dataclass(frozen=True)
class Point:
    """One arm in one set-up at one combination of the crossed values, before tuning."""

    setup: str
    crossed: Table
    arm: str
    name: str
    """The arm's name in the names of its runs: its own, and the values that tell it from others."""
    declared: Mapping[str, Any]
    """Everything that the arm's table gives, by key, with one value of every list."""
    superposition: SuperposedPhase
    length: int
    """Steps of the set-up there, from which the arm's own may differ."""
    setting: Setting
    """The set-up there with the arm's own keys."""
    ladders: Mapping[str, list[Any]]
    """The values that are tried for each tuned key."""
    seeds: tuple[int, ...]

    @cached_property
    def config(self) -> Config:
        """A run with the first value of every ladder, from which everything can be read that does
        not depend on the tuned keys. Raises `UserError` for values that are wrong."""
        first = {key: ladder[0] for key, ladder in self.ladders.items()}
        return self.setting.changed("", first).config("any", self.superposition)

    def value(self, key: str) -> Any:
        """The value of a key that any set-up crosses."""
        return self.crossed.get(key, self.setting[key])

    def agrees(self, other: "Point", keys: Iterable[str]) -> bool:
        return all(self.value(key) == other.value(key) for key in keys)

    @property
    def cell(self) -> tuple[str, str]:
        """The set-up and crossed values, which a point shares with the other arms there."""
        return self.setup, repr(self.crossed)

    @property
    def text(self) -> float:
        """How many times the baseline's text the arm reads."""
        plan = plan_phases(self.config)
        return plan.raw_tokens(plan.steps) / plan.latent_tokens(plan.steps)

    @property
    def numbers(self) -> Table:
        """The declared s and r."""
        return {key: self.declared[key] for key in SYMBOLS if key in self.declared}


class StudyFile:
    """A grid file at one of its scales: its runs, its questions and what it reads."""

    def __init__(self, path: Path, scale: str = "") -> None:
        """Read the file. `scale`: one of `scales(path)`, or empty. Raises `UserError`, which names
        the file, the key and the remedy."""
        self.path = path
        self.grid = self._validated(Grid, scaled(path, scale))
        self.base = self._base()
        tuned = self.grid.tune.model_extra if self.grid.tune else {}
        self.tuned = self._lists("tune", tuned, Tune.model_fields)
        self.setups = {"base": SetUp.model_validate({}), **self.grid.setups}
        cross = self._lists("cross", self.grid.cross)
        self.crosses = {
            name: cross | self._lists(f"setups.{name}.cross", setup.cross)
            for name, setup in self.setups.items()
        }
        self.cross = [*dict.fromkeys(key for table in self.crosses.values() for key in table)]
        """The keys that any set-up crosses."""
        self.overrides = {
            name: self._keys(f"setups.{name}", setup.model_extra or {}, SetUp.model_fields)
            for name, setup in self.setups.items()
        }
        self.arms = {
            name: self._keys(f"arms.{name}", table, SuperposedPhase.model_fields)
            for name, table in self.grid.arms.items()
        }
        plain = [name for name, table in self.arms.items() if not table]
        if len(plain) != 1:
            raise self.fail(f"[arms] has {len(plain)} baselines; exactly one arm is {{}}")
        (self.baseline,) = plain
        self._setup_of: dict[str, str] = {}
        """The set-ups of the runs that were listed, by the runs' names."""
        self._baselines: dict[tuple[str, str], Point] = {}
        self.points: list[Point] = []
        for name, setup in self.setups.items():
            if setup.skip:
                continue
            bases = self._candidates(name)
            for crossed in _rows(self.crosses[name]):
                self.points += self._points(name, crossed, bases[0])
        self._check()

    @property
    def files(self) -> tuple[Path, ...]:
        """The file and its base, which is a file of its own."""
        return (self.path, self.path.parent / self.grid.base)

    def fail(self, what: str) -> UserError:
        return UserError(f"{self.path}: {what}")

    def _validated(self, schema: type[Schema], values: Table, where: str = "") -> Schema:
        """Validate values as JSON, of which pydantic's strict mode takes lists for tuples."""
        try:
            return schema.model_validate_json(json.dumps(values, default=str))
        except ValidationError as error:
            problem = problem_of(schema, error).partition(" in the file or by --set")[0]
            # People count from one.
            number = re.compile(r"\bquestions\.(\d+)")
            problem = number.sub(lambda found: f"[[questions]] {int(found[1]) + 1}", problem)
            problem = problem.replace("questions: should be a list", "write [[questions]]")
            raise self.fail(f"{where}{problem}") from None

    def _keys(self, where: str, table: Mapping[str, Any], own: Iterable[str] = ()) -> Table:
        """Return the keys of a table by their dotted names. `own`: keys that it may have beside
        those of the config."""
        flat, known = dict(_flat(table, sections_of(Config))), (*own, *KEYS)
        for key in {*flat} - {*known}:
            if key.partition(".")[0] in LABELS:
                raise self.fail(f"[{where}] {key} is set by other tables; take it out")
            word = next((name for name, symbol in SYMBOLS.items() if symbol == key), key)
            raise self.fail(f"[{where}] key {key!r} is not known; {meant(word, known)}")
        for key, value in flat.items():
            if value == []:
                raise self.fail(f"[{where}] {key} is an empty list; give values or take it out")
        return flat

    def _lists(
        self, where: str, table: Mapping[str, Any] | None, own: Iterable[str] = ()
    ) -> dict[str, list[Any]]:
        keys = self._keys(where, table or {}, own)
        for key, value in keys.items():
            if not (isinstance(value, list) and value):
                raise self.fail(f"[{where}] {key} = {value!r}: give a list of values")
        return keys

    def _base(self) -> Setting:
        path = self.path.parent / self.grid.base
        if path.suffix in (".yaml", ".yml"):
            raise self.fail(f"base = {self.grid.base!r} is YAML; give the keys of a run as TOML")
        if not path.is_file():
            raise self.fail(f"base = {self.grid.base!r}: no such file; name a file of a run")
        base = Setting.read(path)
        if {"arms", "base"} & base.values.keys():
            raise self.fail(f"base = {self.grid.base!r}: is a grid; name a file of a run")
        return base

    @contextmanager
    def _naming(self, what: str) -> Iterator[None]:
        """Have errors about a run's values begin with the file and what they are about."""
        try:
            yield
        except UserError as error:
            problem = str(error).partition(" in the file or by --set")[0].removeprefix("any: ")
            raise self.fail(f"{what}: {problem}") from None

    def _candidates(self, name: str) -> list[Setting]:
        """Return the set-ups from which one begins: the base, or those of which it takes the best,
        which stand before it in the file."""
        if not (sources := self.setups[name].best_of):
            return [self.base]
        tried = self._baselines_in(sources)
        if self.tuned or {*sources} != {point.setup for point in tried}:
            raise self.fail(
                f"[setups.{name}] best_of = {[*sources]}: name set-ups that stand before it and "
                "train the baseline, in a file without [tune]"
            )
        return [point.setting for point in tried]

    def _baselines_in(self, setups: Iterable[str]) -> list[Point]:
        return [each for each in self.points if each.arm == self.baseline and each.setup in setups]

    def _points(self, name: str, crossed: Table, base: Setting) -> Iterator[Point]:
        """Yield the arms of one set-up at one combination of the crossed values. `base`: the set-up
        from which it begins."""
        setup, overrides = self.setups[name], self.overrides[name]
        wanted = setup.arms or tuple(self.arms)
        for arm in wanted:
            one_of(arm, self.arms, f"{self.path}: [setups.{name}] arm")
        for key, value in overrides.items():
            if isinstance(value, list) and key not in (*self.tuned, "data.corpora"):
                raise self.fail(f"[setups.{name}] {key}: a list; only a tuned key takes one")
        if "model.preset" in overrides:
            base = replace(base, values={**base.values, "model": {}})
        fixed = {key: value for key, value in overrides.items() if key not in self.tuned}
        place = base.changed(setup.tag or "", fixed).in_grid(setup.name or name)
        with self._naming(f"set-up {name}"):
            place = _chosen(place, {key: place.times(key, x) for key, x in setup.times.items()})
            place = _chosen(place, crossed)
            length = place.steps
        for arm, table in self.arms.items():
            for row in _rows(table):
                declared = table | row
                own = {k: v for k, v in declared.items() if k in SuperposedPhase.model_fields}
                changes = {key: value for key, value in declared.items() if key not in own}
                words = "-".join([arm, *(_word(key, value) for key, value in row.items())])
                ladders = {
                    key: value if isinstance(value, list) else [value]
                    for key, values in self.tuned.items()
                    if key not in changes and (value := overrides.get(key, values)) is not None
                }
                point = Point(
                    setup=name,
                    crossed=crossed,
                    arm=arm,
                    name=words,
                    declared=declared,
                    superposition=self._validated(SuperposedPhase, own, f"[arms] {arm}: "),
                    length=length,
                    setting=replace(place.changed("", changes), arm_name=words),
                    ladders=ladders,
                    seeds=setup.seeds or self.grid.seeds,
                )
                if {key.partition(".")[0] for key in changes} & {*RIVALS} and STEPS not in changes:
                    with self._naming(f"set-up {name}, arm {words}"):
                        steps = steps_at_equal_flops(point.config)
                    point = replace(point, setting=point.setting.with_steps(steps))
                if arm == self.baseline:
                    self._baselines[point.cell] = point
                if arm in wanted:
                    with self._naming(f"set-up {name}, arm {words}"):
                        point.config  # noqa: B018
                    yield point

    def _check(self) -> None:
        grid = self.grid
        for key in self.cross:
            if key in self.tuned:
                raise self.fail(f"[cross] {key} is tuned; take it out")
            if key.partition(".")[0] in ("execution", "data_seed"):
                raise self.fail(f"[cross] {key} is no key to cross; take it out")
        if grid.tune and not self.tuned:
            raise self.fail('[tune] names no key; give one, such as "optimizer.learning_rate"')
        measured = dict.fromkeys(point.seeds for point in self.points)
        for seeds in (*measured, pilots := grid.tune.seeds if grid.tune else ()):
            if len({*seeds}) < len(seeds):
                raise self.fail(f"seeds = {[*seeds]}: one is there twice; take it out")
        for both in ({*seeds} & {*pilots} for seeds in measured):
            if both:
                raise self.fail(
                    f"[tune] seeds: {min(both)} is a seed of the measured runs too; give others"
                )
        for name, resources in grid.resources.items():
            one_of(name, self.setups, f"{self.path}: [resources] set-up")
            self._validated(Resources, resources, f"[resources.{name}] ")
        count = sum(len(point.seeds) for point in self.points)
        if count > MOST_RUNS:
            raise self.fail(f"{count:,} runs; at most {MOST_RUNS:,}: take values out")
        there: dict[tuple[str, str, str], str] = {}
        for point in self.points:
            with self._naming(f"set-up {point.setup}, arm {point.name}"):
                config = point.config
                if point.arm == self.baseline:
                    for key, ladder in point.ladders.items():
                        for value in ladder:
                            point.setting.changed("", {key: value}).config("any")
                    for steps in self._matched_lengths(point):
                        replace(point, setting=point.setting.with_steps(steps)).config  # noqa: B018
            what = f"[arms] {point.name} at {config.schedule.steps:,} steps"
            superposes = {*point.declared} <= {*SuperposedPhase.model_fields}
            if point.declared and superposes and not plan_phases(config).superposed_steps:
                raise self.fail(f"{what}: superposes no step; raise bag_size or step_ratio")
            values = to_dict(config)
            form = (*point.cell, digest(identity_form(values, values["data"])))
            if form in there:
                raise self.fail(f"{what}: is the same run as {there[form]}; take one out")
            there[form] = point.name

    def runs(self, results: Results) -> list[Config]:
        """List the runs that can be planned with the results so far: the sweeps' runs, then the
        measured ones, all of one seed before those of the next, then the matched baselines."""
        pilots: list[tuple[Point, Config]] = []
        wanted: list[tuple[Point, Setting]] = []
        longer: list[tuple[Point, Setting]] = []
        known: dict[tuple[str, ...], Table | None] = {}
        bases = {
            name: self._best_of(name, results) for name, each in self.setups.items() if each.best_of
        }
        for point in self.points:
            if point.setup in bases:
                base = bases[point.setup]
                if base is None:
                    continue
                point = self._beginning(point, base)
            values = self._best(point, results, pilots, known)
            if values is not None:
                setting = _chosen(point.setting, values)
                wanted.append((point, setting))
                if point.arm == self.baseline and not self.setups[point.setup].pilot:
                    lengths = self._matched_lengths(point)
                    longer += [(point, setting.with_steps(steps)) for steps in lengths]
        parts = [wanted]
        if self.grid.order == "setups":
            parts = [[each for each in wanted if each[0].setup == setup] for setup in self.setups]
        measured = [
            (point, self._run(point, setting, seed))
            for part in (*parts, longer)
            for place in range(max((len(point.seeds) for point, _ in part), default=0))
            for point, setting in part
            for seed in point.seeds[place : place + 1]
        ]
        listed = [*pilots, *measured]
        self._setup_of |= {config.name: point.setup for point, config in listed}
        return [config for _, config in listed]

    def resources_of(self, config: Config) -> Table:
        """Return the file's `[resources]` for the set-up of a run that `runs` has listed."""
        return dict(self.grid.resources.get(self._setup_of[config.name], {}))

    def corpora(self, home: Path) -> dict[Path, Recipe]:
        """Return the recipe of every text that the file or this package can make, by the folder of
        the text. Relative paths start from `home`."""
        own = (Text(name=name, **dict(text)) for name, text in self.grid.text.items())
        return by_folder(*(text.placed(home) for text in own), home=home)

    def _best(
        self,
        point: Point,
        results: Results,
        pilots: list[tuple[Point, Config]],
        known: dict[tuple[str, ...], Table | None],
    ) -> Table | None:
        """Return the best values of the tuned keys for an arm; None while its sweep is not over.
        The sweep's runs are added to `pilots`, once."""
        tune = self.grid.tune
        if tune is None:
            return {}
        if tune.per == "baseline":
            point = self._baselines[point.cell]
        others = {key: value for key, value in point.crossed.items() if key != STEPS}
        key = (point.setup, repr(others), point.name)
        if key not in known:
            shortest = min(each.length for each in self.points if each.setup == point.setup)
            setting = point.setting.with_steps(tune.steps or shortest)
            setting = setting.in_grid(f"pilot-{point.setup}")
            ladders = dict(point.ladders)
            rates = sorted(ladders.pop(RATE, []))
            starts = [
                _chosen(setting, dict(zip(ladders, row, strict=True)))
                for row in product(*ladders.values())
            ]
            sweep = Tuning(
                tuple(tuple(map(start.with_rate, rates)) or (start,) for start in starts),
                (phase := point.superposition,),
                lambda best: (),
                tune.seeds,
                tune.extend if rates else 0,
            )
            tried, best = sweep.best(self.grid.study, results)
            pilots += [(point, config) for config in tried]
            found = best.get(phase)
            known[key] = {name: found[name] for name in point.ladders} if found else None
            for name, values in ladders.items():
                if found and len(values) > 2 and found[name] in (values[0], values[-1]):
                    results.remark(f"{point.name}: the best {name} = {found[name]} is at an edge")
        return known[key]

    def _best_of(self, name: str, results: Results) -> Setting | None:
        """Return the set-up from which one begins that takes the best of others; None while that is
        not known."""
        tried = self._baselines_in(self.setups[name].best_of)
        losses = [
            mean_loss([self._run(point, point.setting, seed) for seed in point.seeds], results)
            for point in tried
        ]
        if any(map(math.isnan, losses)):
            return None
        if math.isinf(min(losses)):
            results.dead_end(f"{tried[0].setting.grid}: {ALL_DIVERGED}")
            return None
        return tried[losses.index(min(losses))].setting

    def _run(self, point: Point, setting: Setting, seed: int) -> Config:
        role = "pilot" if self.setups[point.setup].pilot else ""
        return setting.config(self.grid.study, point.superposition, seed, role)

    def _beginning(self, point: Point, base: Setting) -> Point:
        """Return the same arm of a set-up that begins from another one."""
        points = self._points(point.setup, point.crossed, base)
        return next(each for each in points if each.name == point.name)

    def _matched_lengths(self, baseline: Point) -> list[int]:
        matched, steps = self.grid.matched, baseline.length
        multiples = list(matched.loss)
        if matched.data:
            multiples += [each.text for each in self.points if each.cell == baseline.cell]
        lengths = dict.fromkeys(round(steps * multiple) for multiple in multiples)
        return [each for each in lengths if each != steps]

    def questions(self) -> list[Question]:
        """Return the file's questions."""
        made = [question for each in self.grid.questions for question in self._asked(each)]
        names = [(question.family, question.name) for question in made]
        if twice := {name for name in names if names.count(name) > 1}:
            family, name = min(twice)
            raise self.fail(f"[[questions]] asks {name!r} twice in family {family!r}; drop one")
        return made

    def _asked(self, asked: Asked) -> Iterator[Question]:
        where = f"[[questions]] {asked.family!r}"
        if asked.predicted and asked.predicted[0] > asked.predicted[1]:
            raise self.fail(f"{where}: predicted = {[*asked.predicted]}: give the lower end first")
        if "where" in asked.arm:
            yield from self._in_full(asked)
            return
        crossed = {key.rpartition(".")[2]: key for key in (STEPS, *self.cross)}
        for key in asked.where:
            one_of(key, (*crossed, *RUN_COLUMNS, *KEYS), f"{self.path}: {where}: where: key")
        columns = {key: value for key, value in asked.where.items() if key not in crossed}
        of_interest = {crossed[key]: asked.where[key] for key in crossed if key in asked.where}
        found = [
            point
            for point in self.points
            if self._is_measured(point)
            and all(point.value(key) in _several(value) for key, value in of_interest.items())
            and ("arm" in asked.arm or point.arm != self.baseline)
            and self._selects(asked.arm, point)
        ]
        if not found:
            wanted = ", ".join(f"{k} = {v}" for k, v in (asked.arm | asked.where).items())
            arms = ", ".join(dict.fromkeys(point.name for point in self.points))
            raise self.fail(f"{where}: no arm is {wanted}; arms: {arms}")
        for point in found:
            yield from self._of_pair(asked, point, columns)

    def _in_full(self, asked: Asked) -> Iterator[Question]:
        """Yield a question that gives its arms in full, with their names and columns."""
        family = f"[[questions]] {asked.family!r}: "
        if asked.called or asked.where or len(asked.matched) != 1:
            raise self.fail(f"{family}its arms have names and columns; drop called, where, matched")
        values = asked.model_dump(exclude={"called", "where"}, exclude_none=True)
        arms = {side: self._validated(Arm, values[side], family) for side in ("arm", "against")}
        for column in (column for arm in arms.values() for column in arm.where):
            one_of(column, (*RUN_COLUMNS, *dotted_keys(Config)), f"{self.path}: {family}column")
        values["name"] = asked.name or f"{arms['arm'].name} against {arms['against'].name}"
        (values["matched"],) = asked.matched
        yield Question(**values | arms, primary=asked.family == "primary")

    def _is_measured(self, point: Point) -> bool:
        """Return whether runs of an arm can be results."""
        return not self.setups[point.setup].pilot

    def _selects(self, selector: Mapping[str, Any], point: Point) -> bool:
        """Return whether a question's selector means this arm."""
        phase = point.superposition.model_dump(mode="json")
        known = {"setup": point.setup, **phase, **point.declared, "arm": point.arm}
        for key in selector:
            one_of(key, known, f"{self.path}: [[questions]] key")
        return all(known[key] == value for key, value in selector.items())

    def _of_pair(self, asked: Asked, point: Point, columns: Table) -> Iterator[Question]:
        """Yield the questions about one arm in one cell, one for each kind of match."""
        other = self._other_arm(asked, point)
        seeds = tuple(_several(columns.get("seed", point.seeds)))
        extra = set() if self.grid.existing else {*seeds} - {*point.seeds}
        if extra:
            raise self.fail(f"[[questions]] {asked.family!r}: no run has seed {min(extra)}")
        words = "".join(f", {_in_words(key, value)}" for key, value in point.crossed.items())
        several = len({each.setup for each in self.points if self._is_measured(each)}) > 1
        setup, other_setup = f" ({point.setup})" * several, f" ({other.setup})" * several
        if setup == other_setup:
            setup = ""  # which stands at the end
        for matched in asked.matched:
            steps = other.config.schedule.steps
            equal = round(point.text * point.length / other.text)
            if matched == "data" and equal == other.length and "flops" in asked.matched:
                continue  # at equal FLOPs they read the same text
            if matched == "data" and equal != other.length:
                steps = equal
                trained = [each.length for each in self.points if each.name == other.name]
                trained += self._matched_lengths(other) if other.arm == self.baseline else []
                if not (self.grid.existing or steps in trained):
                    raise self.fail(
                        f"[[questions]] {asked.family!r}: {other.name} reads as much as "
                        f"{point.name} in {steps:,} steps, which no run has: set data = true in "
                        "[matched]"
                    )
            called = asked.called or ("", "")
            arm = self._arm(point, called[0], point.config.schedule.steps, columns, seeds)
            against = self._arm(other, called[1], steps, columns, seeds)
            if matched == "loss":
                kept = {key: value for key, value in against.where.items() if key != STEPS}
                against = against.model_copy(update={"where": kept})
            in_family = matched == "flops"
            yield Question(
                name=asked.name or f"{arm.name}{setup} against {against.name}{other_setup}{words}",
                arm=arm,
                against=against,
                family=asked.family if in_family else f"{asked.family}, equal {matched}",
                primary=asked.family == "primary" and in_family,
                matched=matched,
                method=asked.method,
                predicted=asked.predicted if in_family else None,
                smallest_gain=asked.smallest_gain if in_family else None,
                rule=asked.rule if in_family else None,
                registered=asked.registered,
            )

    def _other_arm(self, asked: Asked, point: Point) -> Point:
        """Return the arm that an arm is compared with."""
        selector = {"arm": self.baseline, "setup": point.setup, **asked.against}
        others = [
            other
            for other in self.points
            if other is not point
            and self._is_measured(other)
            and self._selects(selector, other)
            and other.agrees(point, other.crossed.keys() & point.crossed.keys())
        ]
        if len(others) > 1:
            others = [other for other in others if other.agrees(point, self.cross)]
        if len(others) > 1:
            others = [other for other in others if other.numbers == point.numbers]
        if len(others) != 1:
            wanted = ", ".join(f"{key} = {value}" for key, value in selector.items())
            names = ", ".join(other.name for other in others) or "none"
            raise self.fail(
                f"[[questions]] {asked.family!r}: {point.name} needs one other arm; those with "
                f"{wanted}: {names}"
            )
        return others[0]

    @cached_property
    def _varied(self) -> set[str]:
        """The keys of the config in which runs of the grid may differ, and their sections."""
        tables = (self.tuned, *self.overrides.values(), *self.arms.values())
        varied = {*self.cross, *(key for table in tables for key in table)}
        varied -= {*SuperposedPhase.model_fields}
        return varied | ({"model"} if "model.preset" in varied else set())

    def _arm(
        self, point: Point, name: str, steps: int, columns: Table, seeds: tuple[int, ...]
    ) -> Arm:
        """Return the runs of an arm as declared: by its keys of the config, but for tuned ones."""
        varied = self._varied | ({"superposition"} if point.superposition.bag_size > 1 else set())
        others = [point]
        if self.setups[point.setup].best_of:
            others = [self._beginning(point, base) for base in self._candidates(point.setup)]
        possible = [dict(_leaves(to_dict(each.config))) for each in others]
        for values in possible:
            absent = (key for key in varied if values.get(key.rpartition(".")[0], 0) is None)
            values |= dict.fromkeys(sorted(absent))
        where = {
            key: one_or_all(values[key] for values in possible)
            for key in possible[0]
            if (key in ALWAYS_SELECTED or any(f"{key}.".startswith(f"{each}.") for each in varied))
            and key not in point.ladders
            and not key.startswith("execution.")
        }
        several = {key: tuple(v) if isinstance(v, list) else v for key, v in columns.items()}
        where |= {STEPS: steps} | several | {"seed": seeds}
        words = [_in_words(key, value) for key, value in point.numbers.items()]
        return Arm(name=name or ", ".join([point.arm, *words]), where=where)


SYMBOLS = {"bag_size": "s", "step_ratio": "r"}


def _several(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else [value]


def _rows(table: Table) -> Iterator[Table]:
    """Yield every combination of values of an arm's lists. A list of weights is one value."""
    lists = {
        key: value
        for key, value in table.items()
        if isinstance(value, list)
        and (key.rpartition(".")[2] != "weighting" or all(isinstance(v, str) for v in value))
    }
    return (dict(zip(lists, row, strict=True)) for row in product(*lists.values()))


def _chosen(setting: Setting, values: Mapping[str, Any]) -> Setting:
    """Return a copy with these values, which its runs' names say, but for the number of steps."""
    for key, value in values.items():
        if key == RATE:
            setting = setting.with_rate(value)
        else:
            tag = "" if key == STEPS else _word(key, value)
            setting = setting.changed(tag, {key: value})
    return setting


def scales(path: Path) -> list[str]:
    """Return the names of a grid file's scales, the default first; none if it has no `[scales]`."""
    return list(_scales(path, read_toml(path)))


def scaled(path: Path, scale: str) -> Table:
    """Return the tables of a grid file at one of its scales, which may be empty."""
    values = read_toml(path)
    overrides = _scales(path, values).get(scale, {})
    return _merged(values, overrides)


def _scales(path: Path, values: Table) -> Table:
    """Take the scales out of a file's values: those of another file that `scales_from` names, with
    the file's own tables `[scales.NAME]` over them."""
    shared = values.pop("scales_from", None)
    common = read_toml(path.parent / shared) if shared else {}
    return _merged(common, values.pop("scales", {}))


def _in_words(key: str, value: Any) -> str:
    last = key.rpartition(".")[2]
    words = f"{value:,}" if last == "steps" else f"{value}"
    return f"{words} steps" if last == "steps" else f"{SYMBOLS.get(last, last)} = {words}"


def _word(key: str, value: Any) -> str:
    """Return the part of a run's name that stands for a key's value, such as `s4` or `lr0.002`."""
    last = key.rpartition(".")[2]
    name = {**SYMBOLS, "learning_rate": "lr", "decay_ratio": "decay"}.get(last, last)
    if isinstance(value, bool):
        return last if value else f"no_{last}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    words = text if isinstance(value, str) else f"{name}{text}"
    return re.sub(r"[^\w.+=-]", "", words)


def _flat(values: Mapping[str, Any], sections: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a table: `{optimizer = {beta1 = 0.9}}` as `optimizer.beta1`."""
    for key, value in values.items():
        section = sections.get(key)
        if isinstance(value, Mapping) and section is not None:
            for inner, each in _flat(value, sections_of(section)):
                yield f"{key}.{inner}", each
        else:
            yield key, value


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Return `values` with the overrides `over`: tables merge key by key, lists are replaced."""
    merged = dict(values)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return merged
