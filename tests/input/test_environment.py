"""Bad environments: variables of torchrun and Slurm, the profile of a cluster."""

from pathlib import Path

import pytest

from tests.input.answers import refusal
from tst_study.errors import UserError
from tst_study.experiments.slurm.batch_script import script_text


def test_a_variable_that_is_no_number_is_named(place: Path) -> None:
    said = refusal(["train", "run.toml", "--folder", "folder/run"], place, {"WORLD_SIZE": "x"})
    assert "WORLD_SIZE = 'x': is not a valid number" in said


PROFILES = [
    ("nodes = 3", "nodes: unknown key; did you mean resources.nodes?"),
    ("[[runs]]\nmatch = '*'\nresources = {nods = 2}", "runs.0.resources.nods: unknown key; did"),
    ("[[runs]]\nmatches = '*'\nresources = {}", "matches: unknown key; did you mean runs.match?"),
    ("sbatch = {comment = 'grant 42'}", "sbatch: comment: is set by this package"),
    ('sbatch = {"a\\n#SBATCH --wrap" = "x"}', "is not a long option of sbatch"),
    ("sbatch = {cpus-per-task = 4}", "sbatch: cpus-per-task: is set by this package"),
    ("[resources]\ntime = '5'", "time = '5' leaves nothing to train in"),
    ("[[runs]]\nmatch = '*'\nresources = {time = '0:06:00'}", "leaves nothing to train in"),
    (f"parallel = {'[' * 20_000}", "not valid TOML: "),
    ('setup = ["module load cuda\\nsource env"]', "give each line as a string of its own"),
    ('container = "env\\ntouch x"', "container: 'env\\ntouch x': holds a line break"),
    ('sbatch = {mem = "0\\n#SBATCH --wrap=x"}', "holds a line break"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PROFILES, ids=range(len(PROFILES)))
def test_a_bad_profile_is_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "slurm.toml").write_text(text)
    said = refusal(["plan", "laptop", "--scale", "smoke", "--launcher", "slurm"], tmp_path)
    assert said.startswith("slurm.toml: ")
    assert expected in said


@pytest.mark.parametrize("key", ["partition", "account", "qos", "job_name", "chdir", "folder"])
@pytest.mark.parametrize("ending", ["\n#SBATCH --wrap=x", "\r", "\x1b[2J", "\0"])
def test_no_value_becomes_a_line_of_the_batch_script(key: str, ending: str) -> None:
    value = f"gpu{ending}"
    folder = Path(value if key == "folder" else "runs")
    parameters = {"additional_parameters": {key: value}} if key == "chdir" else {key: value}
    with pytest.raises(UserError, match="batch script"):
        script_text(folder, "true", {} if key == "folder" else parameters, 1)
