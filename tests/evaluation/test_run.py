"""`tst-study evaluate`: what is measured on a checkpoint lands in the run's record."""

import math
import shutil
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest

from tests.data.token_files import describe
from tests.huggingface.trained import BYTES
from tests.tiny_runs import run, tiny
from tst_study.checkpoints.trained_run import open_run
from tst_study.data.preparation.prepare import prepare
from tst_study.data.preparation.request import Request
from tst_study.data.run_data import fingerprints_and_held_out
from tst_study.errors import UserError
from tst_study.evaluation.domains import domains_of_run
from tst_study.evaluation.run import evaluate_run
from tst_study.record import reader as run_record


@pytest.fixture
def trained(documents: Path, tmp_path: Path) -> Path:
    run(documents, tmp_path / "run", *BYTES, "execution.checkpoint_every=3")
    return tmp_path / "run"


def test_held_out_loss_is_that_of_training_with_an_error_over_documents(trained, documents):
    before = run_record.read(trained)
    (line,) = evaluate_run(open_run(trained))
    record = run_record.read(trained)
    (row,) = record.tasks
    final = record.evals[-1]
    assert record.evals == before.evals  # what methods are compared by: as training wrote it
    assert line.startswith(f"held_out ({row['data']}, {row['samples']} documents): nats_")
    assert row["metrics"]["nats_per_token"] == pytest.approx(final["nats_per_token"], rel=1e-6)
    assert row["metrics"]["bits_per_byte"] == pytest.approx(final["bits_per_byte"], rel=1e-6)
    assert (row["step"], row["phase"], row["annealed"]) == (6, "recovery", True)
    assert row["raw_tokens"] == record.header["raw_tokens"]
    # The standard error of a ratio of sums, by documents.
    tokens, losses = (np.array(final[f"document_{name}"]) for name in ("tokens", "losses"))
    assert (row["samples"], tokens.sum()) == (tokens.size, final["tokens"])
    assert (tokens @ losses) / tokens.sum() == pytest.approx(final["nats_per_token"], rel=1e-6)
    squares = ((tokens * (losses - final["nats_per_token"])) ** 2).sum()
    error = math.sqrt(squares * tokens.size / (tokens.size - 1)) / tokens.sum()
    assert row["metrics"]["nats_per_token_stderr"] == pytest.approx(error, rel=1e-5)
    assert record.dropped_rows == 0


def test_domains_have_names_and_a_second_measurement_replaces_the_first(trained, documents):
    texts = [f"letters={documents}", f"same={documents}"]
    lines = list(evaluate_run(open_run(trained), held_out=texts, tokens=60))
    assert list(evaluate_run(open_run(trained), held_out=texts, tokens=60)) == lines
    rows = run_record.read(trained).tasks
    assert [row["data"].partition("-")[0] for row in rows] == ["letters", "same"]
    assert rows[0]["metrics"] == rows[1]["metrics"]
    assert rows[0]["details"]["tokens"] == pytest.approx(60, abs=10)
    assert run_record.read(trained).dropped_rows == 0


def test_a_pair_of_token_files_is_never_its_own_held_out_text(documents, tmp_path, capsys):
    """Megatron's tools make pairs with names of their own, and no validation split beside them."""
    for ending in (".bin", ".idx"):
        shutil.copy(documents / f"train{ending}", tmp_path / f"text_document{ending}")
    pair = tmp_path / "text_document"
    describe(pair, 257)
    with pytest.raises(UserError, match=r"text_document: no held-out text"):
        fingerprints_and_held_out(tiny(pair, *BYTES))
    twice = f"data.corpora=[{{path='{documents}'}}, {{path='{pair}'}}]"
    for override in (twice, f"data.validation={pair}"):
        with pytest.raises(UserError, match=r"document: is named twice, or is both training and"):
            fingerprints_and_held_out(tiny(pair, *BYTES, override))
    run(pair, tmp_path / "run", *BYTES, f"data.validation={documents}")
    found = domains_of_run(open_run(tmp_path / "run"))
    assert found == {"validation": documents / "validation"}
    assert f"left out: {pair}: " in capsys.readouterr().err
    beside = fingerprints_and_held_out(tiny(documents / "train", *BYTES))[1]
    with chdir(documents):
        here = fingerprints_and_held_out(tiny(Path(), *BYTES))[1]
    assert beside.fingerprint == here.fingerprint
    with pytest.raises(UserError, match="no held-out text"):
        fingerprints_and_held_out(tiny(documents / "validation.bin", *BYTES))


def test_a_corpus_called_validation_does_not_take_the_place_of_the_held_out_text(
    documents, tmp_path
):
    same = shutil.copytree(documents, tmp_path / "validation")
    run(same, tmp_path / "run", *BYTES, f"data.validation={documents}")
    assert domains_of_run(open_run(tmp_path / "run")) == {
        "validation": documents / "validation",
        str(same): same / "validation",
    }


def test_a_superposition_checkpoint_has_no_next_token_loss(trained):
    with pytest.raises(UserError, match="superposition phase"):
        list(evaluate_run(open_run(trained, step=3)))


def test_text_of_another_vocabulary_is_refused(words, documents, tmp_path):
    run(words, tmp_path / "run", "schedule.steps=4")
    with pytest.raises(UserError, match=r"other: was prepared with another tokenizer \(bytes"):
        list(evaluate_run(open_run(tmp_path / "run"), held_out=[f"other={documents}"]))


def test_what_is_asked_for_is_refused_before_anything_is_measured(trained, documents, tmp_path):
    with pytest.raises(UserError, match="NAME=FOLDER"):
        list(evaluate_run(open_run(trained), held_out=["books"]))
    with pytest.raises(UserError, match="--held-out x=…: is given twice"):
        list(evaluate_run(open_run(trained), held_out=[f"x={documents}"] * 2))
    assert run_record.read(trained).tasks == []
    copied = shutil.copytree(trained, tmp_path / "copied")
    (copied / "segments.jsonl").unlink()
    with pytest.raises(UserError, match=r"segments\.jsonl: missing or empty"):
        list(evaluate_run(open_run(copied)))


def test_text_of_another_tokenizer_is_refused(documents, tmp_path):
    """Its ids lie inside the run's vocabulary, where they mean other words."""
    run(documents, tmp_path / "run", "model.vocabulary_size=300", "schedule.steps=4")
    prepare(Request([str(documents.with_name("texts.jsonl"))], "bpe:270"), tmp_path / "other")
    with pytest.raises(UserError, match=r"other: .*tokenizer \(bpe of 270"):
        list(evaluate_run(open_run(tmp_path / "run"), held_out=[f"other={tmp_path / 'other'}"]))


@pytest.mark.parametrize("rival", ["batch_warmup", "sequence_warmup"])
def test_a_checkpoint_of_a_rival_counts_what_training_counted(words, tmp_path, rival):
    record = run(words, tmp_path, "superposition={}", f"{rival}={{parts = 2, step_ratio = 0.5}}")
    assert open_run(tmp_path).counters().items() <= {**record.evals[-1]}.items()
