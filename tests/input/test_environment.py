"""Bad environments: variables of torchrun and Slurm, the profile of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.input.answers import refusal
from tst_study.errors import UserError
from tst_study.experiments.slurm.batch_script import script_text
from tst_study.process.rank_environment import adopt_slurm_ranks, first_host

TWO = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
TWO |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TASKS = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
TASKS |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "n[1-2]"}
VARIABLES = [
    ({"WORLD_SIZE": "x"}, "WORLD_SIZE = 'x': is not a number"),
    ({"RANK": "1"}, "RANK = 1: does not fit WORLD_SIZE = 1"),
    ({**TWO, "RANK": "2"}, "RANK = 2: does not fit WORLD_SIZE = 2"),
    ({**TWO, "LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE = 3: does not fit WORLD_SIZE = 2"),
    ({**TWO, "MASTER_PORT": "65536"}, "MASTER_PORT = '65536': is not a port"),
    ({**TWO, "MASTER_ADDR": "a b"}, "MASTER_ADDR = 'a b': is not an address"),
    ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_JOB_ID = '': is not a number"),
    ({**TASKS, "SLURM_PROCID": "x"}, "SLURM_PROCID = 'x': is not a number"),
    ({**TASKS, "SLURM_STEP_TASKS_PER_NODE": "x"}, "TASKS_PER_NODE = 'x': is no list of numbers"),
    ({**TASKS, "SLURM_STEP_NODELIST": "?"}, "MASTER_ADDR = '?': is not an address"),
]  # fmt: skip


@pytest.mark.parametrize(("variables", "expected"), VARIABLES, ids=range(len(VARIABLES)))
def test_a_bad_variable_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in {*TWO, *TASKS}:
        monkeypatch.delenv(name, raising=False)
    said = refusal(["train", "run.toml", "--folder", "folder/run"], place, variables)
    assert expected in said


PROFILES = [
    ("nodes = 3", "nodes: unknown key; did you mean resources.nodes?"),
    ("[[runs]]\nmatch = '*'\nresources = {nods = 2}", "runs.0.resources.nods: unknown key; did"),
    ("[[runs]]\nmatches = '*'\nresources = {}", "matches: unknown key; did you mean runs.match?"),
    ("sbatch = {comment = 'grant 42'}", "sbatch: comment: is the mark by which the study's jobs"),
    ("sbatch = {job-name = 'x'}", "sbatch: job-name: keeps equal submissions apart"),
    ("[small]\nsbatch = {dependency = 'x'}", "small.sbatch: dependency: is how branches wait"),
    ('sbatch = {"a\\n#SBATCH --wrap" = "x"}', "is no long option of sbatch"),
    ("sbatch = {cpus-per-task = 4}", "sbatch: cpus-per-task: goes with the ranks"),
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


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(TASKS)), st.text(max_size=8)))
def test_whatever_slurm_says_there_are_ranks_or_a_line(said: dict[str, str]) -> None:
    environment = {**TASKS, **said}
    try:
        adopt_slurm_ranks(environment)
    except UserError:
        return
    assert {"RANK", "WORLD_SIZE"} <= set(environment) or environment.get(
        "SLURM_STEP_NUM_TASKS"
    ) in ("1", "01", "001")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_list_of_hosts_has_a_first_one(nodes: str) -> None:
    assert isinstance(first_host(nodes), str)
