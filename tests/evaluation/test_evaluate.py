"""Held-out loss is the mean next-token loss over every held-out token, once."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.data.token_files import describe, write_token_file
from tests.tiny_runs import MIXTURE, built, randomize_norms, run, tiny
from tst_study import held_out_loss
from tst_study.config.schema import Config
from tst_study.data.held_out import HeldOut
from tst_study.data.run_data import fingerprints_and_held_out
from tst_study.held_out_loss import evaluate
from tst_study.model.model import SuperposedGPT
from tst_study.superposition.steps import NEXT_TOKEN

# 499 predictions: 62 whole sequences of 8 and one that is filled up.
SETTINGS = ("model.initial_deviation=0.2",)


def held_out_of(config: Config) -> HeldOut:
    return fingerprints_and_held_out(config)[1]


def naive_losses(model: SuperposedGPT, held_out: HeldOut) -> list[list[float]]:
    """Per sequence the loss of every token that counts, one sequence at a time."""
    found = []
    with torch.no_grad():
        for ids, labels in zip(held_out.ids, held_out.labels, strict=True):
            logits = model(NEXT_TOKEN.fold(torch.from_numpy(ids).unsqueeze(0)))[0]
            counted = torch.from_numpy(labels) >= 0
            targets = torch.from_numpy(labels)[counted]
            found.append(F.cross_entropy(logits[counted], targets, reduction="none").tolist())
    return found


@pytest.mark.parametrize("overrides", [(), MIXTURE], ids=["dense", "mixture of experts"])
def test_it_is_the_mean_of_a_plain_loop_with_its_standard_error(words, monkeypatch, overrides):
    """However many sequences run at once."""
    config = tiny(words, *SETTINGS, *overrides)
    held_out = held_out_of(config)
    with built(config) as (model, ranks):
        randomize_norms(model)
        results = []
        for size in (1, 5, 63, 1000):
            monkeypatch.setattr(held_out_loss, "POSITIONS_AT_ONCE", 8 * size)
            results.append(evaluate(model, held_out, ranks))
        losses = naive_losses(model, held_out)
    flat = [loss for sequence in losses for loss in sequence]
    mean = sum(flat) / len(flat)
    assert len(flat) == held_out.predicted_tokens == 499
    # Sequences are the sampling units: the standard error of a ratio of sums over them.
    count = len(losses)
    squares = sum((sum(sequence) - mean * len(sequence)) ** 2 for sequence in losses)
    error = math.sqrt(squares * count / (count - 1)) / len(flat)
    for result in results:
        assert result.tokens == 499
        assert result.nats_per_token == pytest.approx(mean, rel=1e-6)
        assert result.standard_error == pytest.approx(error, rel=1e-5)


def test_it_leaves_no_trace_in_the_training(words, tmp_path):
    rare = run(words, tmp_path / "rare", *MIXTURE)
    often = run(words, tmp_path / "often", *MIXTURE, "execution.evaluate_every=1")
    assert [row["loss"] for row in often.metrics] == [row["loss"] for row in rare.metrics]
    assert len(often.evals) == 20
    with built(tiny(words)) as (model, ranks):
        evaluate(model, held_out_of(tiny(words)), ranks)
        assert model.training


def test_by_default_a_large_text_is_evaluated_in_part(words, tmp_path):
    """All of 889,144 tokens took 80 s after a run of 2 s."""
    write_token_file(tmp_path / "large", [np.arange(200) % 64] * 1000, np.dtype(np.uint16))
    describe(tmp_path / "large", 64)
    large = f"data.validation={tmp_path / 'large'}"
    assert held_out_of(tiny(words, large)).predicted_tokens == pytest.approx(131_072, rel=0.001)
    whole = held_out_of(tiny(words, large, "data.validation_tokens=1000000"))
    assert whole.predicted_tokens == 1000 * 199  # all but each document's first


def test_rows_tell_bits_per_byte_and_whether_the_rate_is_annealed(words, documents, tmp_path):
    vocabulary = "model.vocabulary_size=257"
    record = run(documents, tmp_path / "bytes", vocabulary, "execution.evaluate_every=10")
    held_out = held_out_of(tiny(documents, vocabulary))
    for row in record.evals:
        bits = row["nats_per_token"] / math.log(2) / held_out.bytes_per_token
        assert row["bits_per_byte"] == pytest.approx(bits)
        assert row["tokens"] == held_out.predicted_tokens
        assert row["eval_set"] == f"validation-{held_out.fingerprint[:16]}"
    assert [row["annealed"] for row in record.evals] == [False, True]
    generated = run(words, tmp_path / "words", "schedule.decay_ratio=0.0")
    assert generated.evals[-1]["bits_per_byte"] is None
    assert not generated.evals[-1]["annealed"]
