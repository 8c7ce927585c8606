"""The installed version of Megatron-Core, and the differences between versions that work.

| | 0.16 | 0.17, 0.18 | 0.19 |
| --- | --- | --- | --- |
| Python | 3.11 to 3.13 | 3.12 and 3.13 | 3.12 and 3.13 |
| auxiliary losses under sequence parallelism | of one tensor rank | of one tensor rank | right |

Checkpoints are the same with all of them: this package writes and reads them itself.
"""

import re
from functools import cache
from importlib.metadata import version

from tst_study.errors import UserError

OLDEST, FIRST_UNTRIED = (0, 16, 1), (0, 20)


@cache
def megatron_version() -> tuple[int, ...]:
    """Return the installed version; release candidates count as their release."""
    return tuple(int(part) for part in re.findall(r"\d+", version("megatron-core"))[:3])


def check_megatron_version() -> None:
    """Raise `UserError`, one line, if the package was not tested with the installed version."""
    if not OLDEST <= megatron_version() < FIRST_UNTRIED:
        range_ = f">={'.'.join(map(str, OLDEST))},<{'.'.join(map(str, FIRST_UNTRIED))}"
        raise UserError(
            f"megatron-core {version('megatron-core')}: this package works with {range_}; "
            f"pip install 'megatron-core{range_}'"
        )
