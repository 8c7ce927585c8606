"""The analysis of runs: read them, compare them, fit laws to them, and say what follows.

This package imports pandas and scipy, but never torch, megatron or submitit.

`tables/` reads runs, wherever they were trained. `verdict/` says which arm won. `fits/` finds the
best bag size and fits laws that predict other settings and sizes. `questions` has the questions of
`tst-study analyse`, which `verdict/` and `fits/` answer. `advice/` says whether to superpose a
planned run.
`published/` has the paper's own numbers. `summary`, `answer` and `wording` put results into words.
From Python, `fit_chinchilla` and `fit_superposition_law` fit laws to a DataFrame of one's own.
"""

from typing import TYPE_CHECKING

from tst_study import loaded_on_first_use

if TYPE_CHECKING:
    from tst_study.analysis.advice.advise import advise
    from tst_study.analysis.fits.law.superposition_law import fit_superposition_law
    from tst_study.analysis.fits.scaling.laws import fit_chinchilla
    from tst_study.analysis.questions import ask
    from tst_study.analysis.tables.source import load

_HOME = {
    "advise": "analysis.advice.advise",
    "ask": "analysis.questions",
    "fit_chinchilla": "analysis.fits.scaling.laws",
    "fit_superposition_law": "analysis.fits.law.superposition_law",
    "load": "analysis.tables.source",
}
__all__ = ["advise", "ask", "fit_chinchilla", "fit_superposition_law", "load"]
# `tst-study --help` imports this package and must answer at once.
__getattr__, __dir__ = loaded_on_first_use(__name__, _HOME)
