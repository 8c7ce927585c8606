"""Reads a study from a file of the user's: a grid in TOML (docs/your_own_study.md).

A grid is a set-up (`base`, and overrides of it in `[setups]`), arms, crossed keys and seeds; every
combination is a run. Where keys are tuned, a sweep of pilot runs chooses their values first.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from tst_study.analysis.tables.columns import RUN_COLUMNS
from tst_study.analysis.verdict.question import DEFAULT_METHOD, Arm, Method, Question, Value
from tst_study.config.identity import digest, identity_form
from tst_study.config.keys import dotted_keys, problem_of, sections_of
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
from tst_study.experiments.studies.grid import Tuning
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
KEYS = (*dotted_keys(Config), "model.preset")
Table = dict[str, Any]


class Tune(Strict):
    """Keys whose best value a sweep chooses before the measured runs."""

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


class SetUp(Strict):
    """A named set-up; its other keys are overrides of the base."""

    arms: tuple[str, ...] | None = None
    seeds: tuple[Seed, ...] | None = None
    skip: bool = False
    plan_only: bool = False


class Asked(Strict):
    """A question of the file, about one or more arms."""

    family: str
    arm: dict[str, Any]
    against: dict[str, Any] = Field({})
    matched: tuple[Literal["flops", "data", "loss"], ...] = ("flops",)
    where: dict[str, Any] = Field({})
    predicted: tuple[float, float] | None = None
    method: Method = DEFAULT_METHOD
    smallest_gain: PositiveFloat | None = None


class Grid(Strict):
    """The file itself. Keys of the config in `cross`, `tune`, `arms` and `setups` are taken out
    before it is validated (`_read`)."""

    study: FolderName
    asks: str = ""
    caveat: str = ""
    """A sentence of caution, which the report prints after what the study asks."""
    base: PathText
    seeds: tuple[Seed, ...] = Field((0,), min_length=1)
    arms: dict[FolderName, dict[str, Any]]
    cross: dict[str, list[Any]] = Field({})
    tune: Tune | None = None
    matched: Matched = Matched()
    setups: dict[FolderName, SetUp] = Field({})
    resources: dict[str, dict[str, Any]] = Field({})
    questions: tuple[Asked, ...] = ()
    existing: tuple[PathText, ...] = ()
    text: dict[FolderName, TextSource] = Field({})


@dataclass(frozen=True)
class Variant:
    """An arm as declared: its table with one value of every list."""

    arm: str
    name: str
    """What runs' names call it: the arm, and the values that tell it from the arm's others."""
    superposition: SuperposedPhase
    changes: Mapping[str, Any]
    """Keys of the config outside `[superposition]`, with their values."""
    declared: Mapping[str, Any]
    """Everything that its table gives, by key."""


@dataclass(frozen=True)
class Cell:
    """One set-up at one combination of the crossed values, before tuning."""

    setup: str
    crossed: Mapping[str, Any]
    setting: Setting
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    plan_only: bool


class StudyFile:
    """A grid file at one of its scales: its runs, its questions and what it reads."""

    def __init__(self, path: Path, scale: str = "") -> None:
        """Read the file. `scale`: one of `scales(path)`, or empty. Raises `UserError`, which names
        the file, the key and the remedy."""
        self.path = path
        self.keys: dict[str, Table] = {}
        self.grid = self._read(scaled(path, scale))
        self.base = self._base()
        self.baseline, self.variants = self._variants()
        self.cells = self._cells()
        self._check()

    @property
    def files(self) -> tuple[Path, ...]:
        """The file and its base, which is a file of its own."""
        return (self.path, self.path.parent / self.grid.base)

    def fail(self, what: str) -> UserError:
        return UserError(f"{self.path}: {what}")

    def _read(self, values: Table) -> Grid:
        """Validate the file, after the keys of the config in its tables were moved to `keys`."""
        sections = sections_of(Config)
        for table in ("cross", "tune", "setups"):
            inner = values.get(table, {})
            places = inner.items() if table == "setups" else [(table, inner)]
            for name, given in places:
                if not isinstance(given, dict):
                    continue  # which the schema refuses
                whole = [key for key in given if "." in key or key in sections]
                flat = dict(_flat({key: given.pop(key) for key in whole}, sections))
                where = f"setups.{name}" if table == "setups" else table
                for key, value in flat.items():
                    one_of(key, KEYS, f"{self.path}: [{where}] key")
                    if table != "setups" and not (isinstance(value, list) and value):
                        raise self.fail(f"[{where}] {key} = {value!r}: give a list of values")
                self.keys[where] = flat
        try:
            return Grid.model_validate(_tuples(values))
        except ValidationError as error:
            raise self.fail(problem_of(Grid, error)) from None

    def _base(self) -> Setting:
        path = self.path.parent / self.grid.base
        if path.suffix in (".yaml", ".yml"):
            raise self.fail(f"base = {self.grid.base!r} is YAML; give the keys of a run as TOML")
        if not path.is_file():
            raise self.fail(f"base = {self.grid.base!r}: no such file; name a file of a run")
        return Setting.read(path)

    def _variants(self) -> tuple[Variant, tuple[Variant, ...]]:
        every, plain = [], []
        for name, table in self.grid.arms.items():
            every += (made := self._of_arm(name, table))
            plain += [] if table else made
        if len(plain) != 1:
            raise self.fail(f"[arms] has {len(plain)} baselines; exactly one arm is {{}}")
        return plain[0], tuple(every)

    def _of_arm(self, name: str, table: Table) -> list[Variant]:
        known = (*SuperposedPhase.model_fields, *KEYS)
        table = dict(_flat(table, sections_of(Config)))
        for key in table:
            one_of(key, known, f"{self.path}: [arms] {name}: key")
        lists = {
            key: value
            for key, value in table.items()
            if isinstance(value, tuple)
            and (key.rpartition(".")[2] != "weighting" or all(isinstance(v, str) for v in value))
        }
        made = []
        for row in product(*lists.values()):
            declared = {**table, **dict(zip(lists, row, strict=True))}
            own = {k: v for k, v in declared.items() if k in SuperposedPhase.model_fields}
            try:
                phase = SuperposedPhase.model_validate(_tuples(own))
            except ValidationError as error:
                raise self.fail(f"[arms] {name}: {problem_of(SuperposedPhase, error)}") from None
            changes = {key: value for key, value in declared.items() if key not in own}
            words = [_word(key, value) for key, value in zip(lists, row, strict=True)]
            made.append(Variant(name, "-".join([name, *words]), phase, changes, declared))
        return made

    def _cells(self) -> list[Cell]:
        grid, cross = self.grid, self.keys.get("cross", {})
        setups = {"base": SetUp()} | dict(grid.setups)
        tuned = self.keys.get("tune", {})
        cells = []
        for name, setup in setups.items():
            if setup.skip:
                continue
            wanted = setup.arms or tuple(grid.arms)
            for arm in wanted:
                one_of(arm, grid.arms, f"{self.path}: [setups.{name}] arm")
            own = self.keys.get(f"setups.{name}", {})
            for key, value in own.items():
                if isinstance(value, list | tuple) and key not in (*tuned, "data.corpora"):
                    raise self.fail(f"[setups.{name}] {key}: a list; only a tuned key takes one")
            base = self.base
            if "model.preset" in own:
                base = replace(base, values={**base.values, "model": {}})
            fixed = {key: value for key, value in own.items() if key not in tuned}
            setting = replace(base.changed("", fixed), grid=name)
            for row in product(*cross.values()):
                crossed = dict(zip(cross, row, strict=True))
                tags = tuple(_word(k, v) for k, v in crossed.items() if k != STEPS)
                at = replace(setting.changed("", crossed), tags=tags)
                variants = tuple(each for each in self.variants if each.arm in wanted)
                seeds = setup.seeds or grid.seeds
                cells.append(Cell(name, crossed, at, variants, seeds, setup.plan_only))
        return cells

    def _check(self) -> None:
        grid, tuned, cross = self.grid, self.keys.get("tune", {}), self.keys.get("cross", {})
        for key in cross:
            section = key.partition(".")[0]
            if section in ("execution", *LABELS, "data_seed") or key in tuned:
                why = "is tuned" if key in tuned else "is no key to cross"
                raise self.fail(f"[cross] {key} {why}; take it out")
        if grid.tune and not tuned:
            raise self.fail('[tune] names no key; give one, such as "optimizer.learning_rate"')
        if grid.tune:
            both = {*grid.tune.seeds} & {seed for cell in self.cells for seed in cell.seeds}
            if both:
                raise self.fail(
                    f"[tune] seeds: {min(both)} is a seed of the measured runs too; give others"
                )
        for seeds in [*(cell.seeds for cell in self.cells), grid.tune.seeds if grid.tune else ()]:
            if len({*seeds}) < len(seeds):
                raise self.fail(f"seeds = {[*seeds]}: one is there twice; take it out")
        for name in grid.resources:
            one_of(name, {"base": 0, **grid.setups}, f"{self.path}: [resources] set-up")
        count = sum(len(cell.variants) * len(cell.seeds) for cell in self.cells)
        if count > MOST_RUNS:
            raise self.fail(f"{count:,} runs; at most {MOST_RUNS:,}: take values out")
        for cell in self.cells:
            self._check_cell(cell)

    def _check_cell(self, cell: Cell) -> None:
        """Build one run of every arm, and compare them."""
        there: dict[str, str] = {}
        for variant in cell.variants:
            config = self._untuned(cell, variant)
            what = f"[arms] {variant.name} at {config.schedule.steps:,} steps"
            plain = variant == self.baseline or variant.changes
            if not plain and not plan_phases(config).superposed_steps:
                raise self.fail(f"{what}: superposes no step; raise bag_size or step_ratio")
            values = to_dict(config)
            form = digest(identity_form(values, values["data"]))
            if form in there:
                raise self.fail(f"{what}: is the same run as {there[form]}; take one out")
            there[form] = variant.name

    def _with_arm(self, setting: Setting, variant: Variant) -> Setting:
        """Return the set-up of an arm. A rival whose length the file leaves open gets as many steps
        as have the total FLOPs of the set-up's."""
        setting = replace(setting.changed("", variant.changes), arm_name=variant.name)
        changed = {key.partition(".")[0] for key in variant.changes}
        if changed & {*RIVALS} and STEPS not in variant.changes:
            setting = setting.with_steps(steps_at_equal_flops(self._config(setting, variant, 0)))
        return setting

    def _config(self, setting: Setting, variant: Variant, seed: int, role: str = "") -> Config:
        try:
            return setting.config(self.grid.study, variant.superposition, seed, role)
        except UserError as error:
            raise self.fail(f"set-up {setting.grid}, arm {variant.name}: {error}") from None

    def _untuned(self, cell: Cell, variant: Variant) -> Config:
        """Return a run of an arm with the first value of every ladder, for whoever asks what does
        not depend on the tuned keys."""
        setting = self._with_arm(cell.setting, variant)
        first = {key: ladder[0] for key, ladder in self._ladders(cell, variant).items()}
        return self._config(setting.changed("", first), variant, 0)

    def runs(self, results: Results, plan_only: bool = False) -> list[Config]:
        """List the runs that can be planned with the results so far: the sweeps' runs, then the
        measured ones, all of one seed before those of the next, then the matched baselines.

        `plan_only`: those of the set-ups that are only planned, instead of the others.
        """
        pilots: list[Config] = []
        wanted: list[tuple[Setting, Variant, tuple[int, ...]]] = []
        longer: list[tuple[Setting, Variant, tuple[int, ...]]] = []
        known: dict[Any, dict[str, Any] | None] = {}
        for cell in self.cells:
            if cell.plan_only != plan_only:
                continue
            for variant in cell.variants:
                values = self._best(cell, variant, results, pilots, known)
                if values is not None:
                    setting = self._chosen(self._with_arm(cell.setting, variant), values)
                    wanted.append((setting, variant, cell.seeds))
                    if variant == self.baseline:
                        longer += [
                            (setting.with_steps(steps), variant, cell.seeds)
                            for steps in self._matched_lengths(cell)
                        ]
        return [
            *pilots,
            *(
                self._config(setting, variant, seed)
                for part in (wanted, longer)
                for place in range(max((len(seeds) for *_, seeds in part), default=0))
                for setting, variant, seeds in part
                for seed in seeds[place : place + 1]
            ),
        ]

    def corpora(self, home: Path) -> dict[Path, Recipe]:
        """Return the recipe of every text that the file or this package can make, by the folder of
        the text. Relative paths start from `home`."""
        own = (Text(name=name, **dict(text)) for name, text in self.grid.text.items())
        return by_folder(*(text.placed(home) for text in own), home=home)

    def resources_of(self, config: Config) -> Mapping[str, Any]:
        """Return the file's `[resources]` of the set-up that a run belongs to."""
        stem = config.name.removeprefix("pilot-")
        named = [name for name in self.grid.resources if stem.startswith(f"{name}-")]
        return self.grid.resources[max(named, key=len)] if named else {}

    def _ladders(self, cell: Cell, variant: Variant) -> dict[str, list[Any]]:
        """The values that are tried for each tuned key; an arm's own value is not tuned."""
        own = self.keys.get(f"setups.{cell.setup}", {})
        ladders = {}
        for key, values in self.keys.get("tune", {}).items():
            if key not in variant.changes:
                given = own.get(key, values)
                ladders[key] = given if isinstance(given, list) else [given]
        return ladders

    def _best(
        self,
        cell: Cell,
        variant: Variant,
        results: Results,
        pilots: list[Config],
        known: dict[Any, dict[str, Any] | None],
    ) -> dict[str, Any] | None:
        """Return the best values of the tuned keys for an arm in a cell; None while its sweep is
        not over. The sweep's runs are added to `pilots`, once."""
        tune = self.grid.tune
        if tune is None:
            return {}
        if tune.per == "baseline":
            variant = self.baseline
        others = {key: value for key, value in cell.crossed.items() if key != STEPS}
        key = (cell.setup, repr(others), variant.name)
        if key not in known:
            lengths = [c.setting.steps for c in self.cells if c.setup == cell.setup]
            setting = self._with_arm(cell.setting, variant).with_steps(tune.steps or min(lengths))
            setting = setting.in_grid(f"pilot-{cell.setup}")
            ladders = self._ladders(cell, variant)
            rates = sorted(ladders.pop(RATE, [None]), key=lambda rate: rate or 0)
            ladder_settings = []
            for row in product(*ladders.values()):
                start = self._chosen(setting, dict(zip(ladders, row, strict=True)))
                ladder_settings.append(
                    tuple(start if rate is None else start.with_rate(rate) for rate in rates)
                )
            phase, tuned = variant.superposition, [*ladders]
            if None not in rates:
                tuned.append(RATE)
            sweep = Tuning(
                tuple(ladder_settings),
                (phase,),
                lambda best: (),
                tune.seeds,
                tune.extend if RATE in tuned else 0,
            )
            tried, best = sweep.best(self.grid.study, results)
            pilots += tried
            found = best.get(phase)
            known[key] = {name: found[name] for name in tuned} if found else None
            for name, values in ladders.items():
                if found and len(values) > 2 and found[name] in (values[0], values[-1]):
                    results.remark(f"{variant.name}: the best {name} = {found[name]} is at an edge")
        return known[key]

    @staticmethod
    def _chosen(setting: Setting, values: Mapping[str, Any]) -> Setting:
        for key, value in values.items():
            if key == RATE:
                setting = setting.with_rate(value)
            else:
                setting = setting.changed(_word(key, value), {key: value})
        return setting

    def _matched_lengths(self, cell: Cell) -> list[int]:
        matched, steps = self.grid.matched, cell.setting.steps
        multiples = list(matched.loss)
        if matched.data:
            multiples += [self._text(cell, each) for each in cell.variants]
        lengths = dict.fromkeys(round(steps * multiple) for multiple in multiples)
        return [each for each in lengths if each != steps]

    def _text(self, cell: Cell, variant: Variant) -> float:
        """How many times the baseline's text an arm reads."""
        plan = plan_phases(self._untuned(cell, variant))
        return plan.raw_tokens(plan.steps) / plan.latent_tokens(plan.steps)

    def questions(self) -> list[Question]:
        """Return the file's questions."""
        made = [question for each in self.grid.questions for question in self._asked(each)]
        names = [(question.family, question.name) for question in made]
        if twice := {name for name in names if names.count(name) > 1}:
            family, name = min(twice)
            raise self.fail(f"[[questions]] asks {name!r} twice in family {family!r}; drop one")
        return made

    def _asked(self, asked: Asked) -> Iterator[Question]:
        crossed = {key.rpartition(".")[2]: key for key in self.keys.get("cross", {})}
        columns = {key: value for key, value in asked.where.items() if key not in crossed}
        for key in columns:
            known = (*crossed, *RUN_COLUMNS, *KEYS)
            one_of(key, known, f"{self.path}: [[questions]] {asked.family!r}: where: key")
        found = False
        for cell in self.cells:
            of_interest = {key: each for key, each in asked.where.items() if key in crossed}
            if cell.plan_only or any(cell.crossed[crossed[k]] != v for k, v in of_interest.items()):
                continue
            for variant in cell.variants:
                named = "arm" in asked.arm or variant != self.baseline
                if named and self._selects(asked.arm, cell, variant):
                    found = True
                    yield from self._of_pair(asked, cell, variant, columns)
        if not found:
            wanted = ", ".join(f"{k} = {v}" for k, v in (asked.arm | asked.where).items())
            arms = ", ".join(each.name for each in self.variants)
            raise self.fail(f"[[questions]] {asked.family!r}: no arm is {wanted}; arms: {arms}")

    def _selects(self, selector: Mapping[str, Any], cell: Cell, variant: Variant) -> bool:
        phase = variant.superposition.model_dump(mode="json")
        known = {"setup": cell.setup, **phase, **variant.declared}
        known["arm"] = variant.arm
        for key in selector:
            one_of(key, known, f"{self.path}: [[questions]] key")
        return all(known[key] == value for key, value in selector.items())

    def _of_pair(
        self, asked: Asked, cell: Cell, variant: Variant, columns: Mapping[str, Any]
    ) -> Iterator[Question]:
        """Yield the questions about one arm in one cell, one for each kind of match."""
        selector = {"arm": self.baseline.arm, "setup": cell.setup, **asked.against}
        others = [
            (other, each)
            for other in self.cells
            if other.crossed == cell.crossed and other.setup == selector["setup"]
            for each in other.variants
            if (each, other) != (variant, cell) and self._selects(selector, other, each)
        ]
        if len(others) > 1:
            others = [pair for pair in others if _numbers(pair[1]) == _numbers(variant)]
        if len(others) != 1:
            raise self.fail(f"[[questions]] {asked.family!r}: against names {len(others)} arms")
        (other_cell, other), seeds = others[0], tuple(columns.get("seed", cell.seeds))
        where = "".join(f", {_in_words(key, value)}" for key, value in cell.crossed.items())
        several = len({each.setup for each in self.cells if not each.plan_only}) > 1
        setup, other_setup = f" ({cell.setup})" * several, f" ({other_cell.setup})" * several
        if setup == other_setup:
            setup = ""  # which stands at the end
        for matched in asked.matched:
            steps = self._with_arm(other_cell.setting, other).steps
            if matched == "data":
                steps = round(self._text(cell, variant) * cell.setting.steps)
                if steps == cell.setting.steps:
                    continue  # the arm reads no more text than the baseline
            own = self._with_arm(cell.setting, variant).steps
            arm = self._arm(cell, variant, own, columns, seeds)
            against = self._arm(other_cell, other, steps, columns, seeds)
            if matched == "loss":
                kept = {key: value for key, value in against.where.items() if key != STEPS}
                against = against.model_copy(update={"where": kept})
            yield Question(
                name=f"{arm.name}{setup} against {against.name}{other_setup}{where}",
                arm=arm,
                against=against,
                family=asked.family if matched == "flops" else f"{asked.family}, equal {matched}",
                primary=asked.family == "primary" and matched == "flops",
                matched=matched,
                method=asked.method,
                predicted=asked.predicted if matched == "flops" else None,
                smallest_gain=asked.smallest_gain if matched == "flops" else None,
            )

    def _arm(
        self,
        cell: Cell,
        variant: Variant,
        steps: int,
        columns: Mapping[str, Any],
        seeds: tuple[int, ...],
    ) -> Arm:
        """Return the runs of an arm as declared: by its keys of the config, but for tuned ones."""
        ladders = self._ladders(cell, variant)
        values = dict(_leaves(to_dict(self._untuned(cell, variant))))
        varied = {key for table in self.keys.values() for key in table}
        varied |= {key for each in self.variants for key in each.changes}
        if varied & {"model.preset"}:
            varied |= {key for key in values if key.startswith("model.")}
        if variant.superposition.bag_size > 1:
            varied |= {key for key in values if key.startswith("superposition.")}
        keys = [
            key
            for key in values
            if (key in ALWAYS_SELECTED or any(key == v or key.startswith(f"{v}.") for v in varied))
            and key not in ladders
            and not key.startswith("execution.")
        ]
        where: dict[str, Value | tuple[Value, ...]] = {key: _value(values[key]) for key in keys}
        where |= {STEPS: steps} | dict(_tuples(columns)) | {"seed": seeds}
        words = [_in_words(key, value) for key, value in _numbers(variant).items()]
        return Arm(name=", ".join([variant.arm, *words]), where=where)


SYMBOLS = {"bag_size": "s", "step_ratio": "r"}


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


def _numbers(variant: Variant) -> dict[str, Any]:
    """The values of an arm's lists are what tells its settings apart; s and r always count."""
    return {key: variant.declared[key] for key in SYMBOLS if key in variant.declared}


def _in_words(key: str, value: Any) -> str:
    last = key.rpartition(".")[2]
    words = f"{value:,}" if last == "steps" else f"{value}"
    return f"{words} steps" if last == "steps" else f"{SYMBOLS.get(last, last)} = {words}"


def _word(key: str, value: Any) -> str:
    """Return the part of a run's name that stands for a key's value, such as `s4` or `lr0.002`."""
    last = key.rpartition(".")[2]
    name = {**SYMBOLS, "learning_rate": "lr"}.get(last, last)
    if isinstance(value, bool):
        return last if value else f"no_{last}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    words = text if isinstance(value, str) else f"{name}{text}"
    return re.sub(r"[^\w.+=-]", "", words)


def _value(value: Any) -> Value:
    return value if isinstance(value, int | float | str | bool) else json.dumps(value)


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


def _tuples(value: Any) -> Any:
    """Return TOML's lists as tuples, which the strict schemas take."""
    if isinstance(value, Mapping):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
