"""Slurm's programs: Debian's packages, in a folder of this user. Needs no root."""

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
    # Accounts are kept in a database.
    "slurmdbd",
    "slurm-wlm-mysql-plugin",
    "libmariadb3",
    "mariadb-server-core",
    "libaio1",
    "liburing2",
    "libnuma1",
]
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def programs() -> Path:
    """The folder of this user into which Debian's packages are unpacked once. Raises
    `RuntimeError`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tst-study"
    place = cache / f"slurm-{sha256(' '.join(PACKAGES).encode()).hexdigest()[:8]}"
    if place.is_dir():
        return place
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
    """Download the packages by fresh lists in a folder of our own, which needs no root."""
    for folder in ("lists", "cache/archives"):
        (to / folder / "partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::lists={to / 'lists'}", "-o", f"Dir::Cache={to / 'cache'}"]
    for words in (["update"], ["download", *PACKAGES]):
        done = subprocess.run(["apt-get", *own, *words], cwd=to, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"apt-get download: {done.stderr.strip()}")
