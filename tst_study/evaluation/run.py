"""`tst-study evaluate`: measure a checkpoint and add the results to the run's record."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from tst_study.checkpoints.checkpoint import Checkpoints
from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.config.schema import DeviceName, Execution
from tst_study.data.manifest import token_prefix
from tst_study.errors import UserError, one_of
from tst_study.evaluation.domains import domains_of_run, evaluate_domains
from tst_study.evaluation.options import EvaluationOptions
from tst_study.huggingface.export import export
from tst_study.huggingface.tokenizer_files import RunTokenizer, tokenizer_of_run
from tst_study.model.model import SuperposedGPT, empty_model
from tst_study.parallel.process_groups import Ranks, process_groups
from tst_study.record.launch_facts import code_version
from tst_study.record.reader import measures
from tst_study.record.writer import append_task_results


def evaluate_run(
    run: TrainedRun, options: EvaluationOptions, say: Callable[[str], None] = lambda text: None
) -> Iterator[str]:
    """Yield a line for each result, once it is in `evals.jsonl`.

    `say` is told what is going on. The caller must hold the run's lock. Raises `UserError`.
    """
    if run.phase == "superposition":
        raise UserError(
            f"{run.checkpoint}: is from inside the superposition phase; it predicts bags, and its "
            "next-token loss means nothing: name a later --step"
        )
    domains = _named_folders(options.held_out or ()) or domains_of_run(run)
    tokens = options.tokens or run.config.data.held_out_tokens
    tokenizer = None if options.tasks is None else _ready_for_tasks(run, options)
    with trained_model(run, options.device) as (model, ranks):
        yield from _keep(run, evaluate_domains(run, model, ranks, domains, tokens, say))
        device = str(ranks.device)
        del model  # before its export is loaded
    if tokenizer is not None:
        from tst_study.evaluation.tasks import evaluate_tasks

        say("exporting the checkpoint and starting lm-eval")
        with TemporaryDirectory() as folder:
            exported = export(run, Path(folder) / "model", tokenizer)
            yield from _keep(run, evaluate_tasks(exported, options, device))


@contextmanager
def trained_model(run: TrainedRun, device: str = "auto") -> Iterator[tuple[SuperposedGPT, Ranks]]:
    """Yield the model with the weights of the run's checkpoint, on one process.

    `device`: `auto`, `cpu` or `cuda`. Raises `UserError` where the checkpoint cannot be read.
    """
    one_of(device, get_args(DeviceName), "--device")
    execution = Execution.model_validate({"device": device})
    config = run.config.model_copy(update={"execution": execution})
    with process_groups(config) as ranks:
        model = empty_model(config)
        Checkpoints(run.folder, keep=1).load_weights(run.step, model)
        yield model, ranks


def _ready_for_tasks(run: TrainedRun, options: EvaluationOptions) -> RunTokenizer:
    """Return the run's tokenizer. Raises `UserError` before anything is measured."""
    for package in ("lm_eval", "safetensors"):
        if find_spec(package) is None:
            raise UserError(f"--tasks needs {package}: pip install 'tst-study[evaluation]'")
    tokenizer = tokenizer_of_run(run, options.tokenizer)
    if tokenizer is None:
        raise UserError(
            "--tasks: the run's corpus names no tokenizer; name it with --tokenizer (words that "
            "are numbers have none, and downstream tasks are text)"
        )
    return tokenizer


def _keep(run: TrainedRun, results: Iterable[dict[str, Any]]) -> Iterator[str]:
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
            raise UserError(f"--held-out {text}: {name} names another text already; rename it")
        named[name] = token_prefix(path, "validation")
    return named
