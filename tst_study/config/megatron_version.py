"""The installed version of Megatron-Core, and what differs between the supported versions.

| | 0.16 | 0.17, 0.18 | 0.19 |
| --- | --- | --- | --- |
| Python | 3.11 to 3.13 | 3.12 and 3.13 | 3.12 and 3.13 |
| Megatron's own balance loss under sequence parallelism | too weak | too weak | right |

"Too weak" means that the loss covers the positions of one tensor rank only. This package does not
use that loss; it has its own in `model/experts.py`. Checkpoints are the same with all versions,
because this package writes and reads them itself. The patches in `model/megatron_patches.py` name
further differences.
"""

import re
from functools import cache
from importlib.metadata import version

from tst_study.errors import UserError

OLDEST, FIRST_UNTRIED = (0, 16, 1), (0, 20)
"""The oldest version that works, and the first release that has not been tested."""


@cache
def megatron_version() -> tuple[int, ...]:
    """Return the first three numbers of the installed version, so that a release candidate counts
    as its release."""
    return tuple(int(part) for part in re.findall(r"\d+", version("megatron-core"))[:3])


def check_megatron_version() -> None:
    """Raise `UserError` if this package was not tested with the installed version."""
    if not OLDEST <= megatron_version() < FIRST_UNTRIED:
        range_ = f">={'.'.join(map(str, OLDEST))},<{'.'.join(map(str, FIRST_UNTRIED))}"
        raise UserError(
            f"megatron-core {version('megatron-core')}: this package works with {range_}; "
            f"pip install 'megatron-core{range_}'"
        )
