"""The tables that `tst-study plan` prints: the runs and arms of a study, their costs and states."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from tst_study.config.identity import SEEDS, digest, identity_form
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config, to_dict
from tst_study.cost.compute import count_flops, flops_until
from tst_study.cost.prices import Prices, mfu_source, range_of, span
from tst_study.data.run_data import fingerprints_and_held_out
from tst_study.data.token_file import idx_path
from tst_study.dry_run import TIMED, seconds_per_step
from tst_study.errors import UserError
from tst_study.experiments.corpora import Text
from tst_study.experiments.plan.layouts import Allocation, AllocationOf, problems
from tst_study.experiments.plan.planned_run import PlannedRun, Shape, matches, total_flops, totals
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.screen import table_of_runs
from tst_study.experiments.state.status import folders_below, rows_in
from tst_study.experiments.study import Study
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
    deviation: float | None = None,
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
        deviation: as `detectable` takes it.

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
    facts = {run.fingerprint: _facts(run, planner) for run in runs}
    text = [study.title, study.claims, "", f"{len(runs)} runs: {totals(states.values())}"]
    hours = _in_words(list(costs.values()), prices, source, at_once)
    text.append(f"{total_flops(runs):.3g} FLOPs, {hours}{_saving(runs)}")
    if prices.device:
        mfus = dict.fromkeys(prices.mfus(experts=_is_mixture(run)) for run in runs)
        text += [f"At {mfu_source(mfu)}" for mfu in mfus if mfu]
    text += [*problems(runs, allocation), *planner.dead_ends(), *planner.remarks]
    text += detectable(study, planner.asked_for(), deviation)
    text += [*missing_text(study, runs), *held_out_text(runs), *_read_again(runs, facts)]
    headings = ["FLOPs", "GPU-hours" if prices.device else "CPU-hours"]
    headings += ["raw tokens", "epochs", "latent tokens"]
    rows = [["run", "steps", *headings, "wall time", "state"]]
    arms: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in shown:
        arms[f"{run.config.role} {_form(run.config, *SEEDS)}"].append(run)
        steps = f"{run.first_step:,}–{run.steps:,}" if run.first_step else f"{run.steps:,}"
        wall = _wall(costs[run.fingerprint].wall)
        state_there = states.get(run.fingerprint, "not chosen yet")
        rows.append([run.run_id, steps, *_cells([run], costs, facts), wall, state_there])
    rows_of_arms = [["arm", "runs", *headings]]
    for members in arms.values():
        name = _without_seed(members[0].config.name)
        rows_of_arms.append([name, f"{len(members):,}", *_cells(members, costs, facts)])
    numbers = ("runs", "steps", *headings, "wall time")
    optional = ("latent tokens", "FLOPs", "wall time", "raw tokens", "epochs")
    return [
        *wrapped(text, width),
        "",
        *table_of_runs(rows, width, numbers, optional),
        "",
        *wrapped([ARMS_NOTE], width),
        *table_of_runs(rows_of_arms, width, numbers, optional),
    ]


class Cost(NamedTuple):
    """The least and the most hours for a run's steps, without the steps of its shared prefix run;
    NaN if the hours are not known."""

    hours: list[float]
    """Hours summed over GPUs if a device is given, else over this machine's cores."""
    wall: list[float]
    """Hours from the run's start to its end."""


def _cells(
    members: Sequence[PlannedRun], costs: Mapping[str, Cost], facts: Mapping[str, dict[str, float]]
) -> list[str]:
    """Return the FLOPs and hours of all these runs, which differ only in their seeds, and the raw
    tokens, epochs and latent tokens of one of them, those of its shared prefix included."""
    hours = _sums(costs[run.fingerprint].hours for run in members)
    one = facts[members[0].fingerprint]
    times = one["epochs"]
    read = "" if math.isnan(times) else f"{times:.2g}" if times < 9.95 else f"{times:,.0f}"
    flops = sum(facts[run.fingerprint]["flops"] for run in members)
    cost = [f"{flops:.3g}", "" if math.isnan(hours[0]) else span(hours)]
    return [*cost, big(one["raw_tokens"]), read, big(one["latent_tokens"])]


def _is_mixture(run: PlannedRun) -> bool:
    return run.config.model.experts is not None


def _cost(run: PlannedRun, given: Allocation, prices: Prices, step_seconds: float) -> Cost:
    if prices.device is not None:
        hours = prices.gpu_hours(total_flops([run]), experts=_is_mixture(run))
        hours = hours or [math.nan, math.nan]
        return Cost(hours, [each / given.ranks for each in hours])
    # Measured seconds are elapsed time already, and are not divided by the number of ranks.
    wall = [step_seconds * total_flops([run]) / count_flops(run.config).per_step / 3600] * 2
    cores = given.ranks * (run.config.execution.threads or 1)
    return Cost([cores * each for each in wall], wall)


def _without_seed(name: str) -> str:
    return re.sub(r"-?seed\d+", "", name)


def _facts(run: PlannedRun, planner: Planner) -> dict[str, float]:
    """Return a run's FLOPs, without its shared prefix, and its tokens, with it. `epochs`: how often
    it reads the corpus that it reads most often; NaN if that is not prepared."""
    plan = plan_phases(run.config)
    corpora, read = planner.data(run.config).get("corpora", []), plan.raw_tokens(run.steps)
    weights = sum(corpus["weight"] for corpus in corpora)
    shares = (read * one["weight"] / weights / one["tokens"] for one in corpora if one["tokens"])
    return {
        "flops": total_flops([run]),
        "raw_tokens": read,
        "latent_tokens": plan.latent_tokens(run.steps),
        "epochs": max(shares, default=math.nan),
    }


def _sums(hours: Iterable[list[float]]) -> list[float]:
    return [sum(ends) for ends in zip(*hours, strict=True)]


def _wall(hours: list[float]) -> str:
    return "" if math.isnan(hours[0]) else range_of(hours, lambda each: duration(3600 * each))


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


def _saving(runs: Sequence[PlannedRun]) -> str:
    """Say how many FLOPs the shared prefix runs save; an empty text if there are none."""
    own = (run for run in runs if run.config.role != "trunk")
    alone = total_flops(replace(run, config=run.config.executed(fork_from=None)) for run in own)
    share = 1 - total_flops(runs) / alone
    return f"; shared prefix runs save {share:.1%} of {alone:.3g}" if share > 0 else ""


def _read_again(runs: Sequence[PlannedRun], facts: Mapping[str, dict[str, float]]) -> list[str]:
    """Say which arms read a text more than once."""
    often = {
        _without_seed(run.config.name): times
        for run in runs
        if (times := facts[run.fingerprint]["epochs"]) > 1.005 and run.config.role != "trunk"
    }
    if not often:
        return []
    most = max(often, key=lambda name: often[name])
    return [
        f"Text that is read more than once: by {len(often)} arms, most often by {most}, "
        f"{often[most]:.3g} times."
    ]


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


def missing_text(study: Study, runs: Sequence[PlannedRun]) -> list[str]:
    """Return a line for each corpus that is not prepared, with what prepares it."""
    recipes = {str(folder.absolute()): recipe for folder, recipe in study.corpora.items()}
    read: dict[str, int] = {}
    for run in runs:
        tokens = plan_phases(run.config).raw_tokens(run.steps)
        for corpus in run.config.data.corpora:
            read[corpus.path] = max(read.get(corpus.path, 0), tokens)
    lines = []
    for path, tokens in read.items():
        if Path(path).is_dir() or idx_path(path).is_file():
            continue
        recipe = recipes.get(str(Path(path).absolute()))
        if isinstance(recipe, Text) and recipe.is_remote:
            remedy = f"first: {recipe.command(Path(path))}"
        elif recipe:
            remedy = "`submit` prepares it"
        else:
            remedy = f"first: tst-study data prepare --source YOUR-TEXT --to {quote(path)}"
        lines.append(f"{path}: not prepared yet; a run reads up to {big(tokens)} tokens; {remedy}")
    if lines:
        note = "Until then run ids are provisional, and runs that are there are not recognised."
        lines.append(note)
    return lines


FEW_TOKENS, FEW_DOCUMENTS = 50_000, 10
"""With fewer held-out tokens or documents a plan warns, because the loss then depends on which they
are."""


def held_out_text(runs: Sequence[PlannedRun]) -> list[str]:
    """Return a line for each held-out text of the runs; none for text that is not prepared."""
    lines: dict[str, None] = {}
    seen = set()
    for run in runs:
        key = (run.config.data, run.config.batch.sequence_length)
        if key in seen:
            continue
        seen.add(key)
        with suppress(UserError):
            held = fingerprints_and_held_out(run.config)[1]
            documents = None if held.documents is None else len(set(held.documents.tolist()))
            few = held.predicted_tokens < FEW_TOKENS or (documents or FEW_DOCUMENTS) < FEW_DOCUMENTS
            among = "" if documents is None else f" of {documents} document{'s' * (documents != 1)}"
            what = f"Held out: {held.predicted_tokens:,} tokens{among}"
            lines[f"{what}, which is little: hold out more text." if few else f"{what}."] = None
    return list(lines)


USUAL_DEVIATION = 0.011
"""Deviation of a paired difference of two runs over seeds, in nats: six of the eight arms of our
second campaign, 0.23 million parameters and twelve seeds, lie below it (0.005 to 0.010), two above
(0.014, 0.029; docs/research/campaign.md)."""


def detectable(
    study: Study, runs: Sequence[PlannedRun], deviation: float | None = None
) -> list[str]:
    """Return lines about the smallest gain that the planned seeds can detect, or one that says that
    they are too few for any claim. If they cannot detect the smallest gain that a question names,
    the seeds that it needs are given. Without questions, all arms that have a baseline are a
    family; without such arms the list is empty.

    deviation: that of a paired difference, in nats; by default that of a pilot's stop rule, or of
    the study's finished pairs, or else `USUAL_DEVIATION`.
    """
    families = _families(study, runs)
    if not families:
        return []
    # Imported here because scipy is slow to import, and plans without such pairs do not need it.
    from tst_study.analysis.statistics import smallest_detectable
    from tst_study.analysis.verdict.intervals import FEWEST_SEEDS

    rule = next((question.rule for question in study.questions if question.rule), None)
    stated = rule and (rule.deviation, "as the pilot's stop rule says")
    known, source = (deviation, "as given") if deviation else stated or _own_deviation(study)
    lines = []
    for family, (count, seeds) in families.items():
        name = f"{family}: {count} question{'s' * (count > 1)}, {seeds} seed{'s' * (seeds != 1)}"
        if seeds < FEWEST_SEEDS:
            lines.append(
                f"{name}. Verdicts need {FEWEST_SEEDS}; fewer allow no claim, and seeds that are "
                "added once a run has ended do not count as planned."
            )
            continue
        looks = rule.looks(seeds) if rule else 1
        gain = known * (smallest_detectable(seeds, count * looks) or math.nan)
        lines.append(f"{name}: they detect a gain of {gain:.2g} nats (80% power, 5% level).")
        smallest = [q.smallest_gain for q in study.questions if q.family == family][:1]
        if rule:
            go = gain + (smallest[0] or 0.0)
            lines.append(
                f"  By its stop rule a true gain of {go:.3f} gets a go at once in 80% of pilots."
            )
        for goal in (each for each in smallest if each and each < gain and not rule):
            most = goal / known
            powers = ((n, smallest_detectable(n, count)) for n in range(FEWEST_SEEDS, 1001))
            needed = next((n for n, least in powers if least and least <= most), "over 1,000")
            lines.append(f"  A gain of {goal:g} nats needs {needed} seeds.")
    return [*lines, f"This takes pairs of runs to deviate by {known:.3g} nats, {source}."]


def _families(study: Study, runs: Sequence[PlannedRun]) -> dict[str, tuple[int, int]]:
    """Return, by name, the number of questions of each family and the fewest seeds of one."""
    if study.questions:
        families: dict[str, list[int]] = defaultdict(list)
        for question in study.questions:
            seeds = question.arm.where.get("seed", ())
            if question.matched != "loss":
                families[question.family].append(len(seeds) if isinstance(seeds, tuple) else 1)
        return {name: (len(each), min(each)) for name, each in families.items()}
    bases = {_form(run.config, "superposition") for run in runs if run.config.role == "baseline"}
    pairs = Counter(
        _form(run.config, *SEEDS)
        for run in runs
        if run.config.role not in ("baseline", "pilot")
        and _form(run.config, "superposition") in bases
    )
    return {"every arm against the baseline": (len(pairs), min(pairs.values()))} if pairs else {}


def _own_deviation(study: Study) -> tuple[float, str]:
    """Return the deviation of a paired difference over the seeds of the study's finished runs, at
    the upper end of what these leave open, and where it is from."""
    usual = (
        USUAL_DEVIATION,
        "which six of eight arms of our second campaign did not exceed; --deviation sets it",
    )
    if not study.questions or not folders_below(study.folder):
        return usual
    from tst_study.analysis.tables.source import load

    table = load(study.folder)
    whole = (table["state"] == "done") & (table["role"] != "trunk")
    done = table[whole & (table["exclusion"] == "")]
    done = done.assign(setting=done["arm"])
    differences = []
    for question in study.questions:
        arm, against = (runs.set_index("seed")["nats_per_token"] for runs in question.runs(done))
        if arm.index.is_unique and against.index.is_unique:
            differences.append((against - arm).dropna())
    known = [each for each in differences if len(each) > 1]
    if not known:
        return usual
    from tst_study.analysis.statistics import deviation_at_most

    deviation = math.sqrt(sum(each.var() for each in known) / len(known))
    # The questions share baselines, so together they count as the one with the fewest pairs.
    freedom = min(map(len, known)) - 1
    source = "the most that this study's finished pairs leave open (80%)"
    return deviation_at_most(deviation, freedom), source


def changes(planner: Planner, other: Planner) -> list[str]:
    """Return lines about the runs that one plan has and the other has not."""
    ours, theirs = (
        {run.fingerprint: run.run_id for run in each.whole() if run.config.role != "trunk"}
        for each in (planner, other)
    )
    added = [name for identity, name in ours.items() if identity not in theirs]
    left = [name for identity, name in theirs.items() if identity not in ours]
    same = len(ours) - len(added)
    summary = f"{len(added)} runs added, {len(left)} left, {same} unchanged"
    return [summary, *(f"  + {name}" for name in added), *(f"  - {name}" for name in left)]


def _form(config: Config, *without: str) -> str:
    values = to_dict(config)
    return digest(identity_form(values, values["data"], without))
