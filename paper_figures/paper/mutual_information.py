"""Figure 10: mutual information of token pairs by their distance, with the fit C0 + a·d^k.

A measured curve is what `tst-study analyse mutual-information --tokens PREFIX --json FILE` wrote,
with FILE named `mutual_information*.json` beside the runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.mutual_information import Decay, fit_decay
from paper_figures.item import Finding, Item, Missing
from paper_figures.picture import Picture
from paper_figures.published_numbers import MUTUAL_INFORMATION, table
from paper_figures.sources import Sources
from paper_figures.style import COLUMN, INK, PAGE, cycle_mark, new_figure
from tst_study.errors import UserError

PRINTED = (3.63, 1.35, -1.25)
"""C0, a and k as the paper prints them."""
NEEDS = "tst-study analyse mutual-information --tokens PREFIX --json RUNS/mutual_information.json"
PATTERN = "mutual_information*.json"
DATA = ("source", "distance", "mutual_information", "low", "high", "fit")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    curves = {"published": _published(), **_measured(sources.folder)}
    fits = {source: _decay(curve) for source, curve in curves.items()}
    data = pd.concat(
        [
            curve.assign(source=source, fit=_values(fits[source], curve))
            for source, curve in curves.items()
        ],
        ignore_index=True,
    ).reindex(columns=list(DATA))
    return [
        Picture(
            "mutual_information",
            name,
            "Figure 10. Mutual information of token pairs by distance",
            _caption(fits),
            data,
            (),
            lambda: _figure(data, fits),
            published=(MUTUAL_INFORMATION,),
            fits={source: _parameters(decay) for source, decay in fits.items()},
            finding=_finding(fits),
        )
    ]


def _published() -> pd.DataFrame:
    return table(MUTUAL_INFORMATION).rename(columns={"distance_tokens": "distance"})


def _measured(folder: Path | None) -> dict[str, pd.DataFrame]:
    """Curve by the file it lies in. Raises `UserError` for a file that holds something else."""
    found = {}
    for path in sorted(folder.rglob(PATTERN)) if folder else []:
        try:
            rows = json.loads(path.read_text("utf8"))["tables"]["Mutual information by distance"]
            curve = pd.DataFrame(rows)[["distance", "mutual_information", "low", "high"]]
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{path}: holds no mutual information by distance; write it with `{NEEDS}`"
            ) from None
        assert folder is not None
        found[path.relative_to(folder).with_suffix("").as_posix()] = curve
    return found


def _decay(curve: pd.DataFrame) -> Decay | None:
    """None where too few distances have information above their noise."""
    positive = curve[curve["mutual_information"] > 0]
    try:
        return fit_decay(
            positive["distance"].to_numpy(dtype=float),
            positive["mutual_information"].to_numpy(dtype=float),
        )
    except UserError:
        return None


def _values(decay: Decay | None, curve: pd.DataFrame) -> Any:
    if decay is None:
        return float("nan")
    distance = curve["distance"].to_numpy(dtype=float)
    return decay.constant + decay.amplitude * distance**decay.exponent


def _parameters(decay: Decay | None) -> dict[str, float]:
    if decay is None:
        return {}
    names = {"C0": decay.constant, "a": decay.amplitude, "k": decay.exponent, "rmse": decay.rmse}
    return {name: float(value) for name, value in names.items()}


def _figure(data: pd.DataFrame, fits: dict[str, Decay | None]) -> Figure:
    """One panel for each unit: what the paper's is, it does not say."""
    own = [source for source in fits if source != "published"]
    figure, row = new_figure(PAGE if own else COLUMN, 2.4, 2 if own else 1)
    _draw(row[0], data, {"published": fits["published"]})
    row[0].set_title("published: DCLM")
    row[0].set_ylabel("mutual information (unit not stated)")
    if own:
        _draw(row[1], data, {source: fits[source] for source in own})
        row[1].set_title("measured")
        row[1].set_ylabel("mutual information (nats)")
    return figure


def _draw(axes: Axes, data: pd.DataFrame, fits: dict[str, Decay | None]) -> None:
    for place, source in enumerate(fits):
        rows, mark = data[data["source"] == source], cycle_mark(place)
        look: dict[str, Any] = {"color": mark.colour, "markersize": 3, "mfc": "none", "mew": 0.7}
        label = "points" if source == "published" else source
        axes.plot(rows["distance"], rows["mutual_information"], mark.marker, label=label, **look)
        axes.vlines(rows["distance"], rows["low"], rows["high"], color=mark.colour, lw=0.8)
        decay = fits[source]
        if decay is not None:
            at = pd.DataFrame({"distance": np.geomspace(*_ends(rows), 200)})
            axes.plot(at["distance"], _values(decay, at), color=INK, lw=0.9, label="C0 + a·d^k")
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set_xlabel("distance d (tokens, log scale)")
    axes.legend(loc="upper right")


def _ends(rows: pd.DataFrame) -> tuple[float, float]:
    return float(rows["distance"].min()), float(rows["distance"].max())


def _caption(fits: dict[str, Decay | None]) -> str:
    text = (
        "Mutual information of pairs of tokens of DCLM at distances 1 to 100, published (read from "
        f"the paper's picture), and the fit {_said(fits['published'])}; the paper prints "
        f"{PRINTED[0]:.2f}, {PRINTED[1]:.2f}, {PRINTED[2]:.2f}".replace("-", "−")
        + ". "
    )
    own = {source: decay for source, decay in fits.items() if source != "published"}
    if not own:
        return text + f"Nothing measured: `{NEEDS}`."
    said = "; ".join(f"{source}: {_said(decay)}" for source, decay in own.items())
    return text + f"Measured (nats, corrected for finite text, 95% over blocks of it): {said}."


def _said(decay: Decay | None) -> str:
    if decay is None:
        return "not to be fitted: too few distances with information above their noise"
    numbers = (decay.constant, decay.amplitude, decay.exponent)
    return "C0 = {:.2f}, a = {:.2f}, k = {:.2f}".format(*numbers).replace("-", "−")


def _finding(fits: dict[str, Decay | None]) -> Finding:
    decay = fits["published"]
    assert decay is not None
    found = np.array([decay.constant, decay.amplitude, decay.exponent])
    same = bool(np.all(np.abs(found - np.array(PRINTED)) < 0.011))
    published = f"{_said(decay)}, {'as' if same else 'not as'} printed"
    own = {source: fit for source, fit in fits.items() if source != "published"}
    if not own:
        return Finding(published, needs=NEEDS)
    measured = "; ".join(f"{source}: {_said(fit)}" for source, fit in own.items())
    return Finding(published, measured, "other text and tokenizer", "undecided")
