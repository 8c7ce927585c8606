"""The facts that a comparison needs beside a run's curves, and the units in which they are given.

What a log does not say comes from a `runs.csv` or from `--set`. Quantities are read as people write
them (`124M`, `1.3e9`, `20,000`), and multiplied by the unit that a person names. A quantity that
cannot be meant is questioned (`question`): a model of 12 parameters is one of 12 millions.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tst_study.analysis.tables.sheets import filled_cells, read_sheet
from tst_study.config.phase_plan import PhasePlan
from tst_study.errors import UserError, one_of
from tst_study.superposition.loss_kinds import BagLossKind, Mode
from tst_study.superposition.steps import superposed_steps
from tst_study.text import big, decimal, short

UNITS = ("nats", "bits", "perplexity")
LOSSES = ("loss", "nats_per_token")
"""Columns whose unit a person may name: the training loss and the held-out loss."""
AMOUNTS = ("parameters", "non_embedding_parameters", "tokens", "tokens_per_step", "flops")
"""Facts whose unit a person may name."""
SCALES: Mapping[str, float] = {
    "units": 1.0,
    **{f"{name}s": 10.0**power for power, name in ((3, "thousand"), (6, "million"))},
    **{f"{name}s": 10.0**power for power, name in ((9, "billion"), (12, "trillion"))},
    **{name: 10.0**power for power, name in ((9, "giga"), (12, "tera"), (15, "peta"))},
    **{name: 10.0**power for power, name in ((18, "exa"), (21, "zetta"))},
    "petaflop_days": 8.64e19,
}
"""Units of amounts; a number is one, too."""
BASELINE = "baseline"
_SLACK = 1e-4
"""Largest relative error of rounding an amount to a whole number."""
SIX = 0.1
"""Largest relative difference between FLOPs and 6 N D about which nothing is said."""


def whole(value: Any) -> int | None:
    """Return a value as a whole number, however it is written (`30`, `30.0`, `3e1`); None if it is
    not one."""
    with suppress(ValueError):  # a float would lose digits beyond 2⁵³
        return int(str(value))
    number = decimal(value)
    return int(number) if number is not None and number % 1 == 0 else None


def _whole(value: Any) -> Any:
    number = whole(value)
    return value if number is None else number


def _amount(value: Any) -> Any:
    """Return an amount as a whole number if that changes it by no more than `_SLACK`."""
    number = decimal(value) if whole(value) is None else whole(value)
    if number is None or abs(number) >= 2**63 or number != number:
        return value
    return round(number) if abs(round(number) - number) <= _SLACK * abs(number) else value


def _number(value: Any) -> Any:
    number = decimal(value)
    return value if number is None else number


Whole = Annotated[int, BeforeValidator(_whole), Field(lt=2**63)]
"""A whole number, however a spreadsheet writes it: 30, 30.0 or 3e1."""
Amount = Annotated[int, BeforeValidator(_amount), Field(ge=1, lt=2**63)]
"""A number of parameters or tokens, which may have a fraction where it was read off a figure."""
Number = Annotated[float, BeforeValidator(_number)]


class Facts(BaseModel):
    """The facts of one run (units: `docs/tables.md`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, str_max_length=200)

    arm: str | None = None
    """The name of the method that the run stands for, if this is not superposition; empty for
    superposed runs. The arm that `baseline` names is the baseline."""
    bag_size: Whole = Field(1, ge=1)
    """s; 1, the default, for runs that are not superposed."""
    step_ratio: float = Field(ge=0, le=1)
    """r; 0 by default if `bag_size` is 1, and needed otherwise."""
    parameters: Amount
    tokens_per_step: Amount
    """Latent positions per step; a superposed step reads s times as many tokens, unless `mode` is
    `output_only`."""
    steps: Whole = Field(ge=1)
    """Planned steps."""
    seed: Whole | None = Field(None, ge=0)
    """Pairs a run with its baseline; runs without a seed are compared unpaired."""
    learning_rate: float | None = Field(None, ge=0)
    """The peak rate; by default the highest in the log."""
    corpus: str = "text without a name"
    eval_set: str = "held-out text without a name"
    annealed: bool | None
    """Whether the learning rate had decayed at the last step; of finished runs that are all
    baselines it may be None, not known."""

    baseline: str = BASELINE
    """The name of the arm that the others are compared with."""
    tokens: Number | None = Field(None, ge=1, lt=2**63)
    """Latent positions of the whole training. Missing steps, tokens per step or parameters are
    derived from them."""
    active_parameters: Amount | None = None
    embeddings: Literal["counted", "left out"] | None = None
    """Whether `parameters` counts the embeddings."""
    non_embedding_parameters: Amount | None = None
    """The number without embeddings, where `parameters` counts them."""
    flops: Number | None = Field(None, gt=0, lt=1e300)
    """FLOPs of the whole training; by default 6 · active parameters · positions."""
    bytes_per_token: float | None = Field(None, gt=0)
    """Bytes per token of the held-out text; needed to convert bits per byte to nats per token."""
    batch: str = ""
    """A label of anything else that must be equal; only runs with the same label are compared."""
    study: str = "imported"
    mode: Mode | None = None
    loss_kind: BagLossKind | None = None
    weighting: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _follows(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Derive missing facts from those that are given.

        r is 0 for s = 1. Tokens follow from parameters and FLOPs, and parameters from tokens and
        FLOPs, both by FLOPs = 6 · parameters · tokens. Of steps and tokens per step, one follows
        from the other and the tokens; if both are missing, one step stands for one position.
        """
        values = dict(given)
        if whole(values.get("bag_size", 1)) == 1:
            values.setdefault("step_ratio", 0.0)
        if values.get("non_embedding_parameters"):
            values.setdefault("embeddings", "counted")
        names = ("parameters", "flops", "tokens", "steps", "tokens_per_step")
        size, flops, tokens, steps, each = (decimal(values.get(name)) for name in names)
        with suppress(ArithmeticError, ValueError):  # bad values are refused by their own fields
            if tokens is None and size and flops:
                tokens = flops / 6 / size
            if tokens and flops:
                values.setdefault("parameters", round(flops / 6 / tokens))
            if tokens and "steps" not in values:
                values["steps"] = max(1, round(tokens / (each or 1)))
                values.setdefault("tokens_per_step", 1)
            elif tokens and steps:
                values.setdefault("tokens_per_step", max(1, round(tokens / steps)))
        return values

    @model_validator(mode="after")
    def _agrees(self) -> "Facts":
        positions = self.steps * self.tokens_per_step
        if positions * self.bag_size >= 2**63:
            raise ValueError(f"steps × tokens_per_step = {positions:.3g}: more than any text")
        if self.tokens and abs(positions / self.tokens - 1) > 0.01:
            raise ValueError(
                f"tokens {self.tokens:,.9g} are not steps × tokens_per_step = {self.steps:,} × "
                f"{self.tokens_per_step:,}; give two of the three, or mend one"
            )
        return self

    @property
    def plan(self) -> PhasePlan:
        """The phases as this package's trainer would plan them, with one sequence of
        `tokens_per_step` positions in each step."""
        superposed = superposed_steps(self.steps, self.bag_size, self.step_ratio)
        return PhasePlan(
            steps=self.steps,
            superposed_steps=superposed,
            bag_size=self.bag_size if superposed else 1,
            mode=self.mode or "full",
            sequences=1,
            sequence_length=self.tokens_per_step,
        )

    @property
    def used_flops(self) -> float:
        """FLOPs of the whole training: those given, or else the default that `flops` describes."""
        used = self.active_parameters or self.parameters
        return self.flops or 6.0 * used * self.tokens_per_step * self.steps


def question(runs: Sequence[tuple[str, Mapping[str, Any]]], confirmed: Iterable[str]) -> list[str]:
    """Return sentences about the amounts of a table of finished runs. Raises `UserError` for
    amounts that cannot be meant, unless a person named their unit.

    runs: for each run its place, for messages, and its facts. confirmed: facts whose unit a person
    named."""
    amounts = ("parameters", "tokens", "flops")
    rows: list[tuple[Any, ...]] = [
        (place, *(decimal(facts.get(name)) for name in amounts)) for place, facts in runs
    ]
    known = {*confirmed}
    for place, size, _, _ in rows if "parameters" not in known else ():
        if size and size < 1e4:
            unit = "billions" if size < 1 else "millions"
            raise _asked(place, "parameters", size, "are few", unit)
    for place, _, length, _ in rows if "tokens" not in known else ():
        if length and length > 1e16:
            why = "are more than all text; are they FLOPs?"
            raise _asked(place, "tokens", length, why, "units")
    ratios = [(place, c / 6 / n / d) for place, n, d, c in rows if n and d and c]
    for place, ratio in ratios if "flops" not in known else ():
        if not 0.01 < ratio < 100:
            raise UserError(
                f"{place}: its flops are {ratio:.3g} times 6 N D; give the unit of one, such as "
                "--unit flops=giga or --unit tokens=billions (=units where a number is right)"
            )
    if not ratios and "tokens" not in known:
        _check_lengths(rows, known)
    off = [ratio for _, ratio in ratios if abs(ratio - 1) > SIX]
    return [six_nd(off, len(runs))] if off else []


def _check_lengths(rows: Sequence[tuple[Any, ...]], known: Collection[str]) -> None:
    """Refuse tokens, or FLOPs that they follow from, that are far too few for one run's parameters,
    or fewer than the parameters of most runs."""
    lengths = [d if d else c / 6 / n if c and n else None for _, n, d, c in rows]
    shares = [d / n if n and d else math.inf for (_, n, *_), d in zip(rows, lengths, strict=True)]
    at = next((at for at, share in enumerate(shares) if share < 0.01), None)
    short = [at for at, share in enumerate(shares) if share < 1]
    if at is None and 2 * len(short) > len(rows):
        at = short[0]
    if at is not None:
        place, size, given, _ = rows[at]
        why = f"for {big(size)} parameters are few" + " (as FLOPs / 6 N)" * (not given)
        if (of := "tokens" if given else "flops") not in known:
            raise _asked(place, of, lengths[at], why, "billions")


def _asked(place: str, name: str, value: Any, why: str, unit: str) -> UserError:
    return UserError(
        f"{place}: {name} {value:,.6g} {why}; give their unit, such as --unit {name}={unit} "
        f"(--unit {name}=units if the number is right)"
    )


def six_nd(ratios: Sequence[float], runs: int) -> str:
    """Return a sentence on FLOPs that are not 6 N D; `ratios`: those of the runs concerned."""
    span = f"{min(ratios):.2f}" + f" to {max(ratios):.2f}" * (max(ratios) - min(ratios) > 0.005)
    return (
        f"the FLOPs of {len(ratios):,} of {runs:,} runs are {span} times 6 N D: parameters and "
        "FLOPs count different weights, or attention is counted"
    )


def read_facts(path: Path) -> dict[str, dict[str, str]]:
    """Read a `runs.csv`: for each run the facts in its cells that are not empty.

    Raises `UserError` for a damaged file, one without a column `run`, and a run with two rows.
    """
    sheet = read_sheet(path)
    if "run" not in sheet:
        raise UserError(f"{path}: column 'run' is missing; write a table with --template")
    facts: dict[str, dict[str, str]] = {}
    for line, row in filled_cells(sheet, path, "run"):
        name = row.pop("run")
        if name in facts:
            raise UserError(f"{path}, line {line}: run {short(name)} appears twice; remove a row")
        facts[name] = row
    return facts


def pairs(given: Iterable[str] | None, option: str) -> dict[str, str]:
    """Split KEY=VALUE texts. Raises `UserError` for any other text, and for a key given twice."""
    values: dict[str, str] = {}
    for key, equals, value in (text.partition("=") for text in given or ()):
        if not (key and equals and value):
            raise UserError(f"{option} {key}{equals}{value}: give KEY=VALUE")
        if key in values:
            raise UserError(f"{option} {key}: is given twice; keep one")
        values[key] = value
    return values


def units_of(given: Iterable[str]) -> tuple[dict[str, str], dict[str, float]]:
    """Return the unit of each of `LOSSES`, and the factors of those `AMOUNTS` whose unit is
    given."""
    units, factors = dict.fromkeys(LOSSES, "nats"), dict[str, float]()
    for text in given:
        column, named, unit = text.rpartition("=")
        if column in AMOUNTS:
            factor = SCALES.get(unit, decimal(unit))
            if factor is None or not 0 < factor < 1e30:
                factor = SCALES[one_of(unit, SCALES, f"--unit {column}=")]
            factors[column] = factor
            continue
        one_of(unit, UNITS, "--unit")
        known = (*LOSSES, *AMOUNTS)
        units |= {one_of(column, known, "--unit"): unit} if named else dict.fromkeys(LOSSES, unit)
    return units, factors


def scaled(facts: Mapping[str, Any], factors: Mapping[str, float]) -> dict[str, Any]:
    """Return facts with amounts multiplied by the factors of their units."""
    values = dict(facts)
    for name, factor in factors.items():
        if (number := decimal(values.get(name))) is not None:
            values[name] = number * factor
    return values
