"""Table 2: input embedding and output head re-initialised between the phases."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import gain
from paper_figures.item import Finding, Item, Missing, command
from paper_figures.measured import Arm, arms, folders, plain
from paper_figures.published_numbers import HEADLINE, table
from paper_figures.sources import Sources
from paper_figures.table import Entry, Grid, Table, number_entry

METHODS = {
    "baseline": "baseline",
    "tst": "TST",
    "tst_reinit_embedding_and_head": "TST, embedding and head re-initialised",
}
NEEDS = command("reinitialise", "paper")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """Published at 3B, 20,000 steps; measured ones are pairs of equal s and r at any scale."""
    found = _arms(sources.summary)
    data = pd.concat([_published(), *(_measured(arm) for arm in found)], ignore_index=True)
    return [
        Table(
            "reinitialisation",
            name,
            "Table 2. Embedding and head re-initialised at the switch",
            _caption(found),
            data,
            tuple(sorted({path for arm in found for path in folders(sources.summary, arm.rows)})),
            (_grid(data),),
            published=(HEADLINE,),
            finding=_finding(found),
        )
    ]


def _published() -> pd.DataFrame:
    runs = table(HEADLINE)
    runs = runs[(runs["params"] == "3B") & (runs["total_steps"] == 20_000)]
    level = float(runs[runs["method"] == "baseline"]["final_loss"].iloc[0])
    return pd.DataFrame(
        {
            "runs": "published: 3B, 20,000 steps, s = 6, r = 0.3, 1 seed",
            "method": METHODS[row["method"]],
            "loss": row["final_loss"],
            "gain": None if row["method"] == "baseline" else level - row["final_loss"],
        }
        for row in sorted(rows_of(runs), key=lambda run: list(METHODS).index(run["method"]))
    )


def _arms(summary: Summary) -> list[Arm]:
    """Groups with a re-initialised setting and the same setting left as it is."""
    found = []
    for arm in arms(summary):
        fresh = arm.rows[arm.rows["reinitialized"].astype(bool)]
        key = ["bag_size", "superposed_steps"]
        kept = plain(arm.rows).merge(fresh[key].drop_duplicates(), on=key)
        if len(kept):
            found.append(Arm(pd.concat([kept, fresh]), arm.members, arm.at_scale))
    return found


def _measured(arm: Arm) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for row in rows_of(arm.rows):
        method = METHODS["tst_reinit_embedding_and_head" if row["reinitialized"] else "tst"]
        rows.append(
            {
                "runs": f"measured: {arm.scale}",
                "method": f"{method}, s = {row['bag_size']}, r = {row['step_ratio']:.3g}",
                "loss": row["superposed"],
                **{key: row[key] for key in ("gain", "low", "high", "seeds")},
            }
        )
    base = {
        "runs": f"measured: {arm.scale}",
        "method": "baseline",
        "loss": float(arm.rows["baseline"].mean()),
    }
    return pd.DataFrame([base, *rows])


def _grid(data: pd.DataFrame) -> Grid:
    lowest = data.groupby("runs")["loss"].transform("min")
    rows = tuple(
        (
            Entry(row["runs"]),
            Entry(row["method"]),
            number_entry(row["loss"], 3, row["loss"] == low),
            Entry(
                gain({"low": None, "high": None, **row}) if pd.notna(row["gain"]) else "",
                value=float(row["gain"]) if pd.notna(row["gain"]) else None,
            ),
        )
        for row, low in zip(rows_of(data), lowest, strict=True)
    )
    return Grid("", ("runs", "method", "loss", "gain over the baseline [95%]"), rows)


def _caption(found: list[Arm]) -> str:
    text = (
        "Loss in nats per token: final training loss where published, held-out loss where "
        "measured. Bold: the lowest of each group. "
    )
    if found:
        return text + f"The published runs were not repeated: `{NEEDS}`."
    return text + f"Nothing measured: `{NEEDS}`, or `{command('reinitialise', 'one-gpu')}` smaller."


def _finding(found: list[Arm]) -> Finding:
    published = "re-initialised 0.262 nats above TST and 0.130 above the baseline"
    if not found:
        return Finding(published, needs=NEEDS)
    arm = found[0]
    fresh = arm.rows[arm.rows["reinitialized"].astype(bool)]
    kept = arm.rows[~arm.rows["reinitialized"].astype(bool)]
    worse = float(fresh["superposed"].mean() - kept["superposed"].mean())
    over = float(-fresh["gain"].mean())
    measured = (
        f"re-initialised {worse:+.3f} nats against TST and {over:+.3f} against the baseline"
    ).replace("-", "−")
    tested = set(fresh["verdict"])
    verdict = (
        "agrees" if tested == {"worse"} else "disagrees" if "better" in tested else "undecided"
    )
    return Finding(published, measured, arm.scale, verdict)  # type: ignore[arg-type]
