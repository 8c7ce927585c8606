"""A run folder says the truth about its run, after crashes too."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.examples import example
from tests.slurm.fake_site.fake_trainer import DATA
from tst_study.errors import UserError
from tst_study.record import reader as run_record
from tst_study.record.launch_facts import code_version
from tst_study.record.log import Progress
from tst_study.record.writer import RunWriter, header_of


def open_run(folder: Path, *overrides: str) -> RunWriter:
    return RunWriter(folder, header_of(example(*overrides), DATA))


def launch(folder: Path, resumed_from: int | None, steps: range, loss: float) -> RunWriter:
    """One launch that logs and evaluates every step; the caller decides how it ends."""
    writer = open_run(folder)
    writer.start_segment(resumed_from, {})
    for step in steps:
        writer.metrics(metrics(writer.segment, step, loss))
        writer.evaluation(evaluation(writer.segment, step, loss))
    return writer


def metrics(segment: int, step: int, loss: float) -> Any:
    return {
        **_counters(segment, step),
        "bag_size": 4,
        "loss_name": "mce",
        "loss": loss,
        "learning_rate": 1e-3,
        "gradient_norm": 1.0,
        "step_seconds": 0.1,
        "training_seconds": 1.0,
        "tokens_per_second": 10.0,
        "mfu": None,
        "peak_memory": 1,
    }


def evaluation(segment: int, step: int, loss: float) -> Any:
    return {
        **_counters(segment, step),
        "eval_set": "books-cd",
        "nats_per_token": loss,
        "bits_per_byte": None,
        "standard_error": 0.01,
        "tokens": 100,
        "annealed": False,
        "seconds": 0.1,
        "training_seconds": 1.0,
    }


def _counters(segment: int, step: int) -> dict[str, Any]:
    return {
        "segment": segment,
        "step": step,
        "phase": "recovery",
        "raw_tokens": step,
        "latent_tokens": step,
        "epochs": 0.1,
        "flops": step,
    }


def losses(folder: Path) -> list[tuple[int, float]]:
    record = run_record.read(folder)
    assert [row["step"] for row in record.evals] == [row["step"] for row in record.metrics]
    return [(row["step"], row["loss"]) for row in record.metrics]


@pytest.mark.parametrize(
    ("resumed_from", "second", "kept"),
    [
        (4, range(5, 7), [(1, 5.0), (2, 5.0), (3, 5.0), (4, 5.0), (5, 4.0), (6, 4.0)]),
        (4, range(0), [(1, 5.0), (2, 5.0), (3, 5.0), (4, 5.0)]),  # killed before it wrote a row
        (None, range(1, 3), [(1, 4.0), (2, 4.0)]),  # no checkpoint: all begins anew
        (None, range(0), []),
    ],
)
def test_rows_beyond_a_resume_point_are_dropped_and_counted(tmp_path, resumed_from, second, kept):
    launch(tmp_path, None, range(1, 8), loss=5.0)
    launch(tmp_path, resumed_from, second, loss=4.0)
    assert losses(tmp_path) == kept
    assert run_record.read(tmp_path).dropped_rows == 2 * (7 - (resumed_from or 0))


def test_a_launch_that_begins_while_a_record_is_read_damages_nothing(tmp_path, monkeypatch):
    launch(tmp_path, None, range(1, 8), loss=5.0)
    read, files = run_record.content_of, []

    def while_another_resumes(path: Path, *more: str) -> bytes | None:
        content = read(path, *more)
        files.append(path.name)
        if path.suffix == ".jsonl" and files.count(path.name) == 1:
            launch(tmp_path, 4, range(5, 7), loss=4.0)
        return content

    monkeypatch.setattr(run_record, "content_of", while_another_resumes)
    record = run_record.read(tmp_path)
    steps = [[row["step"] for row in rows] for rows in (record.metrics, record.evals)]
    assert steps == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4]]
    assert "segments.jsonl" in files


@pytest.mark.parametrize("torn", ['{"segment": 0, "st', '{"segment": 0}', "\x00\x00"])
def test_torn_last_line_is_tolerated_and_the_next_launch_writes_behind_it(tmp_path, torn):
    launch(tmp_path, None, range(1, 4), loss=5.0)
    for name in ("metrics.jsonl", "evals.jsonl"):
        with open(tmp_path / name, "a") as file:
            file.write(torn)
    assert [step for step, _ in losses(tmp_path)] == [1, 2, 3]
    launch(tmp_path, 3, range(4, 6), loss=4.0)
    assert [step for step, _ in losses(tmp_path)] == [1, 2, 3, 4, 5]


def test_broken_line_in_the_middle_names_file_and_line(tmp_path):
    launch(tmp_path, None, range(1, 4), loss=5.0)
    path = tmp_path / "metrics.jsonl"
    first, _, last = path.read_text().splitlines()
    for line, complaint in (
        ("{broken", r"metrics\.jsonl:2: .*JSON"),
        (json.dumps({**metrics(0, 2, 5.0), "los": 1}), r"metrics\.jsonl:2: los: .*not permitted"),
    ):
        path.write_text(f"{first}\n{line}\n{last}\n")
        with pytest.raises(UserError, match=complaint):
            run_record.read(tmp_path)


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str, bool]] = [
    (lambda header: header["parameters"].pop("active"), "parameters: active is missing", True),
    (lambda header: header["flops"].update(total=7), "flops: total 7 is not the sum of its", True),
    (lambda header: header["flops"].update(per_step=7), "flops is .*, but the config gives", False),
    (lambda header: header["plan"].update(superposed_steps=7), "plan is ", False),
    (lambda header: header.update(raw_tokens=7), "raw_tokens is 7, but the config gives", False),
    (lambda header: header["config"]["optimizer"].update(learning_rate=7.0), "config or da", False),
    (lambda header: header["data"]["corpora"][0].update(fingerprint="7"), "config or data", False),
]


@pytest.mark.parametrize(("change", "said", "by_reader"), CHANGES, ids=range(len(CHANGES)))
def test_a_number_of_the_header_that_changed_is_named_before_the_run_goes_on(
    tmp_path, change, said, by_reader
):
    open_run(tmp_path, "name=other")
    open_run(tmp_path, "name=renamed")  # a name is a label
    header = json.loads((tmp_path / "run.json").read_bytes())
    change(header)
    (tmp_path / "run.json").write_text(json.dumps(header))
    with pytest.raises(UserError, match=f"run.json: .*{said}"):
        open_run(tmp_path)
    if by_reader:
        with pytest.raises(UserError, match=said):
            run_record.read(tmp_path)
    else:
        run_record.read(tmp_path)


def test_a_damaged_row_is_named_before_the_run_goes_on(tmp_path):
    launch(tmp_path, None, range(1, 5), 3.0)
    log = tmp_path / "metrics.jsonl"
    first, rest = log.read_bytes().split(b"\n", 1)
    log.write_bytes(first.replace(b'"loss"', b'"lops"') + b"\n" + rest)
    with pytest.raises(UserError, match=r"metrics.jsonl:1: .*; restore or delete the line"):
        open_run(tmp_path)
    log.write_bytes(rest)
    assert open_run(tmp_path).start_segment(4, {}) == 1


def test_status_keeps_what_is_not_given_anew(tmp_path):
    writer = open_run(tmp_path)
    writer.status("running", 5, loss=3.0, last_checkpoint=4)
    writer.status("preempted", 6, "SIGTERM")
    assert not run_record.is_over(tmp_path)
    status = run_record.read_status(tmp_path)
    assert (status["state"], status["step"], status["message"]) == ("preempted", 6, "SIGTERM")
    assert (status["loss"], status["last_checkpoint"], status["steps"]) == (3.0, 4, 100)
    writer.status("diverged", 7, loss=float("nan"))
    assert run_record.is_over(tmp_path)
    assert '"loss": null' in (tmp_path / "status.json").read_text()  # JSON has no NaN


def test_runs_are_found_by_their_record_at_any_depth(tmp_path):
    for name in ("b/x", "a"):
        open_run(tmp_path / name)
    (tmp_path / "b" / "x" / "checkpoints" / "run.json").mkdir(parents=True)
    (tmp_path / "b" / "up").symlink_to("..")
    assert run_record.find_run_folders(tmp_path) == [tmp_path / "a", tmp_path / "b" / "x"]
    assert [path.name for path in run_record.find_run_folders(tmp_path / "b")] == ["a", "x"]


def test_without_a_terminal_a_launch_says_a_line_every_ten_seconds(tmp_path, monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr("tst_study.record.log.time.monotonic", lambda: now)
    line = Progress("made", 1000, enabled=True)
    for step in range(1, 31):
        now = float(step)
        line.show({**metrics(0, step, 4.5), "step": step})
    said = capsys.readouterr().out.splitlines()
    assert [text.split()[:2] for text in said] == [
        ["made", f"{step}/1,000"] for step in (10, 20, 30)
    ]
    assert "4.5000" in said[0]


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_another_project_around_us_is_not_ours(tmp_path):
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "theirs")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert code_version(tmp_path) == {"commit": head, "dirty": False}
    assert code_version(installed) == {"commit": None, "dirty": None}
    assert code_version(tmp_path / "nowhere") == {"commit": None, "dirty": None}
