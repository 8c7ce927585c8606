"""Token files are Megatron's, to the byte."""

import numpy as np
import pytest

from tests.damage import flip
from tests.data.token_files import documents_of, write_token_file
from tst_study.data.token_file import TokenFile, dtype_for_vocabulary
from tst_study.errors import UserError

DOCUMENTS = [np.array([5, 6, 7]), np.array([1]), np.array([], dtype=int), np.arange(400)]


@pytest.fixture(scope="module")
def megatron():
    return pytest.importorskip("megatron.core.datasets.indexed_dataset")


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_we_read_what_megatron_writes_to_the_byte(megatron, tmp_path, dtype):
    import torch

    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    for document in DOCUMENTS:
        builder.add_document(torch.as_tensor(document), [len(document)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    file = TokenFile(tmp_path / "theirs")
    assert (file.token_count, file.document_count, file.dtype) == (404, 4, dtype)
    for theirs, document in zip(documents_of(file), DOCUMENTS, strict=True):
        np.testing.assert_array_equal(theirs, document)
    write_token_file(tmp_path / "ours", DOCUMENTS, np.dtype(dtype))
    for ending in (".bin", ".idx"):
        ours = (tmp_path / f"ours{ending}").read_bytes()
        assert ours == (tmp_path / f"theirs{ending}").read_bytes()


def test_documents_of_several_sequences_are_whole(megatron, tmp_path):
    """`preprocess_data.py --split-sentences` writes one sequence per sentence."""
    import torch

    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    builder.add_document(torch.arange(10), [4, 6])
    builder.add_document(torch.arange(5), [5])
    builder.finalize(str(tmp_path / "theirs.idx"))
    file = TokenFile(tmp_path / "theirs")
    assert file.document_count == 2
    assert documents_of(file)[0].tolist() == list(range(10))
    assert file.document_starts(0, 3).tolist() == [0, 10, 15]


def test_the_id_type_is_megatrons_choice(megatron):
    for size in (257, 1024, 65_499, 65_500, 128_256):
        assert dtype_for_vocabulary(size) == megatron.DType.optimal_dtype(size)


def test_a_failure_while_writing_leaves_the_old_file_alone(tmp_path):
    write_token_file(tmp_path / "train", DOCUMENTS, np.dtype(np.uint16))
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())

    def documents():
        yield DOCUMENTS[0]
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        write_token_file(tmp_path / "train", documents(), np.dtype(np.uint16))
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == before


DAMAGES = {
    "no bin": lambda bin, idx: bin.unlink(),
    "no idx": lambda bin, idx: idx.unlink(),
    "empty bin": lambda bin, idx: bin.write_bytes(b""),
    "cut bin": lambda bin, idx: bin.write_bytes(bin.read_bytes()[:-2]),
    "cut idx": lambda bin, idx: idx.write_bytes(idx.read_bytes()[:-8]),
    "text": lambda bin, idx: idx.write_text("A text that somebody renamed, long enough.\n"),
    "version": lambda bin, idx: flip(idx, 9),
    "float ids": lambda bin, idx: flip(idx, 17, 8 ^ 7),
    "no documents": lambda bin, idx: flip(idx, 26, 5 ^ 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_pair_is_a_one_line_error_that_names_the_file(tmp_path, damage):
    write_token_file(tmp_path / "train", DOCUMENTS, np.dtype(np.uint16))
    DAMAGES[damage](tmp_path / "train.bin", tmp_path / "train.idx")
    with pytest.raises(UserError, match="train") as caught:
        TokenFile(tmp_path / "train")
    assert "\n" not in str(caught.value)
