"""Fits that say when they failed: laws, objectives, solver, uncertainty. numpy and scipy only."""

from analysis.fitting.formula import Formula
from analysis.fitting.problem import Huber, LeastSquares, Objective, Problem
from analysis.fitting.solve import Fit, NotConvergedError, fit, grid_of_starts
from analysis.fitting.uncertainty import Bootstrap, bootstrap, leave_one_out, profile

__all__ = [
    "Bootstrap",
    "Fit",
    "Formula",
    "Huber",
    "LeastSquares",
    "NotConvergedError",
    "Objective",
    "Problem",
    "bootstrap",
    "fit",
    "grid_of_starts",
    "leave_one_out",
    "profile",
]
