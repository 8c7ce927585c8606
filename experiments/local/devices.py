"""The GPUs of one machine, shared out among runs."""

import os
import tempfile
from contextlib import suppress
from glob import glob
from pathlib import Path

from tst_study import file_lock


class Devices:
    """The GPUs of a launcher. Each is locked while a run has it, so that another
    launcher on this machine does not use it."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self._locks: dict[str, dict[str, int]] = {}
        """Descriptors of open lock files, by run and device."""

    def take(self, run: str, count: int) -> str | None:
        """Lock `count` free GPUs for a run, and return their names, separated by commas; None if
        fewer are free."""
        held = {name for locks in self._locks.values() for name in locks}
        taken = self._locks.setdefault(run, {})
        for name in self.names:
            if name not in held and len(taken) < count and (lock := _lock(name)) is not None:
                taken[name] = lock
        if len(taken) == count:
            return ",".join(taken)
        self.free(run)
        return None

    def free(self, run: str) -> None:
        """Unlock the GPUs of a run."""
        for descriptor in self._locks.pop(run, {}).values():
            os.close(descriptor)


def _lock(device: str) -> int | None:
    """Lock a GPU for this process, and return the descriptor of the lock file; None if another
    process has locked it. All users of this machine share the files."""
    path = Path(tempfile.gettempdir()) / f"tst-study-gpu-{device.replace('/', '-')}.lock"
    with suppress(FileExistsError):
        made = os.open(path, os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(made, 0o644)
        os.close(made)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    if file_lock.take(descriptor, path, file_lock.EXCLUSIVE):
        return descriptor
    os.close(descriptor)
    return None


def visible() -> list[str]:
    """The names of the GPUs that may be used here, as CUDA_VISIBLE_DEVICES gives them, or else the
    numbers of all of NVIDIA's on this machine. Touches none of them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(number) for number in range(len(glob("/proc/driver/nvidia/gpus/*")))]
    return [name for word in named.split(",") if (name := word.strip()) and name != "-1"]
