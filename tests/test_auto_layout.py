"""`parallel = "auto"` picks what fits and says why; what cannot fit is told with what it needs."""

from __future__ import annotations

from typing import Any

import pytest

from tst_study import config
from tst_study.auto_layout import USABLE, describe, resolve
from tst_study.config import Config
from tst_study.errors import UserError
from tst_study.memory_model import estimate_memory
from tst_study.parallel_layout import check, layout_of

GB = 10**9


def asked(preset: str, length: int, **execution: Any) -> Config:
    return config.from_dict(
        {
            "model": {"preset": preset},
            "batch": {"sequences": 1024, "sequence_length": length},
            "data": {"corpora": [{"path": "x"}]},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"steps": 10},
            "numerics": {"dtype": "bfloat16"},
            "execution": {"parallel": "auto", **execution},
        }
    )


@pytest.mark.parametrize(
    ("preset", "length", "gpus", "memory"),
    [
        ("270m", 2048, 1, 24),
        ("600m", 2048, 8, 80),
        ("3b", 2048, 8, 80),
        ("3b", 2048, 64, 192),
        ("moe-1b", 2048, 8, 80),
        ("moe-10b-a1b", 8192, 8, 141),
        ("moe-10b-a1b", 8192, 64, 141),
        ("moe-10b-a1b", 8192, 64, 192),
    ],
)
def test_the_choice_works_and_fits(preset: str, length: int, gpus: int, memory: int) -> None:
    choice = resolve(asked(preset, length), gpus, memory * GB, on_gpu=True)
    check(choice.config, gpus)
    needed = estimate_memory(choice.config, gpus, on_gpu=True).total
    assert needed <= USABLE * memory * GB
    assert choice.reason.startswith(describe(choice.config, gpus))
    assert f"{needed / GB:,.1f} GB" in choice.reason


def test_a_small_model_is_left_to_data_parallelism() -> None:
    parallel = layout_of(resolve(asked("270m", 2048), 8, 80 * GB, on_gpu=True).config)
    assert (parallel.tensor, parallel.pipeline) == (1, 1)
    assert parallel.optimizer == "distributed"


def test_less_memory_is_answered_by_splitting_or_recomputing() -> None:
    roomy, tight = (resolve(asked("3b", 2048), 8, memory * GB, on_gpu=True) for memory in (192, 24))
    assert tight.config.execution != roomy.config.execution
    assert "cheaper, but too large" in tight.reason


def test_what_the_user_set_stays() -> None:
    choice = resolve(asked("3b", 2048, micro_batch=1, recompute="layer"), 8, 80 * GB, on_gpu=True)
    assert choice.config.execution.micro_batch == 1
    assert choice.config.execution.recompute == "layer"


def test_no_room_says_how_much_is_needed() -> None:
    with pytest.raises(
        UserError, match=r"no layout on 1 ranks fits .*the least needs 1\d\d\.\d GB"
    ):
        resolve(asked("moe-10b-a1b", 8192), 1, 80 * GB, on_gpu=True)


def test_ranks_that_divide_nothing_are_named() -> None:
    with pytest.raises(UserError, match=r"batch\.sequences = 1024 divides in no layout over 7"):
        resolve(asked("270m", 2048), 7, 80 * GB, on_gpu=True)


def test_a_layout_that_is_given_is_not_touched() -> None:
    given = asked("270m", 2048, parallel={"tensor": 3})
    assert resolve(given, 3, GB, on_gpu=True).config is given
