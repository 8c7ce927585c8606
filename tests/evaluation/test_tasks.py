"""lm-eval for real, without a network: its own tasks and one of ours, live and on the export."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pandas as pd
import pytest

from paper_figures.sources import accuracies
from tests.huggingface.trained import train_and_export
from tst_study import run_record
from tst_study.checkpoints.trained_run import open_run
from tst_study.errors import UserError
from tst_study.evaluation.options import EvaluationOptions
from tst_study.evaluation.run import evaluate_run

pytest.importorskip("lm_eval", reason="downstream tasks need tst-study[evaluation]")
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
PERPLEXITY = """
task: letters_perplexity
dataset_path: json
dataset_kwargs:
  data_files:
    test: letters.jsonl
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list:
  - metric: bits_per_byte
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
def trained(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return train_and_export(documents, tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and definitions in a folder, the former by the names that they have on the hub."""
    folder = tmp_path_factory.mktemp("local")
    letters = random.Random(0)

    def text() -> str:
        return "".join(letters.choices("abcdefgh ", k=letters.randrange(3, 30))).strip() or "a"

    with open(folder / "letters.jsonl", "w") as file:
        for _ in range(40):
            row = {"question": text(), "choices": [text() for _ in range(4)], "answer": 1}
            file.write(json.dumps(row) + "\n")
    (folder / "letters.yaml").write_text(MULTIPLE_CHOICE)
    again = MULTIPLE_CHOICE.replace("letters\n", "letters_again\ntag: tagged_letters\n", 1)
    (folder / "again.yaml").write_text(again)
    (folder / "perplexity.yaml").write_text(PERPLEXITY)
    (folder / "group.yaml").write_text(GROUP)
    arc = folder / "allenai" / "ai2_arc" / "ARC-Easy"
    arc.mkdir(parents=True)
    (arc.parent / "README.md").write_text(
        "---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n"
        + "".join(
            f"  - split: {split}\n    path: ARC-Easy/{split}.jsonl\n"
            for split in ("train", "validation", "test")
        )
        + "---\n"
    )
    for split in ("train", "validation", "test"):
        with open(arc / f"{split}.jsonl", "w") as file:
            for number in range(12):
                choices = {"text": [text() for _ in "ABCD"], "label": list("ABCD")}
                row = {
                    "id": f"{split}{number}",
                    "question": text(),
                    "choices": choices,
                    "answerKey": "ABCD"[number % 4],
                }
                file.write(json.dumps(row) + "\n")
    return folder


def wanted(tasks: str, local: Path, **more: object) -> EvaluationOptions:
    return EvaluationOptions(
        held_out=[], tasks=tasks, task_data=local, task_definitions=local, max_length=256, **more
    )  # type: ignore[arg-type]


def test_live_model_and_export_give_the_same_numbers(
    trained: tuple[Path, Path], local: Path
) -> None:
    run, export = trained
    tasks = "letters,letters_perplexity,all_letters,arc_easy"
    list(evaluate_run(open_run(run), wanted(tasks, local)))
    live = run_record.read(run).tasks
    list(evaluate_run(open_run(run), wanted(tasks, local, export=export)))
    exported = run_record.read(run).tasks
    names = ["held_out", "letters", "letters_perplexity", "all_letters", "arc_easy"]
    assert [row["task"] for row in live] == [row["task"] for row in exported] == names
    for mine, theirs in zip(live[1:], exported[1:], strict=True):
        assert mine["data"] == theirs["data"]
        assert mine["metrics"].keys() == theirs["metrics"].keys()
        for name, value in mine["metrics"].items():
            other = theirs["metrics"][name]
            assert other == (None if value is None else pytest.approx(value, rel=1e-4)), name
        assert (mine["details"]["through"], theirs["details"]["through"]) == ("live", "export")
        assert mine["details"]["versions"]["lm_eval"]
    by_name = {row["task"]: row for row in live}
    choice = by_name["letters"]
    for name in ("acc", "acc_norm"):
        value, error = (choice["metrics"][f"{name}{end}"] for end in ("", "_stderr"))
        assert value is not None
        assert error == pytest.approx((value * (1 - value) / 39) ** 0.5)
    assert (choice["samples"], choice["details"]["shots"]) == (40, 0)
    assert by_name["letters_perplexity"]["metrics"]["bits_per_byte"] > 1
    assert by_name["arc_easy"]["data"].startswith("allenai/ai2_arc:ARC-Easy v1.0 0-shot-")
    assert by_name["all_letters"]["samples"] == 80
    assert by_name["all_letters"]["metrics"]["acc"] == choice["metrics"]["acc"]
    assert by_name["all_letters"]["details"]["parts"].keys() == {"letters", "letters_again"}


def test_tables_of_tasks_fill_themselves(trained: tuple[Path, Path], local: Path) -> None:
    run = open_run(trained[0])
    runs = pd.DataFrame([{"folder": str(trained[0]), "state": "done", "steps": run.step}])
    list(evaluate_run(run, wanted("arc_easy", local)))
    row = next(row for row in run_record.read(trained[0]).tasks if row["task"] == "arc_easy")
    (shown,) = accuracies(runs).to_dict("records")
    assert (shown["task"], shown["metric"]) == ("arc_easy", "acc_norm")
    assert shown["accuracy"] == row["metrics"]["acc_norm"]
    # A look at the first questions is no entry of a table.
    list(evaluate_run(run, wanted("arc_easy", local, limit=1)))
    assert accuracies(runs).to_dict("records") == [shown]


def test_a_tag_stands_for_its_tasks(trained: tuple[Path, Path], local: Path) -> None:
    list(evaluate_run(open_run(trained[0]), wanted("tagged_letters", local)))
    rows = {row["task"]: row for row in run_record.read(trained[0]).tasks}
    assert rows["letters_again"]["samples"] == 40


def test_a_limit_is_another_measurement(trained: tuple[Path, Path], local: Path) -> None:
    list(evaluate_run(open_run(trained[0]), wanted("letters", local)))
    list(evaluate_run(open_run(trained[0]), wanted("letters", local, limit=10)))
    rows = [row for row in run_record.read(trained[0]).tasks if row["task"] == "letters"]
    assert [row["samples"] for row in rows] == [40, 10]


def test_what_is_missing_is_said_in_one_line(trained: tuple[Path, Path], local: Path) -> None:
    for tasks, complaint in (
        ("no_such_task", "knows no such task"),
        ("piqa", "--tasks piqa: its data cannot be had"),
    ):
        with pytest.raises(UserError) as raised:
            list(evaluate_run(open_run(trained[0]), wanted(tasks, local)))
        assert complaint in str(raised.value)
        assert "\n" not in str(raised.value)


def test_an_answer_that_fits_no_context_is_refused(trained: tuple[Path, Path], local: Path) -> None:
    short = EvaluationOptions(tasks="letters", task_data=local, task_definitions=local)
    with pytest.raises(UserError, match="does not fit a context of 8; raise --max-length"):
        list(evaluate_run(open_run(trained[0]), short))


def test_an_export_of_another_run_or_of_pickles_is_refused(
    trained: tuple[Path, Path], local: Path, documents: Path, tmp_path: Path
) -> None:
    _, other = train_and_export(documents, tmp_path / "other", "seed=1")
    pickled = shutil.copytree(trained[1], tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    for export, complaint in (
        (other, "exported: is not of step 6 of"),
        (pickled, "since they can hold code"),
        (tmp_path / "nowhere", "model.safetensors: missing"),
    ):
        with pytest.raises(UserError, match=complaint):
            list(evaluate_run(open_run(trained[0]), wanted("letters", local, export=export)))
