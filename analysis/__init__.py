"""The analysis of runs: read them, compare them, fit laws to them, and say what follows.

This package imports pandas and scipy, but never torch, megatron or submitit.

`tables/` reads runs, wherever they were trained. `verdict/` says which arm won. `fits/` finds the
best bag size and fits laws that predict other settings and sizes. `questions` has the questions of
`tst-study analyse`, which `verdict/` and `fits/` answer. `advice/` says whether to superpose a
planned run.
`published/` has the paper's own numbers. `summary`, `answer` and `wording` put results into words.
From Python, `fit_chinchilla` and `fit_superposition_law` fit laws to a DataFrame of one's own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tst_study.analysis.advice.advise import advise
    from tst_study.analysis.fits.law.superposition_law import fit_superposition_law
    from tst_study.analysis.fits.scaling.laws import fit_chinchilla
    from tst_study.analysis.questions import ask
    from tst_study.analysis.tables.source import load

_HOME = {
    "advise": "advice.advise",
    "ask": "questions",
    "fit_chinchilla": "fits.scaling.laws",
    "fit_superposition_law": "fits.law.superposition_law",
    "load": "tables.source",
}
__all__ = ["advise", "ask", "fit_chinchilla", "fit_superposition_law", "load"]


def __getattr__(name: str) -> Any:
    # Names are loaded on first use: `tst-study --help` imports this package and must answer at
    # once.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"tst_study.analysis.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
