"""Costs are arithmetic on the configuration."""

from tst_study.config.presets import dense
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


def test_gpus_are_known_by_the_names_that_drivers_give_them():
    names = {
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H100 NVL": "H100 NVL",
        "NVIDIA A100-SXM4-80GB": "A100",
        "h100 pcie": "H100 PCIe",
        "NVIDIA H800 PCIe": "H800 PCIe",
    }
    for name, known in names.items():
        assert device_named(name).name == known
    for name in ("GeForce", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"):
        assert device_named(name) is None
