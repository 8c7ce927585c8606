"""Claims about what a step reads."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.token_files import write_token_file
from tst_study.config.phase_plan import PhasePlan
from tst_study.data.blend import Blend
from tst_study.data.token_file import TokenFile, write_index
from tst_study.data.token_stream import TokenStream, WeightedFile
from tst_study.errors import UserError


def token_file(folder: Path, lengths: list[int], name: str = "train") -> TokenFile:
    """Documents whose tokens are numbered through: the id of a token is its place in the file."""
    ends = np.cumsum(lengths)
    documents = [np.arange(end - n, end) for end, n in zip(ends, lengths, strict=True)]
    write_token_file(folder / name, documents, np.dtype(np.int32))
    return TokenFile(folder / name)


def plan(sequences: int, length: int, superposed_steps: int = 0, bag_size: int = 1) -> PhasePlan:
    sizes = {"sequences": sequences, "sequence_length": length}
    return PhasePlan(10**9, superposed_steps, bag_size, **sizes)


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    batch=st.integers(1, 4),
    length=st.integers(1, 4),
    bag_size=st.integers(1, 4),
    superposed_steps=st.integers(0, 12),
    seed=st.integers(0, 9),
)
def test_a_stream_reads_each_token_once_per_epoch_in_any_slices(
    tmp_path_factory, lengths, batch, length, bag_size, superposed_steps, seed
):
    """Across the switch and the joints of epochs, whichever rank reads a sequence."""
    file = token_file(tmp_path_factory.mktemp("corpus"), lengths)
    if sum(lengths) < batch * length * bag_size:  # shorter than one step: an error, see below
        return
    stream = TokenStream(
        [WeightedFile(file)], plan(batch, length, superposed_steps, bag_size), seed
    )
    total = file.token_count
    read_so_far: list[int] = []
    labelled: list[int] = []
    step = 0
    while stream.epochs(step) < 3:
        ids, labels = stream.batch(step)
        for place in range(batch):
            one, its_labels = stream.batch(step, place, place + 1)
            np.testing.assert_array_equal(one[0], ids[place])
            np.testing.assert_array_equal(its_labels[0], labels[place])
        assert stream.epochs(step) == len(read_so_far) / total
        read_so_far += ids.ravel().tolist()
        labelled += labels.ravel().tolist()
        # The next token, also beyond the end of a sequence; none beyond the corpus.
        np.testing.assert_array_equal(labels, np.where(ids == total - 1, -100, ids + 1))
        step += 1
    for epoch in range(3):
        assert sorted(read_so_far[epoch * total : (epoch + 1) * total]) == list(range(total))
    known = [label for label in labelled[:total] if label != -100]
    assert sorted(known) == list(range(1, total))  # each is predicted once


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    small=st.sampled_from(
        [((16, (2, 1)),), ((24, (1, 3)),), ((12, (1, 6)), (18, (1, 3)))]  # the last has two stages
    ),
    seed=st.integers(0, 9),
)
def test_small_steps_read_the_text_of_the_baseline_in_parts_and_then_go_on_with_it(
    tmp_path_factory, lengths, small, seed
):
    """Also across the joints of epochs, whichever rank reads a sequence."""
    if sum(lengths) < 12:
        return
    corpus = [WeightedFile(token_file(tmp_path_factory.mktemp("corpus"), lengths))]
    axis = int(small[0][1][0] == 1)
    rival = replace(plan(2, 6), small=small)
    baseline, stream = (TokenStream(corpus, each, seed) for each in (plan(2, 6), rival))
    for whole in range(8):
        steps = [step for step in range(30) if rival.reads(step).whole_step == whole]
        read = [stream.batch(step) for step in steps]
        joined = [np.concatenate(arrays, axis) for arrays in zip(*read, strict=True)]
        np.testing.assert_array_equal(joined, baseline.batch(whole))
        np.testing.assert_array_equal(stream.batch(steps[0], 0, 1)[0], read[0][0][:1])
        half = stream.epochs(steps[-1])
        assert baseline.epochs(whole) < half < baseline.epochs(whole + 1)
    first = rival.stages[-1]
    np.testing.assert_array_equal(stream.batch(first), baseline.batch(8))
    assert stream.epochs(first) == baseline.epochs(8)


def test_a_recovery_phase_that_begins_with_an_epoch_reads_it_as_a_baseline_does(tmp_path):
    corpus = [WeightedFile(token_file(tmp_path, [960]))]
    baseline = TokenStream(corpus, plan(2, 8), seed=1)
    superposed = TokenStream(corpus, plan(2, 8, superposed_steps=15, bag_size=4), seed=1)
    assert superposed.epochs(15) == baseline.epochs(60) == 1
    for step in range(60):
        for one, other in zip(superposed.batch(15 + step), baseline.batch(60 + step), strict=True):
            np.testing.assert_array_equal(one, other)


def test_seed_and_epoch_reshuffle(tmp_path):
    corpus = [WeightedFile(token_file(tmp_path, [6400]))]
    one, other = (TokenStream(corpus, plan(10, 64), seed) for seed in (0, 1))
    first, second = (
        np.concatenate([one.batch(step)[0][:, 0] for step in range(start, start + 10)])
        for start in (0, 10)
    )
    reseeded = np.concatenate([other.batch(step)[0][:, 0] for step in range(10)])
    in_file_order = np.arange(0, 6400, 64)
    for order in (first, second, reseeded):
        np.testing.assert_array_equal(np.sort(order), in_file_order)
    for one_order, other_order in ((first, second), (first, reseeded), (first, in_file_order)):
        assert np.mean(one_order == other_order) < 0.1


def test_a_blend_holds_its_weights_in_every_stretch_and_each_corpus_its_own_epochs(tmp_path):
    small = token_file(tmp_path, [400], "small")
    large = token_file(tmp_path, [5000], "large")
    corpora = [WeightedFile(small, weight=0.7), WeightedFile(large, weight=0.3)]
    stream = TokenStream(corpora, plan(10, 4, superposed_steps=5, bag_size=2))
    for step in range(40):
        assert stream._blend.corpus_of(step * 10, step * 10 + 10).tolist().count(0) == 7
    small_tokens = 5 * 7 * 8 + 35 * 7 * 4
    assert stream.epochs(40) == small_tokens / 400


def test_a_corpus_shorter_than_one_step_is_an_error_that_says_how_much_is_needed(tmp_path):
    file = token_file(tmp_path, [100])
    with pytest.raises(UserError, match=r"train: has 100 tokens.* 128"):
        TokenStream([WeightedFile(file)], plan(4, 8, superposed_steps=1, bag_size=4))


def private_memory() -> int:
    """Bytes of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    raise AssertionError


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_corpus_of_a_hundred_gigabytes_costs_no_memory(tmp_path):
    documents, length = 1000, 50_000_000
    total = documents * length
    with open(tmp_path / "huge.bin", "wb") as file:
        os.truncate(file.fileno(), 2 * total)  # a hole: takes no room on disk
    write_index(tmp_path / "huge", np.full(documents, length, np.int32), np.dtype(np.uint16))
    before = private_memory()
    corpus = WeightedFile(TokenFile(tmp_path / "huge"))
    stream = TokenStream([corpus], plan(16, 64, superposed_steps=100_000, bag_size=7))
    for step in (0, 99_999, 100_000, 10**8):
        stream.batch(step)
    assert private_memory() - before < 4 * 2**20


def test_a_weight_that_would_never_be_read_is_an_error():
    with pytest.raises(UserError, match=r"weight 1e-09 is less than 1/10000 of"):
        Blend([1.0, 1e-9])
