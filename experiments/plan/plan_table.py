"""The table that `tst-study plan` prints: every run of a study, its cost and its state."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tst_study import file_lock
from tst_study.config.identity import SEEDS, digest, identity_form
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config, to_dict
from tst_study.cost.prices import Prices, mfu_source, range_of, rounded
from tst_study.dry_run import TIMED, seconds_per_step
from tst_study.errors import UserError
from tst_study.experiments.plan.layouts import Allocation, AllocationOf, problems
from tst_study.experiments.plan.planned_run import (
    PlannedRun,
    Shape,
    matches,
    state,
    total_flops,
    totals,
)
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.screen import fitted
from tst_study.record import reader as run_record
from tst_study.text import ENDLESS, big, duration, wrapped

COLUMNS = ("steps", "FLOPs", "GPU-hours", "CPU-hours", "raw tokens", "latent tokens")
NUMBERS = ("runs", *COLUMNS, "wall time", "launches")
ARMS_NOTE = (
    "By arm: FLOPs and hours of all its runs; tokens of one run, from its first step to its last."
)
OURS = Prices()


@dataclass(frozen=True)
class PlanTable:
    text: list[str]
    """Title, claims, totals and notes, a line each."""
    rows: list[dict[str, Any]]
    """One per run: steps, FLOPs, tokens; hours, seconds and launches each as [least, most].
    Tokens are those of the whole run, its shared prefix included; everything else is what the run
    itself trains. Unknown values are None."""
    arms: list[dict[str, Any]]
    """One per arm: the sums of its runs, and the tokens of one of them."""

    def lines(self, width: int = ENDLESS) -> list[str]:
        """For a screen of so many columns. Steps are written from–to where the run forks from a
        shared prefix run."""
        runs = [["run", *COLUMNS, "wall time", "launches", "state"]]
        for row in self.rows:
            first = f"{row['first_step']:,}–" if row["first_step"] else ""
            runs.append(
                [
                    row["run_id"],
                    f"{first}{row['steps']:,}",
                    *_costs(row),
                    range_of(row["wall_seconds"], duration),
                    range_of(row["launches"], "{:,}".format),
                    row["state"],
                ]
            )
        arms = [["arm", "runs", *COLUMNS[1:]]]
        arms += [[row["arm"], f"{row['runs']:,}", *_costs(row)] for row in self.arms]
        hide = ("launches", "latent tokens", "FLOPs", "wall time", "raw tokens")
        return [
            *wrapped(self.text, width),
            "",
            *fitted(runs, width, NUMBERS, hide),
            "",
            *wrapped([ARMS_NOTE], width),
            *fitted(arms, width, NUMBERS, hide),
        ]


def _costs(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['flops']:.3g}",
        range_of(row["gpu_hours"], rounded),
        range_of(row["cpu_hours"], rounded),
        big(row["raw_tokens"]),
        big(row["latent_tokens"]),
    ]


def table(
    planner: Planner,
    allocation: AllocationOf = lambda run: Allocation(),
    prices: Prices = OURS,
    *,
    noise: float | None = None,
    pattern: str = "",
    at_once: int = 1,
    timed: bool = False,
) -> PlanTable:
    """Build the plan table: totals, a row for each run that `pattern` matches, and a row for each
    arm among them. `at_once` is the number of parallel runs behind the wall time. With `timed`,
    shapes without a finished run are timed on this machine. Raises `UserError` where `pattern`
    matches none.

    Corpora need not be there yet; ids are provisional then, which is said.
    """
    study, decided = planner.study, planner.decided()
    known = {run.fingerprint for run in decided}
    open_ = [run for run in planner.whole() if run.fingerprint not in known]
    runs = [*decided, *open_]
    states = {run.fingerprint: _state_now(run) for run in decided}
    measured, source = _measured(decided, states), "by the runs that are done"
    if timed:
        source = f"by {TIMED} steps of each shape, timed on this machine"
        measured = {run.shape: 0.0 for run in runs} | measured
        for run in runs:
            measured[run.shape] = measured[run.shape] or seconds_per_step(run.config)
    rows, hours = [], []
    for run in runs:
        plan, given, own = (
            plan_phases(run.config),
            allocation(run),
            _own_hours(run, prices, measured),
        )
        # Measured hours are elapsed time, so that they are not divided by ranks.
        ranks = given.ranks if prices.device else 1
        walls = own and [3600 * each / ranks for each in own]
        launches = walls and given.seconds and [ceil(wall / given.seconds) for wall in walls]
        cores = given.ranks * (run.config.execution.threads or 1)
        hours.append(own)
        rows.append(
            {
                "run_id": run.run_id,
                "first_step": run.first_step,
                "steps": run.steps,
                "flops": total_flops([run]),
                "raw_tokens": plan.raw_tokens(run.steps),
                "latent_tokens": plan.latent_tokens(run.steps),
                "gpu_hours": own if prices.device else None,
                "cpu_hours": None if prices.device or not own else [cores * h for h in own],
                "wall_seconds": walls,
                "launches": launches or None,
                "state": states.get(run.fingerprint, "rate not chosen"),
            }
        )
    shown = [pair for pair in zip(runs, rows, strict=True) if matches(pair[0].run_id, pattern)]
    if not shown:
        raise UserError(f"{study.folder}: no run of {study.name} has {pattern!r} in its name")
    text = [study.title, study.claims, "", f"{len(runs)} runs: {totals(states.values())}"]
    flops = total_flops(runs)
    alone = total_flops([*planner.asked_for(), *(run for run in open_ if not run.prefix)])
    text.append(f"{flops:.3g} FLOPs, {_in_words(hours, prices, source, at_once)}")
    if flops < alone:
        text[-1] += f"; shared prefix runs save {1 - flops / alone:.1%} of {alone:.3g}"
    if prices.device:
        mfus = dict.fromkeys(prices.mfus(run.config.model) for run in runs)
        text += [f"At {mfu_source(mfu)}" for mfu in mfus if mfu]
    text += [*problems(runs, allocation), *planner.dead_ends()]
    text += detectable(planner.asked_for(), noise)
    missing = [str(folder) for folder in study.corpora if not folder.is_dir()]
    if missing:
        runs_there = run_record.find_run_folders(study.folder)
        text.append(
            f"Corpora not prepared yet: {', '.join(missing)}. `submit` prepares them; until then "
            "run ids are provisional"
            + (f", and runs in {study.folder} are not recognised." if runs_there else ".")
        )
    return PlanTable(text, [row for _, row in shown], _arms(shown))


def _arms(runs: Sequence[tuple[PlannedRun, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Sum up the runs that differ in their seeds alone."""
    arms: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run, row in runs:
        name = re.sub(r"-?seed\d+", "", run.config.name)
        arms[_form(run.config, *SEEDS)].append(row | {"arm": name})
    return [
        {
            "arm": members[0]["arm"],
            "runs": len(members),
            "flops": sum(row["flops"] for row in members),
            "gpu_hours": _sum([row["gpu_hours"] for row in members]),
            "cpu_hours": _sum([row["cpu_hours"] for row in members]),
            "raw_tokens": members[0]["raw_tokens"],
            "latent_tokens": members[0]["latent_tokens"],
        }
        for members in arms.values()
    ]


def _sum(hours: Sequence[list[float] | None]) -> list[float] | None:
    """Add up [least, most] hours; return None if any are unknown."""
    known = [ends for ends in hours if ends is not None]
    return [sum(ends) for ends in zip(*known, strict=True)] if len(known) == len(hours) else None


def _own_hours(run: PlannedRun, prices: Prices, measured: dict[Shape, float]) -> list[float] | None:
    """Return the [least, most] hours of the steps that a run trains itself: GPU-hours if a device
    is given, else elapsed hours on this machine. `measured`: seconds per step."""
    if prices.device is not None:
        return prices.gpu_hours(run.config.model, total_flops([run]))
    seconds = measured.get(run.shape)
    return None if seconds is None else [seconds * (run.steps - run.first_step) / 3600] * 2


def _in_words(
    hours: Sequence[list[float] | None], prices: Prices, source: str, at_once: int
) -> str:
    known = [ends for ends in hours if ends is not None]
    unknown = len(hours) - len(known)
    if prices.device is not None:
        return prices.unknown() if unknown else prices.in_words(_sum(known) or ())
    if not known:
        return "hours not known: give --time to have some steps timed here, or --device"
    total, longest = sum(least for least, _ in known), max(least for least, _ in known)
    wall = duration(3600 * max(total / at_once, longest))
    rest = f"; of {unknown} runs not known: give --time" if unknown else ""
    return (
        f"{wall} of wall time, {at_once if at_once > 1 else 'one'} at a time "
        f"({duration(3600 * total)} of training, {source}){rest}"
    )


def _state_now(run: PlannedRun) -> str:
    """The recorded state, but `interrupted` for a run that nobody trains any more."""
    recorded = state(run)
    dead = recorded == "running" and not file_lock.is_held(run.folder)
    return "interrupted" if dead else recorded


def _measured(runs: Sequence[PlannedRun], states: dict[str, str]) -> dict[Shape, float]:
    """Seconds a step of the first finished run of each shape."""
    seconds: dict[Shape, float] = {}
    for run in runs:
        if states[run.fingerprint] == "done" and run.shape not in seconds:
            metrics = run_record.read(run.folder).metrics
            if metrics:
                seconds[run.shape] = metrics[-1]["training_seconds"] / metrics[-1]["step"]
    return seconds


def detectable(runs: Sequence[PlannedRun], noise: float | None = None) -> list[str]:
    """State the smallest gain that the planned seeds can detect; return an empty list if no arm has
    a baseline with its seed.

    `noise`: standard deviation of a pair's difference in nats.
    """
    baselines = {
        _form(run.config, "superposition") for run in runs if run.config.role == "baseline"
    }
    pairs = Counter(
        _form(run.config, *SEEDS)
        for run in runs
        if run.config.role not in ("baseline", "trunk")
        if _form(run.config, "superposition") in baselines
    )
    if not pairs:
        return []
    # Imported here because scipy is slow to import and most plans do not need it.
    from tst_study.analysis.statistics import smallest_detectable
    from tst_study.analysis.verdict.intervals import FEWEST_SEEDS

    seeds = min(pairs.values())
    gain = smallest_detectable(seeds)
    if gain is None or seeds < FEWEST_SEEDS:
        return [f"Seeds per arm: {seeds}. Verdicts need {FEWEST_SEEDS}; fewer allow no claim."]
    size = f"{gain:.2g} standard deviations of a pair's difference; give --noise for nats"
    if noise is not None:
        size = f"{gain * noise:.3f} nats, if a pair's difference has a deviation of {noise:g}"
    return [f"{seeds} seeds per arm detect a gain of {size} (80% power, 5% level)."]


def _form(config: Config, *without: str) -> str:
    values = to_dict(config)
    return digest(identity_form(values, values["data"], without))
