"""Which Megatron-Core is installed, and what differs between those that the package works with.

| | 0.16 | 0.17, 0.18 | 0.19 |
| --- | --- | --- | --- |
| Python | 3.10 to 3.12 | 3.12 and 3.13 | 3.12 and 3.13 |
| checkpoint files are written by | forked processes | threads | threads |
| a checkpoint's common state | `common.pt` | `common.pt` | among the shards |
| auxiliary losses under sequence parallelism | of one tensor rank | of one tensor rank | right |

A newer one reads an older one's checkpoints, but not the other way round across 0.19.
"""

import re
from functools import cache
from importlib.metadata import version

from tst_study.errors import UserError

OLDEST, FIRST_UNTRIED = (0, 16, 1), (0, 20)


@cache
def megatron_version() -> tuple[int, ...]:
    """Of the installed megatron-core; release candidates count as their release."""
    return tuple(int(part) for part in re.findall(r"\d+", version("megatron-core"))[:3])


def check_megatron_version() -> None:
    """Raise `UserError`, one line, where it is none that the package was tested with."""
    if not OLDEST <= megatron_version() < FIRST_UNTRIED:
        range_ = f">={'.'.join(map(str, OLDEST))},<{'.'.join(map(str, FIRST_UNTRIED))}"
        raise UserError(
            f"megatron-core {version('megatron-core')}: this package works with {range_}; "
            f"pip install 'megatron-core{range_}'"
        )
