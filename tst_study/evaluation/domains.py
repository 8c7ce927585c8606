"""Held-out next-token loss by domain, with standard errors over documents.

Tokens of one document are not independent, and documents are what a domain is a sample of. The mean
is the same as training's own evaluation of the same tokens.
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.data.held_out import HeldOut, held_out
from tst_study.data.manifest import held_out_prefix, manifest_of, token_prefix
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError
from tst_study.evaluation.trained_model import TrainedModel
from tst_study.superposition.loss_kinds import IGNORE


def domains_of_run(run: TrainedRun) -> dict[str, Path]:
    """Held-out token files by name: the run's own, and that of each of its corpora; says which of
    them are left out, as they are not on this machine.

    Raises `UserError` where none of them is on this machine.
    """
    data = run.config.data
    named = [("validation", data.validation)] if data.validation else []
    names = [*dict(named), *(Path(corpus.path).name for corpus in data.corpora)]
    for corpus in data.corpora:
        name = Path(corpus.path).name
        named.append((name if names.count(name) == 1 else corpus.path, corpus.path))
    found: dict[str, Path] = {}
    missing: list[UserError] = []
    for name, path in named:
        own = path == data.validation
        try:
            found[name] = token_prefix(path, "validation") if own else held_out_prefix(path)
        except UserError as error:
            missing.append(error)
    if not found:
        raise missing[0]
    for one in missing:
        print(f"left out: {one}", file=sys.stderr)
    return found


def evaluate_domains(
    trained: TrainedModel, domains: Mapping[str, str | Path], tokens: int | None = None
) -> Iterator[dict[str, Any]]:
    """Task, data, metrics, samples, details and seconds of a `TaskResult`, domain by domain.

    Args:
        domains: token-file prefixes (or prepared folders) by name.
        tokens: about as many of each, taken evenly; all of them by default.

    Raises:
        UserError: a text is missing, or of another tokenizer than the run's.
    """
    for name, path in domains.items():
        began = time.perf_counter()
        file = TokenFile(token_prefix(path, "validation"))
        _check_tokenizer(trained.run, name, file)
        held = held_out(file, trained.run.sequence_length, tokens, name)
        held.check_vocabulary(trained.run.model.vocabulary_size)
        losses = trained.losses(held.ids, held.labels)
        metrics, documents = _by_document(losses, held)
        for measure, value in list(metrics.items()):
            bits = held.bits_per_byte(value)
            if bits is not None:
                metrics[measure.replace("nats_per_token", "bits_per_byte")] = bits
        yield {
            "task": "held_out",
            "data": f"{name}-{held.fingerprint[:16]}",
            "metrics": metrics,
            "samples": documents,
            "details": {"tokens": held.predicted_tokens, "unit": "document"},
            "seconds": time.perf_counter() - began,
        }


def _check_tokenizer(run: TrainedRun, name: str, file: TokenFile) -> None:
    """Where both are known: ids of another tokenizer may all lie in the run's vocabulary."""
    manifest, ours = manifest_of(file.prefix), run.header["data"]["tokenizer"]
    theirs = manifest.tokenizer.fingerprint
    if ours and theirs and theirs != ours:
        raise UserError(
            f"{name}: was prepared with another tokenizer ({manifest.tokenizer_name}, sha256 "
            f"{theirs[:12]}; the run's is {ours[:12]}); prepare the text with the run's "
            "tokenizer.json"
        )


def _by_document(losses: NDArray[np.float32], held: HeldOut) -> tuple[dict[str, float], int]:
    """Mean with its standard error over documents, and their number."""
    assert held.documents is not None
    sums = np.bincount(held.documents, losses.sum(1, dtype=np.float64))
    counts = np.bincount(held.documents, (held.labels != IGNORE).sum(1))
    mean, error = mean_per_token(sums, counts)
    metrics = {"nats_per_token": mean}
    if error is not None:
        metrics["nats_per_token_stderr"] = error
    return metrics, len(sums)


def mean_per_token(sums: NDArray[Any], counts: NDArray[Any]) -> tuple[float, float | None]:
    """Mean of tokens that come in units, and its standard error by the ratio estimator.

    `sums`, `counts` (n,): nats and tokens of each unit. No error for a single unit.
    """
    total, number = float(counts.sum()), len(sums)
    mean = float(sums.sum()) / total
    if number == 1:
        return mean, None
    variance = float(np.square(sums - mean * counts).sum()) * number / (number - 1)
    return mean, math.sqrt(variance) / total
