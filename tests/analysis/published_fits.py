"""The published runs that fits are tested on, and the problems their authors solved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from analysis.checks import Floats
from analysis.fits.scaling.laws import Base, chinchilla
from analysis.fits.solver.problem import HUBER, Columns, Formula, Problem

SCALING = Path(__file__).parent / "scaling"

REPETITION_BASE = Base(0.6254804, 6.255414, 7.3049974, 0.3526596, 0.3526596)


def chinchilla_runs() -> pd.DataFrame:
    """params, tokens, flops, loss; the five highest losses are left out, as by the authors."""
    table = pd.read_csv(SCALING / "chinchilla_epoch.csv")
    table = table.rename(columns={"Model Size": "params", "Training FLOP": "flops"})
    table["tokens"] = table["flops"] / 6 / table["params"]
    return table[table["loss"] < table["loss"].nlargest(5).min()]


def chinchilla_problem(**objective: Any) -> Problem:
    runs = chinchilla_runs()
    model = chinchilla(runs["params"], runs["tokens"])
    return Problem(model, runs["loss"].to_numpy(), **objective)


def repetition_problem() -> Problem:
    runs = pd.read_csv(SCALING / "datablations_182.csv")
    model = repetition(REPETITION_BASE, runs["params"], runs["tokens"], runs["unique_tokens"])
    return Problem(model, runs["val_loss"].to_numpy(), HUBER)


def repetition(
    base: Base, params: ArrayLike, tokens: ArrayLike, unique_tokens: ArrayLike
) -> Formula:
    """Loss with repeated tokens and excess parameters, both worth less and less.

    D' = U_D (1 + R_D* (1 − exp(−R_D / R_D*))) with R_D repetitions of U_D unique tokens; N' alike,
    from U_N, the compute-optimal size for U_D. Parameters log_RD and log_RN (of R_D*, R_N*); the
    base law is given; `tokens` are those seen, repeats counted. (arXiv 2305.16264, section 3 and
    appendix A.)
    """
    size, seen = np.asarray(params, dtype=float), np.asarray(tokens, dtype=float)
    unique: Floats = np.minimum(np.asarray(unique_tokens, dtype=float), seen)
    used: Floats = np.minimum(size, _optimal_params(base, unique))

    def loss(p: Mapping[str, Any], c: Columns) -> Any:
        data = c["unique"] * _worth(c["repeats"], np.exp(p["log_RD"]))
        return base.loss(c["used"] * _worth(c["excess"], np.exp(p["log_RN"])), data)

    columns = {"unique": unique, "repeats": seen / unique - 1.0}
    columns |= {"used": used, "excess": size / used - 1.0}
    return Formula(("log_RD", "log_RN"), loss, columns)


def _worth(repeats: Floats, scale: Any) -> Any:
    """1 + R* (1 − exp(−R / R*)): what so many repetitions are worth, over what is repeated."""
    return 1.0 - scale * np.expm1(-repeats / scale)


def _optimal_params(base: Base, tokens: ArrayLike) -> Floats:
    """Compute-optimal model size for so many tokens (C = 6 N D): αA N^−α = βB D^−β."""
    data = np.asarray(tokens, dtype=float)
    ratio = base.log_A - base.log_B + np.log(base.alpha / base.beta)
    size: Floats = np.exp((ratio + base.beta * np.log(data)) / base.alpha)
    return size
