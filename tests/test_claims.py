"""Numbers that README and findings state in words are those of records and published tables."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats

from docs.generate import summary
from tst_study.analysis.fits.law.held_out import observed_gains, predictions, splits
from tst_study.analysis.fits.law.law_answer import published_beside_law
from tst_study.analysis.fits.law.rows import published_rows
from tst_study.analysis.fits.law.superposition_law import published_law
from tst_study.analysis.verdict.comparison import Comparison, compare
from tst_study.analysis.verdict.decide import paired
from tst_study.analysis.verdict.question import read_questions
from tst_study.analysis.wording import gain
from tst_study.paper_figures.answers import answers
from tst_study.paper_figures.report.sections import verdicts as grids_of_verdicts

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs/records"
PARTS = "what-does-the-work"
QUESTIONS = read_questions(RECORDS / PARTS)
Triple = tuple[float, float, float]


def words(page: str) -> str:
    return " ".join((ROOT / page).read_text("utf8").replace("−", "-").split())


README, FINDINGS = words("README.md"), words("docs/findings.md")
CAMPAIGNS = words("docs/research/campaign.md")
METHODS = words("docs/research/methods.md")
PAGES = {
    path.name: words(str(path.relative_to(ROOT)))
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    if path.name not in ("config.md", "tables.md", "reproduction.md")
}
TITLES = " ".join(
    f"{made['title']} {made['caption']}".replace("−", "-").replace(" +", " ").replace("[+", "[")
    for path in sorted(RECORDS.glob("*-report/*.json"))
    for made in [json.loads(path.read_text("utf8"))]
)
"""Titles and captions of the committed pictures of our studies."""
INTERVAL = (
    r"(-?\+?[\d.]+)(?: nats)?(?: per token)?(?: times the steps,?)? \[([-+\d.]+), ([-+\d.]+)\]"
)


def numbers(pattern: str, page: str) -> list[str]:
    """Return the groups of the only match of the pattern on the page."""
    (match,) = re.finditer(pattern, page)
    return list(match.groups())


def shown(*values: float, digits: int = 3) -> list[str]:
    return [f"{value:.{digits}f}" for value in values]


def of(record: str) -> Comparison:
    return summary(record).comparison


@functools.cache
def losses(record: str) -> pd.DataFrame:
    """Final losses by seed, a column for each arm: its runs' names without the seed."""
    runs = summary(record).tables.runs
    arms = runs.assign(arm=runs["name"].str.replace(r"-seed\d+$", "", regex=True))
    return arms[arms["role"] != "trunk"].pivot(index="seed", columns="arm", values="nats_per_token")


def over_seeds(values: pd.Series | np.ndarray, rows: int = 1) -> Triple:
    found = paired(list(pd.Series(values).dropna()), rows)
    return found.gain, found.low, found.high


@functools.cache
def known() -> list[Triple]:
    """Results stated beside the verdicts: paired by seed, each by itself."""
    first, second, tuned, small = map(losses, ("campaign", PARTS, "tuned", "batch"))
    pilot, short = map(losses, ("gate", "desktop"))
    plain_tuned = tuned["tuned-5000-s4-r0.25-batch64-lr0.002"]
    usual, superposed = first["lengths-20000-baseline"], second["arms-20000-s4-r0.25"]
    plain_20 = [usual - first["lengths-20000-s4-r0.25"], second["arms-20000-baseline"] - superposed]
    sizes = {s: first[f"bag-sizes-20000-s{s}-r0.25"] for s in (2, 3, 6, 8, 12, 16)}
    sizes[4] = first["lengths-20000-s4-r0.25"]
    bags = pd.DataFrame({s: usual - loss for s, loss in sizes.items()}).dropna()
    per_doubling = np.polyfit(np.log2(bags.columns.to_numpy(float)), bags.T.to_numpy(), 1)[0]
    worth = summary("campaign").matches.query("kind == 'equal loss'")
    worth = worth[(worth["seeds"] == 8) & (worth["setting"] == "s = 4, r = 0.25")]
    (row,) = worth[worth["steps"] == 20_000].to_dict("records")
    before, after = (f"laptop-64-8000-{{}}-lr0.002-decay0.3{norm}" for norm in ("", "-qknorm"))
    gain_before, gain_after = (
        pilot[at.format("baseline")] - pilot[at.format("s4-r0.25")] for at in (before, after)
    )
    at = "pilot-10000-baseline-batch32-lr{}"
    of_rate = (tuned[at.format("0.00283")] - tuned[at.format("0.002")]).dropna()
    with_32 = small["batch-10000-baseline-batch32-scaled"]
    of_all = (with_32 - small["small-10000-output"]).dropna()
    left = stats.ttest_ind(of_all, of_rate, equal_var=False).confidence_interval()
    return [
        over_seeds(of_rate),
        over_seeds(with_32 - tuned["primary-5000-baseline-batch64-lr0.004"]),
        (float(of_all.mean() - of_rate.mean()), *left),
        over_seeds(
            tuned["primary-5000-s4-r0.25-output_only-batch64-lr0.00283"]
            - small["small-10000-output"]
        ),
        *((row["gain"], row["low"], row["high"]) for row in against_the_best_batch()[1:3]),
        over_seeds(pd.concat(plain_20)),
        over_seeds(superposed - second["arms-20000-s4-r0.25-power_law"]),
        over_seeds(second["arms-20000-baseline"] - tuned["primary-5000-baseline-batch64-lr0.004"]),
        over_seeds(plain_tuned - tuned["tuned-5000-s4-r0.25-power_law-batch64-lr0.002"]),
        over_seeds(tuned["primary-5000-baseline-batch64-lr0.004"] - small["small-10000-output"]),
        over_seeds(plain_tuned - tuned["primary-5000-s4-r0.25-output_only-batch64-lr0.00283"]),
        (row["steps_ratio"], row["low"], row["high"]),
        over_seeds(per_doubling),
        over_seeds(gain_after),
        over_seeds(gain_after - gain_before),  # what QK norm does to it
        over_seeds(pilot[before.format("baseline")] - pilot[after.format("baseline")]),
        *(
            over_seeds(short[f"prose-{n}-baseline-lr0.002"] - short[f"prose-{n}-s4-r0.2-lr0.002"])
            for n in (1_500, 3_000)
        ),
    ]


def against_the_best_batch() -> list[dict[str, Any]]:
    (best,) = (one.arm for one in QUESTIONS if one.arm.name == "baseline at its best batch")
    asked = [
        one.model_copy(update={"against": best, "method": "moderated-1"})
        for one in QUESTIONS
        if one.family == "every arm against the baseline" and one.arm != best
    ]
    runs = summary(PARTS).tables.runs
    return compare(runs, asked).verdicts.to_dict("records")[:8]


def as_stated(found: Triple, like: list[str]) -> list[list[str]]:
    """A gain, and the loss that it is said to be."""
    digits = len(like[0].partition(".")[2])
    losses = (-found[0], -found[2], -found[1])
    return [[f"{round(x, digits) + 0:.{digits}f}" for x in one] for one in (found, losses)]


@pytest.mark.parametrize(
    ("prose", "count"),
    [
        (re.sub(r"```.*?```", "", README).partition("## What `make study`")[0], 10),
        (FINDINGS, 42),
        (CAMPAIGNS.partition("### The pilot sweep")[2].partition("### Predictions")[0], 2),
        (words("docs/research/plan-of-runs-4.md").partition("## Outcome")[2], 10),
    ],
    ids=["README", "findings", "pilot sweep", "fourth campaign"],
)
def test_every_interval_in_prose_is_one_that_was_computed(prose, count):
    every = computed()
    found = [list(one.groups()) for one in re.finditer(INTERVAL, prose)]
    assert len(found) == count
    for stated in found:
        assert any(stated in as_stated(one, stated) for one in every), stated


@functools.cache
def computed() -> list[Triple]:
    verdicts = [of(record).verdicts for record in ("campaign", PARTS, "tuned", "batch", "laptop")]
    rows = pd.concat(verdicts).to_dict("records")
    return [*known(), *((row["gain"], row["low"], row["high"]) for row in rows)]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_page_that_names_a_gain_names_one_of_the_verdicts(page):
    """And says beside the gain at 1.07 million parameters what the batch has to do with it."""
    named = list(re.finditer(r"\bgain(?:s|ed)?\W{0,4}(?: of| by)? (0\.\d{3,4})", PAGES[page]))
    assert len(named) == {"README.md": 2, "findings.md": 15}.get(page, 0)
    for one in named:
        digits = len(one[1]) - 2
        assert any(f"{gain:.{digits}f}" == one[1] for gain, *_ in computed()), one[0]
        if "1.07" in (around := PAGES[page][max(0, one.start() - 110) : one.end() + 110]):
            assert re.search("batch|with 64", around)


def test_the_picture_of_the_primary_answers_is_called_what_it_shows():
    rows = [
        of(record).verdicts.query("family == 'primary' and heading == 'Planned'").iloc[0]
        for record in ("campaign", PARTS, "tuned")
    ]
    assert [row["verdict"] for row in rows] == ["better", "better", "no difference shown"]
    assert "Primary questions of 3 studies: 2 better, 0 worse, 1 with no diff" in TITLES
    assert numbers(r"gains of (\S+) and (\S+) over untuned baselines, (\S+) over", README) == (
        shown(*(row["gain"] for row in rows))
    )


def test_every_question_has_one_verdict_in_the_report_and_on_a_terminal():
    """And in `research/campaign.md`, which `docs.generate` writes."""
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


@pytest.mark.parametrize("record", ["campaign", PARTS, "tuned"])
def test_verdicts_equal_a_computation_from_the_archive_alone(record):
    """Means, deviations and intervals of all planned questions, by pandas, scipy and the words of
    `docs/research/methods.md`."""
    runs = pd.read_parquet(RECORDS / record / "runs.parquet").set_index("run_id")
    verdicts = of(record).verdicts
    for _, rows in verdicts[verdicts["heading"] == "Planned"].groupby("family"):
        family = []
        for row in rows.to_dict("records"):
            ids, half = list(row["run_ids"]), len(row["run_ids"]) // 2
            own, against = runs.loc[ids[:half]], runs.loc[ids[half:]]
            table = own.merge(against, on="seed", suffixes=("", "_against"), validate="1:1")
            gains = table["nats_per_token_against"] - table["nats_per_token"]
            assert (row["seeds"], row["gain"]) == (len(own), pytest.approx(gains.mean()))
            assert row["deviation"] == pytest.approx(gains.std())
            test = stats.ttest_1samp(gains, 0).confidence_interval(1 - 0.05 / len(rows))
            if row["method"] == "paired":
                assert (row["low"], row["high"]) == pytest.approx((test.low, test.high))
            family.append(gains)
        begins = "afterwards_" if "paired" in set(rows["method"]) else ""
        found = rows[[f"{begins}low", f"{begins}high"]].to_numpy(float)
        assert found == pytest.approx(np.array(by_moderated_variances(family)))


def by_moderated_variances(family: list[pd.Series]) -> list[tuple[float, float]]:
    """The intervals of `moderated-1` for a family of paired differences."""
    count, own = len(family), np.array([len(one) - 1.0 for one in family])
    variances = np.array([one.var() for one in family])
    logs = pd.Series(np.log(variances) - special.digamma(own / 2) + np.log(own / 2))
    more = logs.var() - special.polygamma(1, own / 2).mean()
    strength, typical = np.inf, np.exp(logs.mean())
    if more > 0:
        half = optimize.brentq(lambda x: special.polygamma(1, x) - more, 1e-8, 1e8)
        strength, typical = 2 * half, typical * np.exp(special.digamma(half)) / half
    prior = np.minimum(strength, own * max(0, count - 2) / (3 * count))
    variance = (prior * typical + own * variances) / (prior + own)
    halves = stats.t.ppf(1 - 0.025 / count, prior + own) * np.sqrt(variance / (own + 1))
    gains = np.array([one.mean() for one in family])
    return list(zip(gains - halves, gains + halves, strict=True))


def test_superposition_is_behind_until_the_decay():
    way = summary("campaign").gains_over_training
    means = way[way["family"] == "primary"].set_index("share")["gain"]
    before = means[means.index < 0.7]
    assert (before < 0).all()
    assert means.iloc[-1] > 0
    assert numbers(r"baseline leads, by (\S+) at step ([\d,]+),", FINDINGS) == [
        f"{-before.iloc[-1]:.4f}",
        f"{before.index[-1] * 20_000:,.0f}",
    ]


def test_what_does_the_work():
    """The archive is whole, and words give its numbers."""
    found = summary(PARTS)
    assert {one.registered[:7] for one in QUESTIONS if one.registered} == {"d6364a9"}
    assert list(found.tables.runs["state"]) == ["done"] * 160
    assert list(found.arms["seeds"]) == [12] * 10
    once = found.verdicts[found.verdicts["heading"] == "Planned"].drop_duplicates("question")
    low, high = np.array(once["predicted"].tolist()).T
    held = once["gain"].between(low, high)
    assert numbers(r"(\d+) of the (\d+) predicted", FINDINGS) == [str(held.sum()), str(len(held))]
    deviations = found.arms.set_index("arm")["deviation"]
    assert numbers(
        r"baselines deviate by (\S+) over.* Runs of plain superposition deviate by (\S+) ", FINDINGS
    ) == shown(deviations["baseline"], deviations["superposition"], digits=4)
    least = once["smallest_detectable"][once["family"] != "superposition against its parts"]
    assert numbers(
        r"below (\S+) to (\S+), depending on the arm, .* \(shuffled targets: ([\d.]+)\)", FINDINGS
    ) == shown(*least.sort_values().iloc[[0, -2, -1]])


def test_what_depends_on_the_method_and_what_speaks_against_the_batch():
    found = summary(PARTS)
    worse = [row["question"] for row in against_the_best_batch() if row["verdict"] == "worse"]
    arms = [name.partition(" against")[0] for name in worse]
    assert arms == ["shuffled targets", "label smoothing"]
    assert not [row for row in against_the_best_batch() if row["verdict"] == "better"]
    of_day = {"input only against baseline", "falling look-ahead against baseline"}
    rows = found.verdicts[found.verdicts["question"].isin(of_day)]
    assert set(rows["verdict"]) == {"no difference shown"}
    for row in rows.to_dict("records"):
        assert f"no difference shown: {row['low']:.3f} to {row['high']:.3f}" in CAMPAIGNS


def test_does_the_gain_survive_tuning():
    """The campaign is whole: the choices of its pilot sweeps, its predictions, the lead in the
    decay."""
    found = summary("tuned")
    assert list(found.tables.runs["state"]) == ["done"] * 214
    means = losses("tuned").mean()
    for sweep, best in (
        ("pilot-.*baseline", "baseline-batch64-lr0.004"),
        ("pilot-.*s4-r0.25-batch", "s4-r0.25-batch64-lr0.002"),
        ("pilot-.*output_only", "s4-r0.25-output_only-batch64-lr0.00283"),
        ("pilot-.*power_law", "s4-r0.25-power_law-batch64-lr0.002"),
        ("larger-pilot-.*baseline", "baseline-batch32-lr0.001"),
        ("larger-pilot-.*output_only", "s4-r0.25-output_only-batch32-lr0.000707"),
    ):
        tried = means[means.index.str.match(sweep)]
        assert tried.idxmin().partition("0-")[2] == best
    own = means["pilot-5000-baseline-batch64-lr0.004"]
    assert numbers(
        r"output only was behind by (\S+) and plain superposition by (\S+) ", FINDINGS
    ) == (
        shown(
            means["pilot-5000-s4-r0.25-output_only-batch64-lr0.004"] - own,
            means["pilot-5000-s4-r0.25-batch64-lr0.004"] - own,
        )
    )
    planned = found.verdicts[found.verdicts["heading"] == "Planned"]
    low, high = np.array(planned["predicted"].tolist()).T
    assert list(planned["gain"].between(low, high)) == [True] * 4 + [False] * 2
    pairs = losses("tuned").filter(like="larger-23000-").dropna()
    ahead = pairs.filter(like="baseline").iloc[:, 0] > pairs.filter(like="output_only").iloc[:, 0]
    assert list(ahead) == [True] * 12
    way = found.gains_over_training.pivot(index="share", columns="question", values="gain")
    names = ("superposition, power law", "the better of output only and power law", "superposition")
    leads = [way[f"{name} against the tuned baseline"] for name in names]
    assert numbers(
        r"weights falls from (\S+) to (\S+), that of output only .* ends at (\S+), and plain "
        r"superposition falls from (\S+) to (\S+) behind",
        FINDINGS,
    ) == shown(leads[0][0.8112], leads[0][1], leads[1][1], -leads[2][0.8112], -leads[2][1])
    assert leads[0].idxmax() == leads[2].idxmax() == 0.8112
    larger = way["output only, 1.07 million weights against the tuned baseline"].dropna()
    assert numbers(r"too, falls in the decay, from (\S+) to (\S+) \(", FINDINGS) == shown(
        larger[larger.index < 0.7].iloc[-1], larger.iloc[-1]
    )
    assert larger.idxmax() == larger.index[larger.index < 0.7][-1]


def test_the_pilot_sweep():
    lowest = losses("gate").filter(like="baseline").mean().min()
    assert numbers(r"its mean, (\S+), is the lowest", CAMPAIGNS) == shown(lowest, digits=4)


def test_what_was_predicted_and_what_came():
    (longest, larger) = json.loads((RECORDS / "predictions.json").read_text("utf8"))["predictions"]
    lines = (ROOT / "docs/research/campaign.md").read_text("utf8").replace("−", "-").splitlines()
    rows = [line.split(" | ") for line in lines if line.endswith("refuted |")]
    for committed, name, ways in (
        (longest, "lengths-28000-{}", ("law", "trend", "same", "none")),
        (larger, "sizes-laptop-128-10000-{}-lr0.001", ("trend", "same", "none")),
    ):
        first = losses("campaign")
        own = first[name.format("baseline")] - first[name.format("s4-r0.25")]
        for way in ways:
            by_seed = committed.get(f"{way}_by_seed")
            value = committed["none"] if way == "none" else committed[way][0]
            predicted = value if by_seed is None else pd.Series(by_seed, committed["seeds"])
            mean, low, high = over_seeds(own - predicted, 4)
            *_, stated, miss, said_of = rows.pop(0)
            assert stated == f"{value:.4f}"
            assert miss == f"{mean:.4f} [{low:.4f}, {high:.4f}]"
            refuted = low > 0 or high < 0
            assert said_of == f"{'refuted' if refuted else 'not refuted'} |"
    assert not rows


def test_the_law_of_the_published_tables():
    law = published_law()
    cells, error = numbers(r"Over the (\d+) cells of Tables 4–7 it leaves (\S+) nats", METHODS)
    assert int(cells) == len(law.rows)
    assert error == f"{np.sqrt((law.rows['error'] ** 2).mean()):.4f}"
    row = published_beside_law().iloc[0]
    assert numbers(
        r"it predicts (\S+), copying 600M ([\d.]+); the paper's Figure 3a shows (\S+), its Table 1 "
        r"([\d.]+)\.",
        METHODS,
    ) == shown(row["law"], row["copied"], row["figures"], row["table_1"])


@pytest.mark.parametrize(
    ("split", "pattern"),
    [
        ("270M → 600M", r"270M to 600M: (\S+) nats, the rule ([\d.]+);"),
        ("41.9B tokens → 210B tokens", r"100,000 steps: (\S+) and ([\d.]+);"),
        ("210B tokens → 41.9B tokens", r"; back: (\S+) and ([\d.]+)\)"),
    ],
)
def test_what_the_law_predicts_between_sizes_and_lengths(split, pattern):
    """A rule of one line, the nearest gain times (D'/D)^−0.366, is as good in both directions;
    copying alone is two to four times worse."""
    rows = published_rows()
    table, _ = predictions(rows, splits(rows)[split])
    square = table[["law", "scaled", "copied"]].sub(table["observed"], axis=0) ** 2
    law, scaled, copied = square.mean() ** 0.5
    stated = numbers(pattern, METHODS)
    assert stated == [
        f"{error:.{len(cell) - 2}f}" for cell, error in zip(stated, (law, scaled), strict=True)
    ]
    if "tokens" not in split:
        assert scaled == copied < law
        return
    assert 2 * scaled < copied
    assert scaled < 1.05 * law
    at = rows[(rows["size"] == "270M") & (rows["bag_size"] == 6) & (rows["step_ratio"] == 0.3)]
    gains, steps = observed_gains(rows)[at.index], (20_000, 100_000)
    shorter, longer = (gains[at["steps"] == count] for count in steps)
    if split.endswith("210B tokens"):
        by_hand = 5**-0.366 * shorter.iloc[0]
        assert table.loc[longer.index, "scaled"].iloc[0] == pytest.approx(by_hand)
