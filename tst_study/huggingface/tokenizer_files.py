"""The tokenizer of an export, which is that of the run's corpus, in files for transformers."""

import json
from pathlib import Path

from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.data.manifest import TOKENIZER, token_prefix
from tst_study.data.preparation.text_tokenizers import Tokenizer, read_tokenizer
from tst_study.errors import UserError


def tokenizer_of_run(run: TrainedRun, given: str | Path | None = None) -> Tokenizer | None:
    """Find the tokenizer of a run's corpora, and return it as `plain` makes it.

    `given`: a tokenizer.json or a folder with one, to use instead of the one beside the first
    corpus. Where the corpora name no tokenizer (generated words, or token files that came without
    one), `given` is taken unchecked, and without it None is returned.

    Raises `UserError` where the tokenizer cannot be found, or is not the run's.
    """
    fingerprint = run.header["data"]["tokenizer"]
    if fingerprint is None and given is None:
        return None
    path = _place(run) if given is None else Path(given)
    tokenizer = read_tokenizer(path)
    if fingerprint is not None and tokenizer.fingerprint != fingerprint:
        raise UserError(
            f"{path}: is not the tokenizer of {run.folder} (sha256 {tokenizer.fingerprint[:12]}, "
            f"the run's is {fingerprint[:12]}); name that one with --tokenizer"
        )
    return plain(tokenizer)


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """Reduce a tokenizer to what preparation used of it, which is how it splits a text into tokens.

    Left out are truncation, padding, and a post-processor that puts special tokens around a text.
    """
    from tokenizers import Tokenizer as LibraryTokenizer

    library = LibraryTokenizer.from_str(tokenizer.json.decode())
    library.no_truncation()
    library.no_padding()
    adds = bool(library.encode("", add_special_tokens=True).ids)
    description = json.loads(tokenizer.json)
    left_out = [key for key in ("truncation", "padding") if description.get(key)]
    left_out += ["post_processor"] * adds
    if not left_out:
        return tokenizer
    description |= dict.fromkeys(left_out)
    content = json.dumps(description, ensure_ascii=False, indent=1).encode()
    return Tokenizer(content, tokenizer.kind, tokenizer.end_of_document_token)


def tokenizer_files(tokenizer: Tokenizer, positions: int) -> dict[str, bytes]:
    """Return the contents of `tokenizer.json` and `tokenizer_config.json` by name.

    `positions`: the longest context that the model was trained on.
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
    """Return the path of the tokenizer.json beside the run's first corpus. Raises `UserError` where
    the corpus is not on this machine."""
    corpus = run.config.data.corpora[0].path
    try:
        return token_prefix(corpus).parent / TOKENIZER
    except UserError:
        raise UserError(
            f"{corpus}: the run's corpus is not here, so its tokenizer is missing; name a copy "
            f"(sha256 {run.header['data']['tokenizer'][:12]}) with --tokenizer"
        ) from None
