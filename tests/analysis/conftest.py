"""Fits in tests are refitted less often for their intervals."""

import pytest

from tst_study.analysis.fits.scaling.laws import fit_chinchilla
from tst_study.analysis.fits.solver.problem import HUBER


@pytest.fixture(autouse=True)
def _few_refits(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 take most of the seconds of a fit; what tests ask of an interval, 100 show as well."""
    monkeypatch.setattr(fit_chinchilla, "__defaults__", (100, HUBER))
