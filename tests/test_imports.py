"""Imports run one way, and only the torch half of `tst_study` knows torch and Megatron."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FOLDERS = {
    "tst_study": "tst_study",
    "analysis": "tst_study.analysis",
    "paper_figures": "tst_study.paper_figures",
    "experiments": "tst_study.experiments",
}
"""Top-level folders and the packages that they hold: `tst_study` links to the other three."""
LAYERS = tuple(FOLDERS)
"""Each may import those before it."""
TORCH_HALF = (
    "tst_study.model",
    "tst_study.parallel",
    "tst_study.checkpoints.checkpoint",
    "tst_study.checkpoints.reader",
    "tst_study.checkpoints.writer",
    "tst_study.train",
    "tst_study.batches",
    "tst_study.bookkeeping",
    "tst_study.evaluation.domains",
    "tst_study.held_out_loss",
    "tst_study.evaluation.run",
    "tst_study.evaluation.tasks",
    "tst_study.process.step_clock",
    "tst_study.huggingface.export",
    "tst_study.huggingface.start",
    # Names of these are loaded on first use.
    "tst_study.superposition.method",
    "tst_study.superposition.misuse",
    "tst_study.superposition.linear_loss",
    "tst_study.superposition.derivatives",
    "tst_study.superposition.bags",
    "tst_study.superposition.embedding",
    "tst_study.superposition.log_probabilities",
    "tst_study.superposition.losses",
    "tst_study.superposition.one_vs_rest",
    "tst_study.superposition.vocabulary_shard",
)
BLOCKER = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "megatron", "submitit"):
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocker())
for name in {modules!r}:
    importlib.import_module(name)
"""


def every_module() -> list[str]:
    names = []
    for package in LAYERS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] != "__main__":
                inside = parts[1:-1] if parts[-1] == "__init__" else parts[1:]
                names.append(".".join((FOLDERS[package], *inside)))
    return names


def layer(module: str) -> str:
    """The folder that holds a module; empty for a module that is not ours."""
    first, _, rest = module.partition(".")
    part = rest.partition(".")[0]
    return (part if part in FOLDERS else first) if first == "tst_study" else ""


def test_all_but_the_torch_half_is_imported_without_torch():
    modules = [name for name in every_module() if not name.startswith(TORCH_HALF)]
    assert {layer(name) for name in modules} == set(LAYERS)
    program = BLOCKER.format(modules=modules)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", LAYERS)
def test_imports_run_one_way_also_inside_functions(package):
    above = LAYERS[LAYERS.index(package) + 1 :]
    for path in (ROOT / package).rglob("*.py"):
        used = {layer(name) for name in _imported(path)}.intersection(above)
        assert not used, f"{path.relative_to(ROOT)} imports {used}"


@pytest.mark.parametrize("package", LAYERS)
def test_no_subpackage_imports_what_imports_it(package):
    """A part: a subpackage, or a module beside them."""
    below: dict[str, set[str]] = {}
    for path in (ROOT / package).rglob("*.py"):
        part = path.relative_to(ROOT / package).with_suffix("").parts[0]
        own = FOLDERS[package] + "."
        used = [name for name in _imported(path) if layer(name) == package]
        others = {name.removeprefix(own).partition(".")[0] for name in used if own in name}
        if not part.startswith("__"):
            below.setdefault(part, set()).update(others - {part})
    assert any(below.values())
    TopologicalSorter(below).prepare()  # raises CycleError


def test_no_module_imports_what_imports_it():
    """Also where only a type is imported, or inside a function."""
    known = {*every_module()}
    below: dict[str, set[str]] = {}
    for package in LAYERS:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if not parts[-1].startswith("__"):
                name = ".".join((FOLDERS[package], *parts[1:]))
                below[name] = _imported(path) & known - {name}
    assert any(below.values())
    TopologicalSorter(below).prepare()  # raises CycleError


def test_help_answers_without_heavy_imports():
    program = (
        "import sys; from tst_study.command_line import main\n"
        "sys.argv = ['tst-study', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'matplotlib', 'rich', 'pydantic'} "
        "& sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def _imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names
