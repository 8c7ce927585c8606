"""The one exception that a user is meant to see."""


class UserError(Exception):
    """A one-line message that names the key or file, the value, and what to do about it.

    The command line prints it without a traceback and exits with status 2 (`--debug` shows it).
    """


class OtherRankError(UserError):
    """This rank could not go on because another one failed or hangs."""


def first_line(error: Exception) -> str:
    """What a library's error says, in one line."""
    return next(iter(str(error).strip().splitlines()), repr(error))
