"""Slurm's programs: the system's, or Debian's packages in a folder of this user. Needs no root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path

PACKAGES = [
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "munge",
    "libmunge2",
    "libhwloc15",
    "libjson-c5",
    "libyaml-0-2",
    "liblua5.1-0",
]
DAEMONS = ("slurmctld", "slurmd", "slurmstepd", "munged")
LIBRARIES = "usr/lib/x86_64-linux-gnu"


class NoSlurmError(Exception):
    """Slurm cannot be had here; says why."""


def programs() -> Path:
    """The root below which Slurm's programs lie: the system's own, or a folder of this user into
    which Debian's packages are unpacked once. Raises `NoSlurmError`."""
    if all(os.access(f"/usr/sbin/{name}", os.X_OK) for name in DAEMONS):
        return Path("/")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tst-study"
    place = cache / f"slurm-{sha256(' '.join(PACKAGES).encode()).hexdigest()[:8]}"
    if place.is_dir():
        return place
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise NoSlurmError(f"{program} is not here: Slurm's packages are Debian's")
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    beside.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as downloads:
        _download(Path(downloads))
        for package in Path(downloads).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, beside], check=True)
    # A daemon knows what it is by the name it is called by; Debian's files are called otherwise.
    for daemon in ("slurmctld", "slurmd", "slurmstepd"):
        if (beside / f"usr/sbin/{daemon}-wlm").exists():
            (beside / f"usr/sbin/{daemon}").unlink(missing_ok=True)
            (beside / f"usr/sbin/{daemon}").symlink_to(f"{daemon}-wlm")
    try:
        beside.rename(place)
    except OSError:  # another session was faster
        shutil.rmtree(beside)
    return place


def _download(to: Path) -> None:
    """Download the packages by the machine's package lists, else by fresh ones in a folder of our
    own."""
    lists = to / "lists"
    own = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={to / 'cache'}"]
    failed = None
    for options in ([], own):
        if options:
            (lists / "partial").mkdir(parents=True)
            (to / "cache" / "archives" / "partial").mkdir(parents=True)
            subprocess.run(["apt-get", *options, "update"], capture_output=True, check=False)
        failed = subprocess.run(
            ["apt-get", *options, "download", *PACKAGES], cwd=to, capture_output=True, text=True
        )
        if failed.returncode == 0:
            return
    lines = failed.stderr.strip().splitlines() if failed else []
    raise NoSlurmError(f"apt-get download: {lines[-1] if lines else 'failed'}")
