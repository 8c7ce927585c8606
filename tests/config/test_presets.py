"""Parameter counts of the named shapes, to the digit that the sources print."""

from __future__ import annotations

import pytest

from tst_study.config.presets import PRESETS
from tst_study.config.schema import Model
from tst_study.cost.compute import count_parameters


@pytest.mark.parametrize(
    ("preset", "total"),
    [("270m", "267.2M"), ("600m", "600.2M"), ("3b", "3.564B"), ("moe-10b-a1b", "10.489B")],
)
def test_total_parameters(preset: str, total: str) -> None:
    unit = {"M": 1e6, "B": 1e9}[total[-1]]
    digits = len(total[:-1].split(".")[1])
    count = count_parameters(Model(**PRESETS[preset])).total
    assert f"{count / unit:.{digits}f}{total[-1]}" == total


def test_active_parameters_of_the_mixture_of_experts() -> None:
    counted = count_parameters(Model(**PRESETS["moe-10b-a1b"]))
    assert f"{counted.active / 1e9:.3f}" == "1.429"
    without = counted.active - counted.input_embedding - counted.output_head
    assert f"{without / 1e9:.3f}" == "0.963"
