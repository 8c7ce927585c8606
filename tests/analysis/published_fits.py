"""The published runs that fits are tested on, and the problems their authors solved."""

from pathlib import Path
from typing import Any

import pandas as pd

from tst_study.analysis.fits.scaling.laws import chinchilla
from tst_study.analysis.fits.solver.problem import Problem

SCALING = Path(__file__).parent / "scaling"


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
