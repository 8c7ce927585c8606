"""The figure `law_of_superposition`: one law of superposition (`analysis.fits.law`), fitted to
Tables 4 to 7, and how well it predicts runs that were left out of its fit."""

import functools
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.fits.law.held_out import NULLS, held_out, predictions, splits
from tst_study.analysis.fits.law.rows import published_rows
from tst_study.analysis.fits.law.superposition_law import Law, published_law
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import number
from tst_study.paper_figures.catalogue import figure
from tst_study.paper_figures.drawing import Picture, key
from tst_study.paper_figures.item import Finding
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import INK, MUTED, PAGE, Look, new_figure

DATA = ["panel", "group", "table", "bag_size", "step_ratio", "observed", "predicted"]
ERRORS: dict[str, tuple[str, Look]] = {
    "law": ("law", {"color": INK, "marker": "o"}),
    "copied": ("nearest run copied", {"color": MUTED, "marker": "o", "mfc": "none"}),
    "scaled": ("and scaled by length", {"color": MUTED, "marker": "x"}),
    "mean": ("mean gain", {"color": MUTED, "marker": "|"}),
}
"""For each prediction whose errors are drawn, its words in the key and its look: first the law's,
then those that need no law."""
DATA += [*ERRORS, "bias"]
"""Columns of the figure's data. `_fits` explains `panel`, and the columns that depend on it."""
SHOWN = "270M → 600M"
"""The split whose held-out runs are drawn one by one: the law is fitted to 270M and predicts
600M."""
TABLES = {4: "270M, 20k", 5: "270M, 100k", 6: "600M, 20k", 7: "600M, 20k, power law"}


@figure(
    "law_of_superposition",
    title="One law fits 462 published runs; a copied run predicts another model size better",
    published=["final_loss_grid"],
)
def law_of_superposition(_sources: Sources) -> Picture:
    """Show the law beside published gains that it predicts, and its errors on every split."""
    law, errors, data = _fits()
    rmse = 1000 * float((law.rows["error"] ** 2).mean() ** 0.5)
    by_split = "; ".join(
        f"{row['split']} {1000 * row['law']:.1f} ({1000 * min(row[null] for null in NULLS):.1f})"
        for row in rows_of(errors)
    )
    return Picture(
        caption=f"The law with {number(len(law.fit.theta), 'parameter')}, fitted at once to "
        f"{number(len(law.rows), 'published run')} (one seed each, r < 1): RMSE {rmse:.1f} "
        "thousandths of a nat. Left: fitted to 270M alone, 600M predicted. Right: RMSE of "
        "predicted gains where the "
        "law saw only what stands before the arrow. Copying the nearest fitted runs, scaling "
        "that copy by (D′/D)^−0.366, and the mean gain need no law. Gains are over the baseline of "
        "the same size and length. No runs of this package took part.",
        data=data,
        draw=partial(_figure, data),
        fits={
            "parameters": law.values,
            "noise": {"shared": law.noise.shared, "own": law.noise.own},
        },
        finding=Finding(
            "named as future work in the paper; fitted here to its tables: RMSE "
            f"{rmse:.1f} thousandths of a nat, held out (in brackets the best of three rules "
            f"without a law): {by_split}"
        ),
    )


@functools.cache
def _fits() -> tuple[Law, pd.DataFrame, pd.DataFrame]:
    """Return the law, its errors on the runs that each split holds out, and the figure's data.

    The column `panel` of the data has two values. `held out`: gains that the split `SHOWN` holds
    out, as observed, as predicted by a law fitted without them, and as `copied` from the nearest
    run. `rmse`: root mean square errors for every split, in the columns that `ERRORS` names, so
    that `copied` is an error in these rows."""
    rows = published_rows()
    errors = held_out(rows)
    gains, _ = predictions(rows, splits(rows)[SHOWN])
    gains = gains.drop(columns="mean").rename(columns={"law": "predicted"})
    gains = gains.assign(panel="held out", group=gains["table"].map(TABLES))
    parts = [gains, errors[[*ERRORS, "bias"]].assign(panel="rmse", group=errors["split"])]
    return published_law(), errors, pd.concat(parts, ignore_index=True).reindex(columns=DATA)


def _figure(data: pd.DataFrame) -> Figure:
    drawn, ((left, right),) = new_figure(PAGE, 2.6, 2)
    gains, errors = (data[data["panel"] == panel] for panel in ("held out", "rmse"))
    ends = [float(gains["observed"].min()), float(gains["observed"].max())]
    left.plot(ends, ends, color=MUTED, linewidth=0.7)
    left.plot(gains["observed"], gains["predicted"], "D", color="#0072b2", mfc="none", ms=3)
    left.set(xlabel="published gain (nats)", ylabel="predicted gain (nats)")
    left.set_title(SHOWN.replace("→", "fitted,") + " predicted, 20k steps")
    places = range(len(errors))
    right.hlines(places, 0, 1000 * errors["law"], color=MUTED, linewidth=0.8)
    for name, (_, look) in ERRORS.items():
        right.plot(1000 * errors[name], places, linestyle="none", **look)
    right.set_yticks(places, list(errors["group"]))
    right.tick_params(axis="y", length=0)
    right.set_ylim(len(errors) - 0.4, -0.6)
    right.spines["left"].set_visible(False)
    right.set(xlim=(0, None), xlabel="RMSE (thousandths of a nat)")
    key(right, dict(ERRORS.values()), 3)
    return drawn
