"""What `tst-study evaluate` does: measure a checkpoint and add the results to the run's record."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from tst_study.checkpoints.reader import CheckpointReader
from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.data.manifest import token_prefix
from tst_study.errors import UserError
from tst_study.evaluation.context_checks import context_checks
from tst_study.evaluation.domains import domains_of_run, evaluate_domains
from tst_study.evaluation.options import EvaluationOptions
from tst_study.evaluation.trained_model import TrainedModel, trained_model
from tst_study.huggingface.tensor_names import QKV
from tst_study.huggingface.tokenizer_files import RunTokenizer, tokenizer_of_run
from tst_study.huggingface.weights import HuggingFaceWeights
from tst_study.run.launch_facts import code_version
from tst_study.run.writer import append_task_results
from tst_study.run_record import measures


def evaluate_run(run: TrainedRun, options: EvaluationOptions) -> Iterator[str]:
    """Yields one line per result, each of which is in `evals.jsonl` by then.

    Whoever calls holds the run. Raises `UserError`.
    """
    if run.phase == "superposition":
        raise UserError(
            f"{run.checkpoint}: is from inside the superposition phase; it predicts bags, and its "
            "next-token loss means nothing: name a later --step"
        )
    if options.export is not None:
        _check_export(run, options.export)
    domains = _named_folders(options.held_out or ()) or domains_of_run(run)
    tokens = options.tokens or run.config.data.held_out_tokens
    needs_tokenizer = options.tasks is not None or options.context
    tokenizer = tokenizer_of_run(run, options.tokenizer) if needs_tokenizer else None
    with trained_model(run, options.device) as trained:
        yield from _keep(run, "live", evaluate_domains(trained, domains, tokens))
        if options.context:
            prefix = next(iter(domains.values()))
            yield from _keep(run, "live", context_checks(trained, prefix, tokenizer))
        if options.tasks is not None and options.export is None:
            yield from _keep(run, "live", _tasks(options, trained, tokenizer))
    if options.tasks is not None and options.export is not None:
        yield from _keep(run, "export", _tasks(options, trained, tokenizer))


def _tasks(
    options: EvaluationOptions, trained: TrainedModel, tokenizer: RunTokenizer | None
) -> Iterator[dict[str, Any]]:
    try:
        from tst_study.evaluation import tasks as lm

        if options.export is not None:
            model = lm.exported_model(options.export, str(trained.device), options.max_length)
        else:
            if tokenizer is None:
                raise UserError(
                    "--tasks: the run's corpus names no tokenizer; name it with --tokenizer (words "
                    "that are numbers have none, and downstream tasks are text)"
                )
            model = lm.LiveModel(trained, tokenizer, options.max_length)
    except ModuleNotFoundError as error:
        raise UserError(
            f"--tasks needs {error.name}: pip install 'tst-study[evaluation]'"
        ) from None
    names = lm.PAPER_TASKS if options.tasks == "paper" else (options.tasks or "").split(",")
    return lm.evaluate_tasks(model, names, options)


def _check_export(run: TrainedRun, folder: Path) -> None:
    """Results are kept with the run, so they must be its own; a layer tells."""
    reader, export = CheckpointReader(run.checkpoint), HuggingFaceWeights(folder, run.model)
    for name in ("decoder.final_layernorm.weight", f"decoder.layers.{QKV}"):
        shape = reader.shape(name)
        sizes = (1, *shape[1:]) if len(shape) > 1 else shape
        theirs, ours = (source.read(name, (0,) * len(shape), sizes) for source in (export, reader))
        if not torch.equal(theirs, ours):
            raise UserError(f"--export {folder}: is not of step {run.step} of {run.folder}")


def _keep(run: TrainedRun, through: str, found: Iterable[dict[str, Any]]) -> Iterator[str]:
    code = code_version()
    for result in found:
        details = {**result["details"], "through": through, "code": code}
        append_task_results(run.folder, [{**run.counters(), **result, "details": details}])
        yield _line(result)


def _line(result: dict[str, Any]) -> str:
    shown = [
        f"{name} {value:.4f}" + ("" if error is None else f" ± {error:.4f}")
        for name, value, error in measures(result["metrics"])
    ]
    units = f"{result['samples']:,} {result['details'].get('unit', 'question')}s"
    return f"{result['task']} ({result['data']}, {units}): {', '.join(shown)}"


def _named_folders(given: Iterable[str]) -> dict[str, Path]:
    named = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise UserError(f"--held-out {text}: write it as NAME=FOLDER")
        if name in named:
            raise UserError(f"--held-out {text}: {name} names another text already; rename it")
        named[name] = token_prefix(path, "validation")
    return named
