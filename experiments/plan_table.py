"""What `tst-study plan` prints: every run of a study, its cost and its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.detectable import detectable
from experiments.launcher import Allocation, Prices
from experiments.planned_run import PlannedRun, Shape, total_flops
from experiments.planner import Planner
from experiments.status import StatusRow, row, totals
from experiments.study import Study
from tst_study import run_record
from tst_study.compute_cost import gpu_hours
from tst_study.config import Config
from tst_study.memory_model import estimate_memory
from tst_study.parallel_layout import layout_of, least_ranks
from tst_study.phase_plan import plan_phases

AllocationOf = Callable[[str], Allocation]
"""What a run of a name would get."""
OURS = Prices()


def lines(
    planner: Planner,
    allocation: AllocationOf = lambda name: Allocation(),
    prices: Prices = OURS,
    *,
    noise: float | None = None,
) -> list[str]:
    """Corpora need not be there yet; ids are provisional then, which is said."""
    study, decided = planner.study, planner.decided()
    known = {run.fingerprint for run in decided}
    open_ = [run for run in planner.whole() if run.fingerprint not in known]
    runs = [*decided, *open_]
    states = {run.fingerprint: row(run.folder) for run in decided}
    hours = _Hours(prices, _measured(decided, states))
    width = max(len(run.run_id) for run in runs)
    head = f"{'run':<{width}} {'steps':>15} {'FLOPs':>9} {'tokens':>8} {'hours':>8} {'memory':>9}"
    text = [study.title, study.claims, "", f"{head}  state"]
    for run in runs:
        state = states[run.fingerprint].state if run.fingerprint in states else "rate not chosen"
        text.append(f"{_line(run, width, hours, allocation)}  {state}")
    text += ["", f"{len(runs)} runs: {totals(states.values())}"]
    text += _sums(runs, planner, hours, open_)
    found = detectable(planner.asked_for(), noise)
    text += [found.sentence()] if found else []
    return text + _unprepared(study)


def _line(run: PlannedRun, width: int, hours: _Hours, allocation: AllocationOf) -> str:
    """Steps are written from–to where the run forks behind a trunk; memory is that of one rank."""
    plan = plan_phases(run.config)
    steps = f"{run.first_step:,}–{run.steps:,}" if run.first_step else f"{run.steps:,}"
    memory = _memory(run.config, allocation(run.config.name))
    tokens = plan.raw_tokens(run.steps) - plan.raw_tokens(run.first_step)
    return (
        f"{run.run_id:<{width}} {steps:>15} {total_flops([run]):>9.3g} {tokens:>8.3g} "
        f"{_number(hours.of(run)):>8} {memory:>9}"
    )


def _memory(config: Config, given: Allocation) -> str:
    """Of one rank, with as many as the launcher gives or the layout needs."""
    if config.execution.parallel == "auto":
        return "auto"
    ranks = max(given.ranks, least_ranks(layout_of(config)))
    estimate = estimate_memory(config, ranks, on_gpu=given.on_gpu)
    return f"{estimate.total / 2**30:.3g} GiB"


def _sums(
    runs: Sequence[PlannedRun], planner: Planner, hours: _Hours, open_: Sequence[PlannedRun]
) -> list[str]:
    flops = total_flops(runs)
    alone = total_flops([*planner.asked_for(), *(run for run in open_ if not run.trunk)])
    saved = 1 - flops / alone
    text = [f"{flops:.3g} FLOPs, {hours.said(runs)}"]
    if saved > 0:
        text[0] += f"; shared trunks save {saved:.1%} of {alone:.3g}"
    return text


@dataclass(frozen=True)
class _Hours:
    prices: Prices
    step_seconds: dict[Shape, float]

    def of(self, run: PlannedRun) -> float | None:
        """Device-hours."""
        per_hour = self.prices.flops_per_hour()
        if per_hour is not None:
            return gpu_hours(total_flops([run]), per_hour / 3600, 1.0)
        seconds = self.step_seconds.get(run.shape)
        return None if seconds is None else seconds * (run.steps - run.first_step) / 3600

    def said(self, runs: Sequence[PlannedRun]) -> str:
        known = [hours for hours in map(self.of, runs) if hours is not None]
        if len(known) < len(runs):
            return "hours not known: give --device, or let a run of each shape end"
        total = sum(known)
        if self.prices.device is None:
            return f"{_number(total)} hours of one run at a time, by the runs that are done"
        text = f"{_number(total)} GPU-hours of {self.prices.device} at {self.prices.mfu:.0%} MFU"
        price = self.prices.per_gpu_hour
        return text if price is None else f"{text}, {total * price:,.0f} at {price:g} an hour"


def _measured(runs: Sequence[PlannedRun], states: dict[str, StatusRow]) -> dict[Shape, float]:
    """Seconds a step of the first finished run of each shape."""
    found: dict[Shape, float] = {}
    for run in runs:
        if states[run.fingerprint].state == "done" and run.shape not in found:
            metrics = run_record.read(run.folder).metrics
            if metrics:
                found[run.shape] = metrics[-1]["training_seconds"] / metrics[-1]["step"]
    return found


def _unprepared(study: Study) -> list[str]:
    missing = [str(recipe.folder) for recipe in study.corpora if not recipe.folder.is_dir()]
    if not missing:
        return []
    return [f"Not prepared yet, so that ids are provisional: {', '.join(missing)}"]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
