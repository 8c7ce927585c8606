"""The data of a run: its stream, its held-out tokens, and what identifies them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config
from tst_study.data.held_out import HeldOut, held_out
from tst_study.data.integrity import check_sample, recorded_fingerprint
from tst_study.data.manifest import (
    TOKENIZER,
    Manifest,
    SplitRecord,
    held_out_prefix,
    manifest_of,
    token_prefix,
)
from tst_study.data.token_file import TokenFile
from tst_study.data.token_stream import Corpus, TokenStream
from tst_study.errors import UserError


@dataclass(frozen=True)
class _Split:
    """A token file, and the manifest beside it."""

    file: TokenFile
    manifest: Manifest

    @property
    def record(self) -> SplitRecord:
        return self.manifest.splits[self.file.prefix.name]

    @property
    def tokenizer(self) -> str | None:
        return self.manifest.tokenizer.fingerprint


def open_stream(config: Config) -> TokenStream:
    """The token stream of a run, a sample of whose files has been compared with their manifests.

    Raises `UserError` for files that are damaged or do not fit the config.
    """
    plan = plan_phases(config)
    corpora = []
    for corpus in config.data.corpora:
        split = _open(config, token_prefix(corpus.path))
        tokenizer = split.manifest.tokenizer
        # Runs look at different parts, so that together they look at all.
        sample = f"{config.study}/{config.name}/{config.seed}"
        check_sample(split.file, split.record, tokenizer.vocabulary_size, sample)
        corpora.append(Corpus(split.file, corpus.weight, tokenizer.end_of_document))
    return TokenStream(
        corpora,
        sequences_per_step=plan.sequences,
        sequence_length=plan.sequence_length,
        superposed_steps=plan.superposed_steps,
        superposed_length=plan.tokens_per_sequence("superposition"),
        seed=config.order_seed,
        bag_size=plan.bag_size,
        align_bags_to_documents=config.superposition.align_bags_to_documents,
        vocabulary_size=config.model.vocabulary_size,
    )


def fingerprints(config: Config) -> dict[str, Any]:
    """What identifies the data, without paths: part of a run's identity and of its record.

    Raises `UserError` as `fingerprints_and_held_out` does.
    """
    return fingerprints_and_held_out(config)[0]


def fingerprints_and_held_out(config: Config) -> tuple[dict[str, Any], HeldOut]:
    """Both, with every file opened once.

    Raises `UserError` where a file is missing, is not what its manifest describes, or has another
    tokenizer than the others.
    """
    corpora = [
        (corpus.weight, _open(config, token_prefix(corpus.path))) for corpus in config.data.corpora
    ]
    validation = _open_validation(config)
    tokenizer = _tokenizer_of([*(split for _, split in corpora), validation])
    held = _held_out(config, validation)
    found = {
        "corpora": [
            {
                "fingerprint": recorded_fingerprint(split.file.prefix, split.record),
                "weight": weight,
                "tokens": split.file.token_count,
            }
            for weight, split in corpora
        ],
        "validation": {
            "fingerprint": held.fingerprint,
            "tokens": held.predicted_tokens,
            **_known_optimum(validation.manifest),
        },
        "tokenizer": tokenizer,
    }
    return found, held


def _held_out(config: Config, split: _Split) -> HeldOut:
    data = config.data
    held = held_out(
        split.file, config.batch.sequence_length, data.held_out_tokens, taken=data.held_out
    )
    held.check_vocabulary(config.model.vocabulary_size)
    return held


def _tokenizer_of(splits: list[_Split]) -> str | None:
    """The fingerprint that all have in common; None where no manifest knows one."""
    ones = {s.tokenizer: s.manifest for s in splits if s.tokenizer}
    if len(ones) < 2:
        return next(iter(ones), None)
    names = {mark: manifest.tokenizer_name for mark, manifest in ones.items()}
    alike = len(set(names.values())) < len(names)
    folders = {s.tokenizer: s.file.prefix.parent for s in reversed(splits) if s.tokenizer}
    said = [f"{folders[mark]}: {names[mark]}{f' ({mark[:8]})' * alike}" for mark in names]
    first = folders[next(iter(ones))] / TOKENIZER
    raise UserError(
        f"data: corpora and validation were prepared with different tokenizers ({', '.join(said)});"
        f" prepare them with one, such as --tokenizer {first}"
    )


def _known_optimum(manifest: Manifest) -> dict[str, float]:
    """The loss that nothing can beat, where the language was generated and so is known."""
    if manifest.generated is None:
        return {}
    return {"optimal_nats_per_token": manifest.generated.entropies.optimal_validation_loss}


def _open_validation(config: Config) -> _Split:
    data = config.data
    if data.validation is not None:
        return _open(config, token_prefix(data.validation, "validation"))
    return _open(config, held_out_prefix(data.corpora[0].path))


def _open(config: Config, prefix: Path) -> _Split:
    split = _Split(TokenFile(prefix), manifest_of(prefix))
    words, known = config.model.vocabulary_size, split.manifest.tokenizer.vocabulary_size
    if known > words:
        raise UserError(
            f"data: {prefix}: has token ids up to {known - 1}, but model.vocabulary_size = "
            f"{words}; raise it or prepare the text with another tokenizer"
        )
    return split
