"""The verbs of `tst-study` for one run: data, train, evaluate, export.

Importing torch takes seconds, so each verb first checks what it can without torch.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from tst_study.command_line import ONE_RUN, Verbs, count_option, verb
from tst_study.errors import UserError
from tst_study.process.host import has_gpu, leave
from tst_study.waiting import waiting

if TYPE_CHECKING:
    from tst_study.config.schema import Config
    from tst_study.data.manifest import Manifest
    from tst_study.record import reader as run_record

verbs = typer.Typer()
data = typer.Typer(
    help="Make and verify token files.", cls=Verbs, no_args_is_help=True, rich_markup_mode=None
)
verbs.add_typer(data, name="data", rich_help_panel=ONE_RUN)


SOON = 0.1
"""The share of all steps after the switch within which the switch is taken for the cause of a
divergence."""
TrainedRunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
TokenizerFile = Annotated[
    Path | None,
    typer.Option(help="The run's tokenizer.json, if its corpus is not on this machine."),
]
AfterStep = Annotated[
    int | None, count_option("Use the checkpoint after this many steps; by default the last one.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the configuration, such as model.hidden_size=256; may be repeated.",
    ),
]
DeviceName = Annotated[
    str | None, typer.Option(help="GPU to estimate hours for, such as H100 or B200.")
]
Mfu = Annotated[
    float | None,
    typer.Option(min=0.01, max=1.0, help="MFU measured on it; by default the published range."),
]
Price = Annotated[
    float | None, typer.Option(min=0.0, max=1e6, help="Price of one GPU-hour, for the cost.")
]


@verb(
    data,
    "",
    "tst-study data prepare --source books.jsonl.gz --to prepared/mine --tokenizer bpe:4096",
    "tst-study data prepare --source hf://HuggingFaceFW/fineweb-edu --to edu --limit-bytes 2000000",
)
def prepare(
    source: Annotated[
        list[str],
        typer.Option(
            help="Text to read: a file of text or JSONL (also .gz, .xz, .bz2, .zst) or parquet, a "
            "folder, a Hugging Face dataset, or `books`; may be repeated."
        ),
    ],
    to: Annotated[Path, typer.Option(help="The folder to write.")],
    tokenizer: Annotated[
        str, typer.Option(help="`bytes`, `bpe:SIZE`, a tokenizer.json, or a Hugging Face id.")
    ] = "bpe:1024",
    validation: Annotated[
        list[str] | None, typer.Option(help="Held-out text; by default a share of the documents.")
    ] = None,
    validation_share: Annotated[
        float | None, typer.Option(help="The share of the documents to hold out; by default 0.01.")
    ] = None,
    within_documents: Annotated[
        bool, typer.Option(help="Hold out the end of every document, not whole documents.")
    ] = False,
    text_field: Annotated[str, typer.Option(help="The JSON field or column of the text.")] = "text",
    skip_empty: Annotated[
        bool, typer.Option(help="Leave out documents whose text is null.")
    ] = False,
    limit_bytes: Annotated[
        int | None, count_option("Stop after about this many bytes of text.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Tokenise share I of N; `data merge` joins them."),
    ] = None,
) -> None:
    """Turn text into token files; an interrupted call is resumed."""
    from tst_study.data.preparation.prepare import prepare as prepare_all
    from tst_study.data.preparation.prepare import prepare_shard
    from tst_study.data.preparation.request import Request

    request = Request(
        source,
        tokenizer,
        validation or [],
        validation_share,
        within_documents,
        text_field,
        skip_empty,
        limit_bytes,
    )
    manifest = prepare_all(request, to) if shard is None else prepare_shard(request, to, shard)
    if manifest is not None:
        _say_prepared(to, manifest)
    else:
        print(f"{to}: shard {shard} is done; once all are: tst-study data merge {quote(str(to))}")


@verb(data, "", "tst-study data merge prepared/mine")
def merge(
    folder: Annotated[Path, typer.Argument(help="The folder that every `--shard` has written to.")],
) -> None:
    """Put the shards of `data prepare --shard` together."""
    from tst_study.data.preparation.prepare import merge as merge_shards

    _say_prepared(folder, merge_shards(folder))


@verb(
    data,
    "",
    "tst-study data adopt gpt2/train.bin gpt2/val.bin --vocabulary-size 50257 --dtype uint16",
    "tst-study data adopt megatron/text_document.bin --tokenizer tokenizer.json",
)
def adopt(
    files: Annotated[list[Path], typer.Argument(help="Token files (.bin, .ds) of one folder.")],
    vocabulary_size: Annotated[
        int | None, count_option("Size of the vocabulary that the ids are from.", most=2**31 - 1)
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer.json that made the ids, if there is one.")
    ] = None,
    end_of_document: Annotated[
        int | None, count_option("The id that ends a document.", least=0)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of the ids (uint16, int32, …) in files without .idx.")
    ] = None,
    header_bytes: Annotated[
        int | None,
        count_option("Bytes before the first id; llm.c's headers are recognised.", least=0),
    ] = None,
) -> None:
    """Make token files of Megatron, nanoGPT, llm.c, modded-nanogpt or datatrove usable here."""
    from tst_study.data.preparation.adopt import adopt as adopt_files

    with waiting(f"reading every id in {', '.join(map(str, files))}"):
        manifest = adopt_files(
            files, vocabulary_size, tokenizer, end_of_document, dtype, header_bytes
        )
    _say_prepared(files[0].parent, manifest)


@verb(data, "", "tst-study data verify prepared/mine", "tst-study data verify prepared/*")
def verify(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Prepared folders.")],
) -> None:
    """Compare all token ids of prepared folders with their manifests; training checks a sample."""
    from tst_study.data.integrity import verify as verify_folder

    for folder in folders:
        with waiting(f"reading every token id in {folder}"):
            manifest = verify_folder(folder)
        _say_prepared(folder, manifest, ", every token id as it was prepared")


@verb(verbs, ONE_RUN, "tst-study check", "tst-study check answers.json")
def check(
    answers: Annotated[
        Path | None, typer.Argument(help="JSON: {case: {loss, grad_embedding, grad_head}}.")
    ] = None,
) -> None:
    """Judge another implementation of superposition by its answers to our cases."""
    from tst_study.conformance.judging import CASES, judge_file

    if answers is None:
        print(f"the cases: {CASES}; docs/is_my_implementation_right.md has what to answer")
        return
    verdict = judge_file(answers)
    print(verdict)
    raise typer.Exit(int(not verdict.right))


@verb(
    verbs,
    ONE_RUN,
    "tst-study train run.toml --set seed=1",
    "tst-study train run.toml --dry-run --device H100",
)
def train(
    config_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.toml|run.json]", help="The run's configuration (docs/config.md)."
        ),
    ] = None,
    overrides: Overrides = None,
    folder: Annotated[
        Path | None, typer.Option(help="The run's folder; by default runs/STUDY/RUN-ID.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, print the whole config and its cost."),
    ] = False,
    device: DeviceName = None,
    mfu: Mfu = None,
    price: Price = None,
    processes: Annotated[
        int, count_option("Processes (ranks) to start on this machine.", most=4096)
    ] = 1,
) -> None:
    """Train one run, or go on with it from its last checkpoint."""
    from tst_study.config import schema as config
    from tst_study.data.manifest import NoTokenFilesError
    from tst_study.process.local_ranks import LAUNCHER, end_with
    from tst_study.process.rank_environment import prepare_for_gpus, rank_variable

    if launcher := os.environ.pop(LAUNCHER, ""):
        end_with(int(launcher))
    prepare_for_gpus()  # before anything initialises CUDA
    if not dry_run and (device or mfu or price):
        raise UserError("--device, --mfu, --price: only with --dry-run, which tells costs")
    resolved = config.load(config_file, overrides or [])
    if resolved.execution.device != "cpu" and has_gpu():
        from tst_study.cost.auto_layout import with_gpu_defaults

        resolved = with_gpu_defaults(resolved)
    if dry_run:
        from tst_study.cost.prices import Prices
        from tst_study.dry_run import check_start, describe

        prices = Prices(device, mfu, price)
        try:
            identity, stream = check_start(resolved, folder, processes)
        except NoTokenFilesError as error:  # the cost of the run does not depend on them
            print(describe(resolved, f"no id yet: {error}", None, prices, processes))
            raise
        print(describe(resolved, identity, stream, prices, processes))
        return
    folder = folder or _run_folder(resolved)
    if processes > 1 and rank_variable("WORLD_SIZE") == 1:  # else this process is one of them
        raise typer.Exit(_train_on_processes(resolved, folder, processes))
    status = train_here(resolved, folder)
    if os.environ.get("WORLD_SIZE", "1") != "1":  # one rank of several
        leave(status)
    raise typer.Exit(status)


def train_here(config: Config, folder: Path) -> int:
    """Train a run to its end, or go on with it from its last checkpoint, and print how it ended. If
    this process is one rank of several, the others do the same. The caller has called
    `prepare_for_gpus`.

    Returns the exit status: 0 if the run is done. Raises `UserError` as `tst_study.train.train`
    does, and if another process trains or evaluates the run.
    """
    from tst_study import file_lock
    from tst_study.process.rank_environment import (
        adopt_slurm_ranks,
        check_rank_variables,
        rank_variable,
    )

    adopt_slurm_ranks()
    check_rank_variables()
    # Of several ranks, the first one holds the run's lock and prints for all.
    first = rank_variable("RANK") == 0 or rank_variable("WORLD_SIZE") == 1
    if _is_done(config, folder):
        if first:
            result = ", ".join([f"done before: {folder}", *_reached(folder)])
            print(f"{result}; delete the folder to train it anew, or --set seed=… for another seed")
        return 0
    with file_lock.hold(folder) if first else nullcontext():
        with waiting("loading torch and Megatron-Core") if first else nullcontext():
            from tst_study.train import train as train_run

        state = train_run(config, folder)
    if first:
        print(*_ending(folder, state, config), sep="\n")
    return int(state != "done")


def _train_on_processes(config: Config, folder: Path, count: int) -> int:
    """Start this command again as `count` ranks on this machine, and return the exit status."""
    from tst_study.process.local_ranks import train_on_processes
    from tst_study.record.reader import read_status
    from tst_study.record.writer import mark

    code, died = train_on_processes(count, sys.argv[1:])
    status = read_status(folder) if died else None
    # Rank 0, which records how a run ends, was killed before it could.
    if status is not None and status["state"] == "running":
        mark(folder, config, "failed", died)
    return code


def _run_folder(config: Config) -> Path:
    from tst_study.config.identity import fingerprint, run_id
    from tst_study.data.run_data import fingerprints

    identity = fingerprint(config, fingerprints(config))
    return Path("runs") / config.study / run_id(config, identity)


def _say_prepared(folder: Path, manifest: Manifest, more: str = "") -> None:
    for split, record in manifest.splits.items():
        counts = f"{record.tokens:,} tokens in {record.documents:,} documents"
        print(f"{folder}: {split}: {counts}{more}")
    print(f"{folder}: model.vocabulary_size = {manifest.tokenizer.vocabulary_size}")


def _ending(folder: Path, state: run_record.State, config: Config) -> list[str]:
    """Say how a run ended, and what to type next."""
    from tst_study.config.phase_plan import plan_phases
    from tst_study.record import reader as run_record

    if state == "done":
        following = f"next: tst-study analyse --runs {quote(str(folder.parent))}"
        return [f"done: {folder}", *_reached(folder), following]
    status = run_record.read_status(folder)
    if state != "diverged" or status is None:
        return [f"{state}: {folder}; the same command goes on from there"]
    phases = plan_phases(config)
    after = status["step"] - phases.superposed_steps
    remedy = "try a lower optimizer.learning_rate or a longer schedule.warmup_steps"
    if phases.superposed_steps and 0 <= after <= SOON * phases.steps:
        remedy = (
            f"{after} steps after the switch: keep its checkpoint by execution.keep_steps = "
            f"[{phases.superposed_steps}], and try a lower optimizer.learning_rate "
            "(docs/in_your_trainer.md#at-the-switch)"
        )
    return [f"diverged: {folder} ({status['message']}); {remedy}"]


def _reached(folder: Path) -> list[str]:
    """Return the last held-out loss in words, as a list of one line; empty if there is none."""
    from tst_study.record import reader as run_record

    row = run_record.last_evaluation(folder)
    if row is None:
        return []
    loss, tokens = f"{row['nats_per_token']:.4f} nats per token", f"{row['tokens']:,} tokens"
    return [f"held-out loss {loss} after step {row['step']:,}, over {tokens}"]


def _is_done(config: Config, folder: Path) -> bool:
    """Return whether the run is done, and has its last checkpoint if it has any. Raises `UserError`
    if the folder holds another run that is done."""
    from tst_study.checkpoints.places import checkpoint_steps
    from tst_study.config.identity import fingerprint
    from tst_study.data.run_data import fingerprints
    from tst_study.record import reader as run_record

    status = run_record.read_status(folder)
    if status is None or status["state"] != "done":
        return False
    run_record.check_same_run(folder, fingerprint(config, fingerprints(config)))
    # A damaged last checkpoint may have been deleted, so that the run goes on from the one before.
    return max(checkpoint_steps(folder), default=status["step"]) >= status["step"]


@verb(
    verbs,
    ONE_RUN,
    "tst-study export runs/mine/run-1a2b3c4d --to exported",
    "tst-study export runs/mine/run-1a2b3c4d --to exported --step 2000",
)
def export(
    run: TrainedRunFolder,
    to: Annotated[Path, typer.Option(help="The folder to write, which must not exist yet.")],
    step: AfterStep = None,
    tokenizer: TokenizerFile = None,
) -> None:
    """Write a run's checkpoint as an ordinary Hugging Face model."""
    from tst_study.checkpoints.trained_run import open_run
    from tst_study.huggingface.tokenizer_files import tokenizer_of_run

    opened = open_run(run, step)
    its_tokenizer = tokenizer_of_run(opened, tokenizer)
    with waiting("loading torch") as say:
        from tst_study.huggingface import export as exports

        say(f"writing {to}")
        made = exports.export(opened, to, its_tokenizer)
    print(f"step {opened.step} of {run}: {made}")


@verb(
    verbs,
    ONE_RUN,
    "tst-study evaluate runs/mine/run-1a2b3c4d",
    "tst-study evaluate runs/mine/run-1a2b3c4d --tasks arc_easy,piqa",
)
def evaluate(
    run: TrainedRunFolder,
    step: AfterStep = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER", help="A held-out text; by default the run's and its corpora's."
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        count_option("Held-out tokens of each text; by default as many as in training.", least=2),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Comma-separated tasks of lm-eval, or `paper` for those of the paper."),
    ] = None,
    max_length: Annotated[
        int | None, count_option("Longest context of tasks; by default that of training.", least=2)
    ] = None,
    tokenizer: TokenizerFile = None,
) -> None:
    """Measure a trained run, and add the results to its evals.jsonl."""
    from tst_study import file_lock
    from tst_study.checkpoints.trained_run import open_run

    opened = open_run(run, step)
    with waiting("loading torch"):
        from tst_study.evaluation.run import evaluate_run
    with file_lock.hold(run), waiting("loading the checkpoint") as say:
        for line in evaluate_run(opened, held_out or (), tokens, tasks, max_length, tokenizer, say):
            print(line)
