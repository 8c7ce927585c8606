"""What `sbatch --test-only` says of a study's jobs."""

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from experiments.launcher import Allocation
from experiments.plan.layouts import problems
from experiments.plan.planned_run import PlannedRun, is_over
from experiments.slurm import submission
from experiments.slurm.batch_script import array_script
from experiments.slurm.commands import SlurmError, call
from experiments.slurm.profile import Profile, Resources


def check_with_slurm(runs: Sequence[PlannedRun], root: Path, profile: Profile) -> list[str]:
    """What stands against the runs' layouts, and a line for each kind of job that they need."""
    kinds: dict[Resources, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        if not is_over(run):
            kinds[profile.resources_of(run.config.name)].append(run)
    lines = problems(runs, lambda name: Allocation(profile.resources_of(name).ranks))
    for resources, members in kinds.items():
        one = submission.new(root, "", [members[0].run_id], Path("code"))
        text = array_script(one, root, profile, resources)
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
            script.write(text)
            script.flush()
            try:
                call("sbatch", "--test-only", script.name)
                said = "accepted"
            except SlurmError as error:
                said = str(error)
        lines.append(f"{len(members)} runs on {_said(resources)}: {said}")
    return lines


def _said(resources: Resources) -> str:
    where = f" of {resources.partition}" if resources.partition else ""
    return (
        f"{resources.nodes} nodes{where}, {resources.ranks} tasks, "
        f"{resources.gpus_per_node} GPUs each, {resources.time}"
    )
