"""Fits that say when they failed: laws, objectives, solver, uncertainty. numpy and scipy only."""

from analysis.fits.solver.problem import HUBER, Columns, Formula, Objective, Problem
from analysis.fits.solver.solve import Fit, NotConvergedError, fit, grid_of_starts
from analysis.fits.solver.uncertainty import Bootstrap, bootstrap

__all__ = [
    "HUBER",
    "Bootstrap",
    "Columns",
    "Fit",
    "Formula",
    "NotConvergedError",
    "Objective",
    "Problem",
    "bootstrap",
    "fit",
    "grid_of_starts",
]
