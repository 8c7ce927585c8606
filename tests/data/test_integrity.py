"""A corpus that is not the one its manifest describes is not trained on."""

import json
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from tests.damage import flip
from tests.data.token_files import write_token_file
from tests.tiny_runs import tiny
from tst_study.data import integrity
from tst_study.data.integrity import check_sample, fingerprint, verify
from tst_study.data.manifest import open_split, read_manifest
from tst_study.data.preparation.adopt import adopt
from tst_study.data.run_data import fingerprints, open_stream
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError


@pytest.fixture
def corpus(words: Path, tmp_path: Path) -> Path:
    return shutil.copytree(words, tmp_path / "words")


def edit_manifest(folder: Path, change) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))


def test_runs_look_at_different_blocks_of_a_large_file_and_together_at_all(corpus, monkeypatch):
    monkeypatch.setattr(integrity, "BLOCK_BYTES", 1000)
    record = integrity.record_of(corpus / "train", 64)
    assert len(record.blocks) == 40 * 8
    edit_manifest(corpus, lambda all: all["splits"]["train"].update(blocks=record.blocks))
    flip(corpus / "train.bin", 21_500)
    split = open_split(corpus / "train")
    said = []
    for number in range(40):
        try:
            check_sample(split, f"study/run/{number}")
        except UserError as error:
            said.append(str(error))
    # 16 of 40 blocks are looked at by each run.
    assert 5 < len(said) < 30
    (message,) = {message.partition(";")[0] for message in said}
    assert message.startswith(f"{corpus}/train.bin: ")
    assert "21,000 to 22,000" in message


def test_another_tokenizer_or_count_in_the_folder_is_found(documents, tmp_path):
    folder = shutil.copytree(documents, tmp_path / "documents")
    assert verify(folder) == read_manifest(folder)
    flip(folder / "tokenizer.json", 100)
    with pytest.raises(UserError, match=r"tokenizer\.json: "):
        verify(folder)
    edit_manifest(folder, lambda manifest: manifest["splits"]["validation"].update(tokens=19))
    with pytest.raises(UserError, match="validation: its tokens"):
        verify(folder)


@pytest.mark.parametrize("splits", [None, {}])
def test_a_corpus_without_a_word_about_its_ids_is_refused(corpus, splits):
    """Else nothing would tell that they were flipped."""
    if splits is None:
        (corpus / "manifest.json").unlink()
    else:
        edit_manifest(corpus, lambda manifest: manifest.update(splits=splits))
    said = r"words/manifest\.json: .*tst-study data adopt .*words/train\.bin"
    for check in (open_stream, fingerprints):
        with pytest.raises(UserError, match=said):
            check(tiny(corpus))
    with pytest.raises(UserError, match=r"words/manifest\.json: "):
        verify(corpus)


def test_files_made_elsewhere_are_described_where_they_lie(tmp_path):
    """nanoGPT's have no index; those of a later call are added to the manifest."""
    ids = np.random.default_rng(0).integers(0, 64, size=9_000).astype(np.uint16)
    ids[[99, 5_000, 8_999]] = 63
    ids.tofile(tmp_path / "train.bin")
    ids[:5_200].tofile(tmp_path / "val.bin")
    files = [tmp_path / "train.bin", tmp_path / "val.bin"]
    adopt(files[:1], 64, dtype="uint16", end_of_document=63)
    manifest = adopt(files[1:], dtype="uint16")
    assert list(manifest.splits) == ["train", "val"]
    assert verify(tmp_path) == manifest == adopt(files, 64, end_of_document=63)
    with pytest.raises(UserError, match=r"describes train, val with another tokenizer"):
        adopt(files[1:], 65)
    ids.astype(np.uint32).tofile(tmp_path / "wide.bin")
    with pytest.raises(UserError, match=r"every second id is 0, .* --dtype uint32"):
        adopt([tmp_path / "wide.bin"], dtype="uint16")
    with pytest.raises(UserError, match=r"train\.idx: says that ids of type uint16 begin"):
        adopt(files, dtype="int32")
    ends = np.flatnonzero(ids == 63) + 1
    train, held = TokenFile(tmp_path / "train"), TokenFile(tmp_path / "val")
    assert train.document_starts(1, train.document_count + 1).tolist() == ends.tolist()
    assert held.document_count == (ids[:5_200] == 63).sum() + 1
    config = tiny(tmp_path / "train", f"data.validation={tmp_path / 'val'}")
    assert fingerprints(config)["tokenizer"] is None
    flip(tmp_path / "train.bin", 7_000)
    with pytest.raises(UserError, match=r"train\.bin: "):
        open_stream(config)


np.save(saved := BytesIO(), np.zeros(9_000, "<u2"))
HEADERS = {
    "llm.c, modded-nanogpt": (np.uint16, np.array([20240520, 1, 9_000] + [0] * 253, "<i4"), {}),
    "llm.c for Llama 3": (np.uint32, np.array([20240801, 7, 9_000] + [0] * 253, "<i4"), {}),
    "NumPy": (np.uint16, np.frombuffer(saved.getvalue()[:128], np.uint8), {}),
    "any": (np.uint16, np.full(5, 2**30, "<i4"), {"dtype": "uint16", "header_bytes": 20}),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_ids_behind_a_header_are_read_where_they_lie(tmp_path, kind):
    dtype, header, options = HEADERS[kind]
    ids = np.random.default_rng(0).integers(0, 64, size=9_000).astype(dtype)
    path, prefix = tmp_path / "train.bin", tmp_path / "train"
    path.write_bytes(header.tobytes() + ids.tobytes())
    with pytest.raises(UserError, match=r"header-bytes|copy it again|is missing"):
        adopt([path], 64, **(options and {"dtype": "uint16"}) or {"header_bytes": 4})
    adopt([path], 64, end_of_document=63, **options)
    file = TokenFile(prefix)
    assert np.array_equal(file.tokens, ids)
    ends = np.flatnonzero(ids == 63) + 1
    assert file.document_starts(1, file.document_count).tolist() == ends.tolist()
    megatron = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    theirs = megatron.IndexedDataset(str(prefix))
    assert np.array_equal(np.concatenate(theirs[:]), ids)
    open_stream(tiny(prefix, f"data.validation={prefix}"))
    verify(tmp_path)
    if not options:
        (tmp_path / "cut.bin").write_bytes(path.read_bytes()[:-8])
        with pytest.raises(UserError, match=r"announces 9,000; copy it again|greater than"):
            adopt([tmp_path / "cut.bin"])


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_datatrove_s_documents_are_taken_from_its_own_index(tmp_path, dtype):
    ids = np.random.default_rng(0).integers(0, 64, size=9_000).astype(dtype)
    ids.tofile(tmp_path / "000_tokens.ds")
    np.array([90, 5_000, 9_000], "<u8").tofile(tmp_path / "000_tokens.ds.index")
    adopt([tmp_path / "000_tokens.ds"], 64)
    file = TokenFile(tmp_path / "000_tokens")
    assert np.array_equal(file.tokens, ids)
    assert file.document_starts(0, 4).tolist() == [0, 90, 5_000, 9_000]
    assert list(verify(tmp_path).splits) == ["000_tokens"]


def test_a_tokenizer_that_is_named_is_taken_along(documents, tmp_path):
    for ending in (".bin", ".idx"):
        shutil.copy(documents / f"train{ending}", tmp_path / f"text_document{ending}")
    made = adopt([tmp_path / "text_document"], tokenizer=documents / "tokenizer.json")
    before = read_manifest(documents).tokenizer
    assert made.tokenizer.model_copy(update={"kind": before.kind}) == before
    assert verify(tmp_path) == made
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: is not the --tokenizer"):
        adopt([tmp_path / "text_document"], tokenizer=documents / "tokenizer.json")


def test_a_sampled_fingerprint_sees_a_shift_anywhere(tmp_path):
    ids = np.random.default_rng(0).integers(0, 60_000, size=6_000_000).astype(np.uint16)
    write_token_file(tmp_path / "one", [ids], np.dtype(np.uint16))
    one = fingerprint(tmp_path / "one")
    shifted = np.concatenate([ids[:3_000_000], ids[-1:], ids[3_000_000:-1]])
    write_token_file(tmp_path / "two", [shifted], np.dtype(np.uint16))
    assert fingerprint(tmp_path / "two") != one
