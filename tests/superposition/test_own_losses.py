"""A loss of one's own: trained and planned by its code, read by its table alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_runs import run, tiny
from tst_study.analysis.tables.source import read_tables
from tst_study.checkpoints.trained_run import open_run
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import from_dict, to_toml
from tst_study.errors import UserError
from tst_study.experiments.code_copy import keep_code
from tst_study.experiments.run_process import write_config
from tst_study.experiments.state.collect import keep
from tst_study.experiments.studies.catalogue import load
from tst_study.record.reader import read
from tst_study.superposition import loss_kinds
from tst_study.superposition.loss_kinds import loss_of

FOCAL = """
from dataclasses import dataclass
from tst_study.superposition import BagLoss
SCALE = 1.0
@dataclass(frozen=True)
class Focal(BagLoss):
    gamma: float = 2
    power: int = 1
    def __call__(self, bags):
        known = bags.log_probabilities()
        return SCALE * bags.mean(-((1 - known.exp()) ** (self.gamma * self.power)) * known)
@dataclass(frozen=True)
class Bare(BagLoss):
    floor: float
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The file of a loss in the working directory, under a name that no other test has."""
    file = tmp_path / f"losses_{tmp_path.name}.py"
    file.write_text(FOCAL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return file


def override(file: Path, gamma: float = 2) -> str:
    return f'superposition.loss={{kind = "{file.stem}:Focal", gamma = {gamma}}}'


def edit(file: Path, text: str) -> None:
    """Change a loss as if by the next day's process."""
    file.write_text(text)
    sys.modules.pop(file.stem, None)
    loss_kinds._imported.cache_clear()
    loss_kinds._source.cache_clear()


def test_its_code_trains_and_is_part_of_the_run_s_identity(own, words):
    record = run(words, Path("runs/one"), override(own, 0.5))
    assert {row["loss_name"] for row in record.metrics} == {"bag_Focal", "next_token"}
    kept = {**record.header["config"]["superposition"]["loss"]}
    source = kept.pop("source")
    assert kept == {"kind": f"{own.stem}:Focal", "gamma": 0.5, "power": 1}
    mce = run(words, Path("mce")).metrics[0]["loss"]
    assert run(words, Path("zero"), override(own, 0)).metrics[0]["loss"] == pytest.approx(mce)
    assert record.metrics[0]["loss"] < 0.999 * mce
    edit(own, FOCAL.replace("SCALE = 1.0", "SCALE = 3.0"))
    assert loss_of(kept).setting["source"] != source
    with pytest.raises(UserError, match="has other code than when the run began: restore it"):
        from_dict(record.header["config"])
    edit(own, "raise SystemExit(1)")  # finished work is read without it
    keep(Path("runs"), Path("kept"))
    assert open_run(Path("runs/one")).counters()["step"] == 20
    assert read_tables(Path("kept")).runs["loss_kind"].item().startswith(f"{own.stem}:Focal")


def test_an_archive_s_words_run_no_code(own, words):
    run(words, Path("runs/one"), "superposition.loss=hinge")
    own.write_text("open('ran', 'w')")
    header = json.loads(Path("runs/one/run.json").read_text())
    header["config"]["superposition"]["loss"] = {"kind": f"{own.stem}:X"}
    Path("runs/one/run.json").write_text(json.dumps(header))
    keep(Path("runs"), Path("kept"))
    assert len(read_tables(Path("kept")).runs) == 1
    assert not Path("ran").exists()
    with pytest.raises(UserError, match="cannot be imported"):
        from_dict(header["config"])  # as `train` does
    assert Path("ran").exists()


def test_an_edit_changes_nothing_in_a_run_that_trains(own, words):
    plan = plan_phases(tiny(words, override(own)))
    first = plan.objective(0)
    own.write_text("raise SystemExit(1)")
    assert plan.objective(1) == first


@pytest.mark.parametrize(
    ("table", "outcome"),
    [
        ({"gamma": 2.7}, {"gamma": 2.7, "power": 1}),
        ({"power": 3.0}, {"gamma": 2.0, "power": 3}),
        ({"power": 1.5}, "power = 1.5 must be a whole number"),
        ({"delta": 1.0}, "has no parameter delta = 1.0: use numbers for gamma, power"),
        ({"gamma": 10**400}, "use numbers for gamma"),
        ({"kind": "Bare"}, "needs a number for floor"),
        ({"kind": "dataclass"}, "is no subclass of BagLoss"),
        ({"kind": "Nothing"}, "has no attribute 'Nothing'"),
    ],
)
def test_parameters_are_what_the_class_says(own, table, outcome):
    given = {**table, "kind": f"{own.stem}:{table.get('kind', 'Focal')}"}
    if isinstance(outcome, dict):
        made = loss_of(given).setting
        assert repr({key: made[key] for key in outcome}) == repr(outcome)
    else:
        with pytest.raises(ValueError, match=outcome):
            loss_of(given)


def test_slurm_s_jobs_run_the_copy_of_the_study_s_loss(own, words, tmp_path):
    """Here the base lies above the study, so that the copy has folders, too."""
    (lab := tmp_path / "lab").mkdir()
    own, helper = own.rename(lab / own.name), lab / f"{own.stem}_helper.py"
    own.write_text(FOCAL.replace("SCALE =", f"from {helper.stem} import ONE\nSCALE = ONE *"))
    helper.write_text("ONE = 1.0")
    arm = f'{{bag_size = 4, step_ratio = 0.5, loss = {{kind = "{own.stem}:Focal"}}}}'
    grid = f'study = "ours"\nbase = "../run.toml"\n[arms]\nplain = {{}}\nours = {arm}\n'
    (lab / "ours.toml").write_text(grid)
    (tmp_path / "run.toml").write_text(to_toml(tiny(words)))
    ours = load(str(lab / "ours.toml"))
    assert ours.files == (lab / "ours.toml", lab / "../run.toml", own, helper)
    code = keep_code(tmp_path / "study", ours.files)
    copies = [file.relative_to(code / "study") for file in sorted(code.glob("study/**/*.*"))]
    assert {*map(str, copies)} == {"run.toml", *(f"lab/{file.name}" for file in lab.glob("*.*"))}
    own.write_text("raise SystemExit(1)")
    helper.write_text("raise SystemExit(1)")
    write_config(ours.runs(None)[1], tmp_path / "run")
    command = [sys.executable, "-P", "-m", "tst_study.experiments.rank", "run", str(code)]
    environment = {**os.environ, "PYTHONPATH": str(code), "RANK": "0"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "run").metrics[0]["loss_name"] == "bag_Focal"
