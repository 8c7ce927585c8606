"""One law of superposition over Tables 4 to 7, and what it predicts of runs it was not fitted "
"to."""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.run_row import rows_of
from analysis.superposition_held_out import SPLITS, Split, held_out, observed_gains, predicted_gains
from analysis.superposition_law import Law, fit_law, law_rows, published_law
from analysis.wording import number
from paper_figures.item import Finding, Item, Missing
from paper_figures.picture import Picture
from paper_figures.published_numbers import LOSSES
from paper_figures.sources import Sources
from paper_figures.style import MUTED, PAGE, cycle_mark, new_figure

DATA = (
    "panel",
    "group",
    "table",
    "bag_size",
    "step_ratio",
    "observed",
    "predicted",
    "rmse",
    "bias",
)
SHOWN = SPLITS[0]
"""The split whose predictions are drawn run by run: one size fitted, the other predicted."""


def items(sources: Sources, name: str) -> list[Item | Missing]:
    law, errors, data = _fits()
    return [
        Picture(
            "law_of_superposition",
            name,
            "A law of superposition, fitted and held out",
            _caption(law, errors),
            data,
            (),
            lambda: _figure(data),
            published=(LOSSES,),
            fits={
                "form": law.form.name,
                "parameters": law.values,
                "noise": {"trunk": law.noise.trunk, "cell": law.noise.cell},
            },
            finding=_finding(law, errors),
        )
    ]


@functools.cache
def _fits() -> tuple[Law, pd.DataFrame, pd.DataFrame]:
    """The law, its held-out errors, and what is drawn: published numbers alone, once per "
    "process."""
    rows, law = law_rows(), published_law()
    errors = held_out(law.form, rows)
    data = pd.concat(
        [_fitted(law), _predicted(law, rows, SHOWN), _errors(errors)], ignore_index=True
    )
    return law, errors, data.reindex(columns=list(DATA))


def _fitted(law: Law) -> pd.DataFrame:
    """Gains of all runs that the law was fitted to."""
    rows = law.residuals
    return _gains(rows, rows["predicted"]).assign(panel="fitted")


def _gains(rows: pd.DataFrame, predicted: pd.Series) -> pd.DataFrame:
    level = rows[rows["bag_size"] == 1].set_index(["size", "steps"])["predicted"]
    keys = pd.MultiIndex.from_frame(rows[["size", "steps"]])
    table = rows.assign(
        observed=observed_gains(rows), predicted=level.reindex(keys).to_numpy() - predicted
    )
    return _named(table[table["bag_size"] > 1])


def _predicted(law: Law, rows: pd.DataFrame, split: Split) -> pd.DataFrame:
    """Gains of runs that a law fitted to the others predicts."""
    known = rows[split.fitted(rows)].reset_index(drop=True)
    fitted = fit_law(known, law.form, strict=False)
    out = rows[split.predicted(rows) & (rows["bag_size"] > 1)]
    table = out.assign(observed=observed_gains(rows)[out.index])
    table["predicted"] = predicted_gains(fitted, out)
    return _named(table).assign(panel="held out")


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    names = {4: "270M, 20k", 5: "270M, 100k", 6: "600M, 20k", 7: "600M, 20k, 1/i"}
    columns = ["table", "bag_size", "step_ratio", "observed", "predicted"]
    return rows[columns].assign(group=rows["table"].map(names)).reset_index(drop=True)


def _errors(errors: pd.DataFrame) -> pd.DataFrame:
    return errors[["split", "rmse", "bias"]].rename(columns={"split": "group"}).assign(panel="rmse")


def _figure(data: pd.DataFrame) -> Figure:
    figure, (left, middle, right) = new_figure(PAGE, 2.5, 3)
    for axes, panel, title in (
        (left, "fitted", "fitted to Tables 4 to 7"),
        (middle, "held out", SHOWN.name.replace("→", "fitted,") + " predicted"),
    ):
        _draw_gains(axes, data[data["panel"] == panel])
        axes.set_title(title)
        axes.set_xlabel("published gain (nats)")
    left.set_ylabel("gain by the law (nats)")
    _draw_errors(right, data[data["panel"] == "rmse"])
    return figure


def _draw_gains(axes: Axes, data: pd.DataFrame) -> None:
    low, high = float(data["observed"].min()), float(data["observed"].max())
    axes.plot([low, high], [low, high], color=MUTED, linewidth=0.7)
    for place, (group, rows) in enumerate(data.groupby("group", sort=False)):
        mark = cycle_mark(place)
        look: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 0.6, "markersize": 3}
        axes.plot(
            rows["observed"],
            rows["predicted"],
            mark.marker,
            color=mark.colour,
            label=group,
            **look,
        )
    axes.legend(loc="upper left", handletextpad=0.2)


def _draw_errors(axes: Axes, data: pd.DataFrame) -> None:
    for place, row in enumerate(rows_of(data)):
        axes.plot([0, 1000 * row["rmse"]], [place, place], color=MUTED, linewidth=0.8)
        axes.plot(1000 * row["rmse"], place, "o", color="#1c1c20")
        axes.annotate(
            str(row["group"]),
            (0, place),
            xytext=(2, 4),
            textcoords="offset points",
            fontsize=7,
        )
    axes.set_yticks([])
    axes.set_ylim(len(data) - 0.6, -0.8)
    axes.set_xlim(0, None)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("error of predictions (mnats, RMSE)")
    axes.set_title("held-out errors")


def _rmse(law: Law) -> float:
    return float((law.residuals["error"] ** 2).mean() ** 0.5)


def _caption(law: Law, errors: pd.DataFrame) -> str:
    return (
        f'The form "{law.form.name}" with {number(len(law.fit.theta), "parameter")}, fitted at '
        "once "
        f"to {number(len(law.residuals), 'published run')} (one seed each, r < 1): RMSE "
        f"{1000 * _rmse(law):.1f} mnats. Middle: fitted to 270M alone, 600M predicted. Right: "
        "RMSE of "
        "predicted gains where the law saw only what stands before the arrow. Gains are over the "
        "baseline of the same size and length. No runs of this package took part."
    )


def _finding(law: Law, errors: pd.DataFrame) -> Finding:
    said = "; ".join(f"{row['split']} {1000 * row['rmse']:.1f}" for row in rows_of(errors))
    return Finding(
        "named as future work in the paper; fitted here to its tables: RMSE "
        f"{1000 * _rmse(law):.1f} mnats, held out (mnats): {said}",
    )
