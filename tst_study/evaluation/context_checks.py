"""Does a model that was trained on bags read word order, copy, and use long contexts?

The paper leaves it open; these checks ask it of any checkpoint, baseline or not, by next-token loss
alone. Each compares two readings of the same tokens, so that how well a model knows the text does
not matter, and each has a standard error over its sequences.

| task | sequences | what is measured |
| --- | --- | --- |
| `loss_by_position` | held-out text, up to 4 L | loss in each octave of positions |
| `word_order` | held-out text, L | loss once the context is shuffled within bags, minus before |
| `copied_spans` | held-out text, L | loss on a span that was not read before, minus if it was |
| `induction` | random tokens, twice | loss on the first half minus loss on the second |
| `code` | Python's standard library | next-token loss on text where order is everything |

L is the length of a training sequence.
"""

import hashlib
import math
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError
from tst_study.evaluation.domains import mean_per_token
from tst_study.evaluation.trained_model import Ids, TrainedModel
from tst_study.huggingface.tokenizer_files import RunTokenizer
from tst_study.superposition.loss_kinds import IGNORE

LONGEST = 4
"""Times the training length."""
LEAST_SEQUENCES, MOST_SEQUENCES, TOKENS = 64, 256, 65_536
"""What each check reads: the fewest and most sequences, and about how many tokens."""
BAG_SIZES = (2, 4, 8, 16)
CODE = (
    *("bisect", "calendar", "csv", "difflib", "fractions", "heapq"),
    *("shlex", "statistics", "string", "textwrap", "timeit", "tokenize"),
)
"""Modules of the standard library: on every machine, in no corpus of books."""


def context_checks(
    trained: TrainedModel, prefix: str | Path, tokenizer: RunTokenizer | None
) -> Iterator[dict[str, Any]]:
    """Task, data, metrics, samples, details and seconds of a `TaskResult`, check by check.

    Args:
        prefix: held-out token file.
        tokenizer: the run's; without one there is no `code`.

    Raises:
        UserError: the held-out text is too short, or not of the model's vocabulary.
    """
    file = TokenFile(prefix)
    length = trained.run.sequence_length
    most = max(LEAST_SEQUENCES, min(MOST_SEQUENCES, TOKENS // (LONGEST * length)))
    checks: list[Callable[[], dict[str, Any]]] = [
        lambda: loss_by_position(trained, text_windows(file, LONGEST * length, most)),
        lambda: word_order(trained, text_windows(file, length, most)),
        lambda: copied_spans(trained, text_windows(file, length, most)),
        lambda: induction(trained, text_windows(file, length, most)),
    ]
    if tokenizer is not None:
        checks.append(lambda: code(trained, tokenizer))
    for check in checks:
        began = time.perf_counter()
        found = check()
        yield {**found, "seconds": time.perf_counter() - began}


def loss_by_position(trained: TrainedModel, windows: Ids) -> dict[str, Any]:
    """windows (n, l + 1). Octaves of the number of tokens read: 1, 2, to 4, to 8, …"""
    losses = _losses(trained, windows)
    read = np.arange(1, losses.shape[1] + 1)
    octaves = np.ceil(np.log2(read)).astype(int)
    by_sequence = np.stack([losses[:, octaves == o].mean(1) for o in np.unique(octaves)], axis=1)
    means, errors = _mean_and_error(by_sequence)
    metrics: dict[str, float | None] = {}
    length = trained.run.sequence_length
    for name, high in (("training", 1), ("double", 2), ("quadruple", 4)):
        inside = (read > 0.5 * high * length) & (read <= high * length)
        if inside.any():
            metrics |= _measure(f"nats_to_{name}_length", losses[:, inside].mean(1))
    details = {
        "training_length": length,
        "tokens_read": [int(min(2**o, read[-1])) for o in np.unique(octaves)],
        "nats": _rounded(means),
        "nats_stderr": _rounded(errors),
        "nats_of_sequences": _rounded(by_sequence),
    }
    return _found("loss_by_position", windows, metrics, details)


def word_order(trained: TrainedModel, windows: Ids) -> dict[str, Any]:
    """windows (n, l + 1). The first token of each bag is predicted from all bags before it, as they
    are and with the tokens of each bag shuffled: the difference is what their order told."""
    metrics: dict[str, float | None] = {}
    details: dict[str, Any] = {}
    own = trained.run.plan["bag_size"]
    for size in sorted({*BAG_SIZES, own} - {1}):
        count = (windows.shape[1] - 1) // size
        if count < 2:
            continue
        bags = windows[:, : count * size].reshape(len(windows), count, size)
        # A generator per size: which sizes are measured depends on the run, the shuffles do not.
        shuffled = np.random.default_rng(size).permuted(bags, axis=2).reshape(len(windows), -1)
        targets = windows[:, size : count * size + 1 : size]
        labels = np.full(shuffled.shape, IGNORE)
        labels[:, size - 1 :: size] = targets
        plain, mixed = (
            trained.losses(ids, labels).sum(1, dtype=np.float64) / targets.shape[1]
            for ids in (windows[:, : count * size], shuffled)
        )
        metrics |= _measure(f"order_gain_bags_of_{size}", mixed - plain)
        details[f"bags_of_{size}"] = {
            "nats": float(plain.mean()),
            "nats_shuffled": float(mixed.mean()),
            "order_gain_of_sequences": _rounded(mixed - plain),
        }
    return _found("word_order", windows, metrics, details)


def copied_spans(trained: TrainedModel, windows: Ids) -> dict[str, Any]:
    """windows (n, l + 1). A span ends the sequence; it did or did not open it as well."""
    span = (windows.shape[1] - 1) // 3
    if span < 2:
        raise UserError(f"copied spans: sequences of {windows.shape[1] - 1} tokens are too short")
    other, between, last = (windows[:, i * span : (i + 1) * span] for i in range(3))
    first_time = np.concatenate([other, between, last], axis=1)
    second_time = np.concatenate([last, between, last], axis=1)
    # The span's own first token cannot be known from the copy.
    new, known = (
        _losses(trained, ids)[:, -(span - 1) :].mean(1) for ids in (first_time, second_time)
    )
    means = {"nats_new": float(new.mean()), "nats_copied": float(known.mean())}
    return _gain("copied_spans", windows, "copy_gain", new - known, {"span": span, **means})


def induction(trained: TrainedModel, windows: Ids) -> dict[str, Any]:
    """windows (n, l + 1), of which only the words count: drawn at random, then repeated."""
    half = (windows.shape[1] - 1) // 2
    generator = np.random.default_rng(0)
    drawn = generator.choice(windows.ravel(), size=(len(windows), half))
    losses = _losses(trained, np.concatenate([drawn, drawn], axis=1))
    # Neither half's first token has anything to be known from.
    first, second = losses[:, : half - 1].mean(1), losses[:, half:].mean(1)
    means = {"nats_first": float(first.mean()), "nats_repeated": float(second.mean())}
    return _gain("induction", windows, "repeat_gain", first - second, {"half": half, **means})


def code(trained: TrainedModel, tokenizer: RunTokenizer) -> dict[str, Any]:
    """Files are the sampling units; each is read in pieces of the training length."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = [(folder / f"{name}.py").read_text(encoding="utf8") for name in CODE]
    length = trained.run.sequence_length
    sums, counts = [], []
    for ids in tokenizer.tokenizer.encode_batch(texts):
        # As in training, a document begins after the end of another.
        rows = -(-len(ids) // length)
        labels = np.full(rows * length, IGNORE)
        labels[: len(ids)] = ids
        line = np.full_like(labels, tokenizer.end_of_document)
        line[1 : len(ids)] = ids[:-1]
        losses = trained.losses(line.reshape(rows, -1), labels.reshape(rows, -1))
        sums.append(float(losses.sum(dtype=np.float64)))
        counts.append(len(ids))
    mean, error = mean_per_token(np.array(sums), np.array(counts))
    assert error is not None
    total = sum(counts)
    bits = total / sum(len(text.encode()) for text in texts) / math.log(2)
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()
    return {
        "task": "code",
        "data": f"python-standard-library-{digest[:16]}",
        "metrics": {
            "nats_per_token": mean,
            "nats_per_token_stderr": error,
            "bits_per_byte": mean * bits,
            "bits_per_byte_stderr": error * bits,
        },
        "samples": len(counts),
        "details": {"tokens": total, "unit": "file", "files": list(CODE)},
    }


def text_windows(file: TokenFile, length: int, most: int) -> Ids:
    """(n, length + 1) ids, n ≤ most: pieces of held-out text, spread over its documents.

    Each lies inside one document where enough documents are that long, else anywhere. Raises
    `UserError` where there are not two.
    """
    enough = min(most, 16)
    lengths = np.diff(file.document_starts(0, file.document_count + 1))
    starts = file.document_starts(0, file.document_count)
    places = [
        int(start + piece * (length + 1))
        for start, tokens in zip(starts, lengths, strict=True)
        for piece in range(tokens // (length + 1))
    ]
    if len(places) < enough:
        places = list(range(0, file.token_count - length, length + 1))
    if len(places) < 2:
        raise UserError(
            f"{file.prefix}: {file.token_count:,} tokens are too few for two sequences of "
            f"{length + 1:,}; name a longer held-out text"
        )
    chosen = np.unique(np.linspace(0, len(places) - 1, min(most, len(places))).round().astype(int))
    return np.stack([file.tokens[places[i] : places[i] + length + 1] for i in chosen]).astype(
        np.int64
    )


def _losses(trained: TrainedModel, windows: Ids) -> NDArray[np.float64]:
    """(n, l + 1) ids -> (n, l) nats of all but the first."""
    return trained.losses(windows[:, :-1], windows[:, 1:]).astype(np.float64)


def _mean_and_error(values: NDArray[np.float64]) -> tuple[Any, Any]:
    """Over the first axis."""
    return values.mean(0), values.std(0, ddof=1) / math.sqrt(len(values))


def _measure(name: str, values: NDArray[np.float64]) -> dict[str, float | None]:
    mean, error = _mean_and_error(values)
    return {name: float(mean), f"{name}_stderr": float(error)}


def _gain(
    task: str, windows: Ids, name: str, gains: NDArray[np.float64], details: dict[str, Any]
) -> dict[str, Any]:
    """What one reading gains over another, sequence by sequence."""
    details = {**details, f"{name}_of_sequences": _rounded(gains)}
    return _found(task, windows, _measure(name, gains), details)


def _rounded(values: NDArray[np.float64]) -> Any:
    return np.round(values, 5).tolist()


def _found(
    task: str, windows: Ids, metrics: dict[str, float | None], details: dict[str, Any]
) -> dict[str, Any]:
    digest = hashlib.sha256(np.ascontiguousarray(windows).tobytes()).hexdigest()
    return {
        "task": task,
        "data": f"{windows.shape[0]}x{windows.shape[1]}-{digest[:16]}",
        "metrics": metrics,
        "samples": len(windows),
        "details": {"unit": "sequence", **details},
    }
