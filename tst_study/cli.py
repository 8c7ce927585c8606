"""The verbs for one run: data, train, evaluate, export.

Errors that need no torch come before torch is imported.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tst_study.command_line import ONE_RUN, verb
from tst_study.errors import UserError
from tst_study.evaluation.options import EvaluationOptions, TokenizerFile, takes_options
from tst_study.process.host import has_gpu, leave

if TYPE_CHECKING:
    from tst_study.config.schema import Config
    from tst_study.data.manifest import Manifest
    from tst_study.record import reader as run_record

verbs = typer.Typer()
data = typer.Typer(help="Make and verify token files.", no_args_is_help=True, rich_markup_mode=None)
verbs.add_typer(data, name="data", rich_help_panel=ONE_RUN)

TrainedRunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
AfterStep = Annotated[
    int | None, typer.Option(help="The checkpoint after this many steps; by default the last.")
]


@verb(
    data,
    "",
    "tst-study data prepare --source books.jsonl.gz --to prepared/mine --tokenizer bpe:4096",
    "tst-study data prepare --source hf://HuggingFaceFW/fineweb-edu --to edu --limit-bytes 2000000",
    name="prepare",
)
def data_prepare(
    source: Annotated[
        list[str],
        typer.Option(
            help="Text, JSONL (.gz, .xz, .bz2, .zst), a folder, a Hugging Face dataset, or books."
        ),
    ],
    to: Annotated[Path, typer.Option(help="Folder to write.")],
    tokenizer: Annotated[
        str, typer.Option(help="bytes, bpe:WORDS, a tokenizer.json, or a Hugging Face id.")
    ] = "bpe:1024",
    validation: Annotated[
        list[str] | None, typer.Option(help="Held-out text; by default a share is held out.")
    ] = None,
    validation_share: Annotated[
        float | None, typer.Option(help="Share of the documents held out; 0.01 by default.")
    ] = None,
    text_field: Annotated[str, typer.Option(help="JSON field or column of the text.")] = "text",
    end_of_document: Annotated[
        str | None, typer.Option(help="The token that ends a document, if not the usual one.")
    ] = None,
    limit_bytes: Annotated[
        int | None, typer.Option(min=1, help="Stop after about this many bytes of text.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="One of N shares, for `data merge` to join.")
    ] = None,
) -> None:
    """Turn text into token files. Goes on where an interrupted call left off."""
    from tst_study.data.preparation.prepare import prepare, prepare_shard
    from tst_study.data.preparation.request import Request

    request = Request(
        source,
        tokenizer,
        validation=validation or [],
        validation_share=validation_share,
        text_field=text_field,
        end_of_document=end_of_document,
        limit_bytes=limit_bytes,
    )
    manifest = prepare(request, to) if shard is None else prepare_shard(request, to, shard)
    if manifest is not None:
        _say_prepared(to, manifest)
    else:
        print(f"{to}: shard {shard} is tokenised; then: tst-study data merge {quote(str(to))}")


@verb(
    data,
    "",
    "tst-study data merge prepared/mine",
    "tst-study data merge /scratch/dclm",
    name="merge",
)
def data_merge(
    folder: Annotated[Path, typer.Argument(help="Folder that every `--shard` has written to.")],
) -> None:
    """Put the shards of `data prepare --shard` together."""
    from tst_study.data.preparation.prepare import merge

    _say_prepared(folder, merge(folder))


@verb(
    data,
    "",
    "tst-study data generate --to prepared/topical",
    "tst-study data generate --to prepared/small --tokens 100000 --words 256",
    name="generate",
)
def data_generate(
    to: Annotated[Path, typer.Option(help="Folder to write.")],
    tokens: Annotated[int, typer.Option(min=2, max=10**12, help="Training tokens.")] = 5_000_000,
    validation_tokens: Annotated[
        int, typer.Option(min=2, max=10**12, help="Held-out tokens.")
    ] = 262_144,
    words: Annotated[int, typer.Option(min=2, max=2**20, help="Size of the vocabulary.")] = 2048,
    classes: Annotated[int, typer.Option(min=1, max=2**14, help="Markov word classes.")] = 64,
    topics: Annotated[int, typer.Option(min=1, max=2**14, help="Topics.")] = 16,
    seed: Annotated[int, typer.Option(min=0, max=2**63, help="Of the language and the text.")] = 0,
) -> None:
    """Generate a topical language of known entropy rate."""
    from tst_study.data.preparation.generated_language import LanguageParameters, generate

    language = LanguageParameters(words, classes, topics, seed=seed)
    _say_prepared(to, generate(to, tokens, validation_tokens, language))


@verb(
    data,
    "",
    "tst-study data adopt gpt2/train.bin gpt2/val.bin --vocabulary-size 50257 --dtype uint16",
    "tst-study data adopt megatron/text_document.bin --tokenizer tokenizer.json",
    name="adopt",
)
def data_adopt(
    files: Annotated[list[Path], typer.Argument(help="Token files (.bin, .ds) of one folder.")],
    vocabulary_size: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Of what made the ids.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer.json that made them, if there is one.")
    ] = None,
    end_of_document: Annotated[
        int | None, typer.Option(min=0, help="The id that ends a document.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of files without .idx, such as nanoGPT's: uint16, int32, …")
    ] = None,
    header_bytes: Annotated[
        int | None, typer.Option(min=0, help="Before the ids; llm.c's headers are recognised.")
    ] = None,
) -> None:
    """Describe token files of Megatron, nanoGPT, llm.c, modded-nanogpt or datatrove."""
    from tst_study.data.preparation.adopt import adopt

    made = adopt(
        files,
        vocabulary_size,
        tokenizer=tokenizer,
        end_of_document=end_of_document,
        dtype=dtype,
        header_bytes=header_bytes,
    )
    _say_prepared(files[0].parent, made)


@verb(
    data,
    "",
    "tst-study data verify prepared/mine",
    "tst-study data verify prepared/*",
    name="verify",
)
def data_verify(
    folder: Annotated[list[Path], typer.Argument(help="Prepared folders.")],
) -> None:
    """Compare every byte of prepared folders with their manifests. (Training compares a sample.)"""
    from tst_study.data.integrity import verify

    for one in folder:
        _say_prepared(one, verify(one), ", every byte as it was prepared")


@verb(
    verbs,
    ONE_RUN,
    "tst-study train run.toml --set seed=1",
    "tst-study train run.toml --dry-run --time",
)
def train(
    config_file: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml|run.json]", help="The run's configuration."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. model.hidden_size=256."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Run folder; runs/<study>/<run id> by default.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print config and cost, make every check, and stop.")
    ] = False,
    time: Annotated[
        bool, typer.Option("--time", help="With --dry-run: time a few steps here.")
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, max=4096, help="Ranks to start here; 1 is this process itself.")
    ] = 1,
) -> None:
    """Train one run, or go on with it from its last checkpoint."""
    from tst_study.config import schema as config
    from tst_study.data.manifest import NoTokenFilesError
    from tst_study.process.rank_environment import prepare_for_gpus

    prepare_for_gpus()  # which has no effect once CUDA is there
    if config_file is None and not overrides:
        raise UserError("name a config: `tst-study train run.toml`; docs/config.md has its keys")
    resolved = config.load(config_file, overrides or [])
    if resolved.execution.device != "cpu" and has_gpu():
        from tst_study.cost.auto_layout import with_gpu_defaults

        resolved = with_gpu_defaults(resolved)
    if dry_run:
        from tst_study.dry_run import check_start, describe, seconds_per_step

        try:
            identity, stream = check_start(resolved, folder, processes)
        except NoTokenFilesError as error:  # what the run would cost does not depend on them
            print(describe(resolved, f"no id yet: {error}"))
            raise
        seconds = seconds_per_step(resolved) if time else None
        print(describe(resolved, identity, stream, seconds))
        return
    if time:
        raise UserError("--time: only with --dry-run, to estimate how long training takes")
    status = train_here(resolved, folder or _run_folder(resolved), processes)
    if os.environ.get("WORLD_SIZE", "1") != "1":  # one rank of several
        leave(status)
    raise typer.Exit(status)


def train_here(config: Config, folder: Path, processes: int = 1) -> int:
    """Train a run, or go on with it, and say how it ended; the exit status. Raises `UserError`."""
    from tst_study import file_lock
    from tst_study.process.rank_environment import (
        adopt_slurm_ranks,
        check_rank_variables,
        prepare_for_gpus,
        rank_variable,
    )

    prepare_for_gpus()
    if processes > 1 and "RANK" not in os.environ:  # else this is one of them
        return _train_on_processes(config, folder, processes)
    adopt_slurm_ranks()
    check_rank_variables()
    # Of the ranks that torchrun starts, one holds the run and speaks for all.
    first = rank_variable("RANK") == 0
    if _is_done(config, folder):
        if first:
            said = ", ".join([f"done before: {folder}", *_reached(folder)])
            print(f"{said}; delete the folder to train it anew, or --set seed=… for another seed")
        return 0
    with file_lock.hold(folder) if first else nullcontext():
        from tst_study.train import train as train_run

        state = train_run(config, folder)
    if first:
        print(*_told(folder, state), sep="\n")
    return int(state != "done")


def _train_on_processes(config: Config, folder: Path, count: int) -> int:
    """The same command on so many ranks of this machine."""
    from tst_study.process.local_ranks import train_on_processes
    from tst_study.record.reader import read_status
    from tst_study.record.writer import mark

    code, died = train_on_processes(count, sys.argv[1:])
    status = read_status(folder) if died else None
    if status is not None and status["state"] == "running":  # the first rank could not say it
        mark(folder, config, "failed", died)
    return code


def _run_folder(config: Config) -> Path:
    from tst_study.config.identity import fingerprint, run_id
    from tst_study.data.run_data import fingerprints

    identity = fingerprint(config, fingerprints(config))
    return Path("runs") / config.study / run_id(config, identity)


def _say_prepared(folder: Path, manifest: Manifest, more: str = "") -> None:
    for split, record in manifest.splits.items():
        held = f"{record.tokens:,} tokens in {record.documents:,} documents"
        print(f"{folder}: {split}: {held}{more}")


def _told(folder: Path, state: run_record.State) -> list[str]:
    """How a run ended, and what to type next."""
    from tst_study.record import reader as run_record

    if state == "done":
        following = f"next: tst-study analyse --runs {quote(str(folder.parent))}"
        return [f"done: {folder}", *_reached(folder), following]
    status = run_record.read_status(folder)
    if state != "diverged" or status is None:
        return [f"{state}: {folder}; the same command goes on from there"]
    return [
        f"diverged: {folder} ({status['message']}); try a lower optimizer.learning_rate or a "
        "longer schedule.warmup_steps"
    ]


def _reached(folder: Path) -> list[str]:
    """The last held-out loss, where there is one."""
    from tst_study.record import reader as run_record

    row = run_record.last_evaluation(folder)
    if row is None:
        return []
    loss, tokens = f"{row['nats_per_token']:.4f} nats per token", f"{row['tokens']:,} tokens"
    return [f"held-out loss {loss} after step {row['step']:,}, over {tokens}"]


def _is_done(config: Config, folder: Path) -> bool:
    """Raises `UserError` where the folder holds another run, which is done."""
    from tst_study.config.identity import fingerprint
    from tst_study.data.run_data import fingerprints
    from tst_study.record import reader as run_record

    if not (folder / "status.json").is_file():  # also where nothing could lie: said later
        return False
    status = run_record.read_status(folder)
    if status is None or status["state"] != "done":
        return False
    run_record.check_same_run(folder, fingerprint(config, fingerprints(config)))
    return True


@verb(
    verbs,
    ONE_RUN,
    "tst-study export runs/mine/run-1a2b3c4d --to exported",
    "tst-study export runs/mine/run-1a2b3c4d --to exported --step 2000 --push me/mine",
)
def export(
    run: TrainedRunFolder,
    to: Annotated[Path, typer.Option(help="Folder to write; it must not exist yet.")],
    step: AfterStep = None,
    tokenizer: TokenizerFile = None,
    allow_superposition_checkpoint: Annotated[
        bool,
        typer.Option(
            "--allow-superposition-checkpoint",
            help="Export a checkpoint from inside the superposition phase, no language model.",
        ),
    ] = False,
    card: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Of the model card: license, language, datasets, base_model; may be repeated.",
        ),
    ] = None,
    form: Annotated[
        str, typer.Option(help="huggingface, or megatron: the weights for Megatron-Core.")
    ] = "huggingface",
    push: Annotated[
        str | None, typer.Option(metavar="NAME", help="Upload to the hub; a new place is private.")
    ] = None,
) -> None:
    """Write a run's checkpoint as an ordinary Hugging Face model."""
    from tst_study.checkpoints.trained_run import open_run
    from tst_study.huggingface.tokenizer_files import tokenizer_of_run

    opened = open_run(run, step)
    found = tokenizer_of_run(opened, tokenizer)

    from tst_study.huggingface import export as exports

    made = exports.export(
        opened,
        to,
        found,
        allow_superposition_checkpoint=allow_superposition_checkpoint,
        card=card or (),
        form=form,
    )
    print(f"step {opened.step} of {run}: {made}")
    if push is not None:
        print(f"uploaded to {exports.push(made, push)}")


@verb(
    verbs,
    ONE_RUN,
    "tst-study evaluate runs/mine/run-1a2b3c4d",
    "tst-study evaluate runs/mine/run-1a2b3c4d --tasks arc_easy,piqa",
)
@takes_options(EvaluationOptions)
def evaluate(run: TrainedRunFolder, step: AfterStep = None, **options: Any) -> None:
    """Measure a trained run; what is found is added to its evals.jsonl."""
    from tst_study import file_lock
    from tst_study.checkpoints.trained_run import open_run

    opened = open_run(run, step)

    from tst_study.evaluation.run import evaluate_run

    with file_lock.hold(run):
        for line in evaluate_run(opened, EvaluationOptions(**options)):
            print(line)
