"""Three commands of `tst-study`: `import` reads other trainers' logs, `advise` advises on a planned
run, and `analyse` judges runs."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tst_study.command_line import RESULTS, count_option, look_for_garbage_rarely, verb
from tst_study.text import printable, screen_width, wrapped
from tst_study.waiting import waiting

verbs = typer.Typer()


def _option(metavar: str, help: str, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, **limits)


Texts = list[str] | None
Text = str | None
File = Path | None
Number = float | None
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@verb(
    verbs,
    RESULTS,
    "tst-study import logs/ --template runs.csv",
    "tst-study import logs/ --facts runs.csv --set seed=0 --to imported",
    name="import",
)
def import_(
    sources: Annotated[
        list[str], typer.Argument(metavar="LOGS", help="Logs or folders of logs; NAME=PATH.")
    ],
    to: Annotated[File, _option("FOLDER", "Write the runs into this archive.")] = None,
    template: Annotated[File, _option("FILE", "Only write a runs.csv, to be filled in.")] = None,
    facts: Annotated[File, _option("FILE", "Read facts from a filled-in runs.csv.")] = None,
    given: Annotated[Texts, _option("KEY=VALUE", "Set a fact of all runs.", "--set")] = None,
    column: Annotated[Texts, _option("COLUMN=KEY", "Name the logs' key for a column.")] = None,
    unit: Annotated[
        Texts,
        _option("[COLUMN=]UNIT", "Unit of losses (nats, bits, perplexity) or amounts (millions)."),
    ] = None,
    line: Annotated[
        Texts, _option("REGEX", "Pattern of printed lines, with groups such as step and loss.")
    ] = None,
    arm_from: Annotated[
        Literal["folder"] | None, typer.Option(help="Name arms after the runs' folders.")
    ] = None,
    steps_from: Annotated[
        int, _option("0|1", "Number of the first step in the logs.", min=0, max=1)
    ] = 1,
) -> None:
    """Turn logs of other trainers, tables of finished runs, or run folders into an archive."""
    from tst_study.errors import UserError

    with waiting("reading the logs") as said:
        from tst_study.analysis.tables.archive import add_to_archive
        from tst_study.analysis.tables.columns import merged
        from tst_study.analysis.tables.facts import pairs
        from tst_study.analysis.tables.imports import import_logs, write_template
        from tst_study.analysis.tables.source import own_runs
        from tst_study.analysis.verdict.question import add_questions, read_questions
        from tst_study.analysis.wording import number

        columns = pairs(column, "--column")
        own, logs = own_runs(sources)
        if own is not None and (template or facts or given):
            raise UserError("import: runs of tst_study know their facts; import them by themselves")
        if template is not None and (given or unit or facts):
            raise UserError("--template: goes with --column, --line and --arm-from alone")
        if template is not None and to is None:
            rows = number(write_template(template, sources, columns, arm_from, line or ()), "run")
            lines = [f"{template}: a row for each of {rows}; fill it in for --facts"]
        elif to is not None and template is None:
            parts = [own] if own is not None else []
            if logs:
                known = pairs(given, "--set"), facts, columns, unit or ()
                how: dict[str, Any] = {"arm_from": arm_from, "steps_from": steps_from}
                parts.append(import_logs(logs, *known, **how, lines=line or (), said=said))
            runs = merged(parts)
            said("writing the archive")
            asked = [one for root in own.roots for one in read_questions(root)] if own else []
            there = read_questions(to)
            replaced = add_to_archive(to, runs, lambda new: add_questions(new, [*there, *asked]))
            written = f"{to}: {number(len(runs.runs), 'run')} written"
            written += f", {replaced} in place of runs of the same names" * bool(replaced)
            lines = [*map(printable, runs.problems), written]
        else:
            raise UserError("import: give either --to ARCHIVE or --template FILE")
    print(*wrapped(lines, screen_width()), sep="\n")


@verb(
    verbs,
    RESULTS,
    "tst-study advise --params 1B --tokens 100B --text 200B --gpus 64 --device H100 --price 2.5",
    "tst-study advise --config run.toml --write pilot.toml",
    "tst-study advise --config run.toml --runs runs/pilot",
)
def advise(
    params: Annotated[int | None, count_option("Parameters of the model, such as 270M.")] = None,
    tokens: Annotated[int | None, count_option("Tokens that a baseline would read.")] = None,
    active: Annotated[
        int | None, count_option("Parameters active for one token, in a mixture of experts.")
    ] = None,
    text: Annotated[int | None, count_option("Tokens of text that are available.")] = None,
    sequence_length: Annotated[
        int | None, count_option("Positions of a sequence (default 2,048).")
    ] = None,
    config: Annotated[File, _option("FILE", "Read the run from a run.toml instead.")] = None,
    gpus: Annotated[int | None, count_option("GPUs that the run uses.", most=2**20)] = None,
    device: Annotated[Text, _option("NAME", "Kind of GPU, such as H100.")] = None,
    mfu: Annotated[Number, _option("SHARE", "Measured MFU, in place of published ones.")] = None,
    price: Annotated[Number, _option("PRICE", "Price of one GPU-hour, for costs.")] = None,
    currency: Annotated[str, _option("NAME", "Label of the price, such as USD.")] = "",
    runs: Annotated[
        list[Path] | None, _option("FOLDER", "Your own pilot, as evidence. Repeatable.")
    ] = None,
    pilot_budget: Annotated[
        Number, _option("SHARE", "Share of the run's cost for the pilot (default 0.01).")
    ] = None,
    deadline: Annotated[
        Number, _option("DAYS", "In its place, days that the pilot may take.")
    ] = None,
    write: Annotated[File, _option("FILE", "Write the pilot as a study for `submit`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether to superpose a planned run, how, what it gains and costs, and how to test it."""
    run: dict[str, Any] = {"params": params, "tokens": tokens, "active": active, "text": text}
    run |= {"sequence_length": sequence_length, "config": config, "runs": runs or ()}
    run |= {"gpus": gpus, "device": device, "mfu": mfu, "price": price, "currency": currency}
    look_for_garbage_rarely()
    with waiting("comparing the planned run with the published runs and ours"):
        from tst_study.analysis.advice.advise import advise

        advice = advise(**run, pilot_budget=pilot_budget, deadline=deadline)
        if write is not None:
            advice.write_pilot(write)
    if as_json:
        print(json.dumps(advice.data, indent=1, ensure_ascii=False))
        return
    print(*advice.lines(), sep="\n")
    if write is not None:
        print(f"{write}: written on the base {advice.base}; next: tst-study submit {write}")


@verb(
    verbs,
    RESULTS,
    "tst-study analyse --runs runs/laptop-quick",
    "tst-study analyse --runs runs/ours --arm 'both, s=4' --against baseline --where steps=20000",
    "tst-study analyse law --published --at 5e8,1e11",
)
def analyse(
    question: Annotated[
        str,
        typer.Argument(
            help="comparison, matched, bag-size, law, compute, chinchilla or mutual-information."
        ),
    ] = "comparison",
    runs: Annotated[
        list[Path] | None, _option("FOLDER", "Folder of runs, or an archive. Repeatable.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Use the paper's numbers in place of runs.")
    ] = False,
    at: Annotated[Text, _option("PARAMS,TOKENS", "Run for which `law` recommends s and r.")] = None,
    tokens: Annotated[
        File, _option("PREFIX", "Token file for `mutual-information`, without its .bin.")
    ] = None,
    huber: Annotated[
        Number,
        _option("DELTA", "Delta of `chinchilla`'s Huber loss on log L (default 0.001).", min=1e-12),
    ] = None,
    row: Annotated[
        bool, typer.Option("--row", help="Print rows for docs/evidence.md, and nothing else.")
    ] = False,
    arm: Annotated[
        Text, _option("ARM", "Ask now whether this arm, such as 'both, s=4', beats --against.")
    ] = None,
    against: Annotated[Text, _option("ARM", "The arm that --arm is compared with.")] = None,
    where: Annotated[
        Texts, _option("COLUMN=VALUE", "Runs of --arm and --against, such as steps=20000.")
    ] = None,
    method: Annotated[Text, _option("METHOD", "Method of intervals (docs/analysis.md).")] = None,
    smallest_gain: Annotated[
        Number, _option("NATS", "The smallest gain that is worth having.", min=1e-12)
    ] = None,
    own_rates: Annotated[
        bool, typer.Option("--own-rates", help="Compare arms at learning rates of their own.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer one question about runs, or about the published numbers, with intervals."""
    asked: dict[str, Any] = {"at": at, "tokens": tokens, "huber": huber, "arm": arm}
    asked |= {"against": against, "where": tuple(where or ()), "method": method}
    asked |= {"smallest_gain": smallest_gain, "own_rates": own_rates}
    if row:
        from tst_study.analysis.advice.pilot import evidence_rows
        from tst_study.analysis.tables.source import read_tables
        from tst_study.errors import UserError

        if not runs:
            raise UserError("analyse --row: give --runs, the archive whose gains you want to send")
        print(*map(printable, evidence_rows(read_tables(runs)).splitlines()), sep="\n")
        return
    look_for_garbage_rarely()
    with waiting(f"reading the runs and answering {question!r}"):
        from tst_study.analysis.questions import ask

        answer = ask(question, runs or None, of_published=published, **asked)
    print(answer.to_json() if as_json else answer)
