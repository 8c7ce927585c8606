"""A generated language, whose best possible loss is known. Studies use it to show how superposition
works; it is no evidence about real text.

Each document has one topic, and all topics are equally likely. Each word belongs to one class. The
classes of successive words form a Markov chain, in which each topic raises the probabilities of the
few classes that it favours. Within its class, a word is drawn by Zipf's law. So the next word
depends on the class of the last word and on the topic. A single word says little about the topic;
many words together reveal it, and superposition averages over the words of a bag.

The words are the tokens. No token marks the end of a document: after each word, with the same small
probability, a new document begins and its topic is drawn.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.data.integrity import record_of
from tst_study.data.manifest import GeneratedRecord, Manifest, TokenizerRecord
from tst_study.data.preparation.prepared_folder import prepared
from tst_study.data.token_file import dtype_for_vocabulary, write_tokens

GRAIN = 4096
"""Probabilities of class transitions are rounded to multiples of 1/4096, so that a class can be
drawn by a look-up in a table of 4096 entries."""


@dataclass(frozen=True)
class LanguageParameters:
    """Everything that defines a language; equal parameters give the same language."""

    words: int = 2048
    """Number of words, a multiple of `classes`; all classes have equally many."""
    classes: int = 64
    topics: int = 16
    document_tokens: float = 300.0
    """Mean number of tokens per document."""
    zipf_exponent: float = 1.0
    """The k-th word of a class has a probability proportional to 1 / k**zipf_exponent."""
    transition_concentration: float = 1.0
    """Parameter of the Dirichlet distribution from which each row of class transitions is drawn. If
    it is small, only a few classes are likely to follow a class."""
    favoured_share: float = 0.1
    """Probability that a topic favours a class. Every pair of the two is drawn independently."""
    favour: float = 50.0
    """Factor by which a topic multiplies the probabilities of the classes that it favours, before
    each row of transitions is normalised again."""
    seed: int = 0


class Language:
    """A language. It generates texts, and computes the losses of the best possible predictor on
    them."""

    def __init__(self, parameters: LanguageParameters) -> None:
        self.parameters = parameters
        words, classes, topics = parameters.words, parameters.classes, parameters.topics
        per_class = words // classes
        draw = np.random.default_rng([parameters.seed, 0])
        concentration = np.full(classes, parameters.transition_concentration)
        rows = draw.dirichlet(concentration, size=classes)
        # A little of the uniform distribution is mixed in, so that no class is impossible after
        # another, except where `_look_up` rounds a small probability to zero.
        rows = 0.95 * rows + 0.05 / classes
        favoured = draw.random((topics, classes)) < parameters.favoured_share
        bent = rows[None] * np.where(favoured, parameters.favour, 1.0)[:, None, :]
        bent /= bent.sum(axis=2, keepdims=True)
        next_class = np.stack([[_look_up(row) for row in of_topic] for of_topic in bent])
        self._next_class: list[int] = next_class.ravel().tolist()
        counts = [[np.bincount(row, minlength=classes) for row in t] for t in next_class]
        self.transitions: NDArray[np.float64] = np.array(counts) / GRAIN
        """(topics, classes, classes): the probability of the next word's class (last axis), given
        the topic of the next word (first axis) and the class of the word before (middle axis)."""
        zipf = np.arange(1, per_class + 1) ** -parameters.zipf_exponent
        self._zipf: NDArray[np.float64] = zipf / zipf.sum()
        self._word_of_rank: NDArray[np.int64] = draw.permutation(words).reshape(classes, per_class)
        self.class_of: NDArray[np.int64] = np.empty(words, dtype=np.int64)
        """(words,): the class of each word."""
        self.class_of[self._word_of_rank] = np.arange(classes)[:, None]
        self.within_class: NDArray[np.float64] = np.empty(words)
        """(words,): the probability of a word given its class."""
        self.within_class[self._word_of_rank] = self._zipf

    def text(self, tokens: int, part: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Generate a text: words, (tokens,), and the length of each document, (documents,).

        Args:
            tokens: the length of the text.
            part: the number of the text, from 0. Texts with different numbers are independent; the
                same number and length give the same text.
        """
        parameters = self.parameters
        draw = np.random.default_rng([parameters.seed, 1 + part])
        ends = np.flatnonzero(draw.random(tokens) < 1 / parameters.document_tokens) + 1
        lengths = np.diff(np.concatenate([[0], ends[ends < tokens], [tokens]]))
        topics = np.repeat(draw.integers(parameters.topics, size=lengths.size), lengths)
        first = int(draw.choice(parameters.classes, p=self.stationary.sum(axis=0)))
        tickets = topics * (parameters.classes * GRAIN) + draw.integers(GRAIN, size=tokens)
        cumulative = np.cumsum(self._zipf)
        ranks = np.searchsorted(cumulative[:-1], draw.random(tokens), side="right")
        # Each class depends on the one before, so they are drawn one after another; one look-up per
        # token is fast enough.
        table, steps = self._next_class, tickets[1:].tolist()
        drawn = accumulate(steps, lambda last, step: table[step + last * GRAIN], initial=first)
        classes = np.fromiter(drawn, np.int64, tokens)
        return self._word_of_rank[classes, ranks], lengths.astype(np.int32)

    @cached_property
    def topic_changes(self) -> NDArray[np.float64]:
        """(topics, topics): the probability of the next word's topic (column), given a word's topic
        (row)."""
        topics, change = self.parameters.topics, 1 / self.parameters.document_tokens
        return (1 - change) * np.eye(topics) + change / topics

    @cached_property
    def stationary(self) -> NDArray[np.float64]:
        """(topics, classes): the share of words with this topic and class in a long text."""
        shape = self.parameters.topics, self.parameters.classes
        size = shape[0] * shape[1]
        # The probability of topic u and class d after topic t and class c: first the topic may
        # change, then the class changes by the transitions of the new topic.
        step = np.einsum("tu,ucd->tcud", self.topic_changes, self.transitions).reshape(size, size)
        balance = step.T - np.eye(size)
        balance[-1] = 1.0  # in place of a redundant equation: shares sum to one
        share = np.linalg.solve(balance, np.eye(size)[-1]).clip(0)
        result: NDArray[np.float64] = (share / share.sum()).reshape(shape)
        return result

    def optimal_losses(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the loss of the best possible predictor on each token except the first.

        This predictor knows the language, but not the topics of the text. Its probabilities come
        from the forward algorithm of hidden Markov models, which updates the probability of each
        topic with every word. For a longer and longer text, the mean loss converges to the
        language's entropy rate.

        Args:
            tokens: words, (T,).

        Returns:
            (T − 1,) in nats: minus the logarithm of the probability of each token after the first.
        """
        classes = self.class_of[tokens]
        losses = -np.log(self.within_class[tokens[1:]])
        belief = self.stationary[:, classes[:1]].T
        belief = belief / belief.sum(axis=1, keepdims=True)
        for place in range(tokens.size - 1):
            now, then = classes[place : place + 1], classes[place + 1 : place + 2]
            joint = (belief @ self.topic_changes) * self.transitions[:, now, then].T
            chance = joint.sum(axis=1)
            losses[place : place + 1] -= np.log(chance)
            belief = joint / chance[:, None]
        return losses


def generate(
    to: str | Path,
    tokens_train: int,
    tokens_validation: int,
    parameters: LanguageParameters = LanguageParameters(),
    piece: int | None = None,
) -> Manifest:
    """Write two texts of a generated language, for training and validation, as a prepared folder
    without `tokenizer.json`, and return its manifest.

    `manifest.generated` holds the parameters and the mean of `optimal_losses` over the validation
    text, which is exactly the best possible predictor's loss on this text.

    With `piece`, the training text is made of independent texts of so many tokens, and
    `tokens_train` is rounded down to whole pieces.

    A second call with the same arguments writes nothing. It waits if the first is still at work,
    and starts over if the first was killed.

    Raises `UserError` if the folder holds something else or cannot be written.
    """
    folder = Path(to)
    sizes = {"train": tokens_train, "validation": tokens_validation}
    request: dict[str, Any] = {"language": asdict(parameters), "tokens": sizes}
    if piece is not None:
        request["piece"] = piece
    return prepared(folder, request, lambda _: _generate(folder, request, sizes, parameters))


def _generate(
    folder: Path, request: dict[str, Any], sizes: dict[str, int], parameters: LanguageParameters
) -> Manifest:
    language = Language(parameters)
    dtype = dtype_for_vocabulary(parameters.words)
    text, lengths = language.text(sizes["validation"], 1)
    write_tokens(folder / "validation", dtype, [(text, lengths)])
    piece = request.get("piece") or sizes["train"]
    parts = [0, *range(2, 1 + sizes["train"] // piece)]  # part 1 is the validation text
    write_tokens(folder / "train", dtype, (language.text(piece, part) for part in parts))
    splits = {split: record_of(folder / split, parameters.words) for split in sizes}
    losses = language.optimal_losses(text)
    optimum: dict[str, float | str] = {"optimal_validation_loss": float(losses.mean())}
    return Manifest(
        request=request,
        tokenizer=TokenizerRecord(kind="generated", vocabulary_size=parameters.words),
        splits=splits,
        licence="CC0-1.0",
        notes="generated by tst_study.data.preparation.generated_language; words are numbers",
        generated=GeneratedRecord(parameters=asdict(parameters), entropies=optimum),
    ).write(folder)


def _look_up(row: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a table, (GRAIN,), in which each index of `row` occurs in proportion to its
    probability. So an entry at a uniformly random place has the distribution `row`."""
    edges = np.round(np.cumsum(row) * GRAIN).astype(np.int64)
    return np.repeat(np.arange(row.size), np.diff(edges, prepend=0))
