"""The profile of a cluster, `slurm.toml`: how to ask for jobs. Studies do not depend on it."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from tst_study.config.keys import problem_of
from tst_study.config.schema import NotNegative, Positive, PositiveFloat, Strict, read_toml
from tst_study.errors import UserError
from tst_study.experiments.launcher import RETRIES
from tst_study.experiments.slurm.commands import call

PLACES = (Path("slurm.toml"), Path("~/.config/tst-study/slurm.toml"))
"""Places where a profile is looked for if none is named."""
WallTime = Annotated[str, Field(pattern=r"^(\d{1,3}-)?\d{1,6}(:\d{1,6}){0,2}$")]
"""A time in Slurm's format: minutes, `minutes:seconds`, `hours:minutes:seconds`, `days-hours[:…]`.
Numbers that are too large for Slurm would make a job without an end."""
TAKEN = {
    "array": "holds the runs; say max_array and parallel",
    "chdir": "is where the study was submitted; submit from the folder that you mean",
    "cpus_per_task": "goes with the ranks; say cpus_per_task in [resources] or [small]",
    "comment": "is the mark by which the study's jobs are known; say wckey or account",
    "dependency": "is how branches wait for their prefix run; to start later, say begin",
    "error": "goes with the output; read it by tst-study logs",
    "exclude": "is extended by nodes that fail; say exclude at the top of the profile",
    "job_name": "keeps equal submissions apart; it begins with the study's folder: say --runs",
    "nodes": "goes with the ranks; say nodes in [resources]",
    "ntasks": "goes with the ranks; say nodes and tasks_per_node in [resources]",
    "ntasks_per_node": "goes with the ranks; say tasks_per_node in [resources]",
    "no_requeue": "would end a run with the time of its job; say retries",
    "output": "lies in the study's folder; read it by tst-study logs",
    "requeue": "is how a run outlives the time of its job; say retries",
    "signal": "warns a run before its time is up; say signal_seconds",
    "time": "decides when a run is warned; say time in [resources] or [small]",
}
"""Options of sbatch that this package sets itself, and what to say in their place."""


def _not_taken(options: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    for name in options:
        if not re.fullmatch("[a-z][a-z0-9_-]+", name):
            raise ValueError(f"{name!r}: is no long option of sbatch, such as mail-type")
        if why := TAKEN.get(name.replace("-", "_")):
            raise ValueError(f"{name}: {why}")
    return options


def _one_line(line: str) -> str:
    if not line.isprintable():
        # It could add a line to the batch script. Of two lines of `setup` in one string, a failure
        # of the first would go unseen.
        raise ValueError(
            "holds a line break or another control character; remove it (in setup, give each line "
            "as a string of its own)"
        )
    return line


Line = Annotated[str, AfterValidator(_one_line)]
SbatchOptions = Annotated[dict[str, Line | int | bool], AfterValidator(_not_taken)]
"""Options of sbatch, by their long names."""
Gigabytes = Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)]
"""Memory in gigabytes. Slurm gets whole megabytes, and takes 0 for all the memory of a node."""


LEAST_SECONDS = 60
"""Least time of a launch before it is told to stop. Slurm may warn it up to a minute early."""


class Resources(Strict):
    """Resources of one run. No GPUs are asked for by default."""

    nodes: Positive = 1
    tasks_per_node: Positive = 1
    """Ranks per node; with GPUs, one per GPU."""
    gpus_per_node: NotNegative = 0
    gpu_type: Line | None = None
    """The cluster's name for its GPUs, such as `a100`."""
    cpus_per_task: Positive = 1
    memory_gb: Gigabytes | None = None
    """Memory per node; by default the partition decides."""
    time: WallTime = "24:00:00"
    """Time of one launch. A longer run is requeued after a checkpoint."""
    partition: Line | None = None

    @property
    def seconds(self) -> int:
        """`time` in seconds."""
        days, _, clock = self.time.rpartition("-")
        parts = [int(part) for part in clock.split(":")]
        first = 3600 if days or len(parts) == 3 else 60
        seconds: int = sum(n * first // 60**i for i, n in enumerate(parts))
        return 86400 * int(days or 0) + seconds

    @property
    def ranks(self) -> int:
        return self.nodes * self.tasks_per_node

    def __str__(self) -> str:
        where = f", partition: {self.partition}" if self.partition else ""
        return (
            f"nodes: {self.nodes}{where}, tasks: {self.ranks}, "
            f"GPUs per node: {self.gpus_per_node}, time: {self.time}"
        )


class SmallJob(Strict):
    """A job that trains nothing: it collects a study, or submits the rest of it. It shares only the
    account with the runs, so that it never occupies GPUs or whole nodes."""

    time: WallTime = "1:00:00"
    partition: Line | None = None
    qos: Line | None = None
    cpus_per_task: Positive = 1
    memory_gb: Gigabytes | None = None
    srun: tuple[Line, ...] = ()
    sbatch: SbatchOptions = Field(default_factory=dict)


class Match(Strict):
    """Other resources for the runs whose names match a shell pattern."""

    match: Line
    resources: dict[str, Any]


class Profile(Strict):
    """`slurm.toml`. Every key has a default that suits a cluster without accounts."""

    resources: Resources = Resources()
    runs: tuple[Match, ...] = ()
    """`[[runs]]`: for each key, the last entry that matches the run's name wins."""
    account: Line | None = None
    qos: Line | None = None
    constraint: Line | None = None
    exclude: Line | None = None
    signal_seconds: Positive = 300
    """Seconds before the end of its time at which a run is told to write a checkpoint."""
    retries: NotNegative = RETRIES
    """Launches in a row without a new checkpoint before the run is given up."""
    parallel: Positive = 64
    """Runs of one array at a time."""
    gpu_option: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    """The option of sbatch that asks for GPUs on this cluster."""
    max_array: Positive | None = None
    """Runs per array; by default the cluster's MaxArraySize."""
    modules: tuple[Line, ...] = ()
    """Environment modules to load before the run."""
    setup: tuple[Line, ...] = ()
    """Lines of shell to run before the run. Each must succeed."""
    container: Line = ""
    """Words to put before python, such as `apptainer exec --nv image.sif`."""
    python: Line | None = None
    """The interpreter; by default the one that submits."""
    srun: tuple[Line, ...] = ()
    """More options of the srun that starts the ranks, such as `--container-image=…`."""
    sbatch: SbatchOptions = Field(default_factory=dict)
    """More options of sbatch for runs."""
    mail: Line | None = None
    """The address that Slurm tells when the study has been collected."""
    small: SmallJob = SmallJob()
    """`[small]`: resources of jobs that collect a study or submit the rest of it."""
    device: Line | None = None
    """The GPU's name for the hours of `plan`, as in `tst_study.cost.devices`."""
    mfu: Annotated[float | None, Field(gt=0.0, le=1.0)] = None
    """A measured MFU; by default `plan` estimates it."""
    price_per_gpu_hour: PositiveFloat | None = None

    def resources_of(self, *names: str) -> Resources:
        """Resources of a run that goes by these names."""
        values = self.resources.model_dump()
        for entry in self.runs:
            if any(fnmatch(name, entry.match) for name in names):
                values |= entry.resources
        return Resources.model_validate(values)

    def gpus(self, resources: Resources) -> dict[str, str | int]:
        """The option of sbatch that asks for GPUs; empty if none are wanted."""
        if not resources.gpus_per_node:
            return {}
        kind = f"{resources.gpu_type}:" if resources.gpu_type else ""
        by_gres = self.gpu_option == "gres"
        return {self.gpu_option: f"{'gpu:' if by_gres else ''}{kind}{resources.gpus_per_node}"}

    def on_gpu(self, resources: Resources) -> bool:
        """Whether a run gets a GPU, by any option."""
        asked = (
            name.startswith("gpus") or (name.startswith(("gres", "tres")) and "gpu" in str(value))
            for name, value in self.sbatch.items()
            if value is not False  # turned off
        )
        return resources.gpus_per_node > 0 or any(asked)

    def of_small_jobs(self) -> tuple[Profile, Resources]:
        """The profile and the resources of small jobs."""
        small = self.small
        mail = {"mail-user": self.mail, "mail-type": "END,FAIL"} if self.mail else {}
        profile = Profile(
            account=self.account, qos=small.qos, srun=small.srun, sbatch={**mail, **small.sbatch}
        )
        shared = ("time", "partition", "cpus_per_task", "memory_gb")
        return profile, Resources(**{name: getattr(small, name) for name in shared})


def usual_place() -> Path | None:
    """The first of `PLACES` that exists."""
    return next((path for place in PLACES if (path := place.expanduser()).exists()), None)


def template() -> str:
    """A first profile for the cluster at hand: a whole node for each run, of a partition with GPUs
    if there is one, else of the default partition. Raises `SlurmError`."""
    rows = [
        line.split("|")
        for line in call("sinfo", "--noheader", "--format=%P|%G|%c|%l").splitlines()
        if line.count("|") == 3
    ]
    rows.sort(key=lambda row: ("gpu" not in row[1], not row[0].endswith("*")))
    name, devices, cpus, limit = rows[0] if rows else ("", "", "1", "")
    gpus = re.search(r"gpu:(?:([a-zA-Z]\w*):)?(\d+)", devices)
    ranks = int(gpus[2]) if gpus else 1
    lines = ["# slurm.toml: docs/slurm.md has every key", '# account = "…"', "", "[resources]"]
    others = ", ".join(dict.fromkeys(row[0].rstrip("*") for row in rows))
    lines.append(f'partition = "{name.rstrip("*")}"  # there are: {others}')
    lines.append(f"tasks_per_node = {ranks}  # ranks of a run")
    if gpus:
        lines.append(f"gpus_per_node = {ranks}")
        lines += [f'gpu_type = "{gpus[1]}"'] if gpus[1] else []
    lines.append(f"cpus_per_task = {max(1, int(re.sub(r'[^0-9]', '', cpus) or 1) // ranks)}")
    lines.append(f'time = "{limit if limit and limit != "infinite" else "24:00:00"}"')
    return "\n".join(lines)


def load_profile(path: Path | None = None) -> Profile:
    """The profile in `path`, else in the first of `PLACES` that exists, else the defaults.

    Raises `UserError` that names the key and the value.
    """
    path = path or usual_place()
    if path is None:
        return Profile()
    try:
        # Through JSON mode, so that TOML's arrays become tuples while types stay strict.
        profile = Profile.model_validate_json(json.dumps(read_toml(path), default=str))
    except ValidationError as error:
        raise UserError(f"{path}: {problem_of(Profile, error)}") from None
    usual = profile.resources.model_dump()
    for number, given in enumerate([{}, *(entry.resources for entry in profile.runs)]):
        try:
            resources = Resources.model_validate(usual | given)
        except ValidationError as error:
            problem = problem_of(Resources, error)
            raise UserError(f"{path}: runs.{number - 1}.resources.{problem}") from None
        if 0 < resources.seconds <= profile.signal_seconds + LEAST_SECONDS:
            raise UserError(
                f"{path}: time = {resources.time!r} leaves nothing to train in: runs are told to "
                f"stop signal_seconds = {profile.signal_seconds} before its end; say more time, or "
                "fewer signal_seconds"
            )
    return profile
