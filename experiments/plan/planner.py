"""The planner of a study: its runs, with identity and folder, and the steps that they share.

Steps that several runs have in common are trained only once, by a shared prefix run; the runs then
fork from its checkpoints, as its branches. Which steps two runs share follows from their configs
and corpora alone (`config.identity`). A shared prefix run ends with the last step that at least two
branches share; each branch trains the steps after its fork itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from pathlib import Path
from typing import Any

from tst_study.checkpoints.places import checkpoint_steps
from tst_study.config.identity import digest, fingerprint, prefix_form, run_id, shared_until
from tst_study.config.schema import Config, ForkPoint, to_dict
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError
from tst_study.experiments.plan.planned_run import PlannedRun, final_loss, is_over, state
from tst_study.experiments.run_process import config_path, submitted_config
from tst_study.experiments.study import Study
from tst_study.record.reader import FINAL_STATES, read_header


@dataclass
class Planner:
    """Plans a study. As the study's `Results`, it also tells the study the results so far. A
    planner can be used as long as the corpora do not change."""

    study: Study
    unprepared: bool = False
    """Plan even if corpora are missing. Identities and folders are then provisional."""
    pretends: bool = False
    """Take losses that are not known yet to be 0, as in a plan of the whole study."""
    remarks: dict[str, None] = field(default_factory=dict)
    """What the study remarked on the choices that it made, each once."""
    _dead_ends: dict[str, None] = field(default_factory=dict)
    _losses: dict[str, float] = field(default_factory=dict)
    _data: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    _known: dict[Config, str] = field(default_factory=dict)
    _folders: dict[str, set[str]] = field(default_factory=dict)
    """Names of the run folders, by their last eight characters. These are the first eight hex
    digits of the run's identity, so that a run is found even if the study has since given it
    another name."""

    def decided(self) -> list[PlannedRun]:
        """List every run that can be planned with the results so far, each once, most urgent first.
        A shared prefix run stands before its branches."""
        return self._with_prefixes(self.asked_for())

    def whole(self) -> list[PlannedRun]:
        """List all runs that the study is expected to need, as if every loss that is not known yet
        were 0.

        An undecided choice then falls on its first candidate without a result. So the runs that
        follow a choice may get another learning rate than they will have, but their number and cost
        are right. The number of candidates is the largest possible one, because ladders of learning
        rates (`studies.grid.Tuning`) are extended as far as they ever can be.
        """
        pretending = copy(self)
        pretending.pretends, pretending.remarks = True, {}  # these choices are not made yet
        return self._with_prefixes(pretending.asked_for())

    def asked_for(self) -> list[PlannedRun]:
        """List the study's own runs as if each were trained alone, without shared prefix runs."""
        if self.study.folder.is_dir():
            self._folders = defaultdict(set)
            for path in self.study.folder.iterdir():
                self._folders[path.name[-8:]].add(path.name)
        # Configs with the same identity are one run: the winner of a sweep, say, is also a
        # baseline.
        runs: dict[str, PlannedRun] = {}
        for run in map(self.planned, self.study.runs(self)):
            runs.setdefault(run.fingerprint, run)
        return list(runs.values())

    def dead_ends(self) -> list[str]:
        """Return a line for each choice of the study that cannot be made because all its candidates
        diverged."""
        self._dead_ends.clear()
        self.asked_for()
        return list(self._dead_ends)

    def dead_end(self, why: str) -> None:
        self._dead_ends[why] = None

    def remark(self, what: str) -> None:
        self.remarks[what] = None

    def held_out(self, config: Config) -> float | None:
        run = self.planned(config)
        if run.fingerprint not in self._losses:
            loss = final_loss(run)
            if loss is None:
                return 0.0 if self.pretends else None
            self._losses[run.fingerprint] = loss
        return self._losses[run.fingerprint]

    def planned(self, config: Config) -> PlannedRun:
        """Return the run of a config, with its identity and its folder. Raises `UserError` if a
        corpus is not prepared, unless `unprepared` is set."""
        config = self.study.placed(config)
        identity = self._known.get(config)
        if identity is None:
            identity = self._known[config] = fingerprint(config, self.data(config))
        name, root = run_id(config, identity), self.study.folder
        there = self._folders.get(identity[:8], set())
        if name not in there:
            name = next((each for each in sorted(there) if _holds(root / each, identity)), name)
        return PlannedRun(config, identity, root / name, recorded=self._recorded.get(identity))

    @cached_property
    def _recorded(self) -> dict[str, tuple[str, float]]:
        """State and final loss, by fingerprint, of the study's archived runs that are over."""
        from tst_study.analysis.tables.source import load

        if not self.study.recorded:
            return {}
        rows = load(self.study.recorded)
        over = rows[rows["state"].isin(FINAL_STATES)]
        states = zip(over["state"], over["nats_per_token"].astype(float), strict=True)
        return dict(zip(over["fingerprint"], states, strict=True))

    def data(self, config: Config) -> dict[str, Any]:
        """Return the fingerprints of what the config reads: corpora and initial weights. Files are
        read once, not once per run. Raises `UserError` as `planned` does."""
        from tst_study.data.run_data import fingerprints

        model, batch = config.model, config.batch
        key = (config.data, config.fork_from, model.vocabulary_size, batch.sequence_length)
        if key not in self._data:
            try:
                self._data[key] = fingerprints(config)
            except UserError:
                if not self.unprepared:
                    raise
                self._data[key] = {"not prepared": [c.path for c in config.data.corpora]}
        return self._data[key]

    def _with_prefixes(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        return with_prefixes(runs, self) if self.study.share else runs


def prepare(study: Study) -> None:
    """Make the corpora that the study's runs read and that are not complete yet. Raises `UserError`
    if a corpus from the Hugging Face hub is incomplete: such a corpus must be prepared first
    (`tst-study data prepare`)."""
    runs = Planner(study, unprepared=True).whole()
    read = {Path(corpus.path).absolute() for run in runs for corpus in run.config.data.corpora}
    for folder, recipe in study.corpora.items():
        if folder.absolute() in read:
            recipe.prepare(folder)


def _holds(folder: Path, identity: str) -> bool:
    """Return whether a folder holds this run, or one that has no record yet."""
    try:
        return read_header(folder)["fingerprint"] == identity
    except UserError:
        return not (folder / "run.json").exists()


@dataclass(frozen=True)
class Prefix:
    """A shared prefix run, and the runs that can fork from it."""

    run: PlannedRun
    branches: dict[str, int]
    """The step at which each branch forks, by the branch's fingerprint."""


def prefixes_of(runs: Sequence[PlannedRun], planner: Planner) -> list[Prefix]:
    """List the shared prefix runs of these runs. They do not depend on what has been trained
    already, so the same runs always have the same shared prefix runs."""
    groups: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        if shared_until(run.config) and run.config.schedule.stop_after is None:
            form = prefix_form(run.config, planner.data(run.config))
            groups[digest(form)].append(run)
    return [_prefix_run(group, planner) for group in groups.values() if len(group) > 1]


def with_prefixes(runs: Sequence[PlannedRun], planner: Planner) -> list[PlannedRun]:
    """List the runs in their order, each shared prefix run before its first branch.

    A run has no prefix in the list if it is over, if it has a checkpoint of its own, or if it would
    fork at a step where the prefix run has no checkpoint and will not get one. A shared prefix run
    is left out if it diverged, if no run is left to fork from it, or if only one is left and the
    prefix run has not begun.
    """
    by_fingerprint = {run.fingerprint: run for run in runs}
    prefix_of: dict[str, tuple[Prefix, int]] = {}
    for prefix in prefixes_of(runs, planner):
        there, kept = state(prefix.run), _kept_steps(prefix)
        open_ = {
            fingerprint: (prefix, step)
            for fingerprint, step in prefix.branches.items()
            if step in kept and not is_over(run := by_fingerprint[fingerprint])
            if not checkpoint_steps(run.folder)
        }
        # Nothing forks from a shared prefix run that diverged. Each branch is trained from its
        # first step, so that its own record shows how it diverges.
        if there != "diverged" and (len(open_) > 1 or (open_ and there != "waiting")):
            prefix_of |= open_
    planned: dict[str, PlannedRun] = {}
    for run in runs:
        if run.fingerprint in prefix_of:
            prefix, step = prefix_of[run.fingerprint]
            planned.setdefault(prefix.run.fingerprint, prefix.run)
            fork = ForkPoint(folder=str(prefix.run.folder), step=step)
            run = replace(run, config=run.config.executed(fork_from=fork), prefix=prefix.run)
        planned[run.fingerprint] = run
    return list(planned.values())


def _kept_steps(prefix: Prefix) -> set[int]:
    """Return the steps at which the shared prefix run has a checkpoint, or will have one.

    A prefix run that is done gets no more of them. One that a launcher has taken on will keep the
    steps that its config asked for then, even if the study now asks for others.
    """
    there = set(checkpoint_steps(prefix.run.folder))
    if state(prefix.run) == "done":
        return there
    if not config_path(prefix.run.folder).exists():
        return there | set(prefix.branches.values())
    to_come = submitted_config(prefix.run.folder).execution.keep_steps
    return there | {step for step in to_come if step > max(there, default=0)}


def _prefix_run(group: list[PlannedRun], planner: Planner) -> Prefix:
    longest, second = sorted((shared_until(run.config) for run in group), reverse=True)[:2]
    forks = {run.fingerprint: min(shared_until(run.config), second) for run in group}
    template = next(run.config for run in group if shared_until(run.config) == longest)
    evaluations = [run.config.execution.evaluate_every for run in group]
    schedule = template.schedule.model_copy(update={"stop_after": second})
    method = SuperpositionSetting.from_config(to_dict(template)).prefix_name
    labels = {"name": f"trunk-{method}-{second}steps-seed{template.seed}", "role": "trunk"}
    config = template.model_copy(update={**labels, "schedule": schedule}).executed(
        keep_steps=tuple(sorted(set(forks.values()))),
        # Its branches take over rows of its record, so it logs and evaluates at every step at which
        # any of them would.
        log_every=gcd(*(run.config.execution.log_every for run in group)),
        evaluate_every=gcd(*(every for every in evaluations if every)) or None,
    )
    return Prefix(replace(planner.planned(config), branch=template.name), forks)
