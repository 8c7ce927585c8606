"""A generated language, whose best possible loss is known.

A document has one topic, drawn evenly. Every word belongs to one class; classes follow each other
as a Markov chain that each topic bends towards the few classes it favours; within its class a word
is drawn by Zipf's law. So the next word depends on the last word's class and on the topic, and the
topic shows only in many words taken together, which superposition averages over a bag.

Words are the tokens. No token ends a document: the topic just changes, each word being a
document's last with the same small probability.
"""

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.data.integrity import record_of
from tst_study.data.manifest import GeneratedRecord, Manifest, TokenizerRecord
from tst_study.data.preparation.prepared_folder import prepared
from tst_study.data.token_file import dtype_for_vocabulary, write_tokens

GRAIN = 4096
"""Class transitions are multiples of 1/4096, so that drawing one is a look-up."""


@dataclass(frozen=True)
class LanguageParameters:
    """All that defines a language; the same parameters are the same language."""

    words: int = 2048
    """A multiple of `classes`."""
    classes: int = 64
    topics: int = 16
    document_tokens: float = 300.0
    """Mean tokens per document."""
    zipf_exponent: float = 1.0
    transition_concentration: float = 1.0
    """Dirichlet parameter of the rows of class transitions; where it is small, few classes follow a
    class."""
    favoured_share: float = 0.1
    """Probability that a topic favours a class, drawn for each pair of them."""
    favour: float = 50.0
    """Factor by which a topic multiplies the probabilities of the classes that it favours, before
    each row of transitions is normalised again."""
    seed: int = 0


class Language:
    """A language, which generates texts and the losses of the best possible predictor on them."""

    def __init__(self, parameters: LanguageParameters) -> None:
        self.parameters = parameters
        words, classes, topics = parameters.words, parameters.classes, parameters.topics
        per_class = words // classes
        draw = np.random.default_rng([parameters.seed, 0])
        concentration = np.full(classes, parameters.transition_concentration)
        rows = draw.dirichlet(concentration, size=classes)
        # A little of the even distribution keeps every class within reach of every other.
        rows = 0.95 * rows + 0.05 / classes
        favoured = draw.random((topics, classes)) < parameters.favoured_share
        bent = rows[None] * np.where(favoured, parameters.favour, 1.0)[:, None, :]
        bent /= bent.sum(axis=2, keepdims=True)
        self._next_class = np.stack([[_look_up(row) for row in of_topic] for of_topic in bent])
        counts = [[np.bincount(row, minlength=classes) for row in t] for t in self._next_class]
        self.transitions: NDArray[np.float64] = np.array(counts) / GRAIN
        """(topics, classes, classes): the probability of the next word's class (last axis) after a
        word's class (middle axis), given the next word's topic."""
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
            part: which of the language's texts; different parts are independent.
        """
        parameters = self.parameters
        draw = np.random.default_rng([parameters.seed, 1 + part])
        ends = np.flatnonzero(draw.random(tokens) < 1 / parameters.document_tokens) + 1
        lengths = np.diff(np.concatenate([[0], ends[ends < tokens], [tokens]]))
        topics = np.repeat(draw.integers(parameters.topics, size=lengths.size), lengths)
        # A Markov chain cannot be vectorised along itself; a look-up per token is fast enough.
        table = self._next_class.ravel()
        state = int(draw.choice(parameters.classes, p=self.stationary.sum(axis=0)))
        tickets = topics * (parameters.classes * GRAIN) + draw.integers(GRAIN, size=tokens)
        classes = np.empty(tokens, dtype=np.int64)
        classes[0] = state
        steps = tickets.tolist()
        following = table.tolist()
        for place in range(1, tokens):
            state = following[steps[place] + state * GRAIN]
            classes[place] = state
        cumulative = np.cumsum(self._zipf)
        ranks = np.searchsorted(cumulative[:-1], draw.random(tokens), side="right")
        return self._word_of_rank[classes, ranks], lengths.astype(np.int32)

    @cached_property
    def topic_changes(self) -> NDArray[np.float64]:
        """(topics, topics): the probability of the next word's topic (column) given a word's topic
        (row)."""
        topics, change = self.parameters.topics, 1 / self.parameters.document_tokens
        return (1 - change) * np.eye(topics) + change / topics

    @cached_property
    def stationary(self) -> NDArray[np.float64]:
        """(topics, classes): the share of words of this topic and class in the long run."""
        shape = self.parameters.topics, self.parameters.classes
        size = shape[0] * shape[1]
        # Next (topic u, class d) after (t, c): the topic changes, then u moves the class.
        step = np.einsum("tu,ucd->tcud", self.topic_changes, self.transitions).reshape(size, size)
        balance = step.T - np.eye(size)
        balance[-1] = 1.0  # one equation is redundant; shares sum to one instead
        share = np.linalg.solve(balance, np.eye(size)[-1]).clip(0)
        result: NDArray[np.float64] = (share / share.sum()).reshape(shape)
        return result

    def optimal_losses(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """−ln of the probability that the best possible predictor, which knows the language, gives
        to each token but the first.

        It is found by the forward algorithm, which updates the probability of each topic with every
        word. The mean over a long text converges to the language's entropy rate.

        Args:
            tokens: words, (T,).

        Returns:
            (T − 1,) nats.
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
) -> Manifest:
    """Write texts of a generated language as a prepared folder (without `tokenizer.json`).

    `manifest.generated` holds the parameters, the mean of `optimal_losses` over the validation text
    and its standard error. That mean is the best possible predictor's loss on this very text; as an
    estimate of the language's entropy rate it has the standard error.

    A second call with the same request does nothing. It waits if this one is still at work, and
    begins anew if this one was killed.

    Raises `UserError` where the folder holds something else or the disk is full.
    """
    folder = Path(to)
    sizes = {"train": tokens_train, "validation": tokens_validation}
    request: dict[str, Any] = {"language": asdict(parameters), "tokens": sizes}
    return prepared(folder, request, lambda _: _generate(folder, request, sizes, parameters))


def _generate(
    folder: Path, request: dict[str, Any], sizes: dict[str, int], parameters: LanguageParameters
) -> Manifest:
    language, splits = Language(parameters), {}
    for part, (split, tokens) in enumerate(sizes.items()):
        text, lengths = language.text(tokens, part)
        write_tokens(folder / split, dtype_for_vocabulary(parameters.words), [(text, lengths)])
        splits[split] = record_of(folder / split, parameters.words)
    losses = language.optimal_losses(text)
    entropies: dict[str, float | str] = {
        "optimal_validation_loss": float(losses.mean()),
        "unit": "nats per token",
        "optimal_validation_loss_standard_error": _standard_error(losses),
    }
    return Manifest(
        request=request,
        tokenizer=TokenizerRecord(kind="generated", vocabulary_size=parameters.words),
        splits=splits,
        licence="CC0-1.0",
        notes="generated by tst_study.data.preparation.generated_language; words are numbers",
        generated=GeneratedRecord(parameters=asdict(parameters), entropies=entropies),
    ).write(folder)


def _look_up(row: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a table, (GRAIN,), in which each index occurs in proportion to its probability, so
    that an evenly drawn entry has the row's distribution."""
    edges = np.round(np.cumsum(row) * GRAIN).astype(np.int64)
    return np.repeat(np.arange(row.size), np.diff(edges, prepend=0))


def _standard_error(losses: NDArray[np.float64]) -> float:
    """Estimate the standard error of a mean of correlated losses from the means of 50 stretches; 0
    for a single loss."""
    stretches = np.array([stretch.mean() for stretch in np.array_split(losses, 50) if stretch.size])
    return float(stretches.std(ddof=1) / math.sqrt(stretches.size)) if stretches.size > 1 else 0.0
