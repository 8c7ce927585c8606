"""The one exception that a user is meant to see."""


class UserError(Exception):
    """A one-line message that names the key or file, the value, and what to do about it.

    The command line prints it without a traceback and exits with status 2 (`--debug` shows it).
    """


class OtherRankError(UserError):
    """This rank could not go on because another one failed or hangs."""


def first_line(error: BaseException) -> str:
    """What a library's error says, in one line."""
    return next(iter(str(error).strip().splitlines()), repr(error))


def one_line(error: BaseException) -> str:
    """All that an error says, in one line; of other than ours with their kind."""
    text = " ".join(str(error).split())
    if isinstance(error, UserError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
