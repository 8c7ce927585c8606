"""Numbers that README and findings state in words are those of records and published tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import published as paper
from analysis.compare.comparison import Comparison
from analysis.compare.matched import matched
from analysis.compare.paired import mean_interval, paired
from analysis.law.advice import recommend
from analysis.law.answer import published_beside_law
from analysis.law.held_out import CHOSEN_FROM, predictions, splits
from analysis.law.rows import published_rows
from analysis.law.superposition_law import Law, published_law
from analysis.published import loss_grid
from docs import campaign_tables
from docs.findings import compared as of
from docs.findings import recorded

ROOT = Path(__file__).parents[1]


def words(page: str) -> str:
    return " ".join((ROOT / page).read_text("utf8").replace("−", "-").split())


README, FINDINGS = words("README.md"), words("docs/findings.md")


def said(pattern: str, page: str = README) -> list[str]:
    """The groups of the one place on the page where the pattern stands."""
    (match,) = re.finditer(pattern, page)
    return list(match.groups())


@pytest.fixture(scope="module")
def law() -> Law:
    return published_law()


def shown(*values: float, digits: int = 3) -> list[str]:
    return [f"{value:.{digits}f}" for value in values]


INTERVAL = r"(\S+) (?:nats )?\[(\S+), (\S+)\]"


def stated(differences: Iterable[float], rows: int = 1) -> list[str]:
    """The three numbers of `INTERVAL`; so many rows are allowed for."""
    found = paired(list(differences), rows)
    return shown(found.mean, found.low or 0, found.high or 0)


def row_of(table: pd.DataFrame, corpus: str, steps: int) -> pd.Series:
    (index,) = table.index[table["corpus"].str.startswith(corpus) & (table["steps"] == steps)]
    return table.loc[index]


def test_what_the_learning_rate_does_to_the_gain() -> None:
    pairs = campaign_tables.with_main(of("campaign").pairs, "rates")
    arms = pairs.pivot(
        index="seed", columns="learning_rate", values=["gain", "superposed", "baseline"]
    )
    interval = r"(\S+) \[(\S+), (\S+)\]"
    for arm, rate, other, digits, pattern in (
        ("superposed", 1e-3, 2e-3, 4, rf"as good at 1e-3 as at 2e-3 \({interval}\)"),
        ("superposed", 5e-4, 1e-3, 3, rf"than at 1e-3, the superposed arm by {interval}"),
        ("baseline", 5e-4, 1e-3, 3, rf"and the baseline by {interval} \(exp"),
    ):
        moved = mean_interval((arms[arm, rate] - arms[arm, other]).to_numpy())
        assert moved
        assert said(pattern, FINDINGS) == shown(*moved, digits=digits)
    assert (arms["superposed"].mean().idxmin(), arms["baseline"].mean().idxmin()) == (1e-3, 2e-3)
    gains = arms["gain"]
    doubled = np.log2(gains.columns.to_numpy(float))
    slope = mean_interval(np.polyfit(doubled, gains.T.to_numpy(), 1)[0])
    assert slope
    assert said(rf"changes by {interval} with each doubling of the rate", FINDINGS) == shown(*slope)
    extremes = shown(gains.mean().min(), gains.mean().max())
    assert said(r"same size at all four rates, (\S+) to (\S+), and", FINDINGS) == extremes
    assert said(r"gain is (\S+) to (\S+) nats at each of four rates from 5e-4 to 4e-3") == extremes
    of_four = [paired(list(gains[rate]), 4) for rate in gains]
    assert {found.verdict for found in of_four} == {"no difference shown"}
    rule = of_four[-1].mean, of_four[-1].low or 0, of_four[-1].high or 0
    pattern = rf"4e-3, the rate that the rule names, the gain is {interval}, which"
    assert said(pattern, FINDINGS) == shown(*rule, digits=4)
    assert said(rf"At 4e-3 it is {interval}, too wide") == shown(*rule)
    own = paired(list(arms["baseline", 2e-3] - arms["superposed", 1e-3]), 4)
    of_own = shown(own.mean, own.low or 0, own.high or 0)
    assert said(rf"each arm at its own rate, {interval}\.") == of_own
    assert said(rf"each arm at its own rate {interval} \|", FINDINGS) == of_own


def test_what_the_bag_size_does_to_the_gain() -> None:
    pairs = campaign_tables.with_main(of("campaign").pairs, "bag-sizes")
    gains = pairs.pivot(index="seed", columns="bag_size", values="gain")
    assert gains.shape == (4, 7)
    falls = -np.polyfit(np.log2(gains.columns.to_numpy(float)), gains.T.to_numpy(), 1)[0]
    assert falls.min() > 0  # in each of the four seeds
    slope = mean_interval(falls)
    assert slope
    found = list(re.finditer(r"by (\S+) nats \[(\S+), (\S+)\] with each doubling", FINDINGS))
    found += re.finditer(r"by (\S+) nats \[(\S+), (\S+)\] with each doubling", README)
    assert len(found) == 3
    assert all(list(one.groups()) == shown(*slope) for one in found)
    stated = said(
        r"s = 4 gains (\S+) \[(\S+), (\S+)\] more than s = 8 and (\S+) \[(\S+), (\S+)\] more than "
        r"s = 16\)",
        FINDINGS,
    )
    more = [mean_interval((gains[4] - gains[s]).to_numpy()) for s in (8, 16)]
    assert stated == shown(*(number for one in more if one for number in one))
    means = gains.mean()
    lost = -means[[6, 8, 12, 16]]
    assert min(means[[2, 3, 4]].min(), lost.min()) > 0
    stated = said(r"From s = 6 on the means are losses, of (\S+) to (\S+); with four seeds")
    assert stated == shown(lost.min(), lost.max())
    grid = loss_grid(4).set_index(["bag_size", "step_ratio"])["loss"]
    published = {s: [float(grid.xs(1).iloc[0] - grid[s, r]) for r in (0.2, 0.3)] for s in (7, 16)}
    (seven,) = set(shown(*published[7]))
    assert said(r"gains most at s = 7 \((\S+) at r = 0.2 and 0.3\)", FINDINGS) == [seven]
    assert said(r"of it up to s = 16 \((\S+) and (\S+)\)", FINDINGS) == shown(*published[16])


def test_the_smaller_size() -> None:
    pairs = of("campaign").pairs
    small = paired(list(pairs["gain"][pairs["superposed_folder"].str.contains("-laptop-32-")]), 3)
    assert small.smallest_detectable
    stated = said(r"smaller size shows nothing, (\S+) \[(\S+), (\S+)\]", FINDINGS)
    assert stated == shown(small.mean, small.low or 0, small.high or 0)
    stated = said(r"four detect only gains of ([\d.]+) nats", FINDINGS)
    assert stated == shown(small.smallest_detectable, digits=2)


def test_the_larger_size() -> None:
    pairs = of("campaign").pairs
    large = pairs["gain"][pairs["superposed_folder"].str.contains("-laptop-128-")]
    assert len(large) == 4
    assert large.max() < 0  # in each of the four seeds
    lost = paired(list(-large), 3)
    before = r"(?:at 10,000 steps|At the larger size superposition loses\*\*)"
    pattern = before + r", by (\S+) (?:nats )?\[([\d.]+), ([\d.]+)\]"
    for page, times in ((README, 1), (FINDINGS, 2)):
        found = [list(one.groups()) for one in re.finditer(pattern, page)]
        assert found == [shown(lost.mean, lost.low or 0, lost.high or 0)] * times
    middle = campaign_tables.of_grid(pairs, "lengths")
    middle = middle[(middle["steps"] == 10_000) & middle["seed"].isin(range(3, 7))]
    assert said(r"same seeds, is ahead by (\S+) and", FINDINGS) == shown(middle["gain"].mean())
    runs = of("campaign").eligible
    tried = runs[runs["name"].str.startswith("sizes-laptop-128-5000")]
    assert tried.groupby("learning_rate")["nats_per_token"].mean().idxmin() == 1e-3


def test_what_the_step_ratio_does_to_the_gain() -> None:
    pairs = campaign_tables.with_main(of("campaign").pairs, "step-ratios")
    gains = pairs.pivot(index="seed", columns="step_ratio", values="gain")
    assert len(gains) == 4

    def more(one: float, other: float) -> list[str]:
        found = mean_interval((gains[one] - gains[other]).to_numpy())
        assert found
        return shown(*found)

    stated = said(
        r"r = 0.25 gains (\S+) \[(\S+), (\S+)\] more than r = 0.4, and that (\S+) \[(\S+), (\S+)\] "
        r"more than r = 0.6 .* is ahead of r = 0.25 by (\S+) \[(\S+), (\S+)\],",
        FINDINGS,
    )
    assert stated == [*more(0.25, 0.4), *more(0.4, 0.6), *more(0.1, 0.25)]
    means = said(r"as r grows beyond 0.25: (\S+) at r = 0.4, (\S+) at 0.6\.")
    assert means == shown(gains[0.4].mean(), gains[0.6].mean())
    lost = paired(list(-gains[0.6]), gains.shape[1])
    for page, words in (
        (FINDINGS, r"at r = 0.6 superposition loses, by (\S+) nats \[(\S+), (\S+)\]"),
        (README, r"at r = 0.6, by (\S+) \[(\S+), (\S+)\]"),
    ):
        assert said(words, page) == shown(lost.mean, lost.low or 0, lost.high or 0)
    grid = loss_grid(4).set_index(["bag_size", "step_ratio"])["loss"]
    published = float(grid.xs(1).iloc[0] - grid[4, 0.6])
    assert said(r"at s = 4, r = 0.6 by (\S+) at 270M", FINDINGS) == shown(published)


def test_which_part_does_the_work() -> None:
    pairs = of("campaign").pairs
    plain = campaign_tables.with_main(pairs, "bag-sizes").set_index(["bag_size", "seed"])
    ablated = campaign_tables.of_grid(pairs, "ablations")
    assert ablated.groupby("setting").size().to_list() == [4] * 7

    def less_plain(bag_size: int, name: str) -> list[float]:
        own = ablated[ablated["setting"] == f"s = {bag_size}, r = 0.25, {name}"]
        own = own.set_index(["bag_size", "seed"])
        return list((own["superposed"] - plain["superposed"]).dropna())

    def gains(name: str) -> list[float]:
        return list(ablated["gain"][ablated["setting"] == f"s = 4, r = 0.25, {name}"])

    means = plain.groupby("bag_size")["superposed"].mean()
    found = said(r"at s = 4, mean loss (\S+); G2's at s = 16, ([\d.]+)\)", FINDINGS)
    assert found == shown(means[4], means[16], digits=4)

    renewed = less_plain(4, "re-initialised")
    assert min(renewed) > 0
    assert said(rf"a run loses {INTERVAL} to plain", FINDINGS) == stated(renewed, 7)
    assert said(rf"after the switch cost {INTERVAL}\.", FINDINGS) == stated(renewed, 7)
    assert said(rf"a run ends {INTERVAL} above") == stated(renewed, 7)
    behind = [-gain for gain in gains("re-initialised")]
    assert said(rf"and ends {INTERVAL} behind the baseline", FINDINGS) == stated(behind)
    reset = stated(less_plain(4, "optimizer reset"), 7)
    assert said(rf"at the switch changes the loss by {INTERVAL}", FINDINGS) == reset

    published = paper.curves(6).groupby("run")["loss"].last()
    higher = published - published["full_superposition"]
    halves = ("input", "output")
    published_halves = [higher[f"{half}_superposition"] for half in halves]
    assert said(r"they end (\S+) and (\S+) higher", FINDINGS) == shown(*published_halves)
    for half, excluded in zip(halves, published_halves, strict=True):
        assert (paired(less_plain(4, f"{half} only"), 7).high or 1) < excluded
    outputs, weights = less_plain(4, "output only"), less_plain(4, "power-law weights")
    assert max(*outputs, *weights) < 0
    ahead = [stated([-one for one in values]) for values in (outputs, weights)]
    alone = said(rf"alone, the intervals would be {INTERVAL} and {INTERVAL}", FINDINGS)
    assert alone == [*ahead[0], *ahead[1]]
    _, *wider = stated(gains("output only"), 7)
    said_of_it = rf"over it, it gains {INTERVAL} at equal FLOPs .* allowed for, \[(\S+), (\S+)\]\)"
    assert said(said_of_it, FINDINGS) == [*stated(gains("output only")), *wider]

    outputs, weights = less_plain(16, "output only"), less_plain(16, "power-law weights")
    assert min(outputs) > 0
    found = said(r"is behind plain by (\S+), in each .* ahead by ([\d.]+); in", FINDINGS)
    assert found == shown(np.mean(outputs), -np.mean(weights))
    published = paper.curves(9).groupby(["panel", "run"])["loss"].last()["b_s16"]
    ahead = published["uniform"] - published["power_law"]
    assert said(r"Figure 9 they are ahead by (\d\.\d+)", FINDINGS) == shown(ahead)
    runs = paper.headline_runs().set_index(["params", "total_steps", "method"])["final_loss"]
    lost = runs["3B", 20_000, "tst_reinit_embedding_and_head"] - runs["3B", 20_000, "baseline"]
    assert said(r"where a 3B model ends (\S+) behind", FINDINGS) == shown(lost)


def test_output_only_with_other_seeds() -> None:
    pairs = of("campaign").pairs
    label = campaign_tables.of_grid(pairs, "output-only")["setting"].iloc[0]
    main = campaign_tables.of_grid(pairs, "lengths")
    plain = main[main["steps"] == 20_000].set_index("seed")["superposed"]
    named = pairs["superposed_folder"].str.contains("/(?:ablations|output-only)-20000-")
    own = pairs[named & (pairs["setting"] == label)].set_index("seed").sort_index()
    leads = {"baseline": own["gain"], "plain": plain - own["superposed"]}
    assert set(own.index) == set(range(3, 11))
    assert leads["baseline"].min() > 0
    assert (leads["plain"] > 0).sum() == 7
    fresh = {arm: paired(list(lead.loc[7:10]), 2) for arm, lead in leads.items()}
    assert {found.verdict for found in fresh.values()} == {"no difference shown"}
    for arm, lead in leads.items():
        assert (fresh[arm].deviation or 0) > lead.loc[3:6].std()
    means = shown(*(found.mean for found in fresh.values()))
    pattern = r"of G4, (\S+) over the baseline and (\S+) over plain superposition, and each"
    assert said(pattern, FINDINGS) == means
    eight = [mean_interval(lead.to_numpy()) for lead in leads.values()]
    numbers = shown(*(number for found in eight if found for number in found))
    pattern = (
        rf"ahead of the baseline by {INTERVAL}, in each, and of plain superposition by {INTERVAL},"
    )
    assert said(pattern, FINDINGS) == numbers
    pattern = rf"ahead of it by {INTERVAL}, in each .* plain superposition by {INTERVAL}, in seven"
    assert said(pattern) == numbers
    assert said(rf"in all of eight seeds, by {INTERVAL}, but", FINDINGS) == numbers[:3]


def test_little_text() -> None:
    found = of("campaign")
    own = campaign_tables.of_grid(found.pairs, "little-text").set_index("seed")
    full, output = (
        own[own["setting"] == f"s = 4, r = 0.25{mode}"] for mode in ("", ", output only")
    )
    assert len(full) == len(output) == 4
    assert min(full["gain"].min(), output["gain"].min()) > 0  # in each of the four seeds

    wins = stated(full["gain"], 2)
    assert said(rf"\*\*Superposition wins here\*\*, by {INTERVAL} and", FINDINGS) == wins
    assert said(rf"\*\*superposition wins, by {INTERVAL}\*\*", FINDINGS) == wins
    assert said(rf"again and again, superposition gains {INTERVAL} \(four") == wins
    assert said(rf"no difference is shown, {INTERVAL} \|", FINDINGS) == stated(output["gain"], 2)
    _, *alone = stated(output["gain"])
    assert said(r"zero; alone it would be \[(\S+), (\S+)\]", FINDINGS) == alone
    more = said(rf"no difference is shown: {INTERVAL} more", FINDINGS)
    assert more == stated(output["gain"] - full["gain"])

    plenty = campaign_tables.of_grid(found.pairs, "lengths")
    plenty = plenty[plenty["steps"] == 20_000].set_index("seed")
    other = campaign_tables.of_grid(found.pairs, "ablations").set_index("seed")
    other = other[other["setting"] == output["setting"].iloc[0]]
    more = said(rf"same seeds and length: {INTERVAL} more", FINDINGS)
    assert more == stated((full["gain"] - plenty["gain"]).dropna())
    costs = said(
        rf"the same\*\*: {INTERVAL} for .*?, {INTERVAL} for .*? and {INTERVAL} for", FINDINGS
    )
    assert costs == [
        *stated((full["baseline"] - plenty["baseline"]).dropna()),
        *stated((full["superposed"] - plenty["superposed"]).dropna()),
        *stated(output["superposed"] - other["superposed"]),
    ]
    runs = found.eligible[found.eligible["name"].str.startswith("little-text-")]
    logged = recorded("campaign").held_out
    for folder in runs["folder"]:
        losses = logged[logged["folder"] == folder]["nats_per_token"].tolist()
        assert losses[-1] == min(losses)
    (million,) = set(runs["unique_raw_tokens"] / 1e6)
    few, many = sorted(set(runs["epochs"]))
    assert set(runs["epochs"][runs["mode"] == "full"]) == {many}
    pattern = r"([\d.]+) million tokens, read .* read them (\S+) times, superposition (\S+) times;"
    stated_epochs = said(pattern, FINDINGS)
    assert stated_epochs == [f"{million:.2f}", f"{few:.1f}", f"{many:.1f}"]
    (text,) = said(
        r"From (\S+) million tokens, which superposition reads eleven times and the baseline six"
    )
    assert (text, round(many), round(few)) == (f"{million:.1f}", 11, 6)


def test_what_the_arms_make_of_their_context() -> None:
    table = campaign_tables.context(of("campaign"), recorded("campaign").evaluations).replace(
        "−", "-"
    )
    rows = re.findall(r"^\| ([^|]+) \| 8 \| (\S+) \| (\S+) \| (\S+) \[", table, re.MULTILINE)
    found = {name: [float(value) for value in values] for name, *values in rows}
    less = {s: -found[f"lost by shuffling within bags of {s}"][2] for s in (2, 4)}
    pattern = r"shuffled pairs [^.]*by ([\d.]+) nats [^.]* shuffled fours by ([\d.]+) less"
    matches = list(re.finditer(pattern, FINDINGS))
    assert len(matches) == 2
    assert all(list(one.groups()) == shown(*less.values(), digits=2) for one in matches)
    copied = found["saved by a span that was read before"]
    stated = said(r"read before: ([\d.]+) nats instead of ([\d.]+),", FINDINGS)
    assert stated == shown(copied[1], copied[0], digits=4)


def test_the_generated_language() -> None:
    record = of("campaign")
    pairs = campaign_tables.of_grid(record.pairs, "generated")
    gains = pairs.pivot(index="seed", columns="bag_size", values="gain")
    assert gains.shape == (8, 4)
    assert gains.min(axis=None) > 0
    extremes = shown(gains.mean().min(), gains.mean().max())
    for page, pattern in (
        (README, r"superposition gains (\S+) to (\S+) nats at s = 2, 4, 8 and 16, in each"),
        (FINDINGS, r"wins at every s tried\*\*, by (\S+) to (\S+) nats, and each of the 32 pairs"),
        (FINDINGS, r"yes, at s = 2, 4, 8 and 16\*\*, by (\S+) to (\S+) nats;"),
    ):
        assert said(pattern, page) == extremes
    doubled = np.log2(gains.columns.to_numpy(float))
    slope = mean_interval(np.polyfit(doubled, gains.T.to_numpy(), 1)[0])
    assert slope
    pattern = r"by doubling it changes by (\S+) \[(\S+), (\S+)\]"
    assert said(pattern, FINDINGS) == shown(*slope)
    old, pilot = (generated(of(name)) for name in ("laptop", "generated-pilot"))
    assert said(r"records/laptop\)\) the gain was (\S+) to (\S+);", FINDINGS) == shown(
        old["gain"].min(), old["gain"].max(), digits=2
    )
    assert said(r"at today's set-up, (\S+) to (\S+), decided nothing", FINDINGS) == shown(
        pilot["gain"].min(), pilot["gain"].max()
    )
    assert (old["low"] > 0).all()
    assert set(pilot["verdict"]) == {"no difference shown"}
    assert set(generated(record)["verdict"]) == {"better"}


def generated(found: Comparison) -> pd.DataFrame:
    return found.table[~found.table["corpus"].str.startswith("books")]


def test_short_prose_loses() -> None:
    pairs = of("desktop").pairs
    lost = [mean_interval(-pairs["gain"][pairs["steps"] == n].to_numpy()) for n in (1_500, 3_000)]
    losses = shown(*(number for found in lost if found for number in found))
    assert all(found and found[1] > 0 for found in lost)
    pattern = rf"by {INTERVAL} at 1,500 steps and by {INTERVAL} at 3,000"
    assert said(pattern) == said(pattern, FINDINGS) == losses


def test_the_lengths_of_the_campaign() -> None:
    pairs = of("campaign").pairs
    gains = {
        steps: pairs["gain"][
            (pairs["steps"] == steps) & pairs["superposed_folder"].str.contains("/lengths-")
        ]
        for steps in (5_000, 10_000, 20_000, 28_000)
    }
    intervals = [mean_interval(own) for own in gains.values()]
    stated = said(
        r"([-\d.]+) nats \[([-\d.]+), ([\d.]+)\] at 5,000 steps, ([\d.]+) \[([-\d.]+), ([\d.]+)\] "
        r"at 10,000, ([\d.]+) \[([\d.]+), ([\d.]+)\] at 20,000 and ([\d.]+) \[([\d.]+), "
        r"([\d.]+)\] at 28,000"
    )
    assert stated == shown(*(number for interval in intervals if interval for number in interval))
    *wins, level = said(r"is ([\d.]+) nats per token \[([\d.]+), ([\d.]+)\] of ([\d.]+):")
    assert wins == stated[-6:-3]
    assert [level] == shown(pairs["baseline"][gains[20_000].index].mean())
    of_four = paired(list(gains[28_000]), 4)
    longest = shown(of_four.mean, of_four.low or 0, of_four.high or 0)
    interval = r"([\d.]+) (?:nats )?\[([\d.]+), ([\d.]+)\]"
    assert said(rf"at 28 thousand by {interval};", FINDINGS) == longest
    assert said(rf"at 28,000 steps the gain is {interval} ") == longest
    assert (gains[28_000] > 0).sum() == 7
    assert {len(own) for own in gains.values()} == {8}
    by_seed = pd.DataFrame({k: own.set_axis(pairs["seed"][own.index]) for k, own in gains.items()})
    doublings = np.log2(by_seed.columns.to_numpy(float))
    for changes, pattern in (
        (by_seed[20_000] - by_seed[5_000], r"From 5 to 20 thousand steps it grows by"),
        (by_seed[20_000] - by_seed[10_000], r"From 10 to 20 thousand it grows by"),
        (by_seed[28_000] - by_seed[10_000], r"from 10 to 28 by"),
        (by_seed[28_000] - by_seed[20_000], r"from 20 to 28 by"),
        (np.polyfit(doublings, by_seed.T.to_numpy(), 1)[0], r"paired by seed, and by"),
    ):
        interval = mean_interval(np.asarray(changes))
        assert interval
        assert said(pattern + r" ([\d.]+) \[([-\d.]+), ([\d.]+)\]", FINDINGS) == shown(*interval)
    assert gains[20_000].min() > 0  # each of eight seeds gains


@pytest.fixture(scope="module")
def at_equal() -> pd.DataFrame:
    runs = of("campaign").eligible
    rows = matched(runs[runs["name"].str.startswith("lengths-")]).table
    return rows[rows["steps"] == 20_000].set_index("kind")


def test_the_baseline_at_equal_loss(at_equal: pd.DataFrame) -> None:
    row = at_equal.loc["equal loss"]
    factor = shown(row["steps_ratio"], row["low"], row["high"], digits=2)
    pattern = r"takes ([\d.]+) times the steps,? \[([\d.]+), ([\d.]+)\]"
    assert [list(one.groups()) for one in re.finditer(pattern, README)] == [factor]
    assert [list(one.groups()) for one in re.finditer(pattern, FINDINGS)] == [factor] * 2
    reached = said(r"it reaches at about ([\d,]+) what superposition", FINDINGS)
    assert reached == [f"{round(row['baseline_steps'], -2):,.0f}"]


def test_what_is_saved(at_equal: pd.DataFrame) -> None:
    row = at_equal.loc["equal loss"]
    steps = row[["steps_ratio", "low", "high"]].to_numpy(float)
    saved = said(r"about (\d+)% of the FLOPs \((\d+)% to (\d+)%\)")
    assert saved == shown(*(100 * (1 - 1 / steps)), digits=0)
    text = (1 + 0.25 * (4 - 1)) / steps
    stated = said(r"about ([\d.]+) times the text \(([\d.]+) to ([\d.]+)\)")
    assert stated == shown(*text[[0, 2, 1]], digits=1)


def test_tokens_a_weight() -> None:
    runs = of("campaign").eligible
    runs = runs[runs["role"] == "baseline"]
    larger, main = (
        runs[runs["name"].str.startswith(name)].iloc[0]
        for name in ("sizes-laptop-128-10000", "lengths-20000")
    )
    stated = said(r"had read (\d+) tokens a weight \((\d+) in the headline\)")
    assert stated == shown(
        *(run["raw_tokens"] / run["parameters"] for run in (larger, main)), digits=0
    )


def test_time_of_a_superposed_step() -> None:
    found = json.loads((ROOT / "benchmarks/records/training-step-cpu-2026-11-21.json").read_text())
    ratios = [
        one["ratio"]
        for result in found["results"]
        for one in result["comparisons"]
        if one["what"] == "superposed s=8 / baseline"
    ]
    stated = said(r"\(s = 8\) took (\S+) times .* at laptop-64 and (\S+) times at laptop-256")
    assert stated == shown(*ratios, digits=2)


def test_the_baseline_at_equal_data(at_equal: pd.DataFrame) -> None:
    row = at_equal.loc["equal data"]
    lost = shown(-row["gain"], -row["high"], -row["low"])
    for page, times in ((README, 1), (FINDINGS, 2)):
        pattern = r"equal data(?: superposition loses)?\W+by (\S+) nats \[(\S+), (\S+)\]"
        assert [list(one.groups()) for one in re.finditer(pattern, page)] == [lost] * times
        stated = re.findall(r"([\d.]+) times the (?:steps, is|FLOPs)", page)
        assert f"{row['steps_ratio']:.2f}" in stated
    runs = of("campaign").eligible.set_index("seed")
    longest, superposed, plain = (
        runs["nats_per_token"][runs["name"].str.startswith(f"lengths-{name}")]
        for name in ("35000-baseline", "28000-s4", "20000-s4")
    )
    assert (longest < plain).all()  # in each of the eight seeds
    less = mean_interval((longest - superposed).to_numpy())
    assert less
    assert said(
        r"35,000, 1.25 times the steps, no difference is shown: the superposed mean is (\S+) nats "
        r"lower \[(\S+), (\S+)\]",
        FINDINGS,
    ) == shown(*less)


def test_the_gate() -> None:
    pairs = of("gate").pairs
    named = pairs["baseline_folder"].str
    stated = said(
        r"at 8,000 steps the gain is ([\d.]+) nats \[([\d.]+), ([\d.]+)\] without QK norm, "
        r"and with it ([\d.]+) \[([-\d.]+), ([\d.]+)\]"
    )
    before = mean_interval(pairs["gain"][named.contains("lr0.002-decay0.3-seed")])
    after = mean_interval(pairs["gain"][named.contains("lr0.002-decay0.3-qknorm-seed")])
    lost = mean_interval(-pairs["gain"][named.contains("qknorm-lr0.004-seed")])
    assert before
    assert after
    assert lost
    assert stated == shown(*before, *after)
    assert said(r"was behind by (\S+) nats \[(\S+), (\S+)\] at 8,000 steps") == shown(*lost)
    by_seed = pairs.set_index("seed")["gain"]
    apart = mean_interval(
        (
            by_seed[list(named.contains("lr0.002-decay0.3-seed"))]
            - by_seed[list(named.contains("lr0.002-decay0.3-qknorm-seed"))]
        ).to_numpy()
    )
    assert apart
    assert said(r"The difference, (\S+) \[(\S+), (\S+)\], would") == shown(*apart)


def test_the_law_of_the_published_tables(law: Law) -> None:
    cells, error = said(r"explain the (\d+) recovered cells of Tables 4–7 to ([\d.]+) nats")
    assert int(cells) == len(law.rows)
    assert error == f"{np.sqrt((law.rows['error'] ** 2).mean()):.4f}"
    advice = recommend(law, 270e6, 20_000 * 2.0**21)
    s, r = said(r"It recommends s = (\d+), r = ([\d.]+) at 20,000 steps")
    assert (int(s), float(r)) == (advice.bag_size, advice.step_ratio)


def test_what_the_law_predicts_between_sizes_and_lengths() -> None:
    rows = published_rows()
    by_name = {split.name: split for split in splits(rows)}

    def errors(name: str, most: float = 1.0) -> dict[str, str]:
        table, _ = predictions(rows, by_name[name])
        table = table[table["step_ratio"] <= most]
        square = table[["law", "copied", "mean"]].sub(table["observed"], axis=0) ** 2
        return {name: f"{value:.4f}" for name, value in (square.mean() ** 0.5).items()}

    sizes, near = errors("270M → 600M"), errors("270M → 600M", CHOSEN_FROM)
    assert said(
        r"fitted on 270M alone it predicts the gains at 600M to ([\d.]+), and copying .* does so "
        r"to ([\d.]+) \(for r ≤ 0.5: ([\d.]+) by the law, ([\d.]+) by copying\)"
    ) == [sizes["law"], sizes["copied"], near["law"], near["copied"]]
    lengths = errors("41.9B tokens → 210B tokens")
    stated = said(r"20,000 to 100,000 steps ([\d.]+); copying ([\d.]+), the mean gain ([\d.]+)\)")
    assert stated == [lengths[name] for name in ("law", "copied", "mean")]


def test_what_the_law_says_at_3b(law: Law) -> None:
    row = published_beside_law(law).iloc[0]
    assert said(
        r"r = 0.3 it predicts a gain of ([\d.]+), copying 600M ([\d.]+); the paper's curves "
        r"show ([\d.]+), its Table 1 ([\d.]+)"
    ) == shown(row["law"], row["copied"], row["figures"], row["table_1"])
