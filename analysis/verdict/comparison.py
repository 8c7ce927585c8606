"""Compares superposition, or another method, with the baseline at equal FLOPs, seed by seed.

A run is compared if it is eligible (`analysis.tables.eligible`) and has a baseline that agrees with
it in data, model, batch, schedule, learning rate, held-out text and seed. Other runs are returned
with the reason why not, unless a question compares them. If a study has questions, only the runs
that these cover are compared. Runs without seeds are compared unpaired. Intervals and verdicts come
from `analysis.verdict.decide`.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from tst_study.analysis.tables.columns import Tables, rows_of, settings_of
from tst_study.analysis.tables.eligible import EXCLUDED_COLUMNS, NOT_WHOLE, eligible, excluded_row
from tst_study.analysis.verdict.decide import Contrast, Estimate, decide
from tst_study.analysis.verdict.documents import documents_of
from tst_study.analysis.verdict.planned import (
    DIFFER,
    asked_contrasts,
    differences,
    labelled,
    uncovered,
)
from tst_study.analysis.verdict.question import Question
from tst_study.analysis.wording import disambiguate_by_set_up
from tst_study.config.superposition_setting import COLUMNS as SETTING
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.cost.compute import EQUAL_WITHIN
from tst_study.errors import UserError
from tst_study.text import listed

SAME = ("group", "rate", "eval_set")
"""Columns in which the two runs of a pair agree, beside their FLOPs and seeds. `rate` is the
learning rate, but NaN where each arm is compared at its own (`rates`)."""
PAIRED = ("group", "learning_rate", "eval_set", "seed", "data_seed")
"""Columns that tell the runs of one setting apart. `data_seed` is the seed of the order of the
text. Imported runs have none, and some have no `seed` either."""
SAME_BUT_LENGTH = ("family", "rate", "eval_set")
"""Columns in which two runs must agree to be matched although their lengths differ."""

_SHARED: tuple[str, ...] = ("group", "family", "corpus", "steps", "learning_rate", "rate")
_SHARED += ("eval_set",)
_SHARED += ("flops", "setting", *SETTING, "data_multiplier")
"""Columns of both tables of a comparison: that of pairs and that of settings."""
BY_CHANCE = 1e-6
"""Equal final losses count as copies of one run if chance makes them with a lower probability."""
COPIED_ROWS = 3
"""Equal training curves count as copies of one run if they have at least this many rows."""
PAIR_COLUMNS: tuple[str, ...] = (*_SHARED, "seed", "baseline", "superposed", "gain")
PAIR_COLUMNS += ("superposed_folder",)
"""Columns of `Comparison.pairs`."""
TABLE_COLUMNS: tuple[str, ...] = (*_SHARED, "seeds", "comparisons", "baseline", "superposed")
TABLE_COLUMNS += ("gain", "low", "high", "deviation", "smallest_detectable", "p_adjusted")
TABLE_COLUMNS += ("verdict", "heading", "run_ids")
"""Columns of `Comparison.table`."""


@dataclass(frozen=True)
class Comparison:
    """Losses and gains in nats per token on held-out text. A positive gain means that the baseline
    has the higher loss."""

    table: pd.DataFrame
    """One row for each setting of each group of comparable runs: losses, and the gain with its
    verdict."""
    verdicts: pd.DataFrame
    """The rows of `decide.decide`: first the planned questions, then the settings that these do not
    cover."""
    pairs: pd.DataFrame
    """One row for each run that was compared with a baseline."""
    excluded: pd.DataFrame
    """Runs that neither have a baseline to be compared with nor belong to a planned question, each
    with the reason."""
    eligible: pd.DataFrame
    """Rows of the run table that may be compared, with or without a partner, `labelled`."""
    lost: pd.DataFrame
    """Rows of runs that diverged, or that a person excluded, `labelled`."""

    @functools.cached_property
    def unstable(self) -> frozenset[str]:
        """Ids of the runs of each setting that is unstable, or whose baseline is."""
        rows = self.table[self.table["verdict"].str.startswith("unstable")]
        return frozenset(rows["run_ids"].explode())


def compare(
    runs: pd.DataFrame, questions: Sequence[Question] = (), own_rates: bool = False
) -> Comparison:
    """Compare every superposed run of a run table (`source.load`) with its baseline, and answer the
    questions. Every run that is not a baseline counts as superposed.

    own_rates: compare arms that have one learning rate each although their rates differ.

    Raises `UserError` if an arm of a question names a column that the table lacks, or holds two
    runs of one seed.
    """
    kept, excluded = eligible(runs)
    # If two runs have the same setting and seed, nothing says which of them belongs to the baseline
    # of that seed. Counted as two seeds, they would make the interval too short. Runs without seeds
    # stay.
    twice = kept.duplicated([*PAIRED, *SETTING], keep=False) & kept["seed"].notna()
    reason = "another run has the same setting, rate and seed; give each its own seed"
    excluded += [excluded_row(run, reason) for run in rows_of(kept[twice])]
    kept = labelled(kept[~twice])
    beside = uncovered(runs, questions)
    reason = "no question of its study covers it; ask one by --arm and --against"
    out = kept["folder"].isin(beside)
    excluded += [excluded_row(run, reason) for run in rows_of(kept[out])]
    kept = kept[~out]
    # A shared prefix run is no seed of its own: its branches diverge and count.
    gone = (runs["state"] == "diverged") | ~runs["exclusion"].isin(["", NOT_WHOLE])
    gone &= ~runs["folder"].isin(beside) & ~runs["role"].isin(["trunk", "pilot"])
    lost = labelled(runs[gone].drop_duplicates(["fingerprint", "state"]))
    tried = labelled(eligible(runs, pilots=True)[0])
    kept, lost = with_rates(kept, lost, tried, questions, own_rates)
    baselines = _indexed(rows_of(kept[kept["method"] == "baseline"]))
    pairs: list[dict[str, Any]] = []
    for run in rows_of(kept[kept["method"] == "superposition"]):
        partners = _partners(run, baselines)
        if isinstance(partners, str):
            excluded.append(excluded_row(run, partners))
        else:
            pairs.append(_pair(run, partners))
    # Beside pairs of a seed, runs without a seed would count in means and not in intervals.
    seeded = {_setting(pair) for pair in pairs if not pd.isna(pair["seed"])}
    mixed = {
        pair["superposed_folder"]
        for pair in pairs
        if pd.isna(pair["seed"]) and _setting(pair) in seeded
    }
    pairs = [pair for pair in pairs if pair["superposed_folder"] not in mixed]
    reason = "it has no seed, and others of its setting have one"
    excluded += [excluded_row(run, reason) for run in rows_of(kept[kept["folder"].isin(mixed)])]
    contrasts = asked_contrasts(kept, lost, questions)
    planned, asked = decide(contrasts), {each for one in contrasts for each in one.folders}
    studies = [question.within for question in questions if question.within]
    table, verdicts = _decided(*_settings(pairs, kept, lost, studies), planned)
    return Comparison(
        table=table,
        verdicts=verdicts,
        pairs=pd.DataFrame(pairs, columns=list(PAIR_COLUMNS)),
        excluded=pd.DataFrame(
            [row for row in excluded if row["folder"] not in asked], columns=list(EXCLUDED_COLUMNS)
        ),
        eligible=kept,
        lost=lost,
    )


def with_rates(
    kept: pd.DataFrame,
    lost: pd.DataFrame,
    tried: pd.DataFrame,
    questions: Sequence[Question],
    own_rates: bool,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Add the column `rate` (`SAME`) to runs that may be compared and to those that are lost.

    An arm is compared at its own rate, whatever the baseline's, if both have one rate in each group
    of their family, and one of these holds: the user says so (`own_rates`); both were run at
    several rates (`tried` has the runs of sweeps, too); a question compares them; or the runs are
    imported, and an arm has a name or a rate is unknown. Arms at the baseline's rate stay with it.
    """
    cell = ["group", "eval_set", "setting"]
    rates = kept["learning_rate"].astype(float)
    kept = kept.assign(rate=rates)
    single = rates.groupby([kept[name] for name in cell]).transform("nunique", dropna=False) == 1
    swept = tried.groupby(["family", "setting"])["learning_rate"].nunique()
    tuned = set(swept.index[swept > 1])
    for question in questions:
        sides = pd.concat(question.runs(kept, ["family", "setting"]))
        tuned |= set(sides.itertuples(index=False, name=None))
    for (family, _), members in kept.groupby(["family", "eval_set"], dropna=False):
        known, is_baseline = members["learning_rate"], members["method"] == "baseline"
        alone = single[members.index]
        are_equal = known.notna().all() and known.nunique() == 1
        if are_equal or not alone[is_baseline].all():
            continue
        named = bool(members["config"].isna().all()) and bool(
            known.isna().any() or members["named_arm"].notna().any()
        )
        own = pd.Series([(family, label) in tuned for label in members["setting"]], members.index)
        own = alone & (own | own_rates | named)
        if own[is_baseline].any():
            of_baseline = members[is_baseline].groupby("group")["learning_rate"].first()
            own |= known == members["group"].map(of_baseline)
            kept.loc[own.index[own], "rate"] = math.nan
    arms = kept[single].drop_duplicates(["group", "setting"]).set_index(["group", "setting"])
    return kept, lost.assign(rate=[_rate_of_arm(run, arms) for run in rows_of(lost)])


def _rate_of_arm(run: Mapping[str, Any], arms: pd.DataFrame) -> float:
    """Return the rate at which a run that diverged is counted: that of its arm, if it had the arm's
    learning rate. The log of an imported run that ended in its warm-up shows a lower one."""
    known = run["learning_rate"]
    if (key := (run["group"], run["setting"])) in arms.index:
        arm = arms.loc[key]
        cut = not isinstance(run["config"], str) and not known > arm["learning_rate"]
        if cut or known == arm["learning_rate"]:
            return float(arm["rate"])
    return float(known)


def refuse_copies(tables: Tables) -> None:
    """Raise `UserError` if two runs of different seeds have the same training curve, or if more
    final losses of an arm are equal than chance makes so. Copies that count as further seeds would
    make every interval too short. Excluded runs are not looked at."""
    measured = tables.runs[(tables.runs["exclusion"] == "") & (tables.runs["state"] == "done")]
    arm = ["group", "arm", "learning_rate", "eval_set"]
    measured = measured.dropna(subset=["seed", "nats_per_token"]).drop_duplicates([*arm, "seed"])
    repeated = measured[measured.duplicated([*arm, "nats_per_token"])][arm].drop_duplicates()
    for _, own in measured.merge(repeated).groupby(arm, dropna=False):
        if _chance_of_repeats(own) < BY_CHANCE:
            again = own[own.duplicated("nats_per_token", keep=False)]
            same = again[again["nats_per_token"] == again["nats_per_token"].iloc[0]]
            raise UserError(
                f"runs {listed(list(map(str, same['run_id'])), 2)}: different seeds, but the same "
                f"final loss {same['nats_per_token'].iloc[0]:g}; remove copies, or round losses "
                "to the digits that were measured"
            )
    curves = tables.curves.dropna(subset="loss")
    rows = pd.util.hash_pandas_object(curves[["step", "loss"]], index=False)
    marks = rows.groupby(curves["folder"].astype(str)).agg(["sum", "size"])
    runs = tables.runs[tables.runs["exclusion"] == ""]
    runs = runs[["folder", "run_id", "seed"]].merge(marks, left_on="folder", right_index=True)
    runs = runs[(runs["size"] >= COPIED_ROWS) & runs.duplicated(["sum", "size"], keep=False)]
    for _, same in runs.groupby(["sum", "size"]):
        different = same.drop_duplicates("seed")
        if len(different) > 1:
            first, second = different["run_id"].iloc[:2]
            seeds = " and ".join(map(str, different["seed"].iloc[:2]))
            raise UserError(
                f"runs {first!r} and {second!r}: seeds {seeds}, but the same training curve in "
                "every row; remove the copy, or correct its seed"
            )


def _chance_of_repeats(runs: pd.DataFrame) -> float:
    """Return an upper bound of the probability that so few of an arm's losses differ.

    A loss is taken to be normal and to lie on a grid: the coarsest of decimals or binary digits of
    nats, bits, bits per byte or perplexity that holds them all."""
    losses = runs["nats_per_token"].astype(float).to_numpy()
    scales = [(losses, 1.0), (losses / np.log(2), np.log(2)), (np.exp(losses), np.exp(-losses))]
    per_byte = runs["bits_per_byte"].astype(float).to_numpy()
    scales += [(per_byte, losses / per_byte)] if np.isfinite(per_byte).all() else []
    step = 1e-9
    for values, nats in scales:
        for size in (*(10.0**-digits for digits in range(9)), *(2.0**-k for k in range(1, 26))):
            if (np.abs(values / size - np.round(values / size)) < 1e-4).all():
                step = max(step, size * float(np.mean(nats)))
    different = np.unique(losses)
    spread = max(float(np.std(different, ddof=1)) if len(different) > 1 else 0.0, 3e-5 * losses[0])
    # If all points of the grid were as likely as its middle, there would be `places` of them. The
    # bound is for such points.
    places, seeds = spread * math.sqrt(2 * math.pi) / step, len(losses)
    few = math.comb(max(int(places), len(different)), len(different))
    few *= min(1.0, len(different) / places) ** seeds
    pairs = math.comb(seeds, 2) / (math.sqrt(2) * places)
    return float(min(few, special.pdtrc(seeds - len(different) - 1, pairs)))


def alike(
    table: pd.DataFrame, row: Mapping[str, Any] | pd.Series, names: Iterable[str]
) -> pd.DataFrame:
    """Return the rows of a table that agree with `row` in the columns `names`. Missing cells are
    equal."""
    missing = {name: table[name].isna() & pd.isna(row[name]) for name in names}
    return table[np.logical_and.reduce([(table[n] == row[n]) | missing[n] for n in missing])]


_NARROWING = ("group", "rate", "eval_set", "seed", "data_seed")
"""Columns in which a run's baseline agrees with it, beside its FLOPs, in the order in which a
reason why there is none looks at them."""
Index = dict[tuple[Any, ...], list[dict[str, Any]]]
"""Baselines by their cells of the first columns of `_NARROWING`, of any number of these. Without
cells there is one of each group."""


def _cells(run: Mapping[str, Any], names: Iterable[str]) -> tuple[Any, ...]:
    """Return these cells of a row; missing ones, which as NaN would be unequal, are None."""
    return tuple(None if pd.isna(run[name]) else run[name] for name in names)


def _indexed(baselines: Iterable[dict[str, Any]]) -> Index:
    index: Index = defaultdict(list)
    for baseline in baselines:
        cells = _cells(baseline, _NARROWING)
        if cells[:1] not in index:
            index[()].append(baseline)
        for count in range(1, len(cells) + 1):
            index[cells[:count]].append(baseline)
    return index


def _partners(run: dict[str, Any], baselines: Index) -> list[dict[str, Any]] | str:
    """Return the baselines to compare a run with: the one of its seed or, if it has no seed, all
    that agree with it in the other columns. If there is none, return the reason."""
    cells = _cells(run, _NARROWING)
    found = [
        each
        for each in baselines.get(cells, ())
        if math.isclose(each["flops"], run["flops"], rel_tol=EQUAL_WITHIN)
    ]
    if found:
        return found if pd.isna(run["seed"]) else found[:1]
    lacking = [count for count in range(len(cells)) if cells[: count + 1] not in baselines]
    column = _NARROWING[lacking[0]] if lacking else "flops"
    tokens = run.get("eval_tokens")
    text = run["eval_set"] if pd.isna(tokens) else f"{run['eval_set']}, {int(tokens):,} tokens"
    words = {
        "group": f"of the same data, model, steps, batch and schedule{_nearest(run, baselines)}",
        "rate": f"at its learning rate {run['learning_rate']:g}; --own-rates compares arms at "
        "rates of their own, if each has one",
        "eval_set": f"evaluated on the same held-out text ({text})",
        "seed": "without a seed" if pd.isna(run["seed"]) else f"of its seed {run['seed']}",
        "data_seed": f"that reads its text in the order of data_seed {run['data_seed']}",
        "flops": "of equal FLOPs",
    }
    if pd.isna(run["learning_rate"]):
        words["rate"] = "of unknown learning rate, like its own; exclude the baseline's other rates"
    return f"no finished baseline {words[column]}"


def _nearest(run: dict[str, Any], baselines: Index) -> str:
    """Say in which columns the most similar baseline differs, if there is one that does."""
    known = [name for name in DIFFER[:-1] if name in run]
    differences = [
        [
            f"{name} {other[name]}, not {run[name]}"
            for name in known
            if _cells(other, [name]) != _cells(run, [name])
        ]
        for other in baselines.get((), ())
    ]
    nearest = min(filter(None, differences), key=len, default=[])
    return f" (the nearest has {'; '.join(nearest)})" if nearest else ""


def _pair(run: dict[str, Any], baselines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row of `Comparison.pairs`, with `run_ids`, `parameters`, `config` and `block` (the
    label of the pair) beside its columns. The losses of several baselines are averaged."""
    loss = sum(baseline["nats_per_token"] for baseline in baselines) / len(baselines)
    return {
        **{column: run[column] for column in (*_SHARED, "seed", "block")},
        "baseline": loss,
        "superposed": run["nats_per_token"],
        "gain": loss - run["nats_per_token"],
        "superposed_folder": run["folder"],
        "run_ids": (*(baseline["run_id"] for baseline in baselines), run["run_id"]),
        "parameters": run.get("parameters"),
        "config": run.get("config"),
    }


def _settings(
    pairs: list[dict[str, Any]], kept: pd.DataFrame, lost: pd.DataFrame, studies: Sequence[str]
) -> tuple[list[dict[str, Any]], list[Contrast]]:
    """Return two lists with an item for each setting, in the order in which settings are shown: its
    row of `Comparison.table`, still without a verdict, and its contrast with the baseline.

    kept: the runs that may be compared. lost: `Comparison.lost`. studies: path prefixes of the
    folders that have questions; unplanned settings are judged study by study.
    """
    lost = lost[lost["state"] == "diverged"]
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for pair in pairs:
        settings.setdefault(_setting(pair), []).append(pair)
    for members in settings.values():
        members.sort(key=lambda pair: -1 if pd.isna(pair["seed"]) else pair["seed"])
    ordered = sorted(
        settings.values(),
        key=lambda pairs: (
            *(pairs[0][name] for name in SAME),
            *SuperpositionSetting.of_row(pairs[0]).order,
        ),
    )
    firsts = [members[0] for members in ordered]
    names = disambiguate_by_set_up(
        [f"{one['setting']}, {one['corpus']}, {one['steps']:,} steps" for one in firsts], firsts
    )
    baselines = kept[kept["method"] == "baseline"]
    of_lost = settings_of(lost)
    lost = lost.assign(whole=pd.Series(of_lost, lost.index, dtype=object))
    rows, cells = [], []
    for members, first, name in zip(ordered, firsts, names, strict=True):
        against = alike(baselines, first, SAME)
        against = against[
            np.isclose(against["flops"].astype(float), float(first["flops"]), EQUAL_WITHIN, 0)
        ]
        own = kept[kept["folder"].isin([pair["superposed_folder"] for pair in members])]
        tried = alike(lost, first, SAME[:2])
        of_setting = SuperpositionSetting.of_row(first)
        row = {
            **first,
            "baseline": sum(pair["baseline"] for pair in members) / len(members),
            "superposed": sum(pair["superposed"] for pair in members) / len(members),
            "run_ids": tuple(dict.fromkeys(name for pair in members for name in pair["run_ids"])),
        }
        cell = Contrast(
            name=name,
            losses=pd.Series({pair["block"]: pair["superposed"] for pair in members}),
            against_losses=against.set_index("block")["nats_per_token"].astype(float),
            diverged=sum(one == of_setting for one in tried["whole"]),
            diverged_against=int((tried["method"] == "baseline").sum()),
            run_ids=row["run_ids"],
            differs=differences(own, against),
            documents=documents_of(own, against),
            text=first["data_multiplier"],
            flops=first["flops"] / against["flops"].mean() if of_setting.is_rival else 1.0,
            study=next((one for one in studies if first["superposed_folder"].startswith(one)), ""),
        )
        rows.append(row)
        cells.append(cell)
    return rows, cells


def _setting(pair: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the pairs of one setting have in common."""
    return _cells(pair, (*SAME, *SETTING))


def _decided(
    rows: list[dict[str, Any]], cells: list[Contrast], planned: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `Comparison.table` and `Comparison.verdicts`.

    If planned questions together cover all runs of a setting, the setting takes the verdict of one
    of them: of a primary one if there is any, and then of the one with most seeds. A question that
    asks about the baseline, against the setting, does not count.
    """
    # By name and runs: studies of two folders may have runs of the same names.
    chosen: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for row, cell in zip(rows, cells, strict=True):
        opposite = row["superposed"] - row["baseline"]
        about = asked_of(planned, cell.run_ids)
        about = [one for one in about if not math.isclose(one["gain"], opposite)]
        if {*cell.run_ids} == {name for one in about for name in one["run_ids"]}:
            chosen[cell.name, cell.run_ids] = about[0]
    also = decide([cell for cell in cells if (cell.name, cell.run_ids) not in chosen])
    chosen |= {(one["question"], one["run_ids"]): one for one in rows_of(also)}
    given = (*(one.name for one in fields(Estimate)), "heading")
    settings = [
        {**row, **{name: chosen[cell.name, cell.run_ids][name] for name in given}}
        for row, cell in zip(rows, cells, strict=True)
    ]
    verdicts = pd.concat([part for part in (planned, also) if len(part)] or [planned])
    return pd.DataFrame(settings, columns=list(TABLE_COLUMNS)), verdicts.reset_index(drop=True)


def asked_of(planned: pd.DataFrame, run_ids: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of `planned`, a table of verdicts, that rest on no other runs than these.
    Primary questions come first, then those with the most seeds."""
    own = set(run_ids)
    resting = [bool(ids) and own.issuperset(ids) for ids in planned.get("run_ids", ())]
    verdicts = rows_of(planned[resting])
    return sorted(verdicts, key=lambda row: (row["primary"], row["seeds"]), reverse=True)
