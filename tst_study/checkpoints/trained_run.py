"""Opens a run folder to use one of its checkpoints: for evaluation, for an export, or as the start
of another run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tst_study.checkpoints.places import checkpoint_place, checkpoint_steps, damage
from tst_study.config.identity import prefix_form, shared_until
from tst_study.config.phase_plan import is_annealed, plan_phases
from tst_study.config.schema import Config, ForkPoint, Model, from_record
from tst_study.cost.compute import flops_until
from tst_study.errors import UserError
from tst_study.record.reader import RunHeader, read_header, read_status
from tst_study.superposition.steps import Phase


@dataclass(frozen=True)
class TrainedRun:
    """A run, and one of its checkpoints."""

    folder: Path
    header: RunHeader
    config: Config
    """The run's config, but with the default `execution` settings, which are those of one
    process."""
    step: int
    """The number of steps after which the checkpoint was written."""
    checkpoint: Path

    @property
    def model(self) -> Model:
        return self.config.model

    @property
    def phase(self) -> Phase:
        """The phase of the last step before the checkpoint."""
        return plan_phases(self.config).phase(self.step - 1)

    def counters(self) -> dict[str, Any]:
        """Return step, phase, tokens, FLOPs and `annealed` at the checkpoint, by the names that a
        row of `evals.jsonl` has for them."""
        return {
            **plan_phases(self.config).counters(self.step),
            "flops": flops_until(self.model, plan_phases(self.config), self.step),
            "annealed": is_annealed(self.config.schedule, self.step),
        }


def open_run(folder: str | Path, step: int | None = None) -> TrainedRun:
    """Open the last checkpoint of a run folder, or the one after `step` steps.

    Raises `UserError` if the folder holds no run, or a damaged `run.json`, or if the checkpoint is
    missing or its files are not as they were written.
    """
    folder = Path(folder)
    header = read_header(folder)
    # How the run was spread over ranks and how it was logged do not matter here.
    config = from_record({**header["config"], "execution": {}}, str(folder / "run.json"))
    steps = checkpoint_steps(folder)
    chosen = max(steps, default=0) if step is None else step
    if chosen not in steps:
        existing = ", ".join(map(str, steps)) or "none; train the run first"
        raise UserError(f"{folder}: has no checkpoint after step {chosen}; there are {existing}")
    place = checkpoint_place(folder, chosen)
    problem = damage(place)
    if problem is not None:
        raise UserError(
            f"{place}: cannot be used ({problem}); name another --step of {steps}, or delete it "
            "and train the run again from the one before"
        )
    return TrainedRun(folder, header, config, chosen, place)


def fork_point(config: Config, data: dict[str, Any]) -> ForkPoint | None:
    """Return the checkpoint of a shared prefix run at which this run begins
    (`execution.fork_from`).

    A shared prefix run trains the steps that several runs have in common. None if this run begins
    at its first step, because its config names no checkpoint, or because the prefix run diverged
    before the named checkpoint, as this run then will, too. `data`: fingerprints of this run's
    text.

    Raises `UserError` if the named folder holds no run, if that run is no prefix of this one, if
    the two runs part before the named step, or if the checkpoint is missing.
    """
    fork = config.execution.fork_from
    if fork is None:
        return None
    folder = Path(fork.folder)
    prefix = read_header(folder)
    prefix_config = from_record(prefix["config"], prefix["run_id"])
    if prefix_form(config, data) != prefix_form(prefix_config, prefix["data"]):
        raise UserError(
            f"execution.fork_from: {prefix['run_id']} is not a prefix of this run: they differ "
            "before the switch and the decay; leave the key out"
        )
    # The last step is always this run's own, because it evaluates and saves.
    own = config.schedule.last_step - 1
    last = min(shared_until(config), shared_until(prefix_config), own)
    if fork.step > last:
        raise UserError(
            f"execution.fork_from.step = {fork.step}: the two runs part after step {last}, or this "
            "one ends; fork there or before"
        )
    if fork.step not in checkpoint_steps(folder):
        status = read_status(folder)
        if status is not None and status["state"] == "diverged":
            return None
        raise UserError(
            f"execution.fork_from: {folder} has no checkpoint of step {fork.step}; train the "
            "prefix run first, or leave the key out to train the run from its first step"
        )
    return fork
