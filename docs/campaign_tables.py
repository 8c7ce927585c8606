"""Tables of the campaign's grids for docs/findings.md.

Written before the outcomes were looked at. Every grid is a question of its own, so an interval
allows for the rows of its table and for nothing else (docs/research/plan-of-runs.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.bag_size.optimum import Along, optimum
from analysis.compare.comparison import Comparison
from analysis.compare.matched import matched
from analysis.compare.paired import Paired, paired
from analysis.tables.columns import rows_of
from analysis.wording import bounds
from experiments.studies.campaign import HELD_OUT_STEPS, LARGER, LENGTHS, SMALLER, STEPS
from experiments.studies.grid import SMALL_MAIN
from tst_study.configuration.superposition_setting import SuperpositionSetting

MAIN = SuperpositionSetting.from_config(
    {"superposition": SMALL_MAIN.model_dump(), "schedule": {"steps": STEPS}}
).label
MIDDLE = "laptop-64"
PREDICTIONS = Path(__file__).parent / "records/predictions.json"


ARMS = ("baseline", "superposed")
LOWER, MORE = ("better", "worse"), ("leans less on it", "leans more on it")
"""What a negative and a positive difference of the arms say."""
CONTEXT = {
    ("loss_by_position", "nats_to_training_length"): ("loss at positions 33 to 64", LOWER),
    ("loss_by_position", "nats_to_double_length"): ("loss at positions 65 to 128", LOWER),
    ("loss_by_position", "nats_to_quadruple_length"): ("loss at positions 129 to 256", LOWER),
    **{
        ("word_order", f"order_gain_bags_of_{s}"): (f"lost by shuffling within bags of {s}", MORE)
        for s in (2, 4, 8, 16)
    },
    ("copied_spans", "copy_gain"): ("saved by a span that was read before", MORE),
    ("induction", "repeat_gain"): ("saved where random tokens are repeated", MORE),
    ("code", "nats_per_token"): ("loss on Python code", LOWER),
}
"""Of `tst_study/evaluation/context_checks.py`, in nats per token."""


def shown(found: Paired) -> str:
    return with_interval(found.mean, found.low, found.high)


def with_interval(value: float, low: float | None, high: float | None) -> str:
    """0.0123 [0.0045, 0.0201]; the number alone for one seed."""
    if low is None or high is None:
        return signed(value)
    return f"{signed(value)} [{signed(low)}, {signed(high)}]"


def signed(value: float) -> str:
    return f"{value:.4f}".replace("-", "−")


def _known(value: float | None) -> str:
    """A dash for what one seed does not tell."""
    return "–" if value is None else signed(value)


def gains(pairs: pd.DataFrame, heading: str, by: str, comparisons: int | None = None) -> str:
    """One row per value of the column `by`; intervals allow for all rows, or for so many."""
    groups = dict(list(pairs.groupby(by, sort=False)))
    lines = [
        f"| {heading} | seeds | baseline | superposed | gain | deviation | found with 80% power "
        "| verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for value, own in groups.items():
        found = paired(list(own["gain"]), comparisons or len(groups))
        name = f"{value:,}" if isinstance(value, int) else str(value)
        lines.append(
            f"| {name} | {found.seeds} | {own['baseline'].mean():.4f} | "
            f"{own['superposed'].mean():.4f} | {shown(found)} | {_known(found.deviation)} | "
            f"{_known(found.smallest_detectable)} | {found.verdict} |"
        )
    return "\n".join(lines)


def of_grid(pairs: pd.DataFrame, grid: str) -> pd.DataFrame:
    """Pairs whose superposed run was first asked for by this grid; names begin with it."""
    names = pairs["superposed_folder"].str.rpartition("/")[2]
    return pairs[names.str.match(grid + r"-\d")]


def lengths(found: Comparison) -> str:
    """G1, equal FLOPs: all four lengths are allowed for, also before the longest has ended."""
    pairs = of_grid(found.pairs, "lengths").sort_values("steps")
    return gains(pairs, "steps", "steps", comparisons=len({*LENGTHS, HELD_OUT_STEPS}))


def primary(found: Comparison) -> str:
    """G1 at its main length, one question: equal FLOPs, equal data, equal loss."""
    runs = found.eligible
    rows = matched(runs[runs["name"].str.startswith("lengths-")]).table
    lines = ["| at equal | gain in nats | baseline's steps over superposed steps | |"]
    lines.append("| --- | --- | --- | --- |")
    for row in rows_of(rows[rows["steps"] == STEPS]):
        interval = f" [{known}]" if (known := bounds(row, 4)) else ""
        number = "gain" if row["kind"] != "equal loss" else "steps_ratio"
        cells = {"gain": "", "steps_ratio": ""}
        if not pd.isna(row["steps_ratio"]):
            cells["steps_ratio"] = f"{row['steps_ratio']:.3f}"
            cells[number] = signed(row[number]) + interval
        lines.append(
            f"| {row['kind'].removeprefix('equal ')} | {cells['gain']} | {cells['steps_ratio']} "
            f"| {row['note'] or row['verdict']} |"
        )
    return "\n".join(lines)


def context(found: Comparison, evaluations: pd.DataFrame) -> str:
    """What `tst-study evaluate --context` found in both arms at the main length; not planned."""
    pairs = of_grid(found.pairs, "lengths")
    pairs = pairs[pairs["steps"] == STEPS]
    measured = {
        arm: [_measured(evaluations, one) for one in pairs[f"{arm}_folder"]] for arm in ARMS
    }
    lines = ["| | seeds | baseline | superposed | superposed less baseline | verdict |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for key, (words, verdicts) in CONTEXT.items():
        values = {arm: np.array([run[key] for run in measured[arm]]) for arm in ARMS}
        one = paired(list(values["superposed"] - values["baseline"]), len(CONTEXT))
        said = dict(zip(("worse", "better"), verdicts, strict=True))
        lines.append(
            f"| {words} | {one.seeds} | {signed(values['baseline'].mean())} | "
            f"{signed(values['superposed'].mean())} | {shown(one)} | "
            f"{said.get(one.verdict, one.verdict)} |"
        )
    return "\n".join(lines)


def _measured(evaluations: pd.DataFrame, folder: str) -> dict[tuple[str, str], float]:
    own = evaluations[(evaluations["folder"] == folder) & evaluations["task"].notna()]
    return {(row["task"], row["metric"]): row["value"] for row in rows_of(own)}


def with_main(pairs: pd.DataFrame, grid: str) -> pd.DataFrame:
    """A grid's pairs, and those of the main setting at its length with the grid's seeds."""
    own = of_grid(pairs, grid)
    at_length = pairs[pairs["steps"] == STEPS]
    return pd.concat([own, _main(at_length, beside=own)])


def _main(pairs: pd.DataFrame, beside: pd.DataFrame) -> pd.DataFrame:
    main = of_grid(pairs, "lengths")
    return main[main["seed"].isin(beside["seed"])]


def rates(found: Comparison) -> str:
    """G1 at the gate's rate and at its neighbours, then each arm at its own best."""
    pairs = with_main(found.pairs, "rates").sort_values("learning_rate")
    table = gains(pairs.assign(rate=pairs["learning_rate"].map("{:g}".format)), "rate", "rate")
    means = pairs.groupby("learning_rate")[["baseline", "superposed"]].mean()
    best = {arm: means[arm].idxmin() for arm in ("baseline", "superposed")}
    at_best = [
        pairs[pairs["learning_rate"] == rate].set_index("seed")[arm] for arm, rate in best.items()
    ]
    own = paired(list((at_best[0] - at_best[1]).dropna()), len(means))
    return (
        f"{table}\n\nEach arm at the rate with its lowest mean (baseline {best['baseline']:g}, "
        f"superposed {best['superposed']:g}): {shown(own)} nats, {own.verdict}."
    )


def step_ratios(found: Comparison) -> str:
    """G3."""
    pairs = with_main(found.pairs, "step-ratios")
    return f"{_by_setting(pairs)}\n\n{_best(pairs, 'step_ratio')}"


def bag_sizes(found: Comparison) -> str:
    """G2."""
    pairs = with_main(found.pairs, "bag-sizes").sort_values("bag_size")
    return f"{gains(pairs, 's', 'bag_size')}\n\n{_best(pairs, 'bag_size')}"


def _best(pairs: pd.DataFrame, along: Along) -> str:
    """The optimum by both forms, over the seeds that all values have."""
    losses = -pairs.pivot(index=along, columns="seed", values="gain").dropna(axis=1)
    found = optimum(losses.index.to_numpy(float), losses.to_numpy(float), along=along)
    name = {"bag_size": "s", "step_ratio": "r"}[along]
    if found.best is None:
        return f"Best {name}: {found.edge}."
    low, high = (
        "open" if value is None else f"{word} {value:.3g}"
        for word, value in (("from", found.low), ("to", found.high))
    )
    return f"Best {name}: {found.best:.3g} (95%: {low}, {high})."


def sizes(found: Comparison) -> str:
    """G5, each size at the rate chosen on its own baseline."""
    pairs = found.pairs
    model = pairs["superposed_folder"].str.extract(r"/sizes-(laptop-\d+)-")[0]
    own = pairs.assign(model=model).dropna(subset="model")
    middle = _main(pairs[pairs["steps"].isin(own["steps"])], beside=own)
    three = pd.concat([own, middle.assign(model=MIDDLE)])
    return gains(three, "model", "model", comparisons=len((SMALLER, MIDDLE, LARGER)))


def little_text(found: Comparison) -> str:
    """G6."""
    return _by_setting(of_grid(found.pairs, "little-text"))


def generated(found: Comparison) -> str:
    """The generated language."""
    pairs = of_grid(found.pairs, "generated").sort_values("bag_size")
    return gains(pairs, "s", "bag_size")


def _by_setting(pairs: pd.DataFrame) -> str:
    return gains(pairs.sort_values("setting"), "setting", "setting")


def ablations(found: Comparison) -> str:
    """G4: an ablated run's loss less the plain run's of the same bag size and seed; positive: the
    part that was taken away or changed had helped."""
    plain = with_main(found.pairs, "bag-sizes").set_index(["bag_size", "seed"])["superposed"]
    groups = list(of_grid(found.pairs, "ablations").groupby("setting", sort=True))
    lines = ["| setting | seeds | loss | less the plain setting's | verdict |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for setting, own in groups:
        worse = own.set_index(["bag_size", "seed"])["superposed"] - plain
        one = paired(list(worse.dropna()), len(groups))
        verdict = {"better": "worse than plain", "worse": "better than plain"}.get(
            one.verdict, one.verdict
        )
        mean = own["superposed"].mean()
        lines.append(f"| {setting} | {one.seeds} | {mean:.4f} | {shown(one)} | {verdict} |")
    return "\n".join(lines)


def output_only(found: Comparison) -> str:
    """The seeds that G4 does not have, against both arms of G1; intervals allow for the two."""
    own = of_grid(found.pairs, "output-only")
    main = _main(found.pairs[found.pairs["steps"] == STEPS], beside=own).set_index("seed")
    losses = own.set_index("seed")["superposed"]
    lines = ["| held against | seeds | its loss | output only | gain | verdict |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for words, arm in (("the baseline", "baseline"), ("plain superposition", "superposed")):
        one = paired(list((main[arm] - losses).dropna()), len(ARMS))
        lines.append(
            f"| {words} | {one.seeds} | {main[arm].mean():.4f} | {losses.mean():.4f} "
            f"| {shown(one)} | {one.verdict} |"
        )
    return "\n".join(lines)


WAYS = {
    "law": "the law",
    "trend": "the trend",
    "same": "the same as at the nearest",
    "none": "no gain",
}


def predictions(found: Comparison) -> str:
    """G7: what was committed before the runs ended (`docs/predictions.py`), and what they gave.

    Observed less predicted, paired by seed where the prediction has a value for each; intervals
    allow for all ways of predicting one thing. A way is refuted if its interval excludes zero.
    """
    committed = json.loads(PREDICTIONS.read_text("utf8"))["predictions"]
    pairs = found.pairs.merge(
        found.eligible[["folder", "active_parameters", "latent_tokens"]],
        left_on="superposed_folder",
        right_on="folder",
    )
    pairs = pairs[pairs["setting"] == MAIN]
    lines = ["| | by | predicted | observed less predicted | |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for one in committed:
        own = pairs[
            (pairs["active_parameters"] == one["params"])
            & (pairs["latent_tokens"] == one["tokens"])
        ].set_index("seed")["gain"]
        said = f"{one['what']}: not trained yet"
        if len(own) > 1:
            said = f"{one['what']}: {shown(paired(list(own)))} ({len(own)} seeds)"
        for way, words in WAYS.items():
            lines.append(f"| {said} | {words} | {_judged(one, way, own)} |")
            said = ""
    return "\n".join(lines)


def _judged(one: Mapping[str, Any], way: str, own: pd.Series) -> str:
    """Prediction, miss and verdict as cells of a table."""
    if one[way] is None:
        return "these runs determine none | | "
    predicted = signed(one[way]) if way == "none" else with_interval(*one[way])
    if len(own) < 2:
        return f"{predicted} | | "
    miss = paired(list((own - _by_seed(one, way)).dropna()), len(WAYS))
    verdict = "not refuted" if miss.low is None or miss.low <= 0 <= miss.high else "refuted"
    if way in ("law", "trend"):
        verdict += f"; {_nearer(own, _by_seed(one, way), _by_seed(one, 'same'))}"
    return f"{predicted} | {shown(miss)} | {verdict}"


def _by_seed(one: Mapping[str, Any], way: str) -> Any:
    if f"{way}_by_seed" in one:
        return pd.Series(one[f"{way}_by_seed"], one["seeds"])
    return one[way] if way == "none" else one[way][0]


def _nearer(own: pd.Series, predicted: Any, copied: pd.Series) -> str:
    """Whether what came lies on this side of the middle between the two, seed by seed."""
    beyond = (own - (predicted + copied) / 2).dropna()
    towards = np.sign(np.mean(predicted - copied))
    verdict = paired(list(towards * beyond), len(WAYS)).verdict
    return {"better": "nearer than the same", "worse": "farther than the same"}.get(
        verdict, "no nearer than the same, as far as shown"
    )
