"""The profile of a cluster, `slurm.toml`, which says what resources to ask Slurm for and how to
start the ranks. Studies do not depend on it; docs/slurm.md has an example."""

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from tst_study.config.keys import problem_of
from tst_study.config.schema import NotNegative, Positive, Strict, read_toml, written
from tst_study.errors import UserError
from tst_study.experiments.launches import RETRIES
from tst_study.experiments.plan.planned_run import PlannedRun
from tst_study.experiments.study import Study

PLACES = (Path("slurm.toml"), Path("~/.config/tst-study/slurm.toml"))
"""The places where a profile is looked for, in this order, if the command line names none."""
WallTime = Annotated[
    str,
    written(
        r"(\d{1,3}-)?\d{1,6}(:\d{1,6}){0,2}",
        "write a time as Slurm does: minutes, hours:minutes:seconds or days-hours",
    ),
]
"""A time in Slurm's format: minutes, `minutes:seconds`, `hours:minutes:seconds`, `days-hours[:…]`.
The number of digits is limited, because Slurm takes a time that is too large as no limit at all."""
_ALLOWED = """
acctg-freq bb bbf begin bell comment constraint contiguous core-spec cores-per-socket cpu-freq
deadline delay-boot distribution exclude exclusive export extra-node-info get-user-env gres hint
licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice
no-bell nodefile nodelist overcommit oversubscribe power prefer priority profile propagate qos quiet
reboot reservation sockets-per-node spread-job switches thread-spec threads-per-core tmp tres-bind
tres-per-node tres-per-task use-min-nodes verbose wait-all-nodes wckey
"""
ALLOWED = frozenset(_ALLOWED.split())
"""Options of sbatch that a profile may set: those that change nothing that the launcher relies
on."""
ELSEWHERE = {
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "cpus-per-gpu", "gpus-per-socket"),
                    "say gpus_per_node, by which each run is also kept from training on a CPU"),
    **dict.fromkeys(("clusters", "cluster-constraint"),
                    "jobs on another cluster could not be found again; submit on that cluster"),
    "account": "is a key of the profile itself",
    "hold": "use begin, or scontrol hold",
}  # fmt: skip
"""What to do instead of some options that are not allowed."""


def _allowed(options: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    """Return the options under the names that sbatch gives them."""
    named = {name.replace("_", "-"): value for name, value in options.items()}
    for name, value in named.items():
        if not re.fullmatch("[a-z][a-z0-9-]+", name):
            raise ValueError(f"{name!r}: is not a long option of sbatch, such as mail-type")
        if name not in ALLOWED:
            remedy = ELSEWHERE.get(name, "the launcher sets it, or could not work with it")
            raise ValueError(f"{name}: is not allowed: {remedy}")
        if name in ("gres", "tres-per-node", "tres-per-task") and "gpu" in str(value):
            raise ValueError(f"{name} = {value!r}: {ELSEWHERE['gpus']}")
    return named


def _one_line(line: str) -> str:
    if not line.isprintable():
        # A line break could add a line to the batch script. And if one string of `setup` held two
        # lines, a failure of the first would go unseen.
        raise ValueError(
            "holds a line break or another control character; remove it (in setup, give each line "
            "as a string of its own)"
        )
    return line


Line = Annotated[str, AfterValidator(_one_line)]
"""A string without control characters, and so without a line break."""
SbatchOptions = Annotated[dict[str, Line | int | bool], AfterValidator(_allowed)]
"""Options of sbatch, by their long names."""
Gigabytes = Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)]
"""Memory in gigabytes. Slurm is given whole megabytes. The least value is one megabyte, because
Slurm takes 0 as all the memory of a node."""


LEAST_SECONDS = 60
"""The time of a launch, if it is limited, must exceed `signal_seconds` by more than this many
seconds. Slurm may send its signal up to a minute early, and the launch would then have no time to
train."""


class Resources(Strict):
    """The resources of one run. By default no GPUs are asked for."""

    nodes: Positive = 1
    tasks_per_node: Positive = 1
    """Ranks per node. With GPUs this should be one for each GPU."""
    gpus_per_node: NotNegative = 0
    gpu_type: Line | None = None
    """The cluster's name for its GPUs, such as `a100`."""
    cpus_per_task: Positive = 1
    memory_gb: Gigabytes | None = None
    """Memory per node; by default the partition decides."""
    time: WallTime = "24:00:00"
    """The time limit of one launch. A run that needs longer writes a checkpoint and is requeued."""
    partition: Line | None = None

    @property
    def seconds(self) -> int:
        """`time` in seconds. Slurm takes 0 as no limit."""
        days, _, clock = self.time.rpartition("-")
        parts = [int(part) for part in clock.split(":")]
        first = 3600 if days or len(parts) == 3 else 60
        seconds: int = sum(n * first // 60**i for i, n in enumerate(parts))
        return 86400 * int(days or 0) + seconds

    def gpus(self) -> str:
        """Return Slurm's words for the GPUs; an empty text if none are wanted."""
        kind = f"{self.gpu_type}:" if self.gpu_type else ""
        return f"gpu:{kind}{self.gpus_per_node}" if self.gpus_per_node else ""

    @property
    def ranks(self) -> int:
        return self.nodes * self.tasks_per_node

    def __str__(self) -> str:
        where = f", partition: {self.partition}" if self.partition else ""
        return (
            f"nodes: {self.nodes}{where}, tasks: {self.ranks}, "
            f"GPUs per node: {self.gpus_per_node}, time: {self.time}"
        )


class Match(Strict):
    """Other resources for the runs whose names match a shell pattern. Keys that `resources` leaves
    out stay as they are."""

    match: Line
    resources: dict[str, Any]


class Profile(Strict):
    """The content of `slurm.toml`. Every key has a default, which suits a cluster without
    accounts."""

    launcher: Literal["slurm"] = "slurm"
    resources: Resources = Resources()
    runs: tuple[Match, ...] = ()
    """The entries `[[runs]]`. If several match a run's name, the last one that sets a key wins."""
    account: Line | None = None
    follow_up: dict[str, Any] = Field(default_factory=dict)
    """Resources of the small job that submits what depends on results, where they are to differ
    from one CPU for an hour in the partition of `resources`."""
    signal_seconds: Positive = 300
    """When this many seconds of a launch's time remain, its ranks are told to write a checkpoint
    and end."""
    retries: NotNegative = RETRIES
    """How many launches in a row a run may have without a new checkpoint. After one more it is
    given up."""
    parallel: Positive = 64
    """How many runs of one submission may train at a time."""
    array: Positive = 1000
    """Most runs in one array. Slurm's default limit is 1,001; a cluster may have another."""
    answer_seconds: Positive = 30
    """The time in which Slurm's programs must answer."""
    setup: tuple[Line, ...] = ()
    """Lines of shell that each launch runs before its ranks start. Each must succeed."""
    container: Line = ""
    """Words to put before the ranks' `python`, such as `apptainer exec --nv image.sif`."""
    python: Line | None = None
    """The Python interpreter of the ranks; by default the one that submits."""
    srun: tuple[Line, ...] = ()
    """More options of the srun that starts the ranks, such as `--container-image=…`."""
    sbatch: SbatchOptions = Field(default_factory=dict)
    """More options of sbatch for the jobs."""
    device: Line | None = None
    """The name of the GPUs, as in `tst_study.cost.devices`. A run whose layout does not fit their
    memory is refused."""

    def resources_of(self, study: Study, run: PlannedRun) -> Resources:
        """Return the resources of a run. An entry of `runs` counts for it if any of the run's names
        matches (`PlannedRun.names`). What the study itself says counts before all of this, and its
        `gpus_per_node` gives each GPU a rank unless it says otherwise. Raises `UserError` for an
        unknown key or a wrong value of the study's."""
        values = self.resources.model_dump()
        for entry in self.runs:
            if any(fnmatch(name, entry.match) for name in run.names):
                values |= entry.resources
        given = dict(study.resources_of(run.branch_config))
        if given.get("gpus_per_node"):
            given = {"tasks_per_node": given["gpus_per_node"], **given}
        if not given:
            return Resources.model_validate(values)
        where = f"{' '.join(study.sources)}: [resources], for {run.run_id}: "
        return self.checked(values | given, where)

    @property
    def follow_up_resources(self) -> Resources:
        """Return the resources of the job that submits what depends on results. Raises
        `ValidationError`."""
        usual = {"partition": self.resources.partition, "time": "1:00:00"}
        return Resources.model_validate(usual | self.follow_up)

    def checked(self, values: Mapping[str, Any], where: str) -> Resources:
        """Return the resources. Raises `UserError`, which names the place `where` they stand."""
        try:
            resources = Resources.model_validate(values)
        except ValidationError as error:
            raise UserError(f"{where}{problem_of(Resources, error)}") from None
        if 0 < resources.seconds <= self.signal_seconds + LEAST_SECONDS:
            raise UserError(
                f"{where}time = {resources.time!r} leaves nothing to train in: runs are told to "
                f"stop signal_seconds = {self.signal_seconds} before its end; say more time, or "
                "fewer signal_seconds"
            )
        return resources


def usual_place() -> Path | None:
    """Return the first of `PLACES` that exists; None if there is none."""
    return next((path for place in PLACES if (path := place.expanduser()).exists()), None)


def load_profile(path: Path | None = None) -> Profile:
    """Read the profile in `path`, or if that is None, in the first of `PLACES` that exists. If
    there is none, all keys have their defaults.

    Raises `UserError` for a file that cannot be read, for an unknown key or a wrong value, and for
    a time that leaves nothing to train in.
    """
    path = path or usual_place()
    if path is None:
        return Profile()
    try:
        # Validated as JSON, in which arrays become tuples although types are strict.
        profile = Profile.model_validate_json(json.dumps(read_toml(path), default=str))
    except ValidationError as error:
        raise UserError(f"{path}: {problem_of(Profile, error)}") from None
    usual = profile.resources.model_dump()
    profile.checked(usual, f"{path}: ")
    profile.checked({"time": "0"} | profile.follow_up, f"{path}: follow_up.")
    for number, entry in enumerate(profile.runs):
        profile.checked(usual | entry.resources, f"{path}: runs.{number}.resources.")
    return profile
