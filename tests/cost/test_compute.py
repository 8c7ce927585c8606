"""Costs are arithmetic on the configuration."""

from tst_study.config.presets import PRESETS, dense
from tst_study.config.schema import Model
from tst_study.cost.compute import count_parameters, flops_per_position
from tst_study.cost.devices import device_named


def test_parameters_of_a_shape_small_enough_to_count_by_hand():
    model = Model(**dense(1, 4, 2, 1, 3, vocabulary_size=10))
    counted = count_parameters(model)
    assert counted.input_embedding == counted.output_head == 10 * 4
    assert counted.attention == 4 * 4 + 2 * (4 * 2) + 4 * 4  # queries, keys and values, output
    assert counted.feed_forward == 3 * 4 * 3
    assert counted.norms == 3 * 4
    assert counted.total == counted.active == 80 + 48 + 36 + 12
    scores = 2 * (2 * 2) * 5  # queries with keys, and weights with values, over 5 positions
    assert flops_per_position(model, 5) == 6 * (40 + 48 + 36 + scores)


def test_tied_embeddings_have_one_matrix_less_and_cost_the_same():
    tied = Model(**PRESETS["270m"] | {"tied_embeddings": True})
    untied = Model(**PRESETS["270m"])
    saved = count_parameters(untied).total - count_parameters(tied).total
    assert saved == 128_256 * 576
    assert flops_per_position(tied, 2048) == flops_per_position(untied, 2048)


def test_experts_that_a_token_does_not_use_cost_no_flops():
    shape = PRESETS["moe-1b"]
    more = shape | {"experts": shape["experts"] | {"count": 64}}
    router = 6 * shape["layers"] * shape["hidden_size"] * (64 - 32)
    small, large = (flops_per_position(Model(**each), 1024) for each in (shape, more))
    assert large - small == router


def test_gpus_are_known_by_the_names_that_drivers_give_them():
    names = {
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H100 NVL": "H100 NVL",
        "NVIDIA A100-SXM4-80GB": "A100",
        "h100 pcie": "H100 PCIe",
    }
    for name, known in names.items():
        found = device_named(name)
        assert found.name == known
    assert device_named("GeForce") is None
