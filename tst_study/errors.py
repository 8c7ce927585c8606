"""The exceptions that a user is meant to see, and the wording of their messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """An error that the user can do something about. Its message is one line that names the key or
    file, the value, and what to do.

    The command line prints the message and exits with status 2; with `--debug` it shows the
    traceback instead.
    """


class OtherRankError(UserError):
    """This rank cannot go on because another one has failed or hangs. The exit status is 3."""


EXTRAS = {
    **dict.fromkeys(("safetensors", "transformers", "huggingface_hub"), "export"),
    **dict.fromkeys(("lm_eval", "accelerate"), "evaluation"),
    **{name: name for name in ("tensorboard", "wandb")},
}
"""The extra of this package that installs a module; for modules that are not listed here,
`not_installed` names the extra `study`."""


def not_installed(module: str) -> str:
    """Return a message that says which extra of this package installs a missing module."""
    return f"{module} is not installed; pip install 'tst-study[{EXTRAS.get(module, 'study')}]'"


def one_of(value: object, known: Iterable[str], what: str, of: str = "") -> str:
    """Return `value` if it is one of the names in `known`.

    Raises `UserError` otherwise. The message suggests the most similar name, or lists all names if
    none is similar. In the message, `what` stands before the value, and `of` directly after it.
    """
    names = list(known)
    if isinstance(value, str) and value in names:
        return value
    near = get_close_matches(str(value), names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
    raise UserError(f"{what} {value!r}{of} is not known; {hint}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its `repr` if it has none."""
    return next(iter(str(error).strip().splitlines()), repr(error))


def first_problem(error: ValidationError) -> str:
    """Return the first problem that pydantic found, as one line: the key, and what is wrong."""
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
