"""Opens the token stream and the held-out tokens of a run, and computes the fingerprints that
identify them.

Training opens both. Code that only needs to know which run a config describes, such as the planner
of studies, takes the fingerprints alone.
"""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tst_study.atomic_files import read_json
from tst_study.config.architecture import check_same_model
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config
from tst_study.config.tensor_names import weight_files
from tst_study.data.held_out import HeldOut, held_out
from tst_study.data.integrity import (
    check_sample,
    check_tokenizer,
    recorded_fingerprint,
    sampled_sha256,
)
from tst_study.data.manifest import TOKENIZER, Split, held_out_prefix, open_split, token_prefix
from tst_study.data.token_stream import TokenStream, WeightedFile
from tst_study.errors import UserError


def open_stream(config: Config) -> TokenStream:
    """Open the token stream of a run, and compare a sample of each training file, and the tokenizer
    beside it, with its manifest.

    Raises `UserError` for files that are missing, do not fit the config or are too short for it,
    and for damage that lies in the sample.
    """
    corpora = []
    for corpus in config.data.corpora:
        split = _open(config, token_prefix(corpus.path))
        # Different runs of a study sample different blocks, so that together they check more.
        check_tokenizer(split.file.prefix.parent, split.manifest)
        check_sample(split, f"{config.study}/{config.name}/{config.seed}")
        corpora.append(WeightedFile(split.file, corpus.weight))
    return TokenStream(corpora, plan_phases(config), config.order_seed)


def fingerprints(config: Config) -> dict[str, Any]:
    """Return the fingerprints of a run's data, which enter the run's id and its record. They do not
    depend on where the files lie.

    Raises `UserError` as `fingerprints_and_held_out` does.
    """
    return fingerprints_and_held_out(config)[0]


def fingerprints_and_held_out(config: Config) -> tuple[dict[str, Any], HeldOut]:
    """Return the fingerprints of a run's data, and its held-out text, cut into sequences.

    The fingerprints are those of the corpora (with their weights in the mixture and their numbers
    of tokens), of the held-out text and the tokenizer, and of the model's initial weights, if the
    run reads these from files. One function returns both, so that no token file is opened twice.

    Raises `UserError` for a token file that is missing, is not what its manifest describes, does
    not fit the config, is named twice, or was made with another tokenizer than the others; for a
    held-out text without a document of two tokens (unless `data.held_out` is "beginning"); and for
    a `fork_from` that names no weights, or those of another model or of other tokens.
    """
    data, length = config.data, config.batch.sequence_length
    splits = [_open(config, token_prefix(corpus.path)) for corpus in data.corpora]
    if data.validation is not None:
        prefix = token_prefix(data.validation, "validation")
    else:
        prefix = held_out_prefix(data.corpora[0].path)
    validation = _open(config, prefix)
    tokenizer = _tokenizer_of([*splits, validation])
    for number, split in enumerate([*splits, validation]):
        if split.record.fingerprint in [before.record.fingerprint for before in splits[:number]]:
            problem = "is named twice, or is both training and held-out text; leave one out"
            raise UserError(f"data: {split.file.prefix}: {problem}")
    held = held_out(validation, length, data.held_out_tokens, taken=data.held_out)
    of_held_out: dict[str, Any] = {"fingerprint": held.fingerprint, "tokens": held.predicted_tokens}
    if validation.manifest.generated is not None:  # then the least possible loss is known
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
    return identified | _initial_weights(config, splits[0]), held


def _initial_weights(config: Config, corpus: Split) -> dict[str, str]:
    """Return the fingerprint of the weights that the run begins with, under its key; an empty
    dictionary if the run draws them from its seed."""
    folder = config.weights_folder
    if folder is None:
        return {}
    check_same_model(folder, config.model.model_dump())
    place = corpus.file.prefix.parent / TOKENIZER
    schema = TypeAdapter(dict[str, Any])
    known = [read_json(path, schema) for path in (place, folder / TOKENIZER)]
    ours, theirs = ((one or {}).get("model", {}).get("vocab") for one in known)
    if corpus.manifest.tokenizer.fingerprint and ours and theirs and ours != theirs:
        remedy = f"prepare the text with --tokenizer {folder}"
        raise UserError(f"fork_from: {folder}: has another vocabulary than {place}; {remedy}")
    files = {*weight_files(folder, config.model).values()}
    return {"initial_weights": sampled_sha256(sorted(files))}


def _tokenizer_of(splits: list[Split]) -> str | None:
    """Return the fingerprint of the tokenizer that all splits share; None if no manifest knows it.

    Raises `UserError` if two manifests name different ones.
    """
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
    """Open a split, and check that the model's vocabulary is at least as large as that of the
    split's tokenizer."""
    split = open_split(prefix)
    words, known = config.model.vocabulary_size, split.manifest.tokenizer.vocabulary_size
    if known > words:
        raise UserError(
            f"data: {prefix}: has token ids up to {known - 1}, but model.vocabulary_size = "
            f"{words}; raise it or prepare the text with another tokenizer"
        )
    return split
