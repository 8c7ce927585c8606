"""The commands of `tst-study` that work on studies, the same for every launcher, and `retrain`,
which trains a recorded run again."""

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from glob import escape
from pathlib import Path
from typing import Annotated, Any

import typer

from tst_study.cli import DeviceName, Mfu, Overrides, Price, train_here
from tst_study.command_line import ONE_RUN, STUDIES, count_option, look_for_garbage_rarely, verb
from tst_study.errors import UserError, one_of
from tst_study.text import screen_width, wrapped
from tst_study.waiting import waiting

verbs = typer.Typer()

_of_studies = partial(verb, verbs, STUDIES)
Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="STUDY|FILE... [RUNS]",
        help="A study's name, its file (TOML or Python) or run configs; then part of the runs' "
        "names, or a pattern such as '*-s8-*'.",
    ),
]
ArgumentsOrFolder = Annotated[
    list[str],
    typer.Argument(
        metavar="STUDY|FILE...|DIR [RUNS]",
        help="A study's name, its file (TOML or Python), run configs, or a folder of runs (runs/ "
        "may be left out); then part of the runs' names, or a pattern such as '*-s8-*'.",
    ),
]
ScaleName = Annotated[
    str | None,
    typer.Option(
        help="Scale: smoke, quick, laptop, desktop, one-gpu, paper, or one of the file's; by "
        "default quick, or the file's first."
    ),
]
RunsFolder = Annotated[
    Path | None,
    typer.Option(
        "--runs", file_okay=False, help="Folder of the runs; runs/STUDY-SCALE by default."
    ),
]
LauncherName = Annotated[
    str | None,
    typer.Option(
        help="local, gpus, slurm or an installed package's; by default the profile's, else local."
    ),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option(
        "--profile", help="Profile of the cluster; slurm.toml by default (docs/slurm.md)."
    ),
]
Parallel = Annotated[
    int | None, count_option("Runs at a time; by default what the machine holds.", most=2**20)
]
Processes = Annotated[
    int, count_option("Ranks per run on this machine; slurm.toml sets them for Slurm.", most=4096)
]
Recorded = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="Archive of a study; its runs are not trained again."),
]
NoShare = Annotated[
    bool,
    typer.Option("--no-share", help="Train every run from its first step; no steps are shared."),
]


@verb(verbs, STUDIES, "tst-study studies")
def studies(
    name: Annotated[str | None, typer.Argument(help="A bundled study; by default all.")] = None,
) -> None:
    """List the studies: what each asks, and at which scales; then the study files here."""
    from tst_study.experiments.plan.planned_run import totals
    from tst_study.experiments.state.status import rows_below
    from tst_study.experiments.studies import catalogue

    described = catalogue.described()
    for bundled in described if name is None else [one_of(name, described, "study")]:
        asks, known = described[bundled]
        words = [f"{bundled}: {asks}", *([f"  {', '.join(known)}"] if known else [])]
        print(*wrapped(words, screen_width()), sep="\n")
    for path in sorted(Path().glob("*.toml")) if name is None else ():
        with suppress(UserError):
            if catalogue.source_kind(str(path)) == "grid":
                root = catalogue.load(str(path)).folder
                there = totals(row.state for row in rows_below(root)) if root.is_dir() else "new"
                print(f"{path}: {there}")


@verb(verbs, STUDIES, "tst-study new ours.toml")
def new(file: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Write a study file with comments, to start from, and a run.toml as its base if there is
    none."""
    from tst_study.experiments.study import BUNDLED

    if file.suffix != ".toml" or file.exists():
        problem = "exists" if file.exists() else "is no .toml"
        raise UserError(f"{file}: {problem}; name another file")
    text = (BUNDLED / "scales" / "new.toml").read_text()
    file.write_text(text.replace("FILE", str(file)).replace('"ours"', f'"{file.stem}"'))
    base, there = file.with_name("run.toml"), "is its base"
    if not base.exists():
        base.write_text((BUNDLED / "scales" / "new-run.toml").read_text())
        there = "is written as its base"
    print(f"{file}: written; {base} {there}; adapt both, then: tst-study plan {file}")


@_of_studies(
    "tst-study plan laptop",
    "tst-study plan bag-grid '*-s4-*' --scale paper --device B200 --price 4",
)
def plan(
    study: Arguments,
    scale: ScaleName = None,
    runs: RunsFolder = None,
    no_share: NoShare = False,
    launcher: LauncherName = None,
    profile: ProfileFile = None,
    device: DeviceName = None,
    mfu: Mfu = None,
    price: Price = None,
    gpus: Annotated[
        int | None, count_option("GPUs per run; also shows layout and memory by part.", most=2**20)
    ] = None,
    time: Annotated[
        bool, typer.Option("--time", help="Time a few steps of each shape on this machine.")
    ] = False,
    deviation: Annotated[
        float | None,
        typer.Option(min=1e-9, help="Deviation of a pair of runs over seeds, in nats."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Another version of the study: list which runs come and go.")
    ] = None,
) -> None:
    """List the runs of a study, what they cost, what gain they can detect, and their states."""
    from tst_study.cost.prices import Prices
    from tst_study.experiments.launcher import Options, launcher_of
    from tst_study.experiments.local.queue import fitting
    from tst_study.experiments.plan.layouts import Allocation, memory_by_part
    from tst_study.experiments.plan.planner import Planner, prepare
    from tst_study.experiments.state.plan_table import changes, table
    from tst_study.experiments.studies.catalogue import load

    sources, pattern = _sources(study)
    chosen = load(sources, scale, runs, share=not no_share)
    planner = Planner(chosen, unprepared=True)
    trains = launcher_of(launcher, Options(profile=profile))
    prices = Prices(device, mfu, price)
    asked = Allocation(gpus or 1, on_gpu=True, device=prices.device or "H100")
    if against:
        other = load(against, scale, chosen.folder, share=not no_share, own_folder=False)
        print(*changes(planner, Planner(other, unprepared=True)), sep="\n")
        return
    if time:
        prepare(chosen)
        planner = Planner(chosen, unprepared=True)
    with waiting("timing a few steps of each shape" if time else "planning the runs"):
        lines = table(
            planner,
            partial(trains.allocation, chosen) if gpus is None else lambda run: asked,
            prices,
            pattern=pattern,
            at_once=fitting(planner.decided(), 1),
            timed=time,
            width=screen_width(),
            deviation=deviation,
        )
    print(*lines, sep="\n")
    if gpus is not None:
        configs = [run.config for run in planner.whole()]
        print(*wrapped(memory_by_part(configs, asked), screen_width()), sep="\n")


@_of_studies(
    "tst-study submit laptop --scale smoke",
    "tst-study submit bag-grid --scale one-gpu --launcher slurm --profile slurm.toml",
)
def submit(
    study: Arguments,
    scale: ScaleName = None,
    launcher: LauncherName = None,
    parallel: Parallel = None,
    processes: Processes = 1,
    runs: RunsFolder = None,
    profile: ProfileFile = None,
    recorded: Recorded = None,
    no_share: NoShare = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="On Slurm: show arrays and first script; submit nothing."),
    ] = False,
    top_up: Annotated[
        bool,
        typer.Option(
            "--top-up", help="On Slurm: submit only runs without a job so far, as there is room."
        ),
    ] = False,
) -> None:
    """Run a study: prepare its text, train its runs and, on this machine, draw the report. Runs
    that are done are skipped."""
    from tst_study.experiments.launcher import Options
    from tst_study.experiments.plan.planned_run import matches
    from tst_study.experiments.studies.catalogue import load

    sources, pattern = _sources(study)
    chosen = load(sources, scale, runs, not no_share, recorded)
    command = tuple(sys.argv[1:])
    options = Options(parallel, processes, profile, dry_run, top_up, command, bool(pattern))
    wanted = [lambda run: matches(run.run_id, pattern)] if pattern else []
    raise typer.Exit(_submitted(chosen, launcher, options, *wanted))


def _submitted(study: Any, launcher: str | None, options: Any, *wanted: Any) -> int:
    """Record a study's questions, submit its runs (those that are `wanted`, by default all), and
    print an error for each choice that cannot be made because all its candidates diverged. A dry
    run only asks the launcher what it would do.

    Returns the launcher's exit status, or 1 if that is 0 and there was such an error.
    """
    from tst_study.analysis.verdict.question import register
    from tst_study.experiments.launcher import launcher_of
    from tst_study.experiments.plan.planner import Planner
    from tst_study.experiments.state.collect import keep_existing, mark_left

    if not options.dry:
        study.keep_files()
        keep_existing(study)
        register(study.folder, study.questions, study.files, study.asks, study.recorded)
        mark_left(study)
    status = launcher_of(launcher, options).submit(study, *wanted)
    planner = Planner(study, unprepared=options.dry)
    dead_ends = planner.dead_ends()
    for line in dead_ends:
        print(f"error: {line}", file=sys.stderr)
    print(*planner.remarks, sep="\n", end="\n" if planner.remarks else "")
    return status or int(bool(dead_ends))


@_of_studies("tst-study status laptop", "tst-study status runs/mine '*seed0*'")
def status(
    study: ArgumentsOrFolder,
    scale: ScaleName = None,
    runs: RunsFolder = None,
    recorded: Recorded = None,
    no_share: NoShare = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show how far the runs of a study, or of any folder of runs, are."""
    from tst_study.experiments.state.status import matching
    from tst_study.experiments.state.status_screen import left_line, screen, study_and_rows

    sources, root, pattern = _place(study, scale, runs)
    with waiting(f"reading the runs in {root}"):
        chosen, rows = study_and_rows(sources, scale, root, not no_share, recorded)
        rows = matching(rows, pattern, root)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
    else:
        print(*screen(root, rows, screen_width()), sep="\n")
        if chosen is not None:
            print(*left_line(chosen), sep="\n")


@_of_studies("tst-study logs laptop", "tst-study logs bag-grid baseline --scale one-gpu -n 100")
def logs(
    study: ArgumentsOrFolder,
    scale: ScaleName = None,
    runs: RunsFolder = None,
    lines: Annotated[int, count_option("Lines of each log.", "-n", "--lines")] = 40,
) -> None:
    """Show the last lines of runs' logs; without RUNS, those of failed runs."""
    from tst_study.experiments.state.jobs import log_tails

    _, root, pattern = _place(study, scale, runs)
    for text in log_tails(root, pattern, lines):
        print(text)


@_of_studies(
    "tst-study retry laptop", "tst-study retry bag-grid '*-s8-*' --scale one-gpu --launcher slurm"
)
def retry(
    study: Arguments,
    scale: ScaleName = None,
    launcher: LauncherName = None,
    parallel: Parallel = None,
    processes: Processes = 1,
    runs: RunsFolder = None,
    profile: ProfileFile = None,
    recorded: Recorded = None,
    no_share: NoShare = False,
) -> None:
    """Train failed and stopped runs again, and no others."""
    from tst_study.experiments.launcher import Options
    from tst_study.experiments.plan.planner import Planner
    from tst_study.experiments.state.status import stopped
    from tst_study.experiments.studies.catalogue import load

    sources, pattern = _sources(study)
    chosen = load(sources, scale, runs, not no_share, recorded)
    options = Options(parallel, processes, profile)
    wanted = stopped(chosen, pattern)
    if not any(map(wanted, Planner(chosen).decided())):
        print(f"nothing to retry: no run of {chosen.folder} failed or was stopped")
        return
    raise typer.Exit(_submitted(chosen, launcher, options, wanted))


@_of_studies("tst-study cancel laptop", "tst-study cancel bag-grid '*-s8-*' --scale one-gpu")
def cancel(study: ArgumentsOrFolder, scale: ScaleName = None, runs: RunsFolder = None) -> None:
    """Stop runs, each after a checkpoint, until `submit` or `retry` starts them again."""
    from tst_study.experiments.state.jobs import cancel_runs

    _, root, pattern = _place(study, scale, runs)
    cancelled = cancel_runs(root, pattern)
    which = f"run that matches {pattern!r}" if pattern else "run"
    nothing = f"nothing to cancel: no {which} is queued, or running on this machine, in {root}"
    print(*cancelled, f"{len(cancelled)} cancelled" if cancelled else nothing, sep="\n")


@_of_studies(
    "tst-study collect laptop", "tst-study collect bag-grid --scale one-gpu --keep records/bag-grid"
)
def collect(
    study: ArgumentsOrFolder,
    scale: ScaleName = None,
    runs: RunsFolder = None,
    recorded: Recorded = None,
    no_share: NoShare = False,
    keep: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Archive to add finished runs to; created if missing."),
    ] = None,
) -> None:
    """Write the run table, figures and report from the runs so far, and name those that are
    missing."""
    from tst_study.experiments.state.collect import collect as collect_runs
    from tst_study.experiments.state.collect import keep as keep_runs
    from tst_study.experiments.state.collect import mark_left
    from tst_study.experiments.state.status_screen import study_and_rows
    from tst_study.experiments.studies.catalogue import folder_of, is_study, load

    sources, pattern = _sources(study)
    if pattern:
        raise UserError(f"collect: {pattern!r} names no study; a study is collected as a whole")
    root = folder_of(sources, scale, runs)
    look_for_garbage_rarely()
    with waiting("drawing figures and report"):
        of_study = sources, scale, root, not no_share, recorded
        with suppress(UserError):  # which `study_and_rows` will tell
            if is_study(sources):
                mark_left(load(*of_study))
        lines = collect_runs(root, lambda headers: study_and_rows(*of_study, headers)[1])
    print(*wrapped(lines, screen_width()), sep="\n")
    if keep is not None:
        print(f"{len(keep_runs(root, keep))} runs kept: {keep}/")


@_of_studies("tst-study clean laptop", "tst-study clean bag-grid --scale one-gpu --yes")
def clean(
    study: ArgumentsOrFolder,
    scale: ScaleName = None,
    runs: RunsFolder = None,
    left: Annotated[
        bool, typer.Option("--left", help="Also all those of runs that the study no longer has.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete them; else they are listed.")] = False,
) -> None:
    """List, and with --yes delete, checkpoints that are no longer needed: older ones of finished
    runs, and those of prefix runs whose branches have begun. Records of runs are kept."""
    from tst_study.experiments.plan.planner import Planner
    from tst_study.experiments.state.clean import delete, not_needed
    from tst_study.experiments.state.status import left_runs
    from tst_study.experiments.studies.catalogue import folder_of, is_study, load

    sources, _ = _sources(study)
    root, planner, others = folder_of(sources, scale, runs), None, list[Path]()
    if is_study(sources):
        chosen = load(sources, scale, root)
        planner = Planner(chosen, unprepared=True)
        others = left_runs(chosen) if left else []
    elif left:
        raise UserError(f"--left: {root} is no study; name the study's file")
    with waiting(f"looking through {root}"):
        items = not_needed(root, planner, others)
        if yes:
            items = delete(root, planner, others)
    for item in items:
        print(f"{item.size / 2**20:10,.1f} MiB  {item.path}  {item.why}")
    total = sum(item.size for item in items) / 2**20
    print(f"{total:,.1f} MiB {'deleted' if yes else 'could be deleted; pass --yes to delete'}")


def _sources(arguments: list[str]) -> tuple[tuple[str, ...], str]:
    """Return the words that name a study, and the pattern of runs behind them. Raises `UserError`
    if more than one word is left."""
    from tst_study.experiments.studies.catalogue import source_kind

    files = [word for word in arguments if source_kind(word)]
    sources = files or arguments[:1]
    rest = [word for word in arguments if word not in sources]
    if len(rest) > 1:
        raise UserError(f"{rest[1]!r}: names no file; give one study, and one pattern of its runs")
    return tuple(sources), "".join(rest)


def _place(
    arguments: list[str], scale: str | None, runs: Path | None
) -> tuple[tuple[str, ...], Path, str]:
    """Return the words that name a study, the folder of its runs, and the pattern that selects some
    of them. If the words name the folder of a single run, these are its parent and, unless a
    pattern is given, its name."""
    from tst_study.experiments.run_process import config_path
    from tst_study.experiments.studies.catalogue import folder_of

    sources, pattern = _sources(arguments)
    root = folder_of(sources, scale, runs)
    if (root / "run.json").exists() or config_path(root).exists():
        root = Path(os.path.abspath(root))  # `.` and `..` are no names
        # Quoted, and with a set of one character, so that it matches this name alone.
        return sources, root.parent, pattern or f"[{root.name[0]}]{escape(root.name[1:])}"
    return sources, root, pattern


@verb(verbs, ONE_RUN, "tst-study retrain docs/records/gate RUN")
def retrain(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="Archive of a study.")],
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's id, or a part that no other id has.")
    ],
    overrides: Overrides = None,
) -> None:
    """Train a recorded run again, in runs/again/, and say how far from the record it comes out."""
    from tst_study.experiments.retrain import compared, config_of, recorded
    from tst_study.process.rank_environment import prepare_for_gpus

    prepare_for_gpus()
    record = recorded(archive, run)
    folder = Path("runs/again") / record.runs["run_id"].item()
    status = train_here(config_of(record, overrides or []), folder)
    if status == 0:
        print(*compared(record, folder), sep="\n")
    raise typer.Exit(status)
