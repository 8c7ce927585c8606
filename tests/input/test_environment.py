"""Bad environments: variables of torchrun and Slurm, the profile of a cluster."""

from pathlib import Path

import pytest

from tests.input.answers import refusal
from tst_study.errors import UserError
from tst_study.experiments.slurm.batch_script import script_text


def test_a_variable_that_is_no_number_is_named(place):
    said = refusal(["train", "run.toml", "--folder", "folder/run"], place, {"WORLD_SIZE": "x"})
    assert "WORLD_SIZE = 'x': is not a valid number" in said


PROFILES = [
    ("nodes = 3", "nodes: unknown key; did you mean resources.nodes?"),
    ("[[runs]]\nmatch = '*'\nresources = {nods = 2}", "runs.0.resources.nods: unknown key; did"),
    ("[[runs]]\nmatches = '*'\nresources = {}", "matches: unknown key; did you mean runs.match?"),
    ("sbatch = {test-only = true}", "sbatch: test-only: is not allowed: the launcher sets it, or"),
    ("sbatch = {clusters = 'other'}", "sbatch: clusters: is not allowed: jobs on another cluster"),
    ("sbatch = {kill-on-invalid-dep = 'no'}", "sbatch: kill-on-invalid-dep: is not allowed"),
    ("sbatch = {job_name = 'x'}", "sbatch: job-name: is not allowed"),
    *((f"sbatch = {{{name} = 1}}", "is not allowed") for name in ("wait", "hold", "wrap", "uid")),
    ("sbatch = {gres = 'gpu:2'}", "sbatch: gres = 'gpu:2': say gpus_per_node"),
    ("sbatch = {gpus-per-node = 2}", "sbatch: gpus-per-node: is not allowed: say gpus_per_node"),
    ("[follow_up]\nnods = 1", "follow_up.nods: unknown key"),
    ('sbatch = {"a\\n#SBATCH --wrap" = "x"}', "is not a long option of sbatch"),
    ("sbatch = {cpus-per-task = 4}", "sbatch: cpus-per-task: is not allowed: the launcher sets it"),
    ("[resources]\ntime = '5'", "time = '5' leaves nothing to train in"),
    ("[[runs]]\nmatch = '*'\nresources = {time = '0:06:00'}", "leaves nothing to train in"),
    (f"parallel = {'[' * 20_000}", "not valid TOML: "),
    ('setup = ["module load cuda\\nsource env"]', "give each line as a string of its own"),
    ('container = "env\\ntouch x"', "container: 'env\\ntouch x': holds a line break"),
    ('sbatch = {mem = "0\\n#SBATCH --wrap=x"}', "holds a line break"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PROFILES, ids=range(len(PROFILES)))
def test_a_bad_profile_is_named(tmp_path, text, expected):
    (tmp_path / "slurm.toml").write_text(text)
    said = refusal(["plan", "laptop", "--scale", "smoke", "--launcher", "slurm"], tmp_path)
    assert said.startswith("slurm.toml: ")
    assert expected in said


@pytest.mark.parametrize("key", ["partition", "account", "qos", "job-name", "chdir", "folder"])
@pytest.mark.parametrize("ending", ["\n#SBATCH --wrap=x", "\r", "\x1b[2J", "\0"])
def test_no_value_becomes_a_line_of_the_batch_script(key, ending):
    value = f"gpu{ending}"
    folder = Path(value if key == "folder" else "runs")
    with pytest.raises(UserError, match="batch script"):
        script_text(folder, {} if key == "folder" else {key: value}, ["true"])
