"""Table 1: the headline runs, what each cost and the loss it reached.

Hours from the cost model stand beside the published ones, with the MFU that those imply.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.run_row import rows_of
from analysis.summary import counts_in_words, verdict_counts
from analysis.wording import big, gain
from paper_figures.item import Finding, Item, Missing, Verdict, command
from paper_figures.measured import Arm, arms, folders, plain
from paper_figures.published_numbers import HEADLINE, table
from paper_figures.sources import Sources
from paper_figures.table import Entry, Grid, Table, number_entry
from tst_study.compute_cost import flops_per_position, gpu_hours
from tst_study.config import Model
from tst_study.devices import peak_flops
from tst_study.model_presets import expand_preset

PRESET = {"270M": "270m", "600M": "600m", "3B": "3b", "10B-A1B": "moe-10b-a1b"}
BATCH = {"270M": 2**21, "600M": 2**21, "3B": 2**21, "10B-A1B": 2**23}
"""Latent tokens a step (paper)."""
SEQUENCE_LENGTH = {"270M": 2048, "600M": 2048, "3B": 2048, "10B-A1B": 8192}
"""The paper does not state them: SmolLM2's, and what makes 8M tokens of 1,024 sequences."""
MFU = 0.4
"""At which the cost model's hours are given."""


def runs_table() -> pd.DataFrame:
    """Published runs of Table 1: with gain at equal steps, FLOPs, and both kinds of hours."""
    published = table(HEADLINE)
    published = published[published["method"].isin(["baseline", "tst"])]
    base = published[published["method"] == "baseline"]
    losses = {(row["params"], row["total_steps"]): row["final_loss"] for row in rows_of(base)}
    rows = [_row(run, losses) for run in rows_of(published)]
    return pd.DataFrame(rows)


def _row(run: dict[str, Any], baselines: dict[tuple[str, int], float]) -> dict[str, Any]:
    params = run["params"]
    flops = step_flops(params) * run["total_steps"]
    peak = peak_flops("NVIDIA B200", "bfloat16")
    assert peak is not None
    level = baselines.get((params, run["total_steps"]))
    superposed = run["method"] == "tst"
    return {
        "model": params,
        "method": "TST" if superposed else "baseline",
        "bag_size": run["bag_size"],
        "superposed_steps": run["tst_steps"],
        "steps": run["total_steps"],
        "raw_tokens": float(run["total_tokens"]),
        "flops": float(flops),
        "hours_published": float(run["b200_hours"]),
        "hours_model": gpu_hours(flops, peak, MFU),
        "mfu_implied": flops / (peak * 3600 * run["b200_hours"]),
        "loss_published": run["final_loss"],
        "gain_published": level - run["final_loss"] if superposed and level else None,
    }


def step_flops(params: str) -> int:
    """Model FLOPs of one step of a headline run."""
    model = Model.model_validate(expand_preset({"preset": PRESET[params]}))
    return BATCH[params] * flops_per_position(model, SEQUENCE_LENGTH[params])


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """Published runs, and below them what was measured here, at whatever scale."""
    data = runs_table()
    found = list(arms(sources.summary))
    measured = [row for arm in found for row in _measured(arm)]
    data = pd.concat([data, pd.DataFrame(measured)], ignore_index=True) if measured else data
    return [
        Table(
            "headline_runs",
            name,
            "Table 1. Headline runs: cost and final loss",
            _caption(len(measured)),
            data,
            tuple(
                sorted({folder for arm in found for folder in folders(sources.summary, arm.rows)})
            ),
            (_grid(data, bool(measured)),),
            published=(HEADLINE,),
            finding=_finding(found),
        )
    ]


def _measured(arm: Arm) -> list[dict[str, Any]]:
    """The baseline and the plain settings of one comparison group."""
    first = arm.members.iloc[0]
    rows = plain(arm.rows)
    if rows.empty:
        return []
    shared = {
        "model": f"{big(first['parameters'])}, {first['corpus']}",
        "steps": int(first["steps"]),
        "flops": float(first["flops"]),
    }
    base = {
        **shared,
        "method": "baseline",
        "bag_size": 1,
        "superposed_steps": 0,
        "raw_tokens": float(first["latent_tokens"]),
        "loss_measured": float(rows["baseline"].mean()),
        "seeds": int(rows["seeds"].max()),
    }
    return [base] + [
        {
            **shared,
            "method": "TST",
            "bag_size": row["bag_size"],
            "superposed_steps": row["superposed_steps"],
            "raw_tokens": float(first["latent_tokens"]) * row["data_multiplier"],
            "loss_measured": row["superposed"],
            "gain_measured": row["gain"],
            "low": row["low"],
            "high": row["high"],
            "seeds": row["seeds"],
        }
        for row in rows_of(rows)
    ]


def _grid(data: pd.DataFrame, measured: bool) -> Grid:
    headings = ["model", "method", "s", "steps", "superposed", "tokens", "FLOPs"]
    headings += ["B200 h, published", f"B200 h at {MFU:.0%} MFU", "MFU implied"]
    headings += ["loss, published", "gain, published"]
    if measured:
        headings += ["loss, measured", "gain, measured [95%]", "seeds"]
    data = data.assign(
        best=data.groupby("model")["loss_published"].transform("min") == data["loss_published"]
    )
    rows = tuple(tuple(_cells(row, measured)) for row in rows_of(data))
    return Grid("", tuple(headings), rows)


def _cells(row: dict[str, Any], measured: bool) -> list[Entry]:
    cells = [
        Entry(row["model"]),
        Entry(row["method"]),
        Entry(str(row["bag_size"]), value=float(row["bag_size"])),
        Entry(f"{row['steps']:,}", value=float(row["steps"])),
        Entry(f"{row['superposed_steps']:,}", value=float(row["superposed_steps"])),
        Entry(big(row["raw_tokens"]), value=row["raw_tokens"]),
        Entry(f"{row['flops']:.3g}", value=row["flops"]),
        number_entry(row["hours_published"], 0),
        number_entry(row["hours_model"], 0),
        _percent(row["mfu_implied"]),
        number_entry(row["loss_published"], 3, row["best"]),
        number_entry(row["gain_published"], 3, sign=True),
    ]
    if measured:
        known = pd.notna(row["gain_measured"])
        text = gain({**row, "gain": row["gain_measured"]}, 4) if known else ""
        cells += [
            number_entry(row["loss_measured"], 4),
            Entry(text, value=float(row["gain_measured"]) if known else None),
            number_entry(row["seeds"], 0),
        ]
    return cells


def _percent(share: float) -> Entry:
    return Entry() if pd.isna(share) else Entry(f"{share:.0%}", value=float(share))


def _caption(measured: int) -> str:
    text = (
        "Published runs, one seed each: final training loss in nats per token, B200-hours as "
        "published and by the cost model (6 FLOPs per active weight and position, attention over "
        f"the whole sequence, 2.25e15 FLOP/s, {MFU:.0%} MFU; sequences of 2,048 and, for the "
        "mixture of experts, 8,192 are assumed, the paper does not state them). Gain: against the "
        "baseline of as many steps. Bold: the lowest published loss of a model. "
    )
    if not measured:
        return text + f"Nothing measured: `{command('headline', 'paper')}`."
    return text + (
        "Rows without published numbers were measured here: held-out loss, mean over seeds, gain "
        f"paired by seed. The published runs were not repeated: `{command('headline', 'paper')}`."
    )


def _finding(found: list[Arm]) -> Finding:
    published = "TST below the baseline of equal FLOPs at 270M, 600M and 3B, by 0.044 to 0.132 nats"
    own = [arm for arm in found if len(plain(arm.rows))]
    if not own:
        return Finding(published, needs=command("headline", "paper"))
    text = "; ".join(f"{arm.members['corpus'].iloc[0]}: {_words(plain(arm.rows))}" for arm in own)
    scale = "; ".join(dict.fromkeys(arm.scale for arm in own))
    # What made-up language gains says nothing of the paper's claim while there is prose.
    judged = [arm for arm in own if not arm.is_generated] or own
    return Finding(published, text, scale, _verdict(pd.concat([plain(a.rows) for a in judged])))


def _words(rows: pd.DataFrame) -> str:
    best = next(rows_of(rows.sort_values("gain", ascending=False)))
    counts = counts_in_words(verdict_counts(rows))
    return f"{counts}; the largest gain is {gain(best)} ({best['setting']})"


def _verdict(rows: pd.DataFrame) -> Verdict:
    wins, losses = ((rows["verdict"] == word).sum() for word in ("better", "worse"))
    return "agrees" if wins and not losses else "disagrees" if losses > wins else "undecided"
