"""`parallel = "auto"` picks what fits and says why; what cannot fit is told with what it needs."""

from typing import Any

import pytest

from tests.examples import example
from tst_study.config.presets import PRESETS
from tst_study.config.schema import Batch, Config, from_dict, to_dict
from tst_study.cost.auto_layout import USABLE, describe, resolve
from tst_study.cost.memory import estimate_memory
from tst_study.cost.parallel_layout import check, layout_of
from tst_study.cost.traffic import count_traffic
from tst_study.errors import UserError

GB = 10**9
LENGTHS = {"moe-10b-a1b": 8192, "moe-10b-a1b-twin": 256}


def asked(preset: str, length: int, **execution: Any) -> Config:
    batch = ("batch.sequences=1024", f"batch.sequence_length={length}", "numerics.dtype=bfloat16")
    values = to_dict(example(f"model.preset='{preset}'", "superposition={}", *batch))
    return from_dict(values | {"execution": {"parallel": "auto", **execution}})


def chosen(preset: str, gpus: int, memory: int) -> Config | None:
    """None where nothing fits."""
    length = LENGTHS.get(preset, 256 if preset.startswith("laptop") else 2048)
    try:
        return resolve(asked(preset, length), gpus, memory * GB, on_gpu=True).config
    except UserError:
        return None


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("gpus", [1, 8, 64, 512])
def test_what_fits_is_left_to_data_parallelism_with_a_shared_optimizer(preset, gpus):
    found = chosen(preset, gpus, 141)
    if found is None:
        assert (preset, gpus) == ("moe-10b-a1b", 1)
        return
    check(found, gpus)
    assert estimate_memory(found, gpus, on_gpu=True).total <= USABLE * 141 * GB
    parallel = layout_of(found)
    assert parallel.tensor == 1
    assert parallel.expert <= (8 if found.model.experts else 1)
    assert parallel.optimizer == ("distributed" if gpus > 1 else "replicated")
    assert parallel.overlap_gradients == (gpus > 1)
    assert found.execution.recompute != "layer"
    doubled = found.executed(micro_batch=2 * found.execution.micro_batch)
    too_much = estimate_memory(doubled, gpus, on_gpu=True).total > USABLE * 141 * GB
    assert too_much or found.execution.micro_batch == 1024 // gpus


@pytest.mark.parametrize("preset", ["600m", "3b", "moe-10b-a1b"])
def test_less_memory_is_answered_by_tensor_ranks_then_by_computing_again(preset):
    """Never by something later in that order before the earlier does not help any more."""
    order = []
    for memory in range(141, 4, -3):
        found = chosen(preset, 64, memory)
        if found is None:
            break
        parallel = layout_of(found)
        recomputed = found.execution.recompute == "layer"
        order.append((parallel.expert > 8, recomputed, parallel.tensor))
    assert order == sorted(order)
    assert len(set(order)) > 1


def test_a_node_is_as_large_as_the_launch_says():
    for per_node in (2, 4, 8):
        given = asked("moe-10b-a1b", 8192)
        found = resolve(given, 64, 80 * GB, on_gpu=True, device="H100", per_node=per_node)
        assert layout_of(found.config).expert <= per_node
        assert str(count_traffic(found.config, 64, per_node)) in found.reason


def test_tensor_ranks_stay_within_a_node_of_the_device():
    for device, tensor in (("GB200", 4), ("B200", 8)):
        few = {"batch": Batch(sequences=64 // tensor, sequence_length=2048)}
        wide = asked("3b", 2048).model_copy(update=few)
        found = resolve(wide, 64, 141 * GB, on_gpu=True, device=device).config
        assert layout_of(found).tensor == tensor


@pytest.mark.parametrize("preset", ["laptop-256", "laptop-moe"])
def test_processors_divide_no_model_that_fits_one_of_them(preset):
    found = resolve(asked(preset, 256), 2, 16 * GB, on_gpu=False).config
    parallel = layout_of(found)
    assert (parallel.tensor, parallel.expert) == (1, 1)
    assert not parallel.overlap_gradients
    assert found.execution.recompute == "none"


def test_the_reason_names_what_was_too_large():
    tight = resolve(asked("3b", 2048), 8, 24 * GB, on_gpu=True)
    assert tight.reason.startswith(describe(tight.config, 8))
    assert "too large: " in tight.reason


def test_a_batch_that_no_layout_divides_is_named_with_its_micro_batch():
    said = "batch.sequences = 1024 in micro-batches of 3 divides in no layout over 8 ranks"
    with pytest.raises(UserError, match=said):
        resolve(asked("270m", 2048, micro_batch=3), 8, 80 * GB, on_gpu=True)


def test_what_the_user_set_stays():
    choice = resolve(asked("3b", 2048, micro_batch=1, recompute="layer"), 8, 80 * GB, on_gpu=True)
    assert choice.config.execution.micro_batch == 1
    assert choice.config.execution.recompute == "layer"
    given = asked("270m", 2048, parallel={"tensor": 3})
    assert resolve(given, 3, GB, on_gpu=False).config is given


def test_a_named_layout_on_gpus_gets_the_largest_micro_batch_that_fits_or_is_refused():
    given = asked("600m", 2048, parallel={"optimizer": "distributed"})
    roomy, tight = (resolve(given, 8, size * GB, on_gpu=True).config for size in (80, 40))
    assert roomy.execution.parallel == tight.execution.parallel
    assert layout_of(roomy).optimizer == "distributed"
    assert tight.execution.micro_batch < roomy.execution.micro_batch <= 128
    for found, size in ((roomy, 80), (tight, 40)):
        assert estimate_memory(found, 8, on_gpu=True).total <= USABLE * size * GB
    replicated = asked("3b", 2048, parallel={"optimizer": "replicated"})
    with pytest.raises(UserError, match=r'parallel: needs \d+.* of .*"auto", which finds a'):
        resolve(replicated, 8, 40 * GB, on_gpu=True)
    with pytest.raises(UserError, match="needs"):
        resolve(asked("600m", 2048, parallel={}, micro_batch=128), 8, 80 * GB, on_gpu=True)


@pytest.mark.parametrize(
    ("named", "expected"),  # shared optimizer, overlapped gradients
    [
        ({"tensor": 2}, ("distributed", True)),
        ({"overlap_gradients": False}, ("distributed", False)),
        ({"optimizer": "replicated"}, ("replicated", True)),
    ],
)
def test_on_gpus_a_named_layout_keeps_the_defaults_of_data_parallelism(named, expected):
    given = asked("3b", 2048, parallel=named)
    found = layout_of(resolve(given, 8, 141 * GB, on_gpu=True).config)
    assert (found.optimizer, found.overlap_gradients) == expected
    assert named.items() <= found.model_dump().items()
    assert resolve(given, 8, 141 * GB, on_gpu=False).config is given


@pytest.mark.parametrize(
    ("preset", "ranks", "words"),
    [
        ("moe-10b-a1b", 1, r"1 ranks fits .* needs 1\d\d\.\d GB"),
        ("270m", 7, r"batch\.sequences = 1024 .* 7 ranks"),
    ],
)
def test_what_cannot_be_is_refused_with_its_number(preset, ranks, words):
    with pytest.raises(UserError, match=words):
        resolve(asked(preset, LENGTHS.get(preset, 2048)), ranks, 80 * GB, on_gpu=True)
