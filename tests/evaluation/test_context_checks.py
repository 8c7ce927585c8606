"""The checks find what a model does with order, copies and context, on models that are known."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.data.token_files import write_token_file
from tests.huggingface.trained import BYTES
from tests.tiny_runs import run
from tst_study import run_record
from tst_study.checkpoints.trained_run import open_run
from tst_study.data.preparation.text_tokenizers import byte_tokenizer
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError
from tst_study.evaluation import context_checks as checks
from tst_study.evaluation.options import EvaluationOptions
from tst_study.evaluation.run import evaluate_run
from tst_study.evaluation.trained_model import Ids, TrainedModel
from tst_study.huggingface.tokenizer_files import plain

VOCABULARY, LENGTH = 64, 48


class Known:
    """A model of which it is known what it can do; measured like any other."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        self.run = SimpleNamespace(
            model=SimpleNamespace(vocabulary_size=vocabulary),
            sequence_length=LENGTH,
            plan={"bag_size": 3},
        )

    def probability(self, context: list[int], word: int) -> float:
        raise NotImplementedError

    def losses(self, ids: Ids, labels: Ids) -> NDArray[np.float32]:
        losses = np.zeros(ids.shape, dtype=np.float32)
        for row, line in enumerate(ids.tolist()):
            for place, label in enumerate(labels[row].tolist()):
                if label >= 0:
                    losses[row, place] = -math.log(self.probability(line[: place + 1], label))
        return losses


class Unigram(Known):
    """Knows how often words occur, and reads no context."""

    def probability(self, context: list[int], word: int) -> float:
        return 2 * (word + 1) / (VOCABULARY * (VOCABULARY + 1))


class Copier(Known):
    """Nine times in ten the word that followed its last word before."""

    def probability(self, context: list[int], word: int) -> float:
        last = context[-1]
        before = [i for i in range(len(context) - 1) if context[i] == last]
        if not before:
            return 1 / VOCABULARY
        return 0.9 if context[before[-1] + 1] == word else 0.1 / (VOCABULARY - 1)


class Counter(Known):
    """Expects each word to be one more than the last, as the text below has it."""

    def probability(self, context: list[int], word: int) -> float:
        return 0.9 if word == (context[-1] + 1) % VOCABULARY else 0.1 / (VOCABULARY - 1)


def measure(check: Any, model: Known, windows: np.ndarray) -> dict[str, Any]:
    found: dict[str, Any] = check(cast(TrainedModel, model), windows)
    return found


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    """Text that counts upwards, from random places."""
    starts = np.random.default_rng(1).integers(0, VOCABULARY, (20, 1))
    return (starts + np.arange(LENGTH + 1)) % VOCABULARY


def test_a_model_without_context_gains_nothing_by_order_copies_or_repeats(
    windows: np.ndarray,
) -> None:
    for check in (checks.word_order, checks.copied_spans, checks.induction):
        found = measure(check, Unigram(), windows)
        gains = {name: value for name, value in found["metrics"].items() if "stderr" not in name}
        assert gains
        for name, value in gains.items():
            error = found["metrics"][f"{name}_stderr"]
            assert abs(value) <= 3 * error + 1e-9, (check, name)


def test_a_copier_gains_by_repeats_what_it_should(windows: np.ndarray) -> None:
    """Nearly log V + log 0.9; a random word may have occurred twice, and then it may copy wrong."""
    gain = measure(checks.induction, Copier(), windows)["metrics"]["repeat_gain"]
    assert 0.5 * math.log(VOCABULARY) < gain < math.log(VOCABULARY) + 2
    copied = measure(checks.copied_spans, Copier(), windows)["metrics"]["copy_gain"]
    assert copied == pytest.approx(math.log(VOCABULARY) + math.log(0.9), rel=1e-6)


def test_a_model_that_reads_order_loses_by_shuffling(windows: np.ndarray) -> None:
    """It is right if the bag's last word stays: once in k."""
    found = measure(checks.word_order, Counter(), windows)
    assert {name for name in found["metrics"] if "stderr" not in name} == {
        f"order_gain_bags_of_{size}" for size in (2, 3, 4, 8, 16)
    }
    lost = math.log(0.9) - math.log(0.1 / (VOCABULARY - 1))
    for size in (2, 3, 4, 8, 16):
        gain, error = (
            found["metrics"][f"order_gain_bags_of_{size}{end}"] for end in ("", "_stderr")
        )
        assert abs(gain - lost * (1 - 1 / size)) < 4 * error
        assert found["details"][f"bags_of_{size}"]["nats"] == pytest.approx(-math.log(0.9))


def test_loss_by_position_is_in_octaves_of_what_was_read() -> None:
    class Reader(Known):
        """Its loss at a place is the number of tokens read."""

        def probability(self, context: list[int], word: int) -> float:
            return math.exp(-len(context))

    windows = np.zeros((3, 4 * LENGTH + 1), dtype=np.int64)
    found = measure(checks.loss_by_position, Reader(), windows)
    assert found["details"]["tokens_read"] == [1, 2, 4, 8, 16, 32, 64, 128, 192]
    middles = [1, 2, 3.5, 6.5, 12.5, 24.5, 48.5, 96.5, (129 + 192) / 2]
    assert found["details"]["nats"] == pytest.approx(middles)
    metrics = found["metrics"]
    assert metrics["nats_to_training_length"] == pytest.approx((25 + 48) / 2)
    assert metrics["nats_to_double_length"] == pytest.approx((49 + 96) / 2)
    assert metrics["nats_to_quadruple_length"] == pytest.approx((97 + 192) / 2)


def test_windows_lie_in_one_document_where_there_are_enough(tmp_path: Path) -> None:
    documents = [np.full(25, number) for number in range(30)]
    write_token_file(tmp_path / "text", documents, np.dtype(np.uint16))
    file = TokenFile(tmp_path / "text")
    inside = checks.text_windows(file, 10, 40)
    assert inside.shape == (40, 11)
    assert all(len(set(row)) == 1 for row in inside.tolist())
    assert len({row[0] for row in inside.tolist()}) > 20
    across = checks.text_windows(file, 40, 40)
    assert across.shape[0] == 18
    with pytest.raises(UserError, match="too few for two sequences of 501"):
        checks.text_windows(file, 500, 40)


def test_code_is_read_with_the_models_tokenizer() -> None:
    class Even(Known):
        def losses(self, ids: Ids, labels: Ids) -> NDArray[np.float32]:
            return np.where(labels >= 0, math.log(257), 0.0).astype(np.float32)

    found = checks.code(cast(TrainedModel, Even(257)), plain(byte_tokenizer()))
    assert found["metrics"]["bits_per_byte"] == pytest.approx(math.log2(257))
    assert found["metrics"]["nats_per_token_stderr"] == pytest.approx(0, abs=1e-9)
    assert found["samples"] == len(checks.CODE)


@pytest.mark.parametrize("named", [False, True])
def test_a_trained_run_gets_all_of_them_into_its_record(
    documents: Path, tmp_path: Path, named: bool
) -> None:
    run(documents, tmp_path / "run", *BYTES)
    held_out = [f"letters={documents}"] if named else None
    options = EvaluationOptions(held_out=held_out, context=True)
    lines = list(evaluate_run(open_run(tmp_path / "run"), options))
    rows = run_record.read(tmp_path / "run").tasks
    names = ["held_out", "loss_by_position", "word_order", "copied_spans", "induction", "code"]
    assert [row["task"] for row in rows] == names
    assert len(lines) == len(names)
    assert all(row["details"]["through"] == "live" for row in rows)
