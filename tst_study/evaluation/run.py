"""`tst-study evaluate`: measure a checkpoint and add the results to the run's record."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tst_study.checkpoints.checkpoint import Checkpoints
from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.data.manifest import token_prefix
from tst_study.errors import UserError
from tst_study.evaluation.domains import domains_of_run, evaluate_domains
from tst_study.huggingface.export import export
from tst_study.huggingface.tokenizer_files import tokenizer_of_run
from tst_study.model.model import SuperposedGPT, empty_model
from tst_study.parallel.process_groups import Ranks, process_groups
from tst_study.record.launch_facts import code_version
from tst_study.record.reader import measures, read_segments
from tst_study.record.writer import append_task_results


def evaluate_run(
    run: TrainedRun,
    held_out: Sequence[str] = (),
    tokens: int | None = None,
    tasks: str | None = None,
    max_length: int | None = None,
    tokenizer: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[str]:
    """Measure a run's checkpoint, and yield a line for each result once it is in `evals.jsonl`.

    The caller must hold the run's lock (`file_lock.hold`), since this writes to the run's folder.

    Args:
        held_out: texts as NAME=FOLDER; by default those of `domains_of_run`.
        tokens: about how many tokens of each text to evaluate; by default as many as the run's own
            evaluations.
        tasks: as in `known_tasks`; by default no tasks are run.
        max_length: as in `evaluate_tasks`.
        tokenizer: the run's tokenizer.json or a folder with it; needed for tasks if the run's
            corpus is not on this machine or names no tokenizer.
        say: called with messages on the progress.

    Raises:
        UserError: the checkpoint is from inside the superposition phase or cannot be read or
            exported; a text, a task or the tokenizer for the tasks cannot be used; or the disk is
            full.
    """
    if run.phase == "superposition":
        raise UserError(
            f"{run.checkpoint}: is from inside the superposition phase; it predicts bags, and its "
            "next-token loss means nothing: name a later --step"
        )
    if tasks is None and (max_length or tokenizer):
        raise UserError("--max-length and --tokenizer go with --tasks; add tasks or leave them out")
    if not read_segments(run.folder):
        raise UserError(f"{run.folder / 'segments.jsonl'}: missing or empty; copy it with the run")
    domains = _named_folders(held_out) or domains_of_run(run)
    tokens = tokens or run.config.data.held_out_tokens
    if tasks is not None:
        from tst_study.evaluation.tasks import evaluate_tasks, known_tasks

        names = known_tasks(tasks)

        of_run = tokenizer_of_run(run, tokenizer)
        if of_run is None:
            raise UserError(
                "--tasks: the run's corpus names no tokenizer; name it with --tokenizer (generated "
                "languages have none, and downstream tasks are text)"
            )
    with trained_model(run) as (model, ranks):
        yield from _keep(run, evaluate_domains(run, model, ranks, domains, tokens, say))
        device = str(ranks.device)
        del model  # to free its memory before lm-eval loads the export
    if tasks is not None:
        say("exporting the checkpoint and starting lm-eval")
        with TemporaryDirectory() as folder:
            exported = export(run, Path(folder) / "model", of_run)
            results = evaluate_tasks(exported, names, max_length, device)
            yield from _keep(run, results)


@contextmanager
def trained_model(run: TrainedRun) -> Iterator[tuple[SuperposedGPT, Ranks]]:
    """Yield the model, whole on this process, with the weights of the run's checkpoint.

    Raises `UserError` if the checkpoint cannot be read.
    """
    with process_groups(run.config) as ranks:
        model = empty_model(run.config)
        Checkpoints(run.folder, keep=1).load_weights(run.step, model)
        yield model, ranks


def _keep(run: TrainedRun, results: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Append each result to the run's record, then yield the line that is printed for it."""
    code = code_version()
    for result in results:
        details = {**result["details"], "code": code}
        append_task_results(run.folder, [{**run.counters(), **result, "details": details}])
        yield _line(result)


def _line(result: dict[str, Any]) -> str:
    shown = [
        f"{name} {value:.4f}" + ("" if error is None else f" ± {error:.4f}")
        for name, value, error in measures(result["metrics"])
    ]
    units = f"{result['samples']:,} {result['details'].get('unit', 'question')}s"
    error = "; ±: standard error" if "±" in "".join(shown) else ""
    return f"{result['task']} ({result['data']}, {units}): {', '.join(shown)}{error}"


def _named_folders(given: Iterable[str]) -> dict[str, Path]:
    named = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise UserError(f"--held-out {text}: write it as NAME=FOLDER")
        if name in named:
            raise UserError(f"--held-out {name}=…: is given twice; keep one")
        named[name] = token_prefix(path, "validation")
    return named
