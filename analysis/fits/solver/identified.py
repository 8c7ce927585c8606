"""Which parameters the rows of a problem determine, and how well-conditioned the rest are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.checks import Floats
from analysis.fits.solver.problem import Problem

_ALIKE = 1e-7
"""Singular value over the largest, of columns of equal length: below it, parameters slide along
each other without any change in the losses."""
_TAKES_PART = 0.1
"""Component of a parameter in such a direction."""


@dataclass(frozen=True)
class Identified:
    """What the derivative of the residuals says at the parameters found."""

    rank: int
    """Of the derivative, shape (n, p): p where everything is determined."""
    condition: float
    """Largest over smallest singular value of its columns at equal length, those without effect
    left out; infinite where the others do not have full rank."""
    without_effect: tuple[str, ...]
    """Parameters that have run away to where they change nothing: a term at its bound of zero, an
    exponent of what does not vary."""
    sliding: tuple[str, ...]
    """Parameters that can be changed together without any change in the losses."""

    @property
    def undetermined(self) -> tuple[str, ...]:
        return self.without_effect + self.sliding


def identified(problem: Problem, theta: Floats) -> Identified:
    """Rank, conditioning and undetermined parameters at `theta`, shape (p,)."""
    names = problem.model.parameters
    residuals, jacobian = problem.residuals(theta), problem.jacobian(theta)
    if not (np.isfinite(residuals).all() and np.isfinite(jacobian).all()):
        return Identified(0, float("inf"), (), names)
    live = ~undetermined(residuals, jacobian)
    size = np.linalg.norm(jacobian, axis=0)
    dead = tuple(name for name, lives in zip(names, live, strict=True) if not lives)
    if not live.any():
        return Identified(0, float("inf"), dead, ())
    _, values, directions = np.linalg.svd(jacobian[:, live] / size[live], full_matrices=False)
    alike = values < _ALIKE * values[0]
    part = np.abs(directions[alike]).max(axis=0, initial=0.0)
    left = [name for name, lives in zip(names, live, strict=True) if lives]
    sliding = tuple(name for name, share in zip(left, part, strict=True) if share > _TAKES_PART)
    condition = float("inf") if alike.any() else float(values[0] / values[-1])
    return Identified(int((~alike).sum()), condition, dead, sliding)


def undetermined(residuals: Floats, jacobian: Floats) -> NDArray[np.bool_]:
    """Which parameters no residual depends on, shape (p,): to move one by a unit (an
    e-fold of a coefficient) moves residuals by less than a thousandth of their size. A term that
    vanished leaves its coefficient and its exponent so, wherever the descent happened to stop."""
    size = float(np.sqrt((residuals**2).mean()))
    effect: Floats = np.sqrt((jacobian**2).mean(axis=0))
    return effect < max(1e-3 * size, 1e-9)
