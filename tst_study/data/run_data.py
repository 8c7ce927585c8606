"""The data of a run: its stream, its held-out tokens, and their fingerprints."""

from pathlib import Path
from typing import Any

from tst_study.config.architecture import check_same_model
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config
from tst_study.data.held_out import HeldOut, held_out
from tst_study.data.integrity import check_sample, recorded_fingerprint, sampled_sha256
from tst_study.data.manifest import TOKENIZER, Split, held_out_prefix, open_split, token_prefix
from tst_study.data.token_stream import Corpus, TokenStream
from tst_study.errors import UserError


def open_stream(config: Config) -> TokenStream:
    """Open the token stream of a run, and compare a sample of its files with their manifests.

    Raises `UserError` for files that are missing, damaged or do not fit the config.
    """
    plan = plan_phases(config)
    corpora = []
    for corpus in config.data.corpora:
        split = _open(config, token_prefix(corpus.path))
        # The runs of a study sample different blocks, so that together they check more.
        check_sample(split, f"{config.study}/{config.name}/{config.seed}")
        corpora.append(Corpus(split.file, corpus.weight))
    return TokenStream(
        corpora,
        sequences_per_step=plan.sequences,
        sequence_length=plan.sequence_length,
        superposed_steps=plan.superposed_steps,
        superposed_length=plan.tokens_per_sequence("superposition"),
        seed=config.order_seed,
    )


def fingerprints(config: Config) -> dict[str, Any]:
    """Identify a run's data, independently of where it lies, for the run's identity and record.

    Raises `UserError` as `fingerprints_and_held_out` does.
    """
    return fingerprints_and_held_out(config)[0]


def fingerprints_and_held_out(config: Config) -> tuple[dict[str, Any], HeldOut]:
    """Identify the data, and the weights that the run begins with unless its seed draws them, and
    cut the held-out text. Every token file is opened once.

    Raises `UserError` where a file is missing, is not what its manifest describes, does not fit the
    config, or has another tokenizer than the others; and where `fork_from` names no weights, or
    those of another model.
    """
    data, length = config.data, config.batch.sequence_length
    splits = [_open(config, token_prefix(corpus.path)) for corpus in data.corpora]
    if data.validation is not None:
        prefix = token_prefix(data.validation, "validation")
    else:
        prefix = held_out_prefix(data.corpora[0].path)
    validation = _open(config, prefix)
    tokenizer = _tokenizer_of([*splits, validation])
    held = held_out(validation, length, data.held_out_tokens, taken=data.held_out)
    of_held_out: dict[str, Any] = {"fingerprint": held.fingerprint, "tokens": held.predicted_tokens}
    if validation.manifest.generated is not None:  # the least possible loss is known
        optimum = validation.manifest.generated.entropies["optimal_validation_loss"]
        of_held_out["optimal_nats_per_token"] = optimum
    corpora = [
        {
            "fingerprint": recorded_fingerprint(split),
            "weight": corpus.weight,
            "tokens": split.file.token_count,
        }
        for corpus, split in zip(data.corpora, splits, strict=True)
    ]
    identified = {"corpora": corpora, "validation": of_held_out, "tokenizer": tokenizer}
    return identified | _initial_weights(config), held


def _initial_weights(config: Config) -> dict[str, str]:
    """Fingerprint the weights that the run begins with, unless its seed draws them."""
    folder = config.weights_folder
    if folder is None:
        return {}
    check_same_model(folder, config.model.model_dump())
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"fork_from: {folder} has no .safetensors; save the model in that form")
    return {"initial_weights": sampled_sha256(files)}


def _tokenizer_of(splits: list[Split]) -> str | None:
    """Return the tokenizer fingerprint that all splits share; None where no manifest knows one."""
    known = {split.manifest.tokenizer.fingerprint: split for split in splits}
    known.pop(None, None)
    if len(known) < 2:
        return next(iter(known), None)
    first, second, *_ = known.values()
    raise UserError(
        f"data: {first.file.prefix} and {second.file.prefix} were prepared with different "
        f"tokenizers ({first.manifest.tokenizer_name}, {second.manifest.tokenizer_name}); prepare "
        f"them with one, such as --tokenizer {first.file.prefix.parent / TOKENIZER}"
    )


def _open(config: Config, prefix: Path) -> Split:
    split = open_split(prefix)
    words, known = config.model.vocabulary_size, split.manifest.tokenizer.vocabulary_size
    if known > words:
        raise UserError(
            f"data: {prefix}: has token ids up to {known - 1}, but model.vocabulary_size = "
            f"{words}; raise it or prepare the text with another tokenizer"
        )
    return split
