"""Figure 10: mutual information of two tokens by their distance d, with the fit C0 + a·d^k.

Measured curves are read from files named `mutual_information*.json`, in the given folders of runs
or below them. `tst-study analyse mutual-information --tokens PREFIX --json > FILE` writes such a
file.
"""

import json
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tst_study.analysis import published
from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.mutual_information import fit_decay
from tst_study.errors import UserError
from tst_study.paper_figures.catalogue import figure
from tst_study.paper_figures.drawing import Picture, log_axis
from tst_study.paper_figures.item import Finding
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import COLUMN, INK, PAGE, Look, new_figure

NEEDS = (
    "`tst-study analyse mutual-information --tokens PREFIX --json > RUNS/mutual_information.json`"
)
"""The command that makes a measured curve, in backquotes."""
Constants = tuple[float, float, float]
"""C0, a and k of C0 + a·d^k."""
PATTERN = "mutual_information*.json"
"""The names of files with measured curves."""
COLUMNS = ["distance", "mutual_information"]
"""The columns that are read from such a file."""

COLOURS = ("#0072b2", "#009e73", "#cc79a7")
"""Colours of the curves of a panel, in turn."""
PRINTED = "C0 = 3.63, a = 1.35, k = −1.25"
"""The fit that the paper prints."""


@figure(
    "figure10",
    title="Figure 10. Mutual information of two tokens falls as a power of their distance",
    published=["mutual_information"],
    needs=NEEDS,
)
def mutual_information(sources: Sources) -> Picture:
    """Show the published curve and the measured ones, each with its fit."""
    own = _measured(sources.folders)
    curves = {"published": published.mutual_information(), **own}
    fits = {source: _fitted(curve) for source, curve in curves.items()}
    rows = [
        curve.assign(source=source, fit=_decay(fits[source], curve["distance"].to_numpy(float)))
        for source, curve in curves.items()
    ]
    data = pd.concat(rows, ignore_index=True).reindex(columns=["source", *COLUMNS, "fit"])
    theirs = f"{_said(fits['published'])}; printed: {PRINTED}"
    ours = "; ".join(f"{_name(source)}: {_said(fits[source])}" for source in own)
    return Picture(
        caption="Mutual information of pairs of tokens of DCLM at distances 1 to 100, published "
        f"(read from the paper's picture). Fitted to these points: {_said(fits['published'])}; "
        f"the paper prints {PRINTED}.",
        measured=f"Measured (nats, corrected for finite text): {ours}.",
        data=data,
        draw=partial(_figure, data, fits),
        fits={
            source: dict(zip(("C0", "a", "k"), fit, strict=True)) for source, fit in fits.items()
        },
        finding=Finding(theirs, ours, "other text and tokenizer", "undecided"),
    )


def _measured(folders: Sequence[Path]) -> dict[str, pd.DataFrame]:
    """Return the measured curves. The key of each is the path of its file, relative to the folder
    of runs and without `.json`; if two are equal there, the later one keeps its whole path."""
    curves = {}
    for folder in folders:
        for path in sorted(folder.rglob(PATTERN)):
            source = path.relative_to(folder).with_suffix("").as_posix()
            if source in curves:
                source = path.with_suffix("").as_posix()
            try:
                tables = json.loads(path.read_text("utf8"))["tables"]
                table = pd.DataFrame(tables["Mutual information by distance"])[COLUMNS]
                curves[source] = table.astype(float)
            except (ValueError, LookupError, TypeError):
                raise UserError(f"{path}: holds no measured curve; make it by {NEEDS}") from None
    return curves


def _name(source: str) -> str:
    """Return the name of a curve for the legend: its path without the words `mutual_information`,
    or `measured` if nothing is left."""
    return source.replace("mutual_information", "").strip("-_/") or "measured"


def _fitted(curve: pd.DataFrame) -> Constants:
    """Fit the positive values of a curve. All constants are NaN if fewer than four values are
    positive."""
    above = curve[curve["mutual_information"] > 0]
    try:
        fit = fit_decay(above["distance"], above["mutual_information"])
    except UserError:
        return (np.nan, np.nan, np.nan)
    return fit.constant, fit.amplitude, fit.exponent


def _decay(constants: Constants, distance: Floats) -> Floats:
    constant, amplitude, exponent = constants
    return constant + amplitude * distance**exponent


def _figure(data: pd.DataFrame, fits: dict[str, Constants]) -> Figure:
    """Draw the published and the measured curves in separate panels, because the paper does not
    state the unit of its values."""
    own = [source for source in fits if source != "published"]
    drawn, (row,) = new_figure(PAGE if own else COLUMN, 2.6, 2 if own else 1)
    _draw(row[0], data, {"published": fits["published"]})
    row[0].set_ylabel("mutual information (unit not stated)")
    if own:
        _draw(row[1], data, {source: fits[source] for source in own})
        row[1].set_ylabel("mutual information (nats)")
    for axes, title in zip(row, ("published: DCLM", "measured"), strict=False):
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), title=title, alignment="left")
    return drawn


def _draw(axes: Axes, data: pd.DataFrame, fits: dict[str, Constants]) -> None:
    for (source, fit), colour in zip(fits.items(), cycle(COLOURS), strict=False):
        rows = data[data["source"] == source]
        look: Look = {"color": colour, "markersize": 3, "mfc": "none", "mew": 0.7, "ls": "none"}
        label = "points" if source == "published" else _name(source)
        axes.plot(rows["distance"], rows["mutual_information"], "o", label=label, **look)
        at = np.geomspace(rows["distance"].min(), rows["distance"].max(), 200)
        axes.plot(at, _decay(fit, at), color=INK, lw=0.9, label=f"fitted: {_said(fit)}")
    log_axis(axes, "x", [1, 2, 5, 10, 20, 50, 100])
    axes.set_xlabel("distance d (tokens, log scale)")


def _said(constants: Constants) -> str:
    if np.isnan(constants[0]):
        return "none, too few distances with positive information"
    texts = (f"{value:.3f}".replace("-", "−") for value in constants)
    return "C0 = {}, a = {}, k = {}".format(*texts)
