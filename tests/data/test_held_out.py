"""Every method is judged on the same tokens, each predicted once."""

import math

import numpy as np
import pytest

from tests.data.token_files import describe, write_token_file
from tst_study.data.held_out import held_out
from tst_study.data.manifest import open_split
from tst_study.data.preparation.prepare import prepare
from tst_study.data.preparation.request import Request


@pytest.fixture
def prefix(tmp_path):
    write_token_file(tmp_path / "validation", [np.arange(1, 104)], np.dtype(np.uint16))
    describe(tmp_path / "validation")
    return tmp_path / "validation"


def test_a_limit_takes_the_beginning_and_still_predicts_beyond_it(prefix):
    evaluation = held_out(open_split(prefix), 10, tokens=25, taken="beginning")
    assert evaluation.ids.shape == (3, 10)
    assert evaluation.predicted_tokens == 25
    assert evaluation.labels.max() == 26
    for taken in ("beginning", "spread"):
        assert held_out(open_split(prefix), 10, tokens=10**9, taken=taken).predicted_tokens == 102


def test_spread_pieces_come_from_all_documents_and_stay_within_one(tmp_path):
    """The first tokens of the bundled held-out text were four of its fifteen books."""
    lengths = [500, 41, 1, 300, 2]
    texts = [1000 * (place + 1) + np.arange(length) for place, length in enumerate(lengths)]
    write_token_file(tmp_path / "validation", texts, np.dtype(np.uint16))
    describe(tmp_path / "validation")
    whole = held_out(open_split(tmp_path / "validation"), 10)
    after_the_first = np.concatenate([text[1:] for text in texts])  # each predicted once, in order
    np.testing.assert_array_equal(whole.labels[whole.labels != -100], after_the_first)
    assert whole.predicted_tokens == after_the_first.size
    some = held_out(open_split(tmp_path / "validation"), 10, tokens=200)
    assert some.predicted_tokens == pytest.approx(200, abs=10)
    for evaluation in (whole, some):
        counted = evaluation.labels != -100
        np.testing.assert_array_equal(evaluation.ids[counted] + 1, evaluation.labels[counted])
        of = evaluation.ids // 1000 - 1
        assert (of == of[:, :1]).all()  # one document a sequence
        _, numbers = np.unique(of[:, 0], return_inverse=True)
        np.testing.assert_array_equal(evaluation.documents, numbers)
    assert set(whole.ids[:, 0] // 1000 - 1) == {0, 1, 3, 4}
    assert set(some.ids[:, 0] // 1000 - 1) >= {0, 1, 3}
    assert whole.fingerprint != some.fingerprint


@pytest.mark.parametrize("many", [256, 257, 1000])
def test_very_many_documents_are_told_apart_in_groups(tmp_path, many):
    texts = [np.arange(1, 12)] * many
    write_token_file(tmp_path / "validation", texts, np.dtype(np.uint16))
    describe(tmp_path / "validation")
    held = held_out(open_split(tmp_path / "validation"), 10)
    documents = held.documents
    assert held.in_groups == (many > 256)
    assert (np.diff(documents) >= 0).all()
    np.testing.assert_array_equal(np.unique(documents), np.arange(256))


def test_the_fingerprint_tells_another_set_from_this_one(prefix):
    prints = {
        held_out(open_split(prefix), 10).fingerprint,
        held_out(open_split(prefix), 20).fingerprint,
        held_out(open_split(prefix), 10, tokens=25).fingerprint,
        held_out(open_split(prefix), 10, tokens=25, taken="beginning").fingerprint,
    }
    assert len(prints) == 4
    assert held_out(open_split(prefix), 10).fingerprint in prints


def test_bits_per_byte_follow_from_the_manifest(tmp_path, prefix):
    by_megatron = held_out(open_split(prefix), 10)  # whose manifest knows of no text
    assert by_megatron.bits_per_byte(1.0) is None
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("four words of text\n" * 9)
    request = Request([str(tmp_path / "a.txt")], "bytes", validation=[str(tmp_path / "b.txt")])
    prepare(request, tmp_path / "out")
    evaluation = held_out(open_split(tmp_path / "out" / "validation"), 10)
    text_bytes = 9 * 19
    assert evaluation.bytes_per_token == text_bytes / (text_bytes + 1)
    bits = evaluation.bits_per_byte(math.log(2))
    assert bits == pytest.approx((text_bytes + 1) / text_bytes)
