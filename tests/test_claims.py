"""Numbers that README and findings state in words are those of records and published tables."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tst_study.analysis.fits.law.held_out import predictions, splits
from tst_study.analysis.fits.law.law_answer import published_beside_law
from tst_study.analysis.fits.law.rows import published_rows
from tst_study.analysis.fits.law.superposition_law import published_law
from tst_study.analysis.summary import Summary, summarise
from tst_study.analysis.tables.source import read_tables
from tst_study.analysis.verdict.comparison import Comparison, compare
from tst_study.analysis.verdict.decide import paired
from tst_study.analysis.verdict.question import read_questions
from tst_study.analysis.wording import gain
from tst_study.experiments.studies import catalogue
from tst_study.experiments.studies.what_does_the_work import FAMILY_1
from tst_study.paper_figures.answers import answers
from tst_study.paper_figures.report.sections import verdicts as grids_of_verdicts

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs/records"
PARTS = read_questions(RECORDS / "what-does-the-work")
Triple = tuple[float, float, float]


def words(page: str) -> str:
    return " ".join((ROOT / page).read_text("utf8").replace("−", "-").split())


README, FINDINGS = words("README.md"), words("docs/findings.md")
CAMPAIGNS = words("docs/records/campaign.md")
ANALYSIS = words("docs/analysis.md")
INTERVAL = (
    r"(-?\+?[\d.]+)(?: nats)?(?: per token)?(?: times the steps,?)? \[([-+\d.]+), ([-+\d.]+)\]"
)


def numbers(pattern: str, page: str) -> list[str]:
    """Return the groups of the only match of the pattern on the page."""
    (match,) = re.finditer(pattern, page)
    return list(match.groups())


def shown(*values: float, digits: int = 3) -> list[str]:
    return [f"{value:.{digits}f}" for value in values]


@functools.cache
def summary(record: str) -> Summary:
    return summarise(read_tables(RECORDS / record))


def of(record: str) -> Comparison:
    return summary(record).comparison


def over_seeds(values: Iterable[float], rows: int = 1) -> Triple:
    found = paired(list(values), rows)
    assert found.low is not None
    assert found.high is not None
    return found.gain, found.low, found.high


def gains(record: str, name: str, arm: str = "superposed") -> pd.Series:
    """Gains by seed, of the pairs with a run of this name."""
    pairs = of(record).pairs
    own = pairs[pairs[f"{arm}_folder"].str.rpartition("/")[2].str.match(name)]
    return own.set_index("seed")["gain"]


@functools.cache
def known() -> list[Triple]:
    """Results stated beside the verdicts: paired by seed, each by itself."""
    pairs = of("campaign").pairs
    usual = pairs[(pairs["steps"] == 20_000) & (pairs["corpus"] == "books-bpe1024")]
    bags = usual[usual["setting"].str.fullmatch(r"s = \d+, r = 0.25") & (usual["seed"] < 7)]
    bags = bags[bags["learning_rate"] == 2e-3].pivot(
        index="seed", columns="bag_size", values="gain"
    )
    gate = of("gate").pairs.set_index("seed")
    named = gate["baseline_folder"].str
    before, after = (gate[named.contains(f"lr0.002-decay0.3{one}-seed")] for one in ("", "-qknorm"))
    worth = summary("campaign").equal_loss
    worth = worth[(worth["seeds"] == 8) & (worth["setting"] == "s = 4, r = 0.25")]
    (row,) = worth[worth["steps"] == 20_000].to_dict("records")
    prose = of("desktop").pairs.set_index("steps")["gain"]
    per_doubling = np.polyfit(np.log2(bags.columns.to_numpy(float)), bags.T.to_numpy(), 1)[0]
    plain, power_law, output_only, *_ = against_the_best_batch()
    weighted, superposed = (
        gains("what-does-the-work", f"arms-20000-s4-r0.25{weights}-seed")
        for weights in ("-power_law", "")
    )
    key = ["sequences", "learning_rate", "seed"]
    losses, superposed_losses = (
        gate_of_parts(method).set_index(key)["nats_per_token"].sort_index()
        for method in ("baseline", "superposition")
    )
    plain_20 = [*gains("campaign", "lengths-20000-s4-r0.25-seed"), *superposed]
    return [
        *((row["gain"], row["low"], row["high"]) for row in (plain, power_law, output_only)),
        over_seeds(plain_20),
        over_seeds(losses[32, 0.0028284] - superposed_losses[32, 2e-3]),
        over_seeds(losses[16, 2e-3] - losses[32, 0.0028284]),
        over_seeds(weighted - superposed),
        (row["steps_ratio"], row["low"], row["high"]),
        over_seeds(per_doubling),
        over_seeds(after["gain"]),
        over_seeds(after["gain"] - before["gain"]),  # what QK norm does to it
        over_seeds(before["baseline"] - after["baseline"]),  # and to the baseline
        *(over_seeds(prose.loc[steps]) for steps in (1_500, 3_000)),
    ]


def gate_of_parts(method: str = "baseline") -> pd.DataFrame:
    runs = summary("what-does-the-work").tables.runs
    return runs[runs["name"].str.startswith("gate") & (runs["method"] == method)]


def against_the_best_batch(method: str = "moderated-1") -> list[dict[str, Any]]:
    (best,) = (one.arm for one in PARTS if one.arm.name == "baseline at its best batch")
    asked = [
        one.model_copy(update={"against": best, "method": method})
        for one in PARTS
        if one.family == FAMILY_1 and one.arm != best
    ]
    runs = summary("what-does-the-work").tables.runs
    return compare(runs, asked).verdicts.to_dict("records")[:8]


def as_stated(found: Triple, like: list[str]) -> list[list[str]]:
    """A gain, and the loss that it is said to be."""
    digits = len(like[0].partition(".")[2])
    losses = (-found[0], -found[2], -found[1])
    return [[f"{x:.{digits}f}".replace("-0.000", "0.000") for x in one] for one in (found, losses)]


@pytest.mark.parametrize(
    ("prose", "count"),
    [
        (re.sub(r"```.*?```", "", README).partition("## What `make study`")[0], 7),
        (FINDINGS, 30),
        (CAMPAIGNS.partition("### The pilot sweep")[2].partition("### Predictions")[0], 2),
    ],
    ids=["README", "findings", "pilot sweep"],
)
def test_every_interval_in_prose_is_one_that_was_computed(prose: str, count: int) -> None:
    both = [of(record).verdicts for record in ("campaign", "what-does-the-work")]
    rows = pd.concat(both).to_dict("records")
    every = [*known(), *((row["gain"], row["low"], row["high"]) for row in rows)]
    found = [list(one.groups()) for one in re.finditer(INTERVAL, prose)]
    assert len(found) == count
    for stated in found:
        assert any(stated in as_stated(one, stated) for one in every), stated


def test_every_question_has_one_verdict_in_the_report_and_on_a_terminal() -> None:
    """And in `records/campaign.md`, which `docs.generate` writes."""
    rows, lines = of("campaign").verdicts, summary("campaign").lines()
    planned = rows[rows["heading"] == "Planned"]
    assert len(planned) == 39
    assert planned["registered"].str.fullmatch("[0-9a-f]{40}").all()
    grids = grids_of_verdicts(summary("campaign"), answers(summary("campaign")))
    cells = (entry.text for grid in grids for row in grid.rows for entry in row)
    report, terminal = (words_of(page) for page in (" ".join(cells), "\n".join(lines)))
    for row in rows.to_dict("records"):
        for page in (report, terminal):
            assert row["question"] in page
            assert f"{words_of(gain(row))} {row['verdict']}" in page


def words_of(page: str) -> str:
    """Without marks of HTML, and without the seeds that a terminal shows."""
    plain = re.sub(r"<[^>]*>|\b\d+ seeds?\b", " ", page).replace("−", "-")
    return " ".join(re.sub(r"(?<![\d.])0\.000(?=[,\]])", "+0.000", plain).split())


@pytest.mark.parametrize("record", ["campaign", "what-does-the-work"])
def test_verdicts_equal_a_paired_computation_from_the_archive_alone(record: str) -> None:
    """Means and deviations of all planned questions, and the intervals of paired t-tests and of
    families of one, by pandas and scipy."""
    runs = pd.read_parquet(RECORDS / record / "runs.parquet").set_index("run_id")
    ends = runs[["seed", "nats_per_token"]]
    verdicts = of(record).verdicts
    for row in verdicts[verdicts["heading"] == "Planned"].to_dict("records"):
        ids, half = list(row["run_ids"]), len(row["run_ids"]) // 2
        own, against = ends.loc[ids[:half]], ends.loc[ids[half:]]
        table = own.merge(against, on="seed", suffixes=("", "_against"), validate="1:1")
        gains = table["nats_per_token_against"] - table["nats_per_token"]
        assert (row["seeds"], row["gain"]) == (len(own), pytest.approx(gains.mean()))
        assert row["deviation"] == pytest.approx(gains.std())
        if row["method"] == "paired" or row["comparisons"] == 1:
            test = stats.ttest_1samp(gains, 0)
            ends_of = test.confidence_interval(1 - 0.05 / row["comparisons"])
            assert (row["low"], row["high"]) == pytest.approx((ends_of.low, ends_of.high))


def test_superposition_is_behind_until_the_decay() -> None:
    way = summary("campaign").gains_over_training
    means = way[way["family"] == "primary"].set_index("share")["gain"]
    before = means[means.index < 0.7]
    assert (before < 0).all()
    assert means.iloc[-1] > 0
    assert numbers(r"baseline leads, by (\S+) at step ([\d,]+),", FINDINGS) == [
        f"{-before.iloc[-1]:.4f}",
        f"{before.index[-1] * 20_000:,.0f}",
    ]


def test_what_does_the_work() -> None:
    """The archive is whole, its questions are the registered ones, and words give its numbers."""
    found = summary("what-does-the-work")
    study = catalogue.load("what-does-the-work", "desktop").questions
    assert [one.model_copy(update={"registered": None}) for one in PARTS] == list(study)
    assert {one.registered[:7] for one in PARTS if one.registered} == {"d6364a9"}
    assert list(found.tables.runs["state"]) == ["done"] * 160
    assert list(found.arms["seeds"]) == [12] * 10
    once = found.verdicts[found.verdicts["heading"] == "Planned"].drop_duplicates("question")
    low, high = np.array(once["predicted"].tolist()).T
    held = once["gain"].between(low, high)
    assert numbers(r"(\d+) of the (\d+) predicted", FINDINGS) == [str(held.sum()), str(len(held))]
    deviations = found.arms.set_index("arm")["deviation"]
    assert numbers(
        r"baselines deviate by (\S+) over.* The plain method's runs deviate by (\S+) ", FINDINGS
    ) == shown(deviations["baseline"], deviations["superposition"], digits=4)
    loss, superposed = (
        gate_of_parts(method).groupby(["sequences", "learning_rate"])["nats_per_token"].mean()
        for method in ("baseline", "superposition")
    )
    gains = loss - superposed
    better = loss.groupby("sequences").idxmin()
    assert numbers(
        r"from (\S+) with 8 sequences to (\S+) with 16 and (\S+) with 32 \((\S+) at the", FINDINGS
    ) == shown(*gains[better], gains[32, 2e-3])


def test_what_depends_on_the_method_and_what_speaks_against_the_batch() -> None:
    found = summary("what-does-the-work")
    worse = [row["question"] for row in against_the_best_batch() if row["verdict"] == "worse"]
    assert [name.partition(" against")[0] for name in worse] == [
        "shuffled targets",
        "label smoothing",
    ]
    assert not [row for row in against_the_best_batch() if row["verdict"] == "better"]
    of_day = {"input only against baseline", "falling look-ahead against baseline"}
    rows = found.verdicts[found.verdicts["question"].isin(of_day)]
    assert set(rows["verdict"]) == {"no difference shown"}
    for row in rows.to_dict("records"):
        assert f"no difference shown: {row['low']:.3f} to {row['high']:.3f}" in FINDINGS
    way = found.gains_over_training
    leads = way[way["arm"] == "baseline at its best batch"].set_index("share")["gain"]
    late = leads[(leads.index > 0.65) & (leads.index < 0.7) | (leads.index == 1)]
    assert numbers(r"its lead shrinks, from (\S+) to (\S+),", FINDINGS) == shown(*late)


def test_the_pilot_sweep() -> None:
    pairs = of("gate").pairs
    lowest = pairs.groupby(["group", "learning_rate"])["baseline"].mean().min()
    assert numbers(r"its mean, (\S+), is the lowest", CAMPAIGNS) == shown(lowest, digits=4)
    assert len(pairs) == 42


def test_what_was_predicted_and_what_came() -> None:
    (longest, larger) = json.loads((RECORDS / "predictions.json").read_text("utf8"))["predictions"]
    lines = (ROOT / "docs/records/campaign.md").read_text("utf8").replace("−", "-").splitlines()
    rows = [line.split(" | ") for line in lines if line.endswith("refuted |")]
    for committed, name, ways in (
        (longest, "lengths-28000-", ("law", "trend", "same", "none")),
        (larger, "sizes-laptop-128-10000-", ("trend", "same", "none")),
    ):
        own = gains("campaign", name)
        for way in ways:
            by_seed = committed.get(f"{way}_by_seed")
            value = committed["none"] if way == "none" else committed[way][0]
            predicted = value if by_seed is None else pd.Series(by_seed, committed["seeds"])
            mean, low, high = over_seeds((own - predicted).dropna(), 4)
            *_, stated, miss, said_of = rows.pop(0)
            assert stated == f"{value:.4f}"
            assert miss == f"{mean:.4f} [{low:.4f}, {high:.4f}]"
            refuted = low > 0 or high < 0
            assert said_of == f"{'refuted' if refuted else 'not refuted'} |"
    assert not rows


def test_the_law_of_the_published_tables() -> None:
    law = published_law()
    cells, error = numbers(r"Over the (\d+) cells of Tables 4–7 it leaves (\S+) nats", ANALYSIS)
    assert int(cells) == len(law.rows)
    assert error == f"{np.sqrt((law.rows['error'] ** 2).mean()):.4f}"
    row = published_beside_law(law).iloc[0]
    assert numbers(
        r"it predicts (\S+), copying 600M ([\d.]+); the paper's Figure 3a shows (\S+), its Table 1 "
        r"([\d.]+)\.",
        ANALYSIS,
    ) == shown(row["law"], row["copied"], row["figures"], row["table_1"])


@pytest.mark.parametrize(
    ("split", "pattern"),
    [
        ("270M → 600M", r"270M to 600M: (\S+) nats against ([\d.]+)\)"),
        ("41.9B tokens → 210B tokens", r"100,000 steps: (\S+) against ([\d.]+)\)"),
    ],
)
def test_what_the_law_predicts_between_sizes_and_lengths(split: str, pattern: str) -> None:
    rows = published_rows()
    table, _ = predictions(rows, splits(rows)[split])
    square = table[["law", "copied"]].sub(table["observed"], axis=0) ** 2
    stated = numbers(pattern, ANALYSIS)
    assert stated == [
        f"{error:.{len(cell) - 2}f}"
        for cell, error in zip(stated, square.mean() ** 0.5, strict=True)
    ]
