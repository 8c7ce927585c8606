"""What several runs have in common is trained once: trunks, and the branches that fork from them.

Which steps two runs share follows from their identities alone (`identity`). A trunk
ends where its second longest branch parts from it: what one run alone needs, it trains itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from experiments.plan.planned_run import Identities, PlannedRun, is_over, state
from experiments.run_process import config_path
from tst_study.checkpoints.places import checkpoint_steps
from tst_study.config.identity import digest, prefix_form, shared_until
from tst_study.config.schema import Config, ForkPoint, load, to_dict
from tst_study.config.superposition_setting import SuperpositionSetting


@dataclass(frozen=True)
class Trunk:
    run: PlannedRun
    branches: dict[str, int]
    """Fork step of each branch, by fingerprint."""


def trunks_of(runs: Sequence[PlannedRun], identities: Identities) -> list[Trunk]:
    """Every trunk that the runs allow, whatever has been trained already: the same study always
    has the same trunks."""
    groups: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        if shared_until(run.config) and run.config.schedule.stop_after is None:
            form = prefix_form(run.config, identities.data(run.config))
            groups[digest(form)].append(run)
    return [_trunk(group, identities) for group in groups.values() if len(group) > 1]


def with_trunks(runs: Sequence[PlannedRun], identities: Identities) -> list[PlannedRun]:
    """The runs, in their order, with trunks before their first branch.

    A run that has begun already continues alone; a trunk is left out where nothing is left to fork
    from it, or one run only that would have to wait for it.
    """
    by_fingerprint = {run.fingerprint: run for run in runs}
    trunk_of: dict[str, tuple[Trunk, int]] = {}
    for trunk in trunks_of(runs, identities):
        open_ = {
            fingerprint: (trunk, step)
            for fingerprint, step in trunk.branches.items()
            if not _has_begun(by_fingerprint[fingerprint])
        }
        there = state(trunk.run)
        kept = _kept_steps(trunk)
        open_ = {one: at for one, at in open_.items() if at[1] in kept}
        # Nothing forks from a trunk that diverged: each branch says by itself that it does.
        if there != "diverged" and (len(open_) > 1 or (open_ and there != "waiting")):
            trunk_of |= open_
    planned: dict[str, PlannedRun] = {}
    for run in runs:
        if run.fingerprint in trunk_of:
            trunk, step = trunk_of[run.fingerprint]
            planned.setdefault(trunk.run.fingerprint, trunk.run)
            fork = ForkPoint(folder=str(trunk.run.folder), step=step)
            run = replace(run, config=run.config.executed(fork_from=fork), trunk=trunk.run)
        planned[run.fingerprint] = run
    return list(planned.values())


def _kept_steps(trunk: Trunk) -> set[int]:
    """Of which there is or will be a checkpoint. A trunk that was handed to a launcher keeps those
    that were asked for then; of a record or a cleaned folder, they may be gone."""
    there, asked = set(checkpoint_steps(trunk.run.folder)), config_path(trunk.run.folder)
    if state(trunk.run) == "done":
        return there
    if not asked.exists():
        return there | set(trunk.branches.values())
    to_come = load(asked).execution.keep_steps
    return there | {step for step in to_come if step > max(there, default=0)}


def _has_begun(run: PlannedRun) -> bool:
    return is_over(run) or bool(checkpoint_steps(run.folder))


def _trunk(group: list[PlannedRun], identities: Identities) -> Trunk:
    longest, second = sorted((shared_until(run.config) for run in group), reverse=True)[:2]
    forks = {run.fingerprint: min(shared_until(run.config), second) for run in group}
    template = next(run.config for run in group if shared_until(run.config) == longest)
    evaluations = [run.config.execution.evaluate_every for run in group]
    schedule = template.schedule.model_copy(update={"stop_after": second})
    labels = {"name": _name(template, second), "role": "trunk"}
    config = template.model_copy(update={**labels, "schedule": schedule}).executed(
        keep_steps=tuple(sorted(set(forks.values()))),
        # Branches take its rows over, so that it must have those of all of them.
        log_every=gcd(*(run.config.execution.log_every for run in group)),
        evaluate_every=gcd(*(every for every in evaluations if every)) or None,
    )
    return Trunk(replace(identities.planned(config), branch=template.name), forks)


def _name(config: Config, steps: int) -> str:
    method = SuperpositionSetting.from_config(to_dict(config))
    return f"trunk-{method.trunk_name}-{steps}steps-seed{config.seed}"
