"""Paths of a run's checkpoints, and checks that they are this run's and that their files are
unchanged.

The folder `checkpoints/step-N` of a run holds the state after N steps. The file `DIGESTS` in it
says of which run and step it is, and has a digest of each of the other files. torch does not notice
a flipped byte in a tensor, and the run would go on with it.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NotRequired

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from tst_study.atomic_files import read_json, write_json
from tst_study.data.integrity import file_sha256
from tst_study.errors import UserError
from tst_study.record.reader import read_header

PREFIX = "step-"
DIGESTS = "digests.json"
"""The file in a checkpoint's folder that describes the others."""


@with_config(ConfigDict(extra="forbid"))
class _Described(TypedDict):
    """The content of that file."""

    sha256: dict[str, str]
    """Digests (hex) by file name."""
    run: NotRequired[str | None]
    """The run's fingerprint; earlier versions did not write it."""
    step: NotRequired[int]
    """The number of steps after which the checkpoint was written."""


_DESCRIBED = TypeAdapter(_Described)


def checkpoint_folder(run: Path) -> Path:
    """Return the folder of a run's checkpoints."""
    return run / "checkpoints"


def checkpoint_steps(run: Path) -> list[int]:
    """Return the steps after which there is a checkpoint, in ascending order. Each was written
    whole, but may have been damaged since."""
    places = checkpoint_folder(run).glob(f"{PREFIX}*")
    names = (place.name.removeprefix(PREFIX) for place in places)
    return sorted(int(name) for name in names if name.isdecimal())


def checkpoint_place(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint after `step` steps, whether it is there or not."""
    return checkpoint_folder(run) / f"{PREFIX}{step:08d}"


def digests_of(place: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the sha256 digests (hex) of files in the folder `place`, by name. Raises `OSError` for
    a file that cannot be read."""
    return {name: file_sha256(place / name) for name in names}


def identity_of(run: Path) -> str | None:
    """Return the fingerprint of the run in a folder, or None if the folder has no `run.json`.
    Raises `UserError` if that file is damaged."""
    return read_header(run)["fingerprint"] if (run / "run.json").is_file() else None


def write_digests(
    place: Path, digests: Mapping[str, str], run: str | None = None, step: int | None = None
) -> None:
    """Write into a checkpoint's folder the digests of all its files by name, the fingerprint of its
    run, and its step. Raises `UserError` if the file cannot be written."""
    whose = {} if step is None else {"run": run, "step": step}
    write_json(place / DIGESTS, {"sha256": digests, **whose})


def damage(place: Path, part: int = 0, parts: int = 1) -> str | None:
    """Return what is wrong with a checkpoint: that it is of another run or step, or that its files
    are not as they were written. None if nothing is.

    A checkpoint of an earlier version, which does not name its run, is taken, and a line on stderr
    says so. With more `parts` than one, only every `parts`-th file is checked, from number `part`
    on (counted from 0), so that ranks can share the work; the first compares run and step.
    """
    try:
        described = read_json(place / DIGESTS, _DESCRIBED)
        if described is None:
            return f"{DIGESTS} is missing"
        written = described["sha256"]
        names = sorted(written)[part::parts]
        digests = digests_of(place, names)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    except UserError:
        return f"{DIGESTS} is not what was written"
    changed = [name for name in names if digests[name] != written[name]]
    if changed:
        return f"{changed[0]} is not what was written"
    if part or (ours := identity_of(place.parents[1])) is None:
        return None
    if "step" not in described:
        said = "does not name its run, as a checkpoint of an earlier version; it is taken as this"
        print(f"{place}: {said} run's", file=sys.stderr)
    elif described["run"] != ours:
        return f"it is of run {str(described['run'])[:8]}, and the folder of run {ours[:8]}"
    elif f"{described['step']:08d}" != place.name.removeprefix(PREFIX):
        return f"it is of step {described['step']}"
    return None
