"""Paths of a run's checkpoints, and checks that their files are unchanged.

The folder `checkpoints/step-N` of a run holds the state after N steps, and a digest of each of its
files. torch does not notice a flipped byte in a tensor, and the run would go on with it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from tst_study.atomic_files import write_json
from tst_study.data.integrity import file_sha256

PREFIX = "step-"
DIGESTS = "digests.json"
"""The file with the digests in a checkpoint's folder."""

_DIGESTS = TypeAdapter(dict[Literal["sha256"], dict[str, str]])
"""The content of that file: digests (hex) by file name."""


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


def write_digests(place: Path, digests: Mapping[str, str]) -> None:
    """Write the digests of all files of a checkpoint, by name, into its folder. Raises `UserError`
    if they cannot be written."""
    write_json(place / DIGESTS, {"sha256": digests})


def damage(place: Path, part: int = 0, parts: int = 1) -> str | None:
    """Return what is wrong with the files of a checkpoint; None if they are as they were written.

    With more `parts` than one, only every `parts`-th file is checked, from number `part` on
    (counted from 0), so that ranks can share the work.
    """
    try:
        written = _DIGESTS.validate_json((place / DIGESTS).read_bytes())["sha256"]
        names = sorted(written)[part::parts]
        digests = digests_of(place, names)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    except (ValueError, KeyError):
        return f"{DIGESTS} is not what was written"
    changed = [name for name in names if digests[name] != written[name]]
    return f"{changed[0]} is not what was written" if changed else None
