"""The launcher with the real trainer: from a study to run records, warm processes included."""

import subprocess
import sys
from pathlib import Path

import pytest

from tst_study.data.preparation.generated_language import LanguageParameters, generate
from tst_study.record import reader as run_record

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
from pathlib import Path
from tst_study.experiments.launcher import Options
from tst_study.experiments.local.queue import launch
from tst_study.experiments.study import Study
from tests.examples import example

def config(name, s, device):
    return example(
        f"name={name}", f"superposition.bag_size={s}", "data.corpora=[{path='topical'}]",
        "schedule.steps=10", "schedule.warmup_steps=1", "batch.sequences=2",
        "execution.threads=1", f"execution.device={device}",
    )

if __name__ == "__main__":
    # On `cpu` runs are forked from a warm server, on `auto` they are spawned.
    for folder, ranks, device in (("runs", 1, "cpu"), ("runs", 1, "cpu"), ("two_ranks", 2, "auto")):
        runs = [config("pair-s1", 1, device), config("pair-s4", 4, device)][ranks - 1 :]
        study = Study("tiny", "test", "Tiny", "Nothing.", {}, lambda results: runs, Path(folder))
        queue = launch(study, Options(processes=ranks))
        assert not queue.failed, queue.failed
    assert "torch" not in sys.modules
"""


def test_a_pair_is_trained_and_its_second_submission_trains_nothing(tmp_path):
    parameters = LanguageParameters(words=64, classes=8, topics=2)
    generate(tmp_path / "topical", 20_000, 4_000, parameters)
    (tmp_path / "submit.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}")
    done = subprocess.run(
        [sys.executable, "submit.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    records = [run_record.read(folder) for folder in run_record.find_run_folders(tmp_path / "runs")]
    states = [(record.header["name"], record.state) for record in records]
    assert states == [("pair-s1", "done"), ("pair-s4", "done")]
    assert [len(record.segments) for record in records] == [1, 1]
    assert len({record.header["flops"]["total"] for record in records}) == 1
    assert all(record.evals[-1]["annealed"] for record in records)
    (folder,) = run_record.find_run_folders(tmp_path / "two_ranks")
    twin = run_record.read(folder)
    assert (twin.state, twin.segments[0]["devices"]["count"]) == ("done", 2)
    loss = records[1].evals[-1]["nats_per_token"]
    assert twin.evals[-1]["nats_per_token"] == pytest.approx(loss, rel=1e-5)
