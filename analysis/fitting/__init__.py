"""Fits that say when they failed: models, objectives, solver, uncertainty. numpy and scipy only."""

from analysis.fitting.models import Fixed, LogSumExp, Model
from analysis.fitting.objectives import Huber, LeastAbsolute, LeastSquares, Objective
from analysis.fitting.problem import Problem
from analysis.fitting.solve import Fit, NotConvergedError, fit, grid_of_starts
from analysis.fitting.uncertainty import Bootstrap, bootstrap, leave_one_out, profile

__all__ = [
    "Bootstrap",
    "Fit",
    "Fixed",
    "Huber",
    "LeastAbsolute",
    "LeastSquares",
    "LogSumExp",
    "Model",
    "NotConvergedError",
    "Objective",
    "Problem",
    "bootstrap",
    "fit",
    "grid_of_starts",
    "leave_one_out",
    "profile",
]
