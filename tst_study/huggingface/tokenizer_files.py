"""Finds the tokenizer with which a run's corpus was prepared, and makes the contents of the files
from which transformers reads it in an export."""

import json
from pathlib import Path

from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.data.manifest import TOKENIZER, token_prefix
from tst_study.data.preparation.text_tokenizers import Tokenizer, read_tokenizer
from tst_study.errors import UserError


def tokenizer_of_run(run: TrainedRun, given: str | Path | None = None) -> Tokenizer | None:
    """Find the tokenizer of a run's corpora, and return it as `plain` makes it.

    `given`: a tokenizer.json or a folder with one, to use instead of the one beside the first
    corpus. The corpora name no tokenizer if their words are generated, or if their token files came
    without one. In that case `given` is taken unchecked; without `given`, None is returned.

    Raises `UserError` if the tokenizer cannot be found or used, or if it is not the run's.
    """
    fingerprint = run.header["data"]["tokenizer"]
    if fingerprint is None and given is None:
        return None
    path = _place(run) if given is None else Path(given)
    tokenizer = read_tokenizer(path)
    if fingerprint is not None and tokenizer.fingerprint != fingerprint:
        raise UserError(
            f"{path}: is not the tokenizer of {run.folder} (sha256 {tokenizer.fingerprint[:12]}, "
            f"the run's is {fingerprint[:12]}); name the run's with --tokenizer"
        )
    return plain(tokenizer)


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """Reduce a tokenizer to what the preparation of a corpus uses: how it splits text into tokens.

    This drops truncation, padding, and a post-processor that puts special tokens around a text. A
    tokenizer without any of these is returned as it is.
    """
    adds = bool(tokenizer.library.encode("").ids)
    description = json.loads(tokenizer.json)
    left_out = [key for key in ("truncation", "padding") if description.get(key)]
    left_out += ["post_processor"] * adds
    if not left_out:
        return tokenizer
    description |= dict.fromkeys(left_out)
    content = json.dumps(description, ensure_ascii=False, indent=1).encode()
    return Tokenizer(content, tokenizer.kind, tokenizer.end_of_document_token)


def tokenizer_files(tokenizer: Tokenizer, positions: int) -> dict[str, bytes]:
    """Return the contents of `tokenizer.json` and `tokenizer_config.json`, by file name.

    `positions`: the longest context that the model was trained on, in tokens.
    """
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.end_of_document_token,
        "pad_token": tokenizer.end_of_document_token,
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    return {"tokenizer.json": tokenizer.json, "tokenizer_config.json": text.encode()}


def _place(run: TrainedRun) -> Path:
    """Return the path of the tokenizer.json beside the run's first corpus. Raises `UserError` if
    the corpus is not on this machine."""
    corpus = run.config.data.corpora[0].path
    try:
        return token_prefix(corpus).parent / TOKENIZER
    except UserError:
        raise UserError(
            f"{corpus}: the run's corpus is not here, so its tokenizer is missing; name a copy "
            f"(sha256 {run.header['data']['tokenizer'][:12]}) with --tokenizer"
        ) from None
