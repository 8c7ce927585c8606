"""Paths of a run's checkpoints, and checks that their files are unchanged.

`checkpoints/step-N` holds the state after N steps and a digest of each of its files: torch does not
notice a flipped byte in a tensor, and the run would go on with it.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from tst_study.atomic_files import write_json

PREFIX = "step-"
DIGESTS = "digests.json"


_DIGESTS = TypeAdapter(dict[Literal["sha256"], dict[str, str]])
"""Digests by file name."""


def checkpoint_folder(run: Path) -> Path:
    """The folder that holds a run's checkpoints."""
    return run / "checkpoints"


def checkpoint_steps(run: Path) -> list[int]:
    """The steps after which a checkpoint was written whole, in ascending order; it may have been
    damaged since."""
    places = checkpoint_folder(run).glob(f"{PREFIX}*")
    names = (place.name.removeprefix(PREFIX) for place in places)
    return sorted(int(name) for name in names if name.isdecimal())


def checkpoint_place(run: Path, step: int) -> Path:
    return checkpoint_folder(run) / f"{PREFIX}{step:08d}"


def digests_of(place: Path, names: Iterable[str]) -> dict[str, str]:
    """Compute the sha256 digests (hex) of files of a checkpoint, by name. Raises `OSError`."""
    digests = {}
    for name in names:
        with open(place / name, "rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def write_digests(place: Path, digests: Mapping[str, str]) -> None:
    """Write the digests of all files of a checkpoint, by name. Raises `UserError`."""
    write_json(place / DIGESTS, {"sha256": digests})


def damage(place: Path, part: int = 0, parts: int = 1) -> str | None:
    """Return what is wrong with a checkpoint's files; None if they are unchanged.

    Of the files, every `parts`-th is checked, from number `part` on (counted from 0); other ranks
    check the rest.
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
