"""Downstream tasks by EleutherAI's lm-eval, on the live model or on its export alike.

Both answer the same requests: `LiveModel` reads the run's checkpoint, lm-eval's own Hugging Face
backend the export. Task data come from the hub, or from a local folder that mirrors it.
"""

import contextlib
import functools
import hashlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval import simple_evaluate, utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, TemplateLM
from lm_eval.tasks import TaskManager

from tst_study.errors import UserError
from tst_study.evaluation.evaluate import POSITIONS_AT_ONCE
from tst_study.evaluation.options import EvaluationOptions
from tst_study.evaluation.trained_model import TrainedModel
from tst_study.huggingface.tokenizer_files import RunTokenizer
from tst_study.run.launch_facts import package_version

PAPER_TASKS = (
    "arc_easy",
    "arc_challenge",
    "boolq",
    "hellaswag",
    "mmlu",
    "openbookqa",
    "piqa",
    "winogrande",
)
"""Table 3 and Tables 8–28, all 0-shot."""

BOOTSTRAPS = 1000
"""For the standard errors of the few metrics that are not means; with 0 no metric gets any."""
PACKAGES = ("lm_eval", "datasets", "transformers", "tokenizers", "torch")


class LiveModel(TemplateLM):  # type: ignore[misc]  # lm-eval is untyped
    """A run's checkpoint as lm-eval sees a model.

    Requests are put together as its Hugging Face backend does: right-padded, cut from the left to
    the longest context, the end-of-document token in the place of an empty one.
    """

    def __init__(
        self, trained: TrainedModel, tokenizer: RunTokenizer, max_length: int | None = None
    ) -> None:
        from tokenizers import Tokenizer

        super().__init__()
        self._trained = trained
        self._end = tokenizer.end_of_document
        self._library = Tokenizer.from_str(tokenizer.json.decode())
        self.max_length = max_length or trained.run.sequence_length

    @property
    def eot_token_id(self) -> int:
        return self._end

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **unused: Any
    ) -> list[int]:
        ids: list[int] = self._library.encode(string, add_special_tokens=False).ids
        return ids

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **unused: Any
    ) -> list[tuple[float, bool]]:
        """Per request (text, context ids, continuation ids): log-likelihood, and is it greedy?"""
        lines = [(context + ending)[-self.max_length - 1 :] for _, context, ending in requests]
        for line, (_, _, ending) in zip(lines, requests, strict=True):
            if not 0 < len(ending) < len(line):
                raise UserError(
                    f"lm-eval: an answer of {len(ending)} tokens does not fit a context of "
                    f"{self.max_length}; raise --max-length"
                )
        answers: dict[int, tuple[float, bool]] = {}
        order = sorted(range(len(lines)), key=lambda number: -len(lines[number]))
        while order:
            count = max(1, POSITIONS_AT_ONCE // len(lines[order[0]]))
            batch, order = order[:count], order[count:]
            logits = self._trained.logits(_padded([lines[number][:-1] for number in batch]))
            for row, number in zip(logits, batch, strict=True):
                wanted = torch.tensor(requests[number][2], device=row.device)
                end = len(lines[number]) - 1
                scores = row[end - len(wanted) : end].log_softmax(-1)
                greedy = bool((scores.argmax(-1) == wanted).all())
                answers[number] = float(scores.gather(1, wanted[:, None]).sum()), greedy
        return [answers[number] for number in range(len(lines))]

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        sums = []
        for request in requests:
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self._end,
                max_seq_len=self.max_length,
                context_len=1,
            )
            parts = [(None, *utils.make_disjoint_window(window)) for window in windows]
            sums.append(sum(score for score, _ in self._loglikelihood_tokens(parts)))
        return sums

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        raise UserError(
            f"{requests[0].task_name}: generates text, which goes through the export: "
            "`tst-study export`, then evaluate with --export DIR"
        )


def exported_model(folder: Path, device: str, max_length: int | None) -> LM:
    """An export through lm-eval's own Hugging Face backend; no code of the export is run."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(
        pretrained=str(folder),
        device=device,
        dtype="auto",
        batch_size=16,
        max_length=max_length,
        trust_remote_code=False,
        use_safetensors=True,
    )


def evaluate_tasks(
    model: LM, names: Sequence[str], options: EvaluationOptions
) -> Iterator[dict[str, Any]]:
    """Task, data, metrics, samples, details and seconds of a `TaskResult`, task by task.

    Args:
        model: `LiveModel`, `exported_model(…)` or any other of lm-eval's.
        names: of tasks or groups.
        options: `task_definitions` can run code, by `!function`, which loads a Python file, and in
            Jinja templates. `task_data` holds the data sets by their hub names
            (`allenai/ai2_arc`), as `hf download --repo-type dataset --local-dir` writes them;
            nothing is fetched then.

    Raises:
        UserError: a task is not known, or its data are not there.
    """
    own = options.task_definitions
    manager = _manager(None if own is None else str(own.resolve()))
    for name in names:
        if name not in manager.all_tasks:
            raise UserError(
                f"--tasks {name}: lm-eval {package_version('lm_eval')} knows no such task; "
                "`lm-eval ls tasks` lists them, --task-definitions names a folder with your own"
            )
    for name in names:
        began = time.perf_counter()
        try:
            with _data_from(options.task_data):
                found = simple_evaluate(
                    model,
                    tasks=[name],
                    num_fewshot=options.shots,
                    limit=options.limit,
                    task_manager=manager,
                    bootstrap_iters=BOOTSTRAPS,
                    log_samples=True,
                )
        except OSError as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"--tasks {name}: its data cannot be had ({reason}); put a copy into the folder of "
                "--task-data, under the name that it has on the hub"
            ) from None
        seconds = time.perf_counter() - began
        # A tag is not a task itself, but a name for several.
        rows = [name] if name in found["results"] else sorted(found["results"])
        for row in rows:
            yield {**_row(row, found, options), "seconds": seconds / len(rows)}


@functools.cache
def _manager(definitions: str | None) -> TaskManager:
    """It reads thousands of files."""
    return TaskManager(include_path=definitions)


@contextlib.contextmanager
def _data_from(folder: Path | None) -> Iterator[None]:
    """`datasets` takes a folder of a data set's name for the data set: so it is looked up there."""
    if folder is None:
        yield
        return
    if not folder.is_dir():
        raise UserError(f"--task-data {folder}: no such folder")
    import datasets
    import huggingface_hub.constants

    before = huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    here = os.getcwd()
    try:
        os.chdir(folder)
        yield
    finally:
        os.chdir(here)
        huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _row(name: str, found: dict[str, Any], options: EvaluationOptions) -> dict[str, Any]:
    leaves = _leaves(name, found)
    config = found["configs"][leaves[0]]
    source = ":".join(filter(None, (config.get("dataset_path"), config.get("dataset_name"))))
    if len(leaves) > 1:
        source = f"{config.get('dataset_path')} ({len(leaves)} parts)"
    digest = hashlib.sha256()
    for leaf in leaves:
        for sample in found["samples"][leaf]:
            digest.update(sample["doc_hash"].encode())
    task_version = found["versions"].get(name)
    return {
        "task": name,
        "data": f"{source} v{task_version} {options.shots}-shot-{digest.hexdigest()[:16]}",
        "metrics": _metrics(found["results"][name]),
        "samples": sum(found["n-samples"][leaf]["effective"] for leaf in leaves),
        "details": {
            "shots": options.shots,
            "limit": options.limit,
            "task_version": str(task_version),
            "versions": {package: package_version(package) for package in PACKAGES},
            "parts": {leaf: _metrics(found["results"][leaf]) for leaf in leaves if leaf != name},
        },
    }


def _leaves(name: str, found: dict[str, Any]) -> list[str]:
    """The tasks behind a name, which may be a group of groups."""
    below = found.get("group_subtasks", {}).get(name, [])
    return [leaf for part in below for leaf in _leaves(part, found)] if below else [name]


def _metrics(values: dict[str, Any]) -> dict[str, float | None]:
    """`acc,none` and `acc_stderr,none` by their plain names; another filter's name is kept."""
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


def _padded(lines: Sequence[Sequence[int]]) -> torch.Tensor:
    """(b, longest) ids, filled up on the right, where causal attention does not look."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(line) for line in lines], batch_first=True)
