"""A run learns, writes down all that it does, and ends in a word that fits."""

import math
import re

import pytest

from tests.tiny_runs import MIXTURE, MUON, VOCABULARY, run, tiny
from tst_study.cli import _ending
from tst_study.config.phase_plan import learning_rate_factor, plan_phases
from tst_study.cost.compute import count_flops
from tst_study.errors import UserError
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.record import reader as run_record


@pytest.mark.parametrize(
    "overrides",
    [
        ("numerics.dtype=bfloat16", "model.tied_embeddings=true", *MIXTURE),
        ("superposition.mode=output_only", "schedule.kind=cosine"),
        (*MUON, "numerics.dtype=bfloat16", *MIXTURE),
    ],
    ids=str,
)
def test_runs_of_every_kind_learn(words, tmp_path, overrides):
    record = run(words, tmp_path, "schedule.steps=60", *overrides)
    assert record.state == "done"
    assert record.metrics[0]["loss"] == pytest.approx(math.log(VOCABULARY), abs=0.1)
    assert record.evals[-1]["nats_per_token"] < math.log(VOCABULARY) - 0.1
    assert all(math.isfinite(row["gradient_norm"]) for row in record.metrics)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("superposition.bag_size=1",),
        ("superposition.mode=output_only",),
        ("superposition.bag_size=8", "superposition.step_ratio=0.25"),
        ("superposition.step_ratio=1.0",),
    ],
    ids=str,
)
def test_counters_of_every_row_are_those_of_the_plan(words, tmp_path, monkeypatch, overrides):
    rates: list[float] = []
    update = ModelOptimizer.step
    monkeypatch.setattr(
        ModelOptimizer, "step", lambda self, rate: (rates.append(rate), update(self, rate))[1]
    )
    config = tiny(words, *overrides)
    plan, flops = plan_phases(config), count_flops(config)
    record = run(words, tmp_path, *overrides, "execution.evaluate_every=7")
    assert [row["step"] for row in record.metrics] == list(range(1, 21))
    assert [row["learning_rate"] for row in record.metrics] == rates
    assert [row["step"] for row in record.evals] == [7, 14, 20]
    for row in [*record.metrics, *record.evals]:
        step = row["step"]
        assert row["phase"] == plan.phase(step - 1)
        assert row["latent_tokens"] == step * 4 * 8 == plan.latent_tokens(step)
        assert row["raw_tokens"] == plan.raw_tokens(step)
        assert row["flops"] == step * flops.per_step
        assert row["epochs"] == pytest.approx(row["raw_tokens"] / 20_000)
    for row in record.metrics:  # a bag loss never goes by the name of the next-token loss
        superposed = row["phase"] == "superposition"
        expected = ("bag_mce", config.superposition.bag_size) if superposed else ("next_token", 1)
        assert (row["loss_name"], row["bag_size"]) == expected
        assert row["learning_rate"] == 1e-2 * learning_rate_factor(config.schedule, row["step"] - 1)
    header = record.header
    assert header["raw_tokens"] == record.metrics[-1]["raw_tokens"]
    assert header["flops"]["total"] == record.metrics[-1]["flops"]
    multiplier = 1 + plan.step_ratio * (plan.tokens_per_position("superposition") - 1)
    assert header["plan"]["data_multiplier"] == pytest.approx(multiplier)
    assert header["raw_tokens"] / header["latent_tokens"] == pytest.approx(multiplier)


def test_rows_come_every_so_many_steps_at_the_switch_and_at_the_end(words, tmp_path):
    every_step = run(words, tmp_path / "every")
    some = run(words, tmp_path / "some", "execution.log_every=6")
    assert [row["step"] for row in some.metrics] == [6, 10, 12, 18, 20]
    for row in some.metrics:
        assert row["loss"] == every_step.metrics[row["step"] - 1]["loss"]
    seconds = [row["training_seconds"] for row in some.metrics]
    assert seconds == sorted(seconds)
    assert all(row["tokens_per_second"] > 0 and row["mfu"] is None for row in some.metrics)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rate=3.0", r"bag_mce loss [\d.]+ at step \d"),
        ("execution.evaluate_every=20", "bag_mce loss nan at step 4"),
        ("execution.evaluate_every=3", "held-out loss nan at step 3"),
    ],
)
def test_a_loss_beyond_the_bound_or_no_number_ends_a_run_as_diverged(
    words, tmp_path, monkeypatch, override, message
):
    """The record is whole: the bad row is there, and status and segment tell of it."""
    step = ModelOptimizer.step

    def poisonous_step(self: ModelOptimizer, learning_rate: float):
        norm = step(self, learning_rate)
        if self.steps_taken == 3 and learning_rate < 1:
            self.main[0].detach().fill_(math.nan)
        return norm

    monkeypatch.setattr(ModelOptimizer, "step", poisonous_step)
    record = run(words, tmp_path, override, "numerics.divergence_loss=20.0")
    bad = record.metrics[-1]
    assert record.state == "diverged"
    assert (bad["loss"] is None or bad["loss"] > 20.0) is message.startswith("bag_mce")
    assert all(row["loss"] <= 20.0 for row in record.metrics[:-1])
    assert not record.evals
    assert record.status["step"] == bad["step"] < 20
    assert re.fullmatch(message, record.status["message"])
    assert record.segments[-1]["ended"] == record.status["message"]
    assert record.segments[-1]["end"] is not None


def test_what_fails_before_the_first_step_is_told_by_the_status(words, tmp_path, monkeypatch):
    """The record stays readable, and the run can be started again."""

    def no_room(*_: object) -> None:
        raise RuntimeError("out of\n  memory")

    with monkeypatch.context() as patch:
        patch.setattr("tst_study.train.build_model", no_room)
        with pytest.raises(RuntimeError):
            run(words, tmp_path)
    status = run_record.read(tmp_path).status
    assert (status["state"], status["message"]) == ("failed", "RuntimeError: out of memory")
    assert run(words, tmp_path).state == "done"


def test_attention_is_computed_as_asked_and_the_record_says_how_and_where(words, tmp_path):
    found = {
        asked: run(words, tmp_path / asked, f"execution.attention={asked}")
        for asked in ("auto", "flash", "math")
    }
    segment = found["auto"].segments[0]
    assert segment["devices"] == {"name": "cpu", "count": 1, "threads": 1}
    assert segment["execution"]["threads"] == 1
    assert {"host", "command", "versions"} <= segment.keys()
    said = {asked: record.segments[0]["attention"] for asked, record in found.items()}
    assert said == {"auto": "flash", "flash": "flash", "math": "math"}
    losses = {asked: [row["loss"] for row in record.metrics] for asked, record in found.items()}
    assert losses["auto"] == losses["flash"] != losses["math"]
    assert losses["flash"] == pytest.approx(losses["math"], abs=1e-3)
    with pytest.raises(UserError, match=r"execution\.attention = 'cudnn': .* on cpu; leave it out"):
        run(words, tmp_path / "cudnn", "execution.attention=cudnn")


def test_a_divergence_soon_after_the_switch_gets_its_own_advice(words, tmp_path, monkeypatch):
    """A longer warm-up, at step 0, would not reach it. The switch is at step 10 of 20."""
    for step, advice in (
        (11, "1 steps after the switch: keep its checkpoint by execution.keep_steps = [10], and"),
        (6, "a longer schedule.warmup_steps"),
        (15, "a longer schedule.warmup_steps"),
    ):
        status = {"state": "diverged", "step": step, "message": "loss nan"}
        monkeypatch.setattr("tst_study.record.reader.read_status", lambda _, now=status: now)
        (line,) = _ending(tmp_path, "diverged", tiny(words))
        assert advice in line
