"""The exception that a user is meant to see, and the wording of its messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """A one-line message that names the key or file, the value, and what to do about it.

    The command line prints it without a traceback and exits with status 2 (`--debug` shows it).
    """


class OtherRankError(UserError):
    """This rank could not go on because another one failed or hangs."""


EXTRAS = {
    **dict.fromkeys(("safetensors", "transformers", "huggingface_hub"), "export"),
    **dict.fromkeys(("lm_eval", "accelerate"), "evaluation"),
    **{name: name for name in ("tensorboard", "wandb")},
}
"""Modules and the extras that install them; `study` installs all others."""


def not_installed(module: str) -> str:
    """Say which extra brings a missing module."""
    return f"{module} is not installed; pip install 'tst-study[{EXTRAS.get(module, 'study')}]'"


def one_of(value: object, known: Iterable[str], what: str, of: str = "") -> str:
    """Return `value` if it is a known one. Raises `UserError` that names the nearest."""
    names = list(known)
    if isinstance(value, str) and value in names:
        return value
    near = get_close_matches(str(value), names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
    raise UserError(f"{what} {value!r}{of} is not known; {hint}")


def first_line(error: BaseException) -> str:
    """Return a library's error as one line."""
    return next(iter(str(error).strip().splitlines()), repr(error))


def first_problem(error: ValidationError) -> str:
    """Return the first problem that pydantic found, in one line."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    problem = first["msg"].removeprefix("Value error, ")
    return f"{where}: {problem}" if where else problem


def one_line(error: BaseException) -> str:
    """Return an error's whole message as one line, with its class unless it is a `UserError`."""
    text = " ".join(str(error).split())
    if isinstance(error, UserError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
