"""The data that a config names: its stream, its held-out tokens, and what identifies them."""

from __future__ import annotations

from typing import Any

from tst_study.config import Config
from tst_study.data.held_out import HeldOut, held_out
from tst_study.data.manifest import fingerprint, manifest_of, token_prefix
from tst_study.data.token_file import TokenFile
from tst_study.data.token_stream import Corpus, TokenStream
from tst_study.errors import UserError
from tst_study.phase_plan import plan_phases


def open_stream(config: Config) -> TokenStream:
    """The token stream of a run. Raises `UserError` for files that do not fit the config."""
    plan = plan_phases(config)
    return TokenStream(
        [_open_corpus(config, corpus.path, corpus.weight) for corpus in config.data.corpora],
        sequences_per_step=plan.sequences,
        sequence_length=plan.sequence_length,
        superposed_steps=plan.superposed_steps,
        superposed_length=plan.tokens_per_sequence("superposition"),
        seed=config.order_seed,
        bag_size=plan.bag_size,
        align_bags_to_documents=config.superposition.align_bags_to_documents,
    )


def open_held_out(config: Config) -> HeldOut:
    """The tokens that the run is evaluated on."""
    prefix = token_prefix(config.data.validation or config.data.corpora[0].path, "validation")
    _check_vocabulary(config, TokenFile(prefix), str(prefix))
    return held_out(prefix, config.batch.sequence_length, config.data.validation_tokens)


def fingerprints(config: Config) -> dict[str, Any]:
    """What identifies the data, without paths: part of a run's identity and of its record.

    Raises `UserError` where a file is missing or a tokenizer does not fit the others.
    """
    corpora = []
    tokenizers = set()
    for corpus in config.data.corpora:
        prefix = token_prefix(corpus.path)
        manifest = manifest_of(prefix)
        corpora.append(
            {
                "fingerprint": fingerprint(prefix),
                "weight": corpus.weight,
                "tokens": TokenFile(prefix).token_count,
            }
        )
        tokenizers.add(manifest.tokenizer.fingerprint if manifest else None)
    held = open_held_out(config)
    prefix = token_prefix(config.data.validation or config.data.corpora[0].path, "validation")
    manifest = manifest_of(prefix)
    tokenizers.add(manifest.tokenizer.fingerprint if manifest else None)
    known = tokenizers - {None}
    if len(known) > 1:
        raise UserError(
            "data: corpora and validation were prepared with different tokenizers "
            f"({', '.join(sorted(name[:8] for name in known if name))}); prepare them with one"
        )
    return {
        "corpora": corpora,
        "validation": {
            "fingerprint": held.fingerprint,
            "tokens": held.predicted_tokens,
            **_known_optimum(manifest.generated if manifest else None),
        },
        "tokenizer": next(iter(known), None),
    }


def _known_optimum(generated: dict[str, Any] | None) -> dict[str, float]:
    """The loss that nothing can beat, where the language was generated and so is known."""
    if generated is None:
        return {}
    return {"optimal_nats_per_token": generated["entropies"]["optimal_validation_loss"]}


def _open_corpus(config: Config, path: str, weight: float) -> Corpus:
    prefix = token_prefix(path)
    file = TokenFile(prefix)
    _check_vocabulary(config, file, path)
    manifest = manifest_of(prefix)
    end = manifest.tokenizer.end_of_document if manifest else None
    return Corpus(file, weight, end)


def _check_vocabulary(config: Config, file: TokenFile, path: str) -> None:
    manifest = manifest_of(file.prefix)
    if manifest is not None:
        highest = manifest.tokenizer.vocabulary_size - 1
    else:  # Megatron's own files say nothing of their tokenizer; a sample must do
        highest = int(file.tokens[:1_000_000].max())
    if highest >= config.model.vocabulary_size:
        raise UserError(
            f"data: {path}: has token ids up to {highest}, but model.vocabulary_size = "
            f"{config.model.vocabulary_size}; raise it or prepare the text with another tokenizer"
        )
