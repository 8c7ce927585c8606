"""Downstream tasks, run by EleutherAI's lm-eval.

Its Hugging Face backend loads a checkpoint that has been exported. The data of the tasks come from
the Hugging Face hub or, without a network, from a mirror in the working directory (docs/export.md).
"""

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from tst_study.errors import UserError, one_line
from tst_study.record.launch_facts import package_version

PAPER_TASKS = "arc_easy,arc_challenge,boolq,hellaswag,mmlu,openbookqa,piqa,winogrande"
"""The tasks of the paper's Table 3 and Tables 8–28, all 0-shot."""

BOOTSTRAPS = 1000
"""Bootstrap samples for the standard errors of the few metrics that are not means. With 0, lm-eval
would give no metric a standard error."""
PACKAGES = ("lm_eval", "datasets", "transformers", "tokenizers", "torch")
"""Packages whose versions are recorded with each result."""


def known_tasks(tasks: str) -> list[str]:
    """Return the names in a text such as `arc_easy, piqa` or, for `paper`, those of `PAPER_TASKS`.
    Each is a task, a group or a tag of lm-eval. Raises `UserError` for a name that is none."""
    named = PAPER_TASKS if tasks == "paper" else tasks
    names, known = [name.strip() for name in named.split(",")], TaskManager().all_tasks
    for name in names:
        if name not in known:
            raise UserError(
                f"--tasks {name}: lm-eval {package_version('lm_eval')} knows no such task; "
                "`lm-eval ls tasks` lists them; for your own, run lm-eval on an export"
            )
    return names


def evaluate_tasks(
    exported: Path, names: Sequence[str], max_length: int | None, device: str
) -> Iterator[dict[str, Any]]:
    """Evaluate tasks without examples in the prompt (0-shot), and yield a result for each: task,
    data, metrics, samples, details and seconds of a `TaskResult`, a row of `evals.jsonl`.

    Args:
        exported: a folder that `export` wrote. Code that it may contain is not run.
        names: as `known_tasks` returns them. A group gives one result, a tag one for each of its
            tasks.
        max_length: the longest context in tokens; None for that of training.
        device: where the model runs, as torch names it.

    Raises:
        UserError: the data of a task cannot be had, or lm-eval refuses a question, as it does for
            an answer that is longer than the context.
    """
    manager = TaskManager()
    model = HFLM(
        pretrained=str(exported.resolve()),
        device=device,
        dtype="auto",
        # In bfloat16, sums of log probabilities are so coarse that close answers tie, and a tie
        # goes to the first one.
        softmax_dtype="float32",
        batch_size=16,
        max_length=max_length,
        trust_remote_code=False,
        use_safetensors=True,
    )
    for name in names:
        began = time.perf_counter()
        try:
            results = simple_evaluate(
                model,
                tasks=[name],
                num_fewshot=0,
                task_manager=manager,
                bootstrap_iters=BOOTSTRAPS,
                log_samples=True,
            )
        except OSError as error:
            raise UserError(
                f"--tasks {name}: its data cannot be had ({one_line(error)}); docs/export.md says "
                "how to evaluate without a network"
            ) from None
        except AssertionError as error:
            raise UserError(
                f"--tasks {name}: lm-eval refuses a question, as it does where an answer is longer "
                f"than the context of {model.max_length} tokens; raise --max-length"
            ) from error
        seconds = time.perf_counter() - began
        # A tag is only a name for several tasks and has no result itself.
        rows = [name] if name in results["results"] else sorted(results["results"])
        for row in rows:
            yield {**_row(row, results), "seconds": seconds / len(rows)}


def _row(name: str, results: dict[str, Any]) -> dict[str, Any]:
    leaves = _leaves(name, results)
    config = results["configs"][leaves[0]]
    source = ":".join(filter(None, (config.get("dataset_path"), config.get("dataset_name"))))
    if len(leaves) > 1:
        source = f"{config.get('dataset_path')} ({len(leaves)} parts)"
    digest = hashlib.sha256()
    for leaf in leaves:
        for sample in results["samples"][leaf]:
            digest.update(sample["doc_hash"].encode())
    task_version = results["versions"].get(name)
    return {
        "task": name,
        "data": f"{source} v{task_version} 0-shot-{digest.hexdigest()[:16]}",
        "metrics": _metrics(results["results"][name]),
        "samples": sum(results["n-samples"][leaf]["effective"] for leaf in leaves),
        "details": {
            "shots": 0,
            "limit": None,
            "task_version": str(task_version),
            "versions": {package: package_version(package) for package in PACKAGES},
            "parts": {leaf: _metrics(results["results"][leaf]) for leaf in leaves if leaf != name},
        },
    }


def _leaves(name: str, results: dict[str, Any]) -> list[str]:
    """Return the names of the tasks in a group, which may contain other groups. For a single task,
    return its name alone."""
    below = results.get("group_subtasks", {}).get(name, [])
    return [leaf for part in below for leaf in _leaves(part, results)] if below else [name]


def _metrics(values: dict[str, Any]) -> dict[str, float | None]:
    """Return lm-eval's metrics by our names: `acc,none` becomes `acc`, `acc,FILTER` becomes
    `acc@FILTER`, and `acc_stderr,FILTER` becomes `acc@FILTER_stderr`. A value that is not a finite
    number becomes None. Entries without a comma in their keys are not metrics and are dropped."""
    metrics: dict[str, float | None] = {}
    for key, value in values.items():
        name, comma, filtered = key.partition(",")
        if not comma:
            continue
        plain = name.removesuffix("_stderr")
        label = plain if filtered == "none" else f"{plain}@{filtered}"
        label += "_stderr" if plain != name else ""
        number = isinstance(value, int | float) and math.isfinite(value)
        metrics[label] = float(value) if number else None
    return metrics
