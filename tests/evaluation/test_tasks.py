"""lm-eval for real, without a network: its own tasks and one of ours, on a run's export."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import datasets
import huggingface_hub.constants
import pytest

from tests.huggingface.trained import BYTES
from tests.tiny_runs import run
from tst_study.checkpoints.trained_run import open_run
from tst_study.errors import UserError
from tst_study.evaluation.run import evaluate_run
from tst_study.paper_figures.sources import Sources
from tst_study.record import reader as run_record

lm_eval_tasks = pytest.importorskip("lm_eval.tasks", reason="needs tst-study[evaluation]")
pytest.importorskip("safetensors", reason="exports need tst-study[export]")

MULTIPLE_CHOICE = """
task: letters
dataset_path: json
dataset_kwargs:
  data_files:
    test: letters.jsonl
output_type: multiple_choice
test_split: test
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
GROUP = """
group: all_letters
task: [letters, letters_again]
aggregate_metric_list:
  - metric: acc
    weight_by_size: true
metadata:
  version: 1.0
"""


@pytest.fixture(scope="module")
def trained(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks") / "run"
    run(documents, folder, *BYTES)
    return folder


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and definitions in a folder, the former by the names that they have on the hub."""
    folder = tmp_path_factory.mktemp("local")
    letters = random.Random(0)

    def text() -> str:
        return "".join(letters.choices("abcdefgh", k=20))

    with open(folder / "letters.jsonl", "w") as file:
        for _ in range(40):
            row = {"question": text(), "choices": [text() for _ in range(4)], "answer": 1}
            file.write(json.dumps(row) + "\n")
    (folder / "letters.yaml").write_text(MULTIPLE_CHOICE)
    again = MULTIPLE_CHOICE.replace("letters\n", "letters_again\ntag: tagged_letters\n", 1)
    (folder / "again.yaml").write_text(again)
    (folder / "group.yaml").write_text(GROUP)
    arc = folder / "allenai" / "ai2_arc"
    arc.mkdir(parents=True)
    splits = ("train", "validation", "test")
    files = "".join(f"  - split: {split}\n    path: rows.jsonl\n" for split in splits)
    (arc / "README.md").write_text(
        f"---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n{files}---\n"
    )
    with open(arc / "rows.jsonl", "w") as file:
        for number in range(12):
            choices = {"text": [text() for _ in "ABCD"], "label": list("ABCD")}
            row = {"question": text(), "choices": choices, "answerKey": "ABCD"[number % 4]}
            file.write(json.dumps({"id": str(number), **row}) + "\n")
    return folder


@pytest.fixture(scope="module", autouse=True)
def offline(local: Path) -> Iterator[None]:
    """As docs/export.md says; lm-eval knows the tasks of the folder besides its own."""
    manager = lm_eval_tasks.TaskManager(include_path=str(local))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(local)
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr("tst_study.evaluation.tasks.TaskManager", lambda: manager)
        yield


def measure(run: Path, tasks: str) -> None:
    list(evaluate_run(open_run(run), tasks=tasks, max_length=256))


def test_every_kind_of_task_lands_in_the_record(trained):
    tasks = "letters, all_letters,arc_easy,tagged_letters"
    measure(trained, tasks)
    by_name = {row["task"]: row for row in run_record.read(trained).tasks}
    names = {"held_out", "letters", "all_letters", "arc_easy"}
    assert by_name.keys() == names | {"letters_again"}  # a tag is a name for several
    choice = by_name["letters"]
    for name in ("acc", "acc_norm"):
        value, error = (choice["metrics"][f"{name}{end}"] for end in ("", "_stderr"))
        assert error == pytest.approx((value * (1 - value) / 39) ** 0.5)
    assert (choice["samples"], choice["details"]["shots"]) == (40, 0)
    assert choice["details"]["versions"]["lm_eval"]
    assert by_name["arc_easy"]["data"].startswith("allenai/ai2_arc:ARC-Easy v1.0 0-shot-")
    assert by_name["all_letters"]["samples"] == 80
    assert by_name["all_letters"]["metrics"]["acc"] == choice["metrics"]["acc"]
    assert by_name["all_letters"]["details"]["parts"].keys() == {"letters", "letters_again"}


def test_close_answers_do_not_tie_in_bfloat16(documents, tmp_path):
    """The first one would win, and is never the right one here."""
    even = ("model.initial_deviation=2e-4", "optimizer.learning_rate=1e-30")
    run(documents, tmp_path, *BYTES, *even, "numerics.dtype=bfloat16")
    measure(tmp_path, "letters")
    assert run_record.read(tmp_path).tasks[-1]["metrics"]["acc"] > 0.0


def test_tables_of_tasks_fill_themselves(trained):
    measure(trained, "arc_easy")
    row = next(row for row in run_record.read(trained).tasks if row["task"] == "arc_easy")
    (shown,) = Sources(trained).accuracies.to_dict("records")
    assert shown["task"] == "arc_easy"
    assert shown["accuracy"] == row["metrics"]["acc_norm"]


def test_what_is_missing_is_said_in_one_line(trained):
    for tasks, complaint in (
        ("no_such_task", "knows no such task"),
        ("piqa", "--tasks piqa: its data cannot be had"),
    ):
        with pytest.raises(UserError) as raised:
            measure(trained, tasks)
        assert complaint in str(raised.value)
        assert "\n" not in str(raised.value)


def test_an_answer_that_fits_no_context_is_refused(trained):
    with pytest.raises(UserError, match=r"--tasks letters: .* context of 8 .*--max-length"):
        list(evaluate_run(open_run(trained), tasks="letters"))
