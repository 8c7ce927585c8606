"""Preparing a corpus: any form of text, any interruption, one result."""

import bz2
import gzip
import hashlib
import json
import lzma
import multiprocessing
import os
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from tests.data.test_text_tokenizers import decoded
from tests.data.token_files import documents_of
from tst_study.data.integrity import verify
from tst_study.data.manifest import UNFINISHED, SourceRecord, manifest_of, token_prefix
from tst_study.data.preparation import prepare as module
from tst_study.data.preparation import text_sources
from tst_study.data.preparation.request import Request
from tst_study.data.preparation.text_sources import Source
from tst_study.data.preparation.text_tokenizers import read_tokenizer
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "naïve", "cafés", "½", "1,024", "pies"]
RESULTS = ("train.bin", "train.idx", "validation.bin", "validation.idx", "tokenizer.json")


def documents(count: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [
        " ".join(draw.choice(WORDS, size=draw.integers(1, 60))) + f" {k}.\n" for k in range(count)
    ]


def jsonl(texts: list[str], field: str = "text") -> bytes:
    return "".join(json.dumps({"id": k, field: t}) + "\n" for k, t in enumerate(texts)).encode()


def quietly(sources, to, tokenizer="bytes", **settings):
    if "validation" not in settings:
        settings.setdefault("validation_share", 0.1)
    request = Request([str(s) for s in sources], tokenizer, **settings)
    return module.prepare(request, to)


def leaves_as_it_is(sources, to, **settings) -> bool:
    before = {path.name: path.stat().st_mtime_ns for path in to.iterdir()}
    quietly(sources, to, **settings)
    return before == {path.name: path.stat().st_mtime_ns for path in to.iterdir()}


def read_back(folder: Path, split: str) -> list[str]:
    tokenizer, file = read_tokenizer(folder), TokenFile(folder / split)
    texts = []
    for ids in documents_of(file):
        assert ids[-1] == tokenizer.end_of_document
        assert tokenizer.end_of_document not in ids[:-1]
        texts.append(decoded(tokenizer, ids[:-1].tolist()))
    return texts


def in_two_frames(compress):
    return lambda data: compress(data[:999]) + compress(data[999:])


PACKERS = {
    ".gz": in_two_frames(gzip.compress),
    ".xz": in_two_frames(lzma.compress),
    ".bz2": in_two_frames(bz2.compress),
    ".zst": in_two_frames(zstandard.ZstdCompressor(write_checksum=True).compress),
}
PLAIN = {"": lambda data: data}


@pytest.mark.parametrize("packing", PLAIN | PACKERS)
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_documents_come_back_as_they_were(tmp_path, packing, tokenizer):
    cased = str.upper if tokenizer == "bytes" else str.lower
    texts, pack = documents(80), (PLAIN | PACKERS)[packing]
    a, b = (tmp_path / cased(f"{name}{packing}") for name in ("a.jsonl", "b.txt"))
    a.write_bytes(pack(jsonl(texts)))
    b.write_bytes(pack(b"held out"))
    done = quietly([a], tmp_path / "out", tokenizer, validation=[str(b)])
    assert read_back(tmp_path / "out", "train") == texts
    assert read_back(tmp_path / "out", "validation") == ["held out"]
    train = done.splits["train"]
    assert (train.documents, train.text_bytes) == (80, len("".join(texts).encode()))
    assert train.tokens == TokenFile(tmp_path / "out" / "train").token_count
    assert done.sources[0].sha256 == hashlib.sha256(a.read_bytes()).hexdigest()
    assert done.tokenizer.fingerprint == read_tokenizer(tmp_path / "out").fingerprint
    assert not (tmp_path / "out" / UNFINISHED).exists()
    verify(tmp_path / "out")


def with_parquet(folder: Path, texts: list[str]) -> Path:
    folder.mkdir()
    for number, part in enumerate((texts[:40], texts[40:])):
        frame = pandas.DataFrame({"other": 1, "text": part})
        frame.to_parquet(folder / f"{number}.parquet", row_group_size=7)
    return folder


def with_jsonl(folder: Path, texts: list[str]) -> str:
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(jsonl(texts))
    (folder / "test.jsonl").write_bytes(jsonl(["other"]))
    return f"hf://{folder}"


def test_a_parquet_file_without_rows_is_a_file_without_documents(tmp_path):
    """One of many may have none; the `datasets` library says: BatchSize must be greater than 0."""
    folder, texts = with_parquet(tmp_path / "rows", documents(100)), documents(100)
    pandas.DataFrame({"text": pandas.Series([], dtype=str)}).to_parquet(folder / "2.parquet")
    assert len(quietly([folder], tmp_path / "out").sources) == 3
    assert set(read_back(tmp_path / "out", "train")) < set(texts)


@pytest.mark.parametrize("make", [with_parquet, with_jsonl])
def test_rows_of_a_library_are_read(tmp_path, monkeypatch, make):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    (tmp_path / "held.txt").write_text("held out")
    texts, settings = documents(100), {"validation": [str(tmp_path / "held.txt")]}
    source = make(tmp_path / "rows", texts)
    quietly([source], tmp_path / "out", **settings)
    assert read_back(tmp_path / "out", "train") == texts
    assert leaves_as_it_is([source], tmp_path / "out", **settings)
    with pytest.raises(UserError, match=r"'body' \(it has: .*text.*--text-field"):
        quietly([source], tmp_path / "other", text_field="body", **settings)


def test_held_out_documents_are_picked_by_their_text_alone(tmp_path, capsys):
    """And given ones that are training text, too, are counted."""
    texts = documents(400)
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts))
    (tmp_path / "b.jsonl").write_bytes(jsonl([*documents(200, seed=1), *reversed(texts)]))
    for name in "ab":
        quietly([tmp_path / f"{name}.jsonl"], tmp_path / name, validation_share=0.1)
    small, large = (set(read_back(tmp_path / name, "validation")) for name in "ab")
    assert small == large & set(texts)
    assert 20 < len(small) < 65
    assert not large & set(read_back(tmp_path / "b", "train"))
    assert not capsys.readouterr().err
    quietly([tmp_path / "a.jsonl"], tmp_path / "c", validation=[str(tmp_path / "b.jsonl")])
    both, all_of_b = len({*texts}), len({*texts, *documents(200, seed=1)})
    assert f"c: {both} of {all_of_b} held-out documents are training" in capsys.readouterr().err


def test_text_behind_links_is_read_and_hidden_copies_are_not(tmp_path):
    for name in ("here/a.txt", "here/.ipynb_checkpoints/a.txt", "far/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "here" / "far").symlink_to("../far")
    found = text_sources.find_sources([str(tmp_path / "here")], "train", tmp_path / "out")
    assert [source.record.name for source in found] == ["a.txt", "b.txt"]


def test_of_a_few_long_documents_the_ends_are_held_out_or_it_is_refused_before_the_work(
    tmp_path, monkeypatch
):
    texts = [f"{k} " + "long " * (2000 + k) for k in range(4)]
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts))
    settings = {"validation_share": 0.01}
    with monkeypatch.context() as patch:
        patch.setattr(module, "_make_tokenizer", lambda *_: pytest.fail("it began the work"))
        with pytest.raises(UserError, match=r"left for validation.* or --within-documents"):
            quietly([tmp_path / "a.jsonl"], tmp_path / "out", **settings)
    monkeypatch.setattr(module, "PIECE_BYTES", 15_000)
    quietly([tmp_path / "a.jsonl"], tmp_path / "out", **settings, within_documents=True)
    train, held = (read_back(tmp_path / "out", split) for split in ("train", "validation"))
    assert [start + end for start, end in zip(train, held, strict=True)] == texts
    assert [len(end) for end in held] == [101] * 4


def test_killed_at_any_shard_it_goes_on_and_ends_in_the_same_bytes(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_bytes(jsonl(documents(300)))
    monkeypatch.setattr(module, "PIECE_BYTES", 5000)
    quietly([tmp_path / "a.jsonl"], tmp_path / "whole", "bpe:300")
    out, make_piece, made = tmp_path / "out", module._make_piece, []

    def call():
        quietly([tmp_path / "a.jsonl"], out, "bpe:300")

    def then_killed(*arguments):
        if made:
            os.kill(os.getpid(), signal.SIGKILL)
        made.append(arguments)
        return make_piece(*arguments)

    monkeypatch.setattr(module, "_make_piece", then_killed)
    for shards in range(1, 50):
        child = multiprocessing.get_context("fork").Process(target=call)
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        assert len(list(out.glob(f"{UNFINISHED}/*.npz"))) == shards  # none is made twice
        assert not (out / "manifest.json").exists()
    assert shards > 5
    for name in (*RESULTS, "manifest.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_tokenizer_learns_from_the_first_documents_until_they_are_enough(tmp_path):
    texts, path = ["four", "five", "six", "seven"], tmp_path / "a.jsonl"
    path.write_bytes(jsonl(texts))
    source = Source(SourceRecord(name="a", split="train"), "jsonl", path)
    request = Request([str(path)], validation=["another file"])
    for enough, learned in ((7, 2), (8, 2), (9, 3)):
        assert [*module._training_sample(request, [source], enough)] == texts[:learned]
    assert [*module._training_sample(request, [source], 3)] == ["fou"]


def test_shards_made_at_once_merge_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 5000)
    for seed, name in enumerate("abc"):
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(documents(120, seed)))
    sources = [str(tmp_path / f"{name}.jsonl") for name in "abc"]
    request = Request(sources, "bpe:300", validation_share=0.1)
    module.prepare(request, tmp_path / "whole")
    out = tmp_path / "out"

    def make(number):
        return module.prepare_shard(request, out, f"{number}/3")

    def at_once(work, *arguments):
        fork = multiprocessing.get_context("fork")
        children = [fork.Process(target=work, args=[one]) for one in arguments]
        for child in children:
            child.start()
        for child in children:
            child.join()
        return {child.exitcode for child in children}

    with pytest.raises(UserError, match="no such file"):
        module.merge(out)
    assert at_once(make, 1, 2) == {0}
    with pytest.raises(UserError, match=r"out: 1 of 3 sources are not tokenised yet"):
        module.merge(out)
    assert make(3) is None
    assert len(list(out.glob(f"{UNFINISHED}/*.npz"))) > 7
    assert at_once(module.merge, out, out, out) == {0}
    assert module.merge(out) == verify(out) == module.merge(out) == make(1)
    for name in (*RESULTS, "manifest.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_token_files_of_a_preparation_that_has_not_ended_are_not_read(tmp_path):
    """They are whole, but a run would not know its tokenizer, and so be another run. Nor are they
    text, where a folder of text is prepared into itself."""
    (tmp_path / "a.jsonl").write_bytes(jsonl(documents(300)))
    done = quietly([tmp_path], tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    (tmp_path / "out" / UNFINISHED).mkdir()
    with pytest.raises(UserError, match="out: its preparation"):
        manifest_of(token_prefix(tmp_path / "out"))
    assert quietly([tmp_path], tmp_path / "out") == verify(tmp_path / "out") == done
    assert [source.name for source in done.sources] == ["a.jsonl"]
    assert quietly([tmp_path], tmp_path / "beside").sources == done.sources


def test_the_same_request_again_does_nothing_and_another_one_is_refused(tmp_path):
    sources = [tmp_path / folder / "a.jsonl" for folder in ("one", "two")]
    for seed, source in enumerate(sources):
        source.parent.mkdir()
        source.write_bytes(jsonl(documents(150, seed)))
    first = quietly(sources, tmp_path / "out")
    assert leaves_as_it_is(sources, tmp_path / "out")
    assert quietly(sources, tmp_path / "out") == first
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["request"] |= {"of an earlier version": None}
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    assert leaves_as_it_is(sources, tmp_path / "out")
    with pytest.raises(UserError, match=r"out: .*tokenizer: 'bytes', now 'bpe:300'.*delete"):
        quietly(sources, tmp_path / "out", "bpe:300", validation_share=0.01)
    os.utime(sources[1])  # a copy of the same file is the same request, ...
    assert leaves_as_it_is(sources, tmp_path / "out")
    sources[1].write_bytes(sources[1].read_bytes().replace(b"fox", b"cat"))  # ... other text is not
    with pytest.raises(UserError, match=r"another version of .*two/a\.jsonl"):
        quietly(sources, tmp_path / "out")


@pytest.mark.parametrize("deleted", [False, True])
def test_a_source_that_changes_while_it_is_read_is_an_error(tmp_path, monkeypatch, deleted):
    source = tmp_path / "a.jsonl"
    source.write_bytes(jsonl(documents(300)))
    monkeypatch.setattr(module, "PIECE_BYTES", 30_000)
    make = module._make_piece

    def change_meanwhile(*arguments):
        source.write_bytes(jsonl(documents(300)) + jsonl(documents(10, 2)))
        if deleted:
            source.unlink()
        return make(*arguments)

    monkeypatch.setattr(module, "_make_piece", change_meanwhile)
    with pytest.raises(UserError, match=r"a\.jsonl: was changed or deleted while it was read"):
        quietly([source], tmp_path / "out")
    monkeypatch.setattr(module, "_make_piece", make)
    source.write_bytes(jsonl(documents(300)))
    assert quietly([source], tmp_path / "out") == quietly([source], tmp_path / "again")


def test_a_limit_reads_the_beginning_only(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(documents(300)))
    sources = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    settings = {"validation_share": 0.2, "limit_bytes": 10_000}
    done = quietly(sources, tmp_path / "out", **settings)
    # The limit counts records, of which the text is the larger part.
    assert 5_000 < sum(split.text_bytes for split in done.splits.values()) < 10_000
    assert [source.name for source in done.sources] == ["a.jsonl"]
    assert leaves_as_it_is(sources, tmp_path / "out", **settings)


@pytest.mark.parametrize("packing", PACKERS)
def test_a_packed_file_that_is_not_whole_is_never_taken_for_one(tmp_path, packing):
    """Nothing at all, half a second frame, one byte less, any flipped bit."""
    texts = documents(80)
    text = jsonl(texts)
    whole = PACKERS[packing](text)
    first = len(PACKERS[packing](text[:999])) - len(PACKERS[packing](b""))  # the other is empty
    source = Source(SourceRecord(name="a", split="train"), "jsonl", tmp_path / f"a.jsonl{packing}")

    def read(content: bytes) -> list[str]:
        source.path.write_bytes(content)
        return [text for _, text in text_sources.documents(source, "text")]

    assert read(whole) == texts
    for cut in (0, 3, first // 2, (first + len(whole)) // 2, len(whole) - 1):
        with pytest.raises(UserError, match=rf"a\.jsonl\{packing}: cannot be read "):
            read(whole[:cut])
    draw = np.random.default_rng(0)
    for place in draw.integers(len(whole), size=60):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.integers(8)
        with suppress(UserError):
            assert read(bytes(flipped)) == texts  # the bit is of a header, not of the text


def test_the_bundled_books_are_the_ones_described_and_come_with_held_out_ones(tmp_path):
    books = Path(__file__).parents[2] / "data" / "books"
    for line in (books / "SHA256SUMS").read_text().splitlines():
        expected, name = line.split()
        assert hashlib.sha256((books / name).read_bytes()).hexdigest() == expected
    request = Request(["books"], "bytes", limit_bytes=1_000_000)
    done = module.prepare(request, tmp_path / "out")
    assert done.licence == "public domain"
    assert done.splits["validation"].documents == 15
    assert done.splits["validation"].text_bytes == 2_367_246


@pytest.mark.parametrize(
    ("third", "problem"), [(None, "is null; --skip-empty"), (b"\xff", "holds bytes, not text")]
)
def test_a_row_without_text_is_named_and_null_is_left_out_if_asked(tmp_path, third, problem):
    rows = [*map(str, range(40)), third] if third is None else [third]
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=rf"a\.parquet, row {len(rows)}: 'text' {problem}"):
        quietly([tmp_path / "a.parquet"], tmp_path / "out", "bytes")
    if third is None:
        done = quietly([tmp_path / "a.parquet"], tmp_path / "one", "bytes", skip_empty=True)
        splits = done.splits.values()
        assert sum(split.documents for split in splits) == 40
        assert sum(split.empty_documents for split in splits) == 1
