"""Tokenizers: text survives them."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as LibraryTokenizer

from tst_study.data.manifest import read_manifest
from tst_study.data.preparation import text_tokenizers as module
from tst_study.data.preparation.prepare import prepare
from tst_study.data.preparation.request import Request
from tst_study.data.preparation.text_tokenizers import (
    END_OF_DOCUMENT,
    Tokenizer,
    byte_tokenizer,
    read_tokenizer,
    train_byte_pair_tokenizer,
)
from tst_study.errors import UserError

PROSE = (
    "It was the best of times, it was the worst of times; it wasn't the age of wisdom.\n\n"
    "  'We'll see,' said 42 of the 1,024 people -- naïve façades, Übermut, 日本語 text.\tEnd.\n"
) * 50


@pytest.fixture(scope="module")
def trained():
    return train_byte_pair_tokenizer([PROSE], 300)


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of some ids, by the library; end-of-document ids are left out."""
    kept = [i for i in ids if i != tokenizer.end_of_document]
    return str(tokenizer.library.decode(kept, skip_special_tokens=False))


any_text = st.text(max_size=60) | st.text(
    alphabet="abZ '.,!19é日\n\r\t \x0b\x0c\x1c\x1f\x85\xa0\u2003\u2028\u3000½_-", max_size=40
)


@settings(max_examples=150)
@given(text=any_text)
@example(text=PROSE)
@example(text="a\xa0  b \x1c!\x1c it's  'll")
@example(text="<|endoftext|>")
def test_ids_decode_to_the_text_and_none_ends_a_document(trained, text):
    for tokenizer in (trained, byte_tokenizer()):
        (ids,) = tokenizer.encode_batch([text])
        assert decoded(tokenizer, ids.tolist()) == text
        assert tokenizer.end_of_document not in ids  # though the text may spell it


def test_the_byte_tokenizer_is_the_same_to_hugging_face(tmp_path):
    ours = byte_tokenizer()
    (tmp_path / "tokenizer.json").write_bytes(ours.json)
    theirs = LibraryTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "".join(map(chr, range(300))) + PROSE
    assert theirs.encode(text).ids == ours.encode_batch([text])[0].tolist()
    assert theirs.decode(theirs.encode(text).ids) == text
    assert theirs.token_to_id("<|endoftext|>") == ours.end_of_document
    assert read_tokenizer(tmp_path).kind == "bytes"
    # Records name it: it never changes.
    assert ours.fingerprint.startswith("9fa9b8bc79bcd30da07a6c259db9b0f400de51da")


@pytest.fixture
def sentence_piece_like(tmp_path):
    """A Hugging Face tokenizer of another kind: normaliser, Metaspace, `</s>` in its config."""
    library = LibraryTokenizer(models.BPE(unk_token="<unk>"))
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    special = ["<unk>", "</s>", "<stop>"]
    library.train_from_iterator(
        [PROSE], trainers.BpeTrainer(vocab_size=200, special_tokens=special)
    )
    library.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_any_hugging_face_tokenizer_serves_and_ends_documents_as_asked(sentence_piece_like):
    tokenizer = read_tokenizer(sentence_piece_like)
    assert tokenizer.kind == "huggingface"
    assert tokenizer.end_of_document == 1
    library = LibraryTokenizer.from_file(str(sentence_piece_like / "tokenizer.json"))
    text = "the worst of  times"
    assert tokenizer.encode_batch([text])[0].tolist() == library.encode(text).ids
    assert decoded(tokenizer, tokenizer.encode_batch([text])[0].tolist()) == text
    (sentence_piece_like / "tokenizer_config.json").write_text('{"eos_token": "<stop>"}')
    assert read_tokenizer(sentence_piece_like).end_of_document == 2
    (sentence_piece_like / "tokenizer_config.json").write_text('{"eos_token": "<none>"}')
    with pytest.raises(UserError, match=r"no token <none>.* beside it, as eos_token"):
        read_tokenizer(sentence_piece_like)


def test_a_corpus_ends_its_documents_as_the_one_whose_tokenizer_it_takes(sentence_piece_like):
    for name in ("a.txt", "b.txt"):
        (sentence_piece_like / name).write_text(PROSE)
    (sentence_piece_like / "tokenizer_config.json").write_text('{"eos_token": "<stop>"}')
    one, other = sentence_piece_like / "one", sentence_piece_like / "other"
    train, held = (str(sentence_piece_like / name) for name in ("a.txt", "b.txt"))
    for tokenizer, folder in (sentence_piece_like, one), (one, other):
        prepare(Request([train], str(tokenizer), validation=[held]), folder)
    assert read_manifest(one).tokenizer == read_manifest(other).tokenizer
    assert read_manifest(other).tokenizer.end_of_document_token == "<stop>"


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe"])
def test_a_broken_config_beside_a_tokenizer_is_a_user_error(sentence_piece_like, content):
    (sentence_piece_like / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer_config\.json: is damaged "):
        read_tokenizer(sentence_piece_like)


@pytest.mark.parametrize("kind", ["BPE", "WordLevel", "WordPiece", "Unigram"])
def test_a_tokenizer_without_a_token_for_what_it_does_not_know_is_named(kind):
    words = {END_OF_DOCUMENT: 0, "a": 1, "b": 2}
    given = [[(word, -1.0) for word in words]] if kind == "Unigram" else [words]
    library = LibraryTokenizer(getattr(models, kind)(*given, *([[]] if kind == "BPE" else [])))
    with pytest.raises(UserError, match=r"mine: .*; set the unk_token of its model"):
        Tokenizer(library.to_str().encode(), source="mine").encode_batch(["c"])


LONG = {
    "prose": "The cat's 12 hats, weren't there;  it said:\n\n\t\"no\" — naïve café… don't! 3 x_y ",
    "Chinese": "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张、寒来暑往！",
    "one word": "abcdefgh",
}


@pytest.mark.parametrize("text", LONG)
def test_a_long_text_has_the_ids_of_the_whole(monkeypatch, text):
    """Though it is cut, which the library's memory asks for; the tokenizer is the same, too."""
    letters = random.Random(1)
    parts = [LONG[text]] + ["".join(letters.choices(LONG[text], k=60)) for _ in range(200)]
    whole = "".join(parts)
    trained = module.train_byte_pair_tokenizer([whole, *LONG.values()], 300)
    (expected,) = trained.encode_batch([whole])
    monkeypatch.setattr(module, "STRETCH", 500)
    again = module.train_byte_pair_tokenizer([whole, *LONG.values()], 300)
    assert again.json == trained.json
    (found,) = trained.encode_batch([whole])
    assert found.tolist() == expected.tolist()
    assert "".join(module.stretches(whole)) == whole
    assert (len(list(module.stretches(whole))) > 10) == (text != "one word")


GPT_4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def test_a_later_pattern_is_cut_and_what_looks_across_words_is_not(monkeypatch):
    library = module.LibraryTokenizer.from_str(
        module.train_byte_pair_tokenizer(LONG.values(), 290).json.decode()
    )
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GPT_4), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    later = module.Tokenizer(library.to_str().encode())
    normalizer, library.normalizer = library.normalizer, normalizers.Prepend("_")
    across = module.Tokenizer(library.to_str().encode())
    library.normalizer = normalizer
    library.pre_tokenizer = pre_tokenizers.Split(Regex(GPT_4), "removed")
    library.model.unk_token = END_OF_DOCUMENT
    assert not module.Tokenizer(library.to_str().encode())._may_cut
    whole = "".join(LONG.values()) * 50
    expected = [one.encode_batch([whole])[0].tolist() for one in (later, across)]
    monkeypatch.setattr(module, "STRETCH", 500)
    found = [one.encode_batch([whole])[0].tolist() for one in (later, across)]
    assert found == expected
    monkeypatch.setattr(module, "LONGEST", 5000)
    assert later.encode_batch([whole])[0].tolist() == expected[0]
    with pytest.raises(UserError, match=r"a document of \S+ MB that begins .The cat"):
        across.encode_batch([whole])
