"""Table 2: input embedding and output head re-initialised between the phases."""

import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import signed
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.item import Finding, Verdict
from tst_study.paper_figures.sources import Group, Sources, folders_of
from tst_study.paper_figures.table import Grid, Table, gain_entry, number_entry

METHODS = {
    "baseline": "baseline",
    "tst": "TST",
    "tst_reinit_embedding_and_head": "TST, embedding and head re-initialised",
}


@figure(
    "table2",
    title="Table 2. Embedding and head re-initialised at the switch",
    published=["headline_runs"],
    needs=submit("reinitialise", "paper", "one-gpu"),
)
def reinitialisation(sources: Sources) -> Table:
    """Published at 3B, 20,000 steps; measured ones are pairs of equal s and r at any scale."""
    groups = [group for group in map(_both, sources.groups) if len(group.rows)]
    data = pd.concat([_published(), *map(_measured, groups)], ignore_index=True)
    lowest = data.groupby("runs")["loss"].transform("min")
    columns = {
        "runs": lambda row: row["runs"],
        "method": lambda row: row["method"],
        "loss": lambda row: number_entry(row["loss"], 3, row["loss"] == row["lowest"]),
        "gain over the baseline [95%]": lambda row: gain_entry(row, digits=3),
    }
    return Table(
        caption="Loss in nats per token: final training loss where published, held-out loss where "
        "measured, the baseline's as the mean over its seeds, that of the others as this mean less "
        "their gain, which is paired by seed. Bold: the lowest of each group.",
        measured=f"The published runs were not repeated: {submit('reinitialise', 'paper')}.",
        data=data,
        folders=folders_of(groups),
        grids=(Grid.of(rows_of(data.assign(lowest=lowest)), columns),),
        finding=_finding(groups),
    )


def _published() -> pd.DataFrame:
    runs = published.headline_runs().query("params == '3B' and total_steps == 20_000")
    loss = runs.set_index("method")["final_loss"].loc[list(METHODS)]
    table = pd.DataFrame({"method": METHODS.values(), "loss": loss.to_numpy()})
    gain = (loss["baseline"] - table["loss"]).where(table["method"] != "baseline")
    return table.assign(runs="published: 3B, 20,000 steps, s = 6, r = 0.3, 1 seed", gain=gain)


def _both(group: Group) -> Group:
    """Settings that were re-initialised, and the same settings left as they are."""
    rows = group.plain("reinitialized").rows
    same = rows.groupby(["bag_size", "superposed_steps"])["reinitialized"].transform("nunique")
    return group.only(rows[same == 2].sort_values("reinitialized", kind="stable"))


def _measured(group: Group) -> pd.DataFrame:
    rows, (base, plain, fresh) = group.with_baseline(), METHODS.values()
    names = [
        f"{fresh if row['reinitialized'] else plain}, s = {row['bag_size']}, "
        f"r = {row['step_ratio']:.3g}"
        for row in rows_of(group.rows)
    ]
    seeds = rows["seeds"].where(rows["bag_size"] > 1)
    table = rows[["loss", "gain", "low", "high"]].assign(method=[base, *names], seeds=seeds)
    return table.assign(runs=f"measured: {group.scale}")


def _against_plain(group: Group) -> float:
    """Loss of re-initialised runs less that of plain ones, paired by s, r and seed."""
    columns = ["setting", "bag_size", "superposed_steps", "reinitialized"]
    pairs = group.pairs[["setting", "seed", "superposed"]].merge(group.rows[columns], on="setting")
    same = ["bag_size", "superposed_steps", "seed"]
    losses = pairs.pivot_table("superposed", same, "reinitialized")
    return float((losses[True] - losses[False]).mean())


def _finding(groups: list[Group]) -> Finding:
    theirs = "re-initialised 0.262 nats above TST and 0.130 above the baseline"
    if not groups:
        return Finding(theirs)
    rows, new = groups[0].rows, groups[0].rows["reinitialized"].astype(bool)
    worse, over = _against_plain(groups[0]), float(-rows[new]["gain"].mean())
    measured = f"gains of {signed(-worse)} over TST and {signed(-over)} over the baseline"
    tested = set(rows[new]["verdict"])
    other: Verdict = "disagrees" if "better" in tested else "undecided"
    return Finding(theirs, measured, groups[0].scale, "agrees" if tested == {"worse"} else other)
