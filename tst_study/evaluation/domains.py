"""Held-out next-token loss by domain, with standard errors over documents.

A domain is a named held-out text. Documents are the sampling unit, because the tokens of one
document are not independent. If more than 256 documents are evaluated, the units are groups of
neighbouring ones (`held_out.MOST_DOCUMENTS`). The mean equals that of training's own evaluation if
both take the same tokens. They can do so only if the run has `data.held_out = "spread"`.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.data.held_out import HeldOut, held_out
from tst_study.data.manifest import Manifest, held_out_prefix, open_split, token_prefix
from tst_study.errors import UserError
from tst_study.held_out_loss import error_of_mean, evaluate
from tst_study.model.model import SuperposedGPT
from tst_study.parallel.process_groups import Ranks


def domains_of_run(run: TrainedRun) -> dict[str, Path]:
    """Return the prefixes of a run's held-out token files by name: `data.validation`, if the config
    names it, and the held-out text beside each corpus.

    A corpus without held-out text on this machine is left out, with a note on stderr. Raises
    `UserError` if the files that `data.validation` names are missing, or if no text is left.
    """
    data = run.config.data
    prefixes: dict[str, Path] = {}
    if data.validation is not None:
        prefixes["validation"] = token_prefix(data.validation, "validation")
    for corpus in data.corpora:
        name = Path(corpus.path).name
        try:
            prefixes[corpus.path if name in prefixes else name] = held_out_prefix(corpus.path)
        except UserError as error:
            print(f"left out: {error}", file=sys.stderr)
    if not prefixes:
        raise UserError(f"{run.folder}: its held-out text is not here; add --held-out NAME=FOLDER")
    return prefixes


def evaluate_domains(
    run: TrainedRun,
    model: SuperposedGPT,
    ranks: Ranks,
    domains: Mapping[str, str | Path],
    tokens: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[dict[str, Any]]:
    """Yield a result for each domain: task, data, metrics, samples, details and seconds of a
    `TaskResult`, a row of `evals.jsonl`.

    The metrics are `nats_per_token` and, if the number of bytes is known, `bits_per_byte`, each
    with its standard error (`_stderr`) if there are at least two documents.

    Args:
        model: with the run's weights.
        domains: token-file prefixes by name.
        tokens: about how many tokens of each text to evaluate, spread evenly over it; all of them
            by default.
        say: called with messages on the progress.

    Raises:
        UserError: a text is missing, damaged, without a document of two tokens, or made with a
            tokenizer that is known to differ from the run's or has more ids than the model.
    """
    for name, path in domains.items():
        began = time.perf_counter()
        split = open_split(path)
        _check_tokenizer(run, name, split.manifest)
        held = held_out(split, run.config.batch.sequence_length, tokens, name)
        loss = evaluate(model, held, ranks, partial(_say_how_far, say, held))
        assert loss.document_losses is not None
        counts = torch.tensor(loss.document_tokens, dtype=torch.float64)
        losses = torch.tensor(loss.document_losses, dtype=torch.float64)
        unit = "document group" if held.in_groups else "document"
        values = {"": loss.nats_per_token}
        if len(counts) > 1:
            values["_stderr"] = error_of_mean(losses * counts, counts)
        metrics = {f"nats_per_token{end}": value for end, value in values.items()}
        for end, value in values.items():
            bits = held.bits_per_byte(value)
            if bits is not None:
                metrics[f"bits_per_byte{end}"] = bits
        yield {
            "task": "held_out",
            "data": f"{name}-{held.fingerprint[:16]}",
            "metrics": metrics,
            "samples": len(counts),
            "details": {"tokens": held.predicted_tokens, "unit": unit},
            "seconds": time.perf_counter() - began,
        }


def _say_how_far(say: Callable[[str], None], held: HeldOut, tokens: int) -> None:
    say(f"evaluating {held.name}: {tokens:,} of {held.predicted_tokens:,} held-out tokens")


def _check_tokenizer(run: TrainedRun, name: str, manifest: Manifest) -> None:
    """Raise `UserError` if ids may lie outside the model's vocabulary, or if both tokenizers are
    known and differ, because then the same ids would mean other words."""
    ours, theirs = run.header["data"]["tokenizer"], manifest.tokenizer.fingerprint
    larger = manifest.tokenizer.vocabulary_size > run.model.vocabulary_size
    if larger or (ours and theirs and theirs != ours):
        raise UserError(
            f"{name}: was prepared with another tokenizer ({manifest.tokenizer_name}, sha256 "
            f"{str(theirs)[:12]}; the run's is {str(ours)[:12]}); prepare the text with the run's "
            "tokenizer.json"
        )
