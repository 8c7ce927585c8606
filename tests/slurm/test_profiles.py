"""The example profiles, on this cluster as far as it goes: whatever else they need is a wrapper."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import entered, profile
from tests.slurm.test_launching import launches, seeded, state, submit, wait_for_end
from tst_study.experiments.slurm import slurm_launcher as launcher
from tst_study.experiments.slurm.profile import Profile, load_profile
from tst_study.record import reader as run_record

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("cluster")]
PROFILES = sorted((Path(launcher.__file__).parent / "profiles").glob("*.toml"))
FITS = {"nodes": 1, "tasks_per_node": 1, "gpus_per_node": 2, "cpus_per_task": 2}
"""Resources of a node of this cluster; its GPUs are pretended, its memory is not."""

THIS = shlex.quote(sys.executable)
PYTHON = f'#!/bin/sh\necho "python in $PWD" >>"$HOME/seen"\nexec {THIS} "$@"\n'
TOOLS = {
    # Of the node's shell.
    "bash_env": 'module() { echo "module $*" >>"$HOME/seen"; }\n',
    "bin/python": PYTHON,
    # An image without Slurm, and with a working directory of its own.
    "bin/apptainer": """#!/bin/sh
echo "apptainer $*" >>"$HOME/seen"
while [ "${1%.sif}" = "$1" ]; do shift; done
shift
cd /
PATH="$HOME/image" exec "$@"
""",
    "image/python": PYTHON,
    # srun with pyxis' options: its images, too, have a working directory of their own.
    "bin/srun": """#!/bin/bash
ours=() inside=
for word; do
  case $word in
    --container-* | --no-container-*) echo "srun $word" >>"$HOME/seen"; inside=1 ;;
    *) ours+=("$word") ;;
  esac
done
exec {real}/srun ${inside:+--chdir=/} "${ours[@]}"
""",
    "tst-study/.venv/bin/activate": 'PATH="$HOME/bin:$PATH"; echo "venv" >>"$HOME/seen"\n',
    "miniforge3/etc/profile.d/conda.sh": 'conda() { echo "conda $*" >>"$HOME/seen"; }\n',
}
HERE = f"python in {Path.cwd()}\n"
SEEN = {
    "apptainer": {"module load apptainer", "apptainer exec --nv", HERE},
    "conda": {"conda activate tst-study"},
    "modules": {"module load cuda/12.8", "venv"},
    "pyxis": {"srun --container-image=/lustre/images/tst-study.sqsh", HERE},
}


def put_tools(cluster: Cluster, home: Path, patch: pytest.MonkeyPatch) -> None:
    for name, text in TOOLS.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        real = str(cluster.prefix / "usr/bin")
        path.write_text(text.replace("{real}", real))
        path.chmod(0o755)
    patch.setenv("HOME", str(home))
    patch.setenv("BASH_ENV", str(home / "bash_env"))
    patch.setenv("PATH", f"{home / 'bin'}:{cluster.environment['PATH']}")


@pytest.fixture(scope="module")
def folders(running_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """A folder for each profile, with a submitted run and a home of its own. All are submitted at
    once: most of their time they wait to be launched again."""
    made = {path: tmp_path_factory.mktemp(path.stem) for path in PROFILES}
    for path, folder in made.items():
        with entered(running_cluster) as patch:
            put_tools(running_cluster, folder / "home", patch)
            submit(seeded("hops_1"), folder / "runs", fitting(load_profile(path)))
    return made


def fitting(given: Profile) -> Profile:
    """The same on nodes of this size, with the fake trainer."""
    resources = given.resources.model_copy(update={**FITS, "memory_gb": 1.0, "time": "10"})
    site = profile().setup
    changes = {"resources": resources, "runs": (), "setup": (*given.setup, *site)}
    changes["sbatch"] = {name: how for name, how in given.sbatch.items() if name != "qos"}
    if given.container:
        changes["python"] = "python"
    return given.model_copy(update=changes)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_an_example_profile_trains(folders, path):
    root = folders[path] / "runs"
    wait_for_end(root)
    assert (state(root, "hops_1"), launches(root)) == ("done", {"hops_1": 2})
    seen = (folders[path] / "home" / "seen").read_text()
    assert {said for said in SEEN[path.stem] if said not in seen} == set()
    if path.stem == "apptainer":
        (folder,) = root.glob("hops_1-*")
        assert {row["scontrol"] for row in run_record.read(folder).segments} == {None}
