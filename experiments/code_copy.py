"""A copy of the code, which is kept in the study's folder. Queued jobs run this copy, so that edits
of the code after the submission do not change them."""

import hashlib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

import tst_study
from tst_study.atomic_files import disk_errors_named, write_json
from tst_study.experiments.study import below_one_folder
from tst_study.record.launch_facts import COPY_FACTS, code_version

FOLDER = "code"
"""The folder of all such copies in a study's folder."""


def keep_code(root: Path, study_files: Sequence[Path] = ()) -> Path:
    """Copy the package into the study's folder `root`, unless the same code is there already, and
    return the folder of the copy: `root/code/<12 hex digits of a hash of the files>`. Its folder
    `study` holds the files of a user's study, below the nearest folder that holds them all.

    The caller must hold the study's submission lock. Raises `UserError` if the copy cannot be
    written.
    """
    package = Path(tst_study.__file__).parent
    files: dict[Path, Path] = {}
    # In a checkout, three of the package's folders are links to folders beside the package.
    for folder, _, names in os.walk(package, followlinks=True):
        if Path(folder).name != "__pycache__":
            paths = [Path(folder) / name for name in names]  # an editor's lock is a link to nothing
            files |= {path.relative_to(package.parent): path for path in paths if path.is_file()}
    own = below_one_folder(study_files)
    files |= {Path("study") / place: path for place, path in own.items()}
    digest = hashlib.sha256()
    for file, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{file}\0{len(content)}\0".encode() + content)
    place = (root / FOLDER / digest.hexdigest()[:12]).absolute()
    if not place.is_dir():
        beside = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        with disk_errors_named(place):
            for file, path in files.items():
                (beside / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, beside / file)
            write_json(beside / COPY_FACTS, code_version())
            beside.rename(place)
    return place
