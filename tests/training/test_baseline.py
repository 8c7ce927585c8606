"""Bags of one token are the baseline, bit for bit."""

from tests.tiny_runs import assert_same_run, last_tensors, run

BASELINE = ("superposition.bag_size=4", "superposition.step_ratio=0.0")


def test_bags_of_one_token_are_the_baseline_bit_for_bit(words, tmp_path):
    """Whatever else the settings of superposition say."""
    baseline = run(words, tmp_path / "baseline", *BASELINE)
    ones = [
        "superposition.bag_size=1",
        "superposition.step_ratio=0.0",
        "superposition.steps=7",
        "superposition.loss=sum_to_one",
        "superposition.reinitialize_at_switch=true",
        "superposition.optimizer_at_switch=reset",
    ]
    record = run(words, tmp_path / "ones", *ones)
    assert_same_run(tmp_path / "baseline", tmp_path / "ones")
    assert record.header["fingerprint"] == baseline.header["fingerprint"]
    assert {row["loss_name"] for row in record.metrics} == {"next_token"}
    assert {row["bag_size"] for row in record.metrics} == {1}


def test_nothing_of_superposition_is_left_in_the_final_checkpoint(words, tmp_path):
    run(words, tmp_path / "baseline", *BASELINE)
    run(words, tmp_path / "superposed")
    baseline = last_tensors(tmp_path / "baseline")
    superposed = last_tensors(tmp_path / "superposed")
    assert {name: (x.shape, x.dtype) for name, x in baseline.items()} == {
        name: (x.shape, x.dtype) for name, x in superposed.items()
    }
