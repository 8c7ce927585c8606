"""The tables that `tst-study plan` prints: the runs and arms of a study, their costs and states."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from tst_study.config.identity import SEEDS, digest, identity_form
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config, to_dict
from tst_study.cost.compute import count_flops, flops_until
from tst_study.cost.prices import Prices, mfu_source, range_of, rounded
from tst_study.dry_run import TIMED, seconds_per_step
from tst_study.errors import UserError
from tst_study.experiments.plan.layouts import Allocation, AllocationOf, problems
from tst_study.experiments.plan.planned_run import PlannedRun, Shape, matches, total_flops, totals
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.screen import fitted
from tst_study.experiments.state.status import rows_in
from tst_study.record import reader as run_record
from tst_study.text import ENDLESS, big, duration, wrapped

OURS = Prices()
"""Prices without a device, so that hours are those of this machine."""
ARMS_NOTE = "By arm: FLOPs and hours of all its runs; tokens of one run, shared prefix included."


def table(
    planner: Planner,
    allocation: AllocationOf = lambda run: Allocation(),
    prices: Prices = OURS,
    *,
    pattern: str = "",
    at_once: int = 1,
    timed: bool = False,
    width: int = ENDLESS,
) -> list[str]:
    """Return lines for a screen that is `width` characters wide: totals of the study, a row for
    each run that `pattern` matches, and a row for each arm among these runs. If a run forks from a
    shared prefix run, its steps are written as fork–last.

    Args:
        allocation: the ranks and GPUs that each run would get.
        prices: the device for which hours are estimated. Without one, they are those of this
            machine, from the finished runs.
        pattern: selects runs by their ids, as `planned_run.matches` does.
        at_once: how many runs train at a time, for the wall time of the whole study.
        timed: for each shape (model and batch) that has no finished run, time some steps here.

    A planner with `unprepared` works without the corpora; a line then says that the ids are
    provisional. Raises `UserError` if `pattern` matches no run, for a device that is not listed,
    and if steps that are to be timed cannot be trained here.
    """
    study, decided = planner.study, planner.decided()
    known = {run.fingerprint for run in decided}
    undecided = [run for run in planner.whole() if run.fingerprint not in known]
    runs = [*decided, *undecided]
    there = {row.run_id: row.state for row in rows_in(study.folder, decided)}
    states = {run.fingerprint: there[run.run_id] for run in decided}
    step_seconds, source = _measured(decided, states), "by the runs that are done"
    if timed:
        source = f"by {TIMED} steps of each shape, timed on this machine"
        for run in runs:
            if run.shape not in step_seconds:
                step_seconds[run.shape] = seconds_per_step(run.config)
    costs = {
        run.fingerprint: _cost(run, allocation(run), prices, step_seconds.get(run.shape, math.nan))
        for run in runs
    }
    shown = [run for run in runs if matches(run.run_id, pattern)]
    if not shown:
        raise UserError(f"{study.folder}: no run of {study.name} has {pattern!r} in its name")
    flops = total_flops(runs)
    own = (run for run in runs if run.config.role != "trunk")
    alone = total_flops(replace(run, config=run.config.executed(fork_from=None)) for run in own)
    total = f"{flops:.3g} FLOPs, {_in_words(list(costs.values()), prices, source, at_once)}"
    if flops < alone:
        total += f"; shared prefix runs save {1 - flops / alone:.1%} of {alone:.3g}"
    text = [study.title, study.claims, "", f"{len(runs)} runs: {totals(states.values())}", total]
    if prices.device:
        mfus = dict.fromkeys(prices.mfus(run.config.model) for run in runs)
        text += [f"At {mfu_source(mfu)}" for mfu in mfus if mfu]
    text += [*problems(runs, allocation), *planner.dead_ends(), *detectable(planner.asked_for())]
    missing = [str(folder) for folder in study.corpora if not folder.is_dir()]
    if missing:
        text.append(
            f"Corpora not prepared yet: {', '.join(missing)}. `submit` prepares them, or says how; "
            "until then run ids are provisional, and runs that are there are not recognised."
        )
    headings = ["FLOPs", "GPU-hours" if prices.device else "CPU-hours"]
    headings += ["raw tokens", "latent tokens"]
    rows = [["run", "steps", *headings, "wall time", "state"]]
    arms: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in shown:
        arms[_form(run.config, *SEEDS)].append(run)
        steps = f"{run.first_step:,}–{run.steps:,}" if run.first_step else f"{run.steps:,}"
        wall = _range(costs[run.fingerprint].wall, lambda hours: duration(3600 * hours))
        state_there = states.get(run.fingerprint, "rate not chosen")
        rows.append([run.run_id, steps, *_cells([run], costs), wall, state_there])
    rows_of_arms = [["arm", "runs", *headings]]
    for members in arms.values():
        name = re.sub(r"-?seed\d+", "", members[0].config.name)
        rows_of_arms.append([name, f"{len(members):,}", *_cells(members, costs)])
    numbers = ("runs", "steps", *headings, "wall time")
    optional = ("latent tokens", "FLOPs", "wall time", "raw tokens")
    return [
        *wrapped(text, width),
        "",
        *fitted(rows, width, numbers, optional),
        "",
        *wrapped([ARMS_NOTE], width),
        *fitted(rows_of_arms, width, numbers, optional),
    ]


class Cost(NamedTuple):
    """The least and the most hours for a run's steps, without the steps of its shared prefix run;
    NaN if the hours are not known."""

    hours: list[float]
    """Hours summed over GPUs if a device is given, else over this machine's cores."""
    wall: list[float]
    """Hours from the run's start to its end."""


def _cost(run: PlannedRun, given: Allocation, prices: Prices, step_seconds: float) -> Cost:
    if prices.device is not None:
        hours = prices.gpu_hours(run.config.model, total_flops([run])) or [math.nan, math.nan]
        return Cost(hours, [each / given.ranks for each in hours])
    # Measured seconds are elapsed time already, and are not divided by the number of ranks.
    wall = [step_seconds * total_flops([run]) / count_flops(run.config).per_step / 3600] * 2
    cores = given.ranks * (run.config.execution.threads or 1)
    return Cost([cores * each for each in wall], wall)


def _cells(runs: Sequence[PlannedRun], costs: dict[str, Cost]) -> list[str]:
    """Return the FLOPs and hours of all these runs, which differ only in their seeds, and the raw
    and latent tokens of one of them, those of its shared prefix included."""
    plan, last = plan_phases(runs[0].config), runs[0].steps
    hours = _range(_sums(costs[run.fingerprint].hours for run in runs), rounded)
    tokens = big(plan.raw_tokens(last)), big(plan.latent_tokens(last))
    return [f"{total_flops(runs):.3g}", hours, *tokens]


def _sums(hours: Iterable[list[float]]) -> list[float]:
    return [sum(ends) for ends in zip(*hours, strict=True)]


def _range(hours: list[float], written: Callable[[float], str]) -> str:
    return "" if math.isnan(hours[0]) else range_of(hours, written)


def _in_words(costs: Sequence[Cost], prices: Prices, source: str, at_once: int) -> str:
    known = [cost for cost in costs if not math.isnan(cost.hours[0])]
    unknown = len(costs) - len(known)
    if prices.device is not None:
        return prices.unknown() if unknown else prices.in_words(_sums(cost.hours for cost in known))
    if not known:
        return "hours not known: give --time to have some steps timed here, or --device"
    walls = [cost.wall[0] for cost in known]
    total = sum(walls)
    wall = duration(3600 * max(total / at_once, *walls))
    rest = f"; hours of {unknown} runs not known: give --time" if unknown else ""
    return (
        f"{wall} of wall time, {at_once if at_once > 1 else 'one'} at a time "
        f"({duration(3600 * total)} of training, {source}){rest}"
    )


def _measured(runs: Sequence[PlannedRun], states: dict[str, str]) -> dict[Shape, float]:
    """Return the seconds per whole step of the first finished run of each shape. A run whose record
    cannot be read, or is in the study's archive alone, gives no time."""
    seconds: dict[Shape, float] = {}
    for run in runs:
        if states[run.fingerprint] == "done" and run.shape not in seconds:
            with suppress(UserError):
                if metrics := run_record.read(run.folder).metrics:
                    plan, done = plan_phases(run.config), metrics[-1]["step"]
                    flops = flops_until(run.config.model, plan, done)
                    whole_steps = flops / count_flops(run.config).per_step
                    seconds[run.shape] = metrics[-1]["training_seconds"] / whole_steps
    return seconds


def detectable(runs: Sequence[PlannedRun]) -> list[str]:
    """Return a line with the smallest gain that the planned seeds can detect, or one that says that
    they are too few for any claim. The list is empty if no run has a baseline of the same seed.

    Arms with too few seeds, such as those of a pilot sweep, do not count beside others. Of the
    others the one with the fewest seeds counts, by itself and in one family with all of them.
    """
    baselines = {
        _form(run.config, "superposition") for run in runs if run.config.role == "baseline"
    }
    pairs = Counter(
        _form(run.config, *SEEDS)
        for run in runs
        if run.config.role != "baseline" and _form(run.config, "superposition") in baselines
    )
    if not pairs:
        return []
    # Imported here because scipy is slow to import, and plans without such pairs do not need it.
    from tst_study.analysis.statistics import smallest_detectable
    from tst_study.analysis.verdict.intervals import FEWEST_SEEDS

    enough = [seeds for seeds in pairs.values() if seeds >= FEWEST_SEEDS]
    if not enough:
        seeds = min(pairs.values())
        return [f"Seeds per arm: {seeds}. Verdicts need {FEWEST_SEEDS}; fewer allow no claim."]
    alone, together = (smallest_detectable(min(enough), count) for count in (1, len(enough)))
    family = f", and of {together:.2g} if all {len(enough)} arms are judged in one family"
    return [
        f"{min(enough)} seeds per arm detect a gain of {alone:.2g} standard deviations of a pair's "
        f"difference{family if len(enough) > 1 else ''} (80% power, 5% level)."
    ]


def _form(config: Config, *without: str) -> str:
    values = to_dict(config)
    return digest(identity_form(values, values["data"], without))
