"""`parallel = "auto"` picks what fits and says why; what cannot fit is told with what it needs."""

from __future__ import annotations

import pytest

from tests.gpu_guide import GB, asked, chosen
from tst_study.config import Batch
from tst_study.configuration.presets import PRESETS
from tst_study.cost.auto_layout import USABLE, describe, resolve
from tst_study.cost.memory import estimate_memory
from tst_study.cost.parallel_layout import check, layout_of
from tst_study.errors import UserError


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


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("gpus", [1, 8, 64, 512])
def test_what_fits_is_left_to_data_parallelism_with_a_shared_optimizer(
    preset: str, gpus: int
) -> None:
    found = chosen(preset, gpus, 141)
    if found is None:
        assert (preset, gpus) == ("moe-10b-a1b", 1)
        return
    parallel = layout_of(found[0])
    assert (parallel.tensor, parallel.pipeline) == (1, 1)
    assert parallel.optimizer == ("distributed" if gpus > 1 else "replicated")
    assert parallel.overlap_gradients == (gpus > 1)
    assert found[0].execution.recompute != "layer"


@pytest.mark.parametrize("preset", ["600m", "3b", "3b-grouped", "moe-10b-a1b"])
def test_less_memory_is_answered_by_tensor_ranks_then_recomputing_then_stages(preset: str) -> None:
    """Never by something later in that order before the earlier does not help any more."""
    order = []
    for memory in range(141, 4, -3):
        found = chosen(preset, 64, memory)
        if found is None:
            break
        parallel = layout_of(found[0])
        whole_layers = found[0].execution.recompute == "layer"
        order.append((parallel.pipeline, whole_layers, parallel.tensor))
    assert order == sorted(order)
    assert len(set(order)) > 1


def test_more_ranks_than_sequences_are_used_by_tensor_ranks_where_the_heads_divide() -> None:
    few = {"batch": Batch(sequences=16, sequence_length=2048)}
    for preset, expected in (("3b", (4, 1)), ("600m", (1, 4))):  # 15 heads share with no power of 2
        config = asked(preset, 2048).model_copy(update=few)
        parallel = layout_of(resolve(config, 64, 141 * GB, on_gpu=True).config)
        assert (parallel.tensor, parallel.pipeline) == expected


def test_processors_get_a_layout_too() -> None:
    config = resolve(asked("laptop-256", 256), 2, 8 * GB, on_gpu=False).config
    parallel = layout_of(config)
    assert (parallel.tensor, parallel.pipeline, parallel.overlap_gradients) == (1, 1, False)
    assert config.execution.recompute == "none"


def test_a_small_model_is_left_to_data_parallelism() -> None:
    parallel = layout_of(resolve(asked("270m", 2048), 8, 80 * GB, on_gpu=True).config)
    assert (parallel.tensor, parallel.pipeline) == (1, 1)
    assert parallel.optimizer == "distributed"


def test_less_memory_is_answered_by_splitting_or_recomputing() -> None:
    roomy, tight = (resolve(asked("3b", 2048), 8, memory * GB, on_gpu=True) for memory in (192, 24))
    assert tight.config.execution != roomy.config.execution
    assert "less divided, but too large" in tight.reason


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
