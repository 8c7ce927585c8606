"""Names the collective in the error of a rank whose partner has failed or hangs."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from tst_study.errors import OtherRankError, UserError, first_line
from tst_study.process.rank_environment import flight_record


@contextmanager
def collectives_named(rank: int) -> Iterator[None]:
    """Turn an exception out of torch.distributed into `OtherRankError`; others pass."""
    try:
        yield
    except (RuntimeError, UserError) as error:
        name = _collective(error)
        if name is None:
            raise
        # Without the source line that it came from, and without advice.
        reason = re.sub(r"^\[[^]]*\] ", "", first_line(error)).split(". ")[0]
        raise OtherRankError(
            f"rank {rank}: {name} did not come to its end, so another rank has failed or hangs; "
            f"what that one said comes first ({reason}){flight_record(rank)}"
        ) from error


def _collective(error: BaseException | None) -> str | None:
    """The torch.distributed function that an exception or its cause came from; if that was waiting
    for a request, the function that waited."""
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)[::-1]
        for frame in frames:
            if frame.filename.endswith("distributed_c10d.py"):
                return frame.name
        # Ours and the system's name files, and a folder may be called so.
        own = isinstance(error, UserError | OSError)
        if not own and any(library in str(error) for library in ("gloo", "NCCL")):
            return next((f.name for f in frames if not f.name.startswith("_")), None)
        error = error.__cause__
    return None
