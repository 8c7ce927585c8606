"""The generated language is the one it says it is, and its optimum is one."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from tst_study.data.manifest import read_manifest
from tst_study.data.preparation.generated_language import Language, LanguageParameters, generate
from tst_study.data.preparation.prepared_folder import locked
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError

SMALL = LanguageParameters(words=24, classes=4, topics=3, document_tokens=20)


def test_the_text_follows_the_transitions_and_the_words_of_its_topics():
    language = Language(SMALL)
    text, lengths = language.text(400_000, part=0)
    assert lengths.sum() == text.size
    assert abs(lengths.mean() - 20) < 1
    classes = language.class_of[text]
    topics = np.repeat(_topics_of(language, lengths.size), lengths)
    pairs = np.zeros((3, 4, 4))
    np.add.at(pairs, (topics[1:], classes[:-1], classes[1:]), 1)
    found = pairs / pairs.sum(2, keepdims=True)
    np.testing.assert_allclose(found, language.transitions, atol=0.03)
    together = np.zeros((3, 4))
    np.add.at(together, (topics, classes), 1)
    np.testing.assert_allclose(together / text.size, language.stationary, atol=0.01)
    frequency = np.bincount(text, minlength=24) / text.size
    expected = language.stationary.sum(0)[language.class_of] * language.within_class
    np.testing.assert_allclose(frequency, expected, atol=0.005)


def _topics_of(language: Language, documents: int) -> np.ndarray:
    """The topics that `text(400_000, part=0)` drew: the same draws in the same order."""
    draw = np.random.default_rng([language.parameters.seed, 1])
    draw.random(400_000)
    return draw.integers(language.parameters.topics, size=documents)


def test_the_filter_is_bayes_rule_by_brute_force():
    """Six words, summed over all sequences of topics."""
    language = Language(SMALL)
    text, _ = language.text(6, part=2)

    def probability(words: np.ndarray) -> float:
        total = 0.0
        classes = language.class_of[words]
        for path in np.ndindex(*(SMALL.topics,) * words.size):
            chance = language.stationary[path[0], classes[0]] * language.within_class[words[0]]
            for place in range(1, words.size):
                chance *= language.topic_changes[path[place - 1], path[place]]
                chance *= language.transitions[path[place], classes[place - 1], classes[place]]
                chance *= language.within_class[words[place]]
            total += chance
        return total

    expected = [-np.log(probability(text[: k + 1]) / probability(text[:k])) for k in range(1, 6)]
    np.testing.assert_allclose(language.optimal_losses(text), expected)


def test_a_folder_is_written_once_and_says_what_it_holds(tmp_path):
    parameters = LanguageParameters(words=24, classes=4, topics=3, seed=5)
    generate(tmp_path / "one", 5000, 3000, parameters)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "one").iterdir()}
    manifest = generate(tmp_path / "one", 5000, 3000, parameters)
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "one").iterdir()} == before
    assert manifest == read_manifest(tmp_path / "one")
    assert manifest.tokenizer.vocabulary_size == 24
    assert manifest.splits["train"].text_bytes is None
    train, validation = (TokenFile(tmp_path / "one" / s) for s in ("train", "validation"))
    assert (train.token_count, validation.token_count) == (5000, 3000)
    assert train.document_count == manifest.splits["train"].documents
    assert train.tokens[:3000].tolist() != validation.tokens.tolist()
    assert train.tokens.max() < 24
    losses = Language(parameters).optimal_losses(validation.tokens.astype(np.int64))
    assert losses.mean() == manifest.generated.entropies["optimal_validation_loss"]
    generate(tmp_path / "two", 5000, 3000, parameters)
    for name in ("train.bin", "train.idx", "validation.bin", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    with pytest.raises(UserError, match="another preparation"):
        generate(tmp_path / "one", 5000, 3000, dataclasses.replace(parameters, seed=6))


def test_of_two_calls_at_once_the_second_waits_and_begins_anew_after_a_kill(tmp_path):
    """The killed call may have been for another language: nothing is left of it."""
    folder, wanted = tmp_path / "out", LanguageParameters(words=24, classes=4, topics=3)
    generate(folder, 5000, 3000, dataclasses.replace(wanted, seed=6))
    (folder / "manifest.json").unlink()  # as a kill leaves the folder
    (folder / ".unfinished").mkdir()
    (folder / ".validation.bin.1-2.tmp").touch()
    call = f"generate({str(folder)!r}, 5000, 3000, {wanted!r})"
    imports = "from tst_study.data.preparation.generated_language import *"
    command = [sys.executable, "-c", f"{imports}; {call}"]
    with locked(folder):
        second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said = second.stderr.readline()
    assert said == f"{folder}: another process prepares it; waiting for its end\n"
    assert second.wait() == 0
    generate(tmp_path / "whole", 5000, 3000, wanted)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
