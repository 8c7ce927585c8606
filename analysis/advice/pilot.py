"""The pilot: a cheaper test of the planned run at one to three smaller sizes, with a rule, written
before it starts, that says when to go on, when to stop, and when to add seeds; and what the
pilot's results say about the planned run."""

import functools
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from tst_study.analysis import published
from tst_study.analysis.advice.costs import flops_of, shape_like
from tst_study.analysis.advice.expected_gain import Gain, pair_deviation
from tst_study.analysis.advice.intended_run import LONGER, OUTPUT_ONLY, PLAIN, IntendedRun, own_arm
from tst_study.analysis.fits.law.rows import TOKENS_PER_STEP
from tst_study.analysis.fits.law.superposition_law import DATA_EXPONENT, published_law
from tst_study.analysis.statistics import critical_t, smallest_detectable
from tst_study.analysis.summary import Summary, summarise
from tst_study.analysis.tables.columns import Tables, rows_of
from tst_study.analysis.tables.source import read_tables
from tst_study.analysis.verdict.intervals import FEWEST_SEEDS
from tst_study.analysis.verdict.planned import labelled
from tst_study.analysis.verdict.question import MOST_SEEDS, OVER, StopRule, questions_of
from tst_study.atomic_files import written_atomically
from tst_study.config.schema import Config, Model
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.cost.compute import count_parameters, flops_per_position
from tst_study.errors import UserError
from tst_study.text import big, listed

SHAPE = {"layers", "hidden_size", "attention_heads", "key_value_heads", "head_size"}
SHAPE |= {"feed_forward_size", "experts"}
"""The keys of `[model]` that a pilot's size sets."""
LEAST = (4e7, 1e9)
"""Fewest active parameters outside the embeddings, and fewest positions, of a pilot that is smaller
than the planned run. Below them the sign is not to be trusted: ours changed below 1.1 million
parameters, and the smallest model for which others report a gain, with held-out losses, has about
45 million outside its embeddings (`published.others`, AOMTS)."""
BUDGET = 0.01
"""Share of the planned run's cost that a pilot may cost, unless another is given."""
RATES = (0.5, 0.71, 1.0)
"""Learning rates that each arm tries at each size, as multiples of the rate that is expected for
the baseline. At the baseline's rate our superposed arms ended 0.012 to 0.020 nats higher than at
0.5 to 0.7 of it."""
SHIFT = 0.032
"""Nats by which a gain may differ for each factor of e in size, as a 95% half-width. It is the t
factor of four recorded shifts, 2.78, times their root mean square, 0.0115. These are 0.0057 and
0.0157 in the paper (270M to 600M, and 600M to 3B, where Table 1 says 0.032 and Figure 3a −0.001),
0.0100 in our third campaign (output only, 10.2M tokens at 0.23 million weights, brought to the
47.1M at 1.07 million) and −0.0124 in our first (plain, from 0.23 to 1.07 million weights, 10.2M
tokens)."""
TUNING_SEED = 100
"""The seed of the runs that choose the rates; never one of the measured runs."""


@dataclass(frozen=True)
class Rung:
    """The runs of one size of the pilot."""

    run: IntendedRun
    model: dict[str, Any]
    """Keys of `[model]` that the size sets."""
    sequences: int
    length: int
    is_smaller: bool
    """Whether the runs are smaller than the planned run."""
    rate: float
    """The expected rate of the baseline."""
    flops: float
    """FLOPs of one run."""
    worthwhile: float
    """The least gain that counts at this size, nats per token."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return max(1, round(self.run.tokens / (self.sequences * self.length)))

    @property
    def rates(self) -> list[float]:
        """The learning rates that both arms try."""
        return [float(f"{self.rate * part:.2g}") for part in RATES]

    @property
    def name(self) -> str:
        """The name of the set-up, such as `n50M`."""
        return f"n{big(self.run.size)}".replace(".", "_")


@dataclass(frozen=True)
class Pilot:
    """A planned pilot. Every size has the same number of pairs, each a baseline and a superposed
    run of one seed, and beside them the runs that choose both arms' rates."""

    rungs: tuple[Rung, ...]
    """From the smallest to the largest."""
    pairs: int
    noise: float
    """Standard deviation of a pair's difference, nats per token."""
    source: str
    """The origin of `noise`, in words."""
    least: float
    """The gain that the pairs of one size detect with a power of 80%, nats per token, at the first
    of the looks that `StopRule.looks` allows."""
    flops: float
    """FLOPs of all its runs."""
    share: float
    """The same over those of one planned run."""
    budget: float
    """The share that was allowed."""

    @property
    def runs(self) -> int:
        """Number of runs of one size."""
        return 2 * (self.pairs + len(RATES))

    @property
    def most_share(self) -> float:
        """`share` of the pilot with `MOST_SEEDS` pairs."""
        return self.share * 2 * (MOST_SEEDS + len(RATES)) / self.runs

    @property
    def is_smaller(self) -> bool:
        """Whether its runs are smaller than the planned run."""
        return self.rungs[0].is_smaller


def plan_pilot(
    run: IntendedRun,
    length: int,
    budget: float = BUDGET,
    config: Config | None = None,
    deviation: float | None = None,
) -> Pilot:
    """Plan the pilot of a run.

    Sizes and lengths shrink together, so that the tokens for each parameter outside the embeddings
    stay. There are three sizes, each twice the one before, if the budget pays for them, else two;
    one for a run that is less than 8 times as large as the smallest sensible pilot (`LEAST`), and
    if even half its size is below that, the pilot is the run itself. A pilot that is over the
    budget is planned all the same, as small as is sensible: its `share` says so. The number of
    pairs is the smallest, from `FEWEST_SEEDS` to `MOST_SEEDS`, that detects the gain expected of
    the planned run, or, if none is known, twice a pair's deviation.

    `budget`: a share of the planned run's FLOPs. `config`: the planned run's, for shape, batch and
    rate; without it they follow the paper's. `deviation`: the most that a lab's own pairs allow.
    """
    like = config.model if config else shape_like(run)
    whole = (
        like if config else _scaled(like, _inner(like) * run.size / count_parameters(like).active)
    )
    arm = own_arm(OUTPUT_ONLY if run.setting.output_only else PLAIN)
    noise, source = pair_deviation(published_law()), "as published runs do"
    if run.small:
        noise, source = arm["deviation"], f"as in our {arm['source']}"
    if deviation:
        noise, source = deviation, "at most, by your runs"
    noise = float(f"{noise:.3g}")  # as the pilot's file has it
    wanted = abs(run.gain.nats or 2 * noise)
    counts = range(FEWEST_SEEDS, MOST_SEEDS + 1)
    looks = StopRule.looks
    shown = [(n, (smallest_detectable(n, looks(n)) or math.inf) * noise) for n in counts]
    pairs, least = next((pair for pair in shown if pair[1] <= wanted), shown[-1])
    runs, planned = 2 * (pairs + len(RATES)), flops_of(run, length)

    @functools.cache  # three sizes and two are tried with the same factors
    def rung(factor: float) -> Rung:
        return _rung(run, factor, length, whole, config)

    def rungs(factor: float, sizes: int) -> tuple[Rung, ...]:
        return tuple(rung(factor * 2.0**-i) for i in range(sizes))

    def share(rungs: Sequence[Rung]) -> float:
        return runs * sum(rung.flops for rung in rungs) / planned

    most = min(_inner(whole) / LEAST[0], run.tokens / LEAST[1])
    if run.small or most < 2:
        chosen = rungs(1.0, 1)
    elif most < 8:
        chosen = rungs(most, 1)
    else:
        # The largest runs that the budget pays for, of as many sizes as it does.
        affordable = (
            tried
            for sizes in (3, 2)
            for factor in np.geomspace(8.0, most, 24).tolist()
            if share(tried := rungs(factor, sizes)) <= budget
        )
        chosen = next(affordable, rungs(most, 2))
    return Pilot(
        chosen, pairs, noise, source, least, share(chosen) * planned, share(chosen), budget
    )


def _inner(model: Model) -> int:
    """Return the active parameters outside the embeddings."""
    count = count_parameters(model)
    return count.active - count.input_embedding - count.output_head


def _rung(
    run: IntendedRun, factor: float, length: int, whole: Model, config: Config | None
) -> Rung:
    """Return the runs whose parameters outside the embeddings, and whose positions, are `factor`
    times fewer than those of the planned run, which has the shape `whole`."""
    model, smaller = whole, replace(run, chosen=run.setting)
    if factor != 1:
        model = _scaled(whole, _inner(whole) / factor)
        count, shorter = count_parameters(model), run.with_steps(1 / factor)
        smaller = replace(shorter, params=count.total, size=count.active, text=run.text / factor)
    # The critical batch grows as the 0.47th power of the length (arXiv 2410.21676): about its root.
    batch = config.batch.positions if config else TOKENS_PER_STEP * math.sqrt(run.tokens / 4.19e10)
    sequences = 2 ** max(0, round(math.log2(batch / length / math.sqrt(factor))))
    if factor == 1 and config:
        sequences = config.batch.sequences
    sizes = [published.PARAMS[name] for name in ("270M", "600M", "3B")]
    rates = [published.LEARNING_RATE[name] for name in ("270M", "600M", "3B")]
    asked = np.log([smaller.size, run.size])
    here, planned = np.exp(np.interp(asked, np.log(sizes), np.log(rates)))
    rate = config.optimizer.learning_rate * here / planned if config else here
    chosen = model.model_dump(mode="json", include=SHAPE, exclude_none=True)
    flops = smaller.tokens * flops_per_position(model, length)
    if factor == 1 and not config:
        flops = flops_of(run, length)
    worthwhile = float(f"{smaller.worth_of_steps(LONGER):.2g}")
    rate = float(f"{rate:.2g}")
    return Rung(smaller, chosen, sequences, length, factor > 1, rate, flops, worthwhile)


def _scaled(like: Model, inner: float) -> Model:
    """Return a model with about so many active parameters outside the embeddings, and with the
    proportions of `like`."""
    heads = like.attention_heads / like.key_value_heads

    def of_width(scale: float) -> Model:
        def mlp(layer: Any) -> dict[str, int]:
            return {"feed_forward_size": 32 * math.ceil(layer.feed_forward_size * scale / 32)}

        size = like.head_size
        groups = max(1, round(like.key_value_heads * scale))
        experts = like.experts and like.experts.model_copy(update=mlp(like.experts))
        return like.model_copy(
            update={
                "hidden_size": size * max(1, round(like.hidden_size * scale / size)),
                "key_value_heads": groups,
                "attention_heads": round(groups * heads),
                **mlp(like),
                "layers": max(1, round(like.layers * scale)),
                "experts": experts,
            }
        )

    guess = (inner / _inner(like)) ** (1 / 3)
    tried = [of_width(float(scale)) for scale in guess * np.geomspace(0.7, 1.4, 71)]
    return min(tried, key=lambda model: abs(math.log(_inner(model) / inner)))


def write_grid(
    path: Path, pilot: Pilot, base: Path, config: Config | None, rule: Sequence[str]
) -> None:
    """Write a pilot as a grid file, which `tst-study submit` takes. `base`: the run config that has
    its text; `config`: the same, if it was read. `rule`: the stop rule in sentences, which stand
    above it as comments."""
    setting = pilot.rungs[0].run.setting
    superposed: dict[str, Any] = {"bag_size": setting.bag_size, "step_ratio": setting.step_ratio}
    if setting.output_only:
        superposed["mode"] = "output_only"
    grid = {
        "study": path.stem,
        "asks": "Does superposition gain enough in smaller runs to use it in the planned one?",
        "base": os.path.relpath(base, path.parent),
        "seeds": list(range(pilot.pairs)),
        "arms": {"baseline": {}, "superposed": superposed},
        "tune": {
            "optimizer.learning_rate": pilot.rungs[0].rates,
            "per": "arm",
            "seeds": [TUNING_SEED],
            "extend": 2,
        },
        "setups": {"base": {"skip": True}}
        | {rung.name: _setup(rung, config) for rung in pilot.rungs},
        "questions": [
            {
                # The rule looks at the largest size alone, so no interval is widened for others.
                "family": f"pilot {rung.name}",
                "arm": {"arm": "superposed", "setup": rung.name},
                "smallest_gain": rung.worthwhile,
                "rule": {"deviation": pilot.noise, "step_time": LONGER},
            }
            for rung in pilot.rungs
        ],
    }
    lines = [f"# {line}\n" for line in rule]
    with written_atomically(path) as file:
        file.write(("".join(lines) + "\n" + tomli_w.dumps(grid)).encode())


def _setup(rung: Rung, config: Config | None) -> dict[str, Any]:
    """Return the keys in which a size differs from the base."""
    rates = {"optimizer": {"learning_rate": rung.rates}}
    if config and not rung.is_smaller:
        return rates
    known = config.model.model_dump(mode="json") if config else {}
    return {
        "model": {key: value for key, value in rung.model.items() if known.get(key) != value},
        "batch": {"sequences": rung.sequences, "sequence_length": rung.length},
        "schedule": {"steps": rung.steps, "warmup_steps": rung.steps // 50},
        **rates,
    }


@dataclass(frozen=True)
class Measured:
    """The gain that a lab measured in its own pairs of one size and length."""

    run: IntendedRun
    seeds: int
    gain: Gain
    """At this size and length. `by_looks` widens its interval for the looks that are allowed."""
    deviation: float
    worthwhile: float
    """The least gain that counts at this size and length, nats per token."""
    tuned: bool = False
    """Whether a sweep beside these runs chose their rates."""
    step_time: float | None = None
    """How many times as long as the baseline's steps superposed ones took; None if that was not
    measured."""
    slowest: float = LONGER
    """The most that `step_time` may be."""
    first: int = 0
    """Number of pairs at the first look, by the registered question; 0 if there is none."""

    @property
    def decision(self) -> str:
        """`go`, `slow` (a go, were the steps as fast as they must be), `stop` or `more`, by the
        rule that the pilot's file has: it looks at the planned pairs and at `MOST_SEEDS`, and
        between them at none."""
        if 0 < self.first < self.seeds < MOST_SEEDS:
            return "more"
        if (self.gain.low or -math.inf) > self.worthwhile:
            return "slow" if (self.step_time or 0.0) > self.slowest else "go"
        too_many = self.seeds >= MOST_SEEDS
        return "stop" if too_many or (self.gain.high or math.inf) < self.worthwhile else "more"

    def at(self, run: IntendedRun) -> Gain:
        """Return the gain that these pairs let expect of the planned run: in a longer run it is
        decreased by the power of the length of Chinchilla's data term, in a shorter one it is left
        as it is. Half of that change, and `SHIFT` for each e-fold of size, are added to the
        interval's half-width in quadrature."""
        nats, low, high = self.gain.nats or 0.0, self.gain.low or 0.0, self.gain.high or 0.0
        kept = min(1.0, (run.tokens / self.run.tokens) ** -DATA_EXPONENT)
        shift = SHIFT * math.log(run.size / self.run.size)
        half = math.hypot(kept * (high - low) / 2, nats * (1 - kept) / 2, shift)
        return Gain(kept * nats, kept * nats - half, kept * nats + half, "your runs")


def measured_in(sources: Sequence[str | Path], run: IntendedRun) -> list[Measured]:
    """Read a lab's own runs of the advised setting, and return their gains, those nearest to the
    planned run last: of each size and length those with the most seeds.

    Raises `UserError` for runs that are not whole: while some are queued or running, are missing of
    the seeds that a registered question names, or have a seed that the other arm lacks, a look at
    the others would make the rule's errors larger than it says. Raises it, too, if no pair of the
    advised setting has `FEWEST_SEEDS` seeds.
    """
    tables = read_tables([str(source) for source in sources])
    runs = tables.runs[(tables.runs["exclusion"] == "") & (tables.runs["role"] != "trunk")]
    names, table = runs["run_id"][~runs["state"].isin(OVER)].tolist(), labelled(tables.runs)
    asked = {(one.family, one.name): one for one in questions_of(tables.roots)}
    names += (name for one in asked.values() for name in one.unfinished(table))
    if waiting := [*dict.fromkeys(names)]:
        raise UserError(
            f"--runs: {len(waiting)} runs are not finished ({listed(waiting, 3)}); looking at a "
            "pilot before it is whole makes chance look like a gain, so wait for them"
        )
    found, is_tuned = defaultdict[Any, list[Measured]](list), bool((runs["role"] == "pilot").any())
    for row, first in _judged(summarise(tables)):
        setting = SuperpositionSetting.of_row(first)
        given = setting.bag_size, first["mode"] == "output_only"
        if given != (run.setting.bag_size, run.setting.output_only) or pd.isna(row["low"]):
            continue
        if not setting.is_plain_but("mode", "named_arm"):
            continue
        if abs(setting.step_ratio - run.setting.step_ratio) > 0.01:
            continue
        alike = runs[(runs["group"] == first["group"]) & (runs["role"] != "pilot")]
        is_same = alike["run_id"].isin(row["run_ids"]) | (alike["arm"] == first["arm"])
        both = alike[is_same | (alike["method"] == "baseline")]
        if both.groupby("method")["seed"].agg(frozenset).nunique() > 1:
            raise UserError(
                f"--runs: {row['question']}: the two arms have different seeds; finish the pairs, "
                "or exclude what has no partner, before looking"
            )
        gain = Gain(row["gain"], row["low"], row["high"], "your runs")
        size = float(first["parameters"]), float(first["active_parameters"])
        own = IntendedRun(*size, float(first["latent_tokens"]), chosen=run.setting)
        question = asked.get((row["family"], row["question"]))
        rule = question.rule if question else None
        one = Measured(
            own,
            int(row["seeds"]),
            gain,
            float(row["deviation"]),
            worthwhile=(question and question.smallest_gain) or own.worth_of_steps(LONGER),
            tuned=is_tuned,
            step_time=_step_time(both, tables.curves),
            slowest=rule.step_time if rule else LONGER,
            first=int(row["seeds"]) if question else 0,
        )
        found[own.size, own.tokens].append(one)
    if not found:
        raise UserError(
            f"--runs: no {FEWEST_SEEDS} pairs of {run.setting} and a baseline there; "
            "`tst-study analyse --runs` says what they allow; another setting goes into the "
            "[superposition] of --config"
        )
    every = [by_looks(looks) for looks in found.values()]
    far = run.far(pd.DataFrame([vars(one.run) for one in every])).to_numpy()
    return [every[place] for place in np.argsort(-far, kind="stable")]


def by_looks(same: Sequence[Measured]) -> Measured:
    """Return, of the pairs of one size and length as they were looked at, the look with the most.

    Its interval is widened so that those of all looks that the rule allows hold together
    (Bonferroni). The first look was at the fewest pairs that a registered question named. Where
    none is registered, an earlier look is possible, so two are allowed for."""
    last = max(same, key=lambda one: one.seeds)
    first = min((one.first for one in same if one.first), default=0)
    free, nats = last.seeds - 1, last.gain.nats or 0.0
    wider = critical_t(free, StopRule.looks(first)) / critical_t(free)
    low, high = (nats + wider * ((end or 0.0) - nats) for end in (last.gain.low, last.gain.high))
    return replace(last, first=first, gain=replace(last.gain, low=low, high=high))


def _step_time(runs: pd.DataFrame, curves: pd.DataFrame) -> float | None:
    """Return how many times as long as a step of the baselines among these runs a superposed step
    of the others took, on equal devices; None if the tables do not have the times. Medians over the
    logged steps are compared, because compilation makes the first ones slower."""
    steps = curves.astype({"folder": str}).merge(runs[["folder", "method", "devices"]])
    steps = steps[(steps["method"] == "baseline") | (steps["phase"] == "superposition")]
    passed = steps.groupby("folder")[["training_seconds", "step"]].diff()
    steps = steps.assign(time=passed["training_seconds"] / passed["step"])
    times = steps.pivot_table("time", "devices", "method", "median")
    ratio = (times.get("superposition", math.nan) / times.get("baseline", pd.Series())).median()
    return float(ratio) if 0 < ratio < math.inf else None


def _judged(summary: Summary) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the verdicts on superposed arms against baselines, each with one of the arm's runs."""
    runs = summary.tables.runs.drop_duplicates("run_id").set_index("run_id", drop=False)
    for row in rows_of(summary.comparison.verdicts):
        arms = runs.loc[[name for name in row["run_ids"] if name in runs.index]]
        superposed = arms[arms["method"] != "baseline"]
        if not superposed.empty and len(superposed) < len(arms):
            yield row, next(rows_of(superposed))


def evidence_rows(tables: Tables) -> str:
    """Return a row of `published.others` for each verdict on a superposed arm against a baseline,
    as CSV text with a head, for `docs/evidence.md`. What a table of runs does not know is left
    empty. Runs whose learning rate was not annealed are compared with none, so the grade is A from
    three seeds on, else B; a gain in training loss must be graded C by hand."""
    rows = []
    for row, first in _judged(summarise(tables)):
        if row["seeds"] < 1:
            continue
        rows.append(
            {
                "grade": "A" if row["seeds"] >= FEWEST_SEEDS else "B",
                "params": first["active_parameters"],
                "tokens": first["latent_tokens"],
                "s": first["bag_size"],
                "r": f"{first['step_ratio']:.3g}",
                "variant": SuperpositionSetting.of_row(first).variant or "plain",
                "held_equal": "steps",
                "seeds": row["seeds"],
                "unit": f"nats, held-out {first['eval_set']}",
                "baseline": f"{row['against_loss']:.6g}",
                "superposed": f"{row['loss']:.6g}",
            }
        )
    columns = published.others().columns.drop("gain")
    return str(pd.DataFrame(rows, columns=columns).to_csv(index=False, lineterminator="\n"))


def together(run: IntendedRun, measured: Sequence[Measured]) -> tuple[Gain, list[float]]:
    """Return the gain to expect by the published runs and the lab's own, and the weights of both:
    first that of the published runs, then one for each size.

    Each counts with the inverse square of its interval's half-width. The interval also holds that
    of the lab's nearest runs alone, which are right whatever was published.
    """
    if not measured:
        return run.gain, []
    every = [one.at(run) for one in measured]
    gains = [gain for gain in (run.gain, *every) if gain.nats is not None]
    ends = np.array([[gain.nats, gain.low, gain.high] for gain in gains], dtype=float)
    weights = 4 / (ends[:, 2] - ends[:, 1]) ** 2
    middle, half = float(weights @ ends[:, 0] / weights.sum()), float(weights.sum() ** -0.5)
    last = every[-1]
    low, high = min(middle - half, last.low or 0.0), max(middle + half, last.high or 0.0)
    shares = (weights / weights.sum()).tolist()
    if run.gain.nats is None:
        shares = [0.0, *shares]
    return Gain(middle, low, high, "published runs and yours"), shares
