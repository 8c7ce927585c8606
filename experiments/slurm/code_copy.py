"""A copy of the code in the study's folder. Queued jobs run it, whatever is edited meanwhile."""

import hashlib
import os
import secrets
import shutil
from pathlib import Path

import tst_study
from tst_study.atomic_files import disk_errors_named, write_json
from tst_study.errors import UserError
from tst_study.record.launch_facts import COPY_FACTS, code_version

FOLDER = "code"
VERBS = "pyproject.toml"
"""The file that lists the package's commands; a copy is not installed, and finds them here."""


def keep_code(root: Path) -> Path:
    """Copy the package into `root/code/<12 hex digits of its content>`, unless it is there already.

    Raises `UserError` if the copy cannot be written.
    """
    files = _files()
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    place = (root / FOLDER / digest.hexdigest()[:12]).absolute()
    if place.is_dir():
        return place
    beside = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        with disk_errors_named(place):
            beside.mkdir(parents=True)  # new: a link that somebody has put there is not followed
            for name, path in files.items():
                (beside / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, beside / name)
            write_json(beside / COPY_FACTS, code_version())
            beside.rename(place)
    except UserError:
        if not place.is_dir():  # else another command was faster
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return place


def _files() -> dict[str, Path]:
    """All files of the package, by their paths in the copy."""
    package = Path(tst_study.__file__).parent
    root = package.parent
    files = {VERBS: root / VERBS} if (root / VERBS).is_file() else {}
    # In a checkout three of the package's folders are links to folders beside it.
    for folder, _, names in os.walk(package, followlinks=True):
        if Path(folder).name != "__pycache__":
            paths = (Path(folder) / name for name in names)
            files.update({path.relative_to(root).as_posix(): path for path in paths})
    return dict(sorted(files.items()))
