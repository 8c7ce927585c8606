"""Imports run one way, and only the torch half of `tst_study` knows torch and Megatron."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TORCH_HALF = (
    "tst_study.model",
    "tst_study.parallel",
    "tst_study.checkpoints.checkpoint",
    "tst_study.checkpoints.writer",
    "tst_study.train",
    "tst_study.evaluation.domains",
    "tst_study.evaluation.evaluate",
    "tst_study.evaluation.run",
    "tst_study.evaluation.tasks",
    "tst_study.process.step_clock",
    "tst_study.parallel.timed_events",
    "tst_study.checkpoints.pickles",
    "tst_study.checkpoints.reader",
    "tst_study.huggingface.export",
)
"""Beside these, names of `tst_study.superposition` are loaded on first use."""
TORCH_IN_SUPERPOSITION = (
    "method",
    "linear_loss",
    "bags",
    "embedding",
    "log_probabilities",
    "losses",
    "one_vs_rest",
    "vocabulary_shard",
)

BLOCKER = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocker())
for name in {modules!r}:
    importlib.import_module(name)
"""


def modules_of(package: str) -> list[str]:
    """Every module of a package that is imported without torch; warm ones exist to import it."""
    names = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name.startswith(TORCH_HALF) or name.endswith("__main__"):
            continue
        if name.startswith("tst_study.superposition.") and parts[-1] in TORCH_IN_SUPERPOSITION:
            continue
        names.append(name)
    return names


@pytest.mark.parametrize(
    ("package", "blocked"),
    [
        ("tst_study", ["torch", "megatron", "submitit", "experiments", "analysis"]),
        ("experiments", ["torch", "megatron", "submitit"]),
        ("analysis", ["torch", "megatron", "submitit", "experiments", "paper_figures"]),
        ("paper_figures", ["torch", "megatron", "submitit", "experiments"]),
    ],
)
def test_layer_imports_without(package: str, blocked: list[str]) -> None:
    modules = modules_of(package)
    assert modules
    program = BLOCKER.format(blocked=blocked, modules=modules)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("tst_study", {"tst_study"}),
        ("analysis", {"analysis", "tst_study"}),
        ("paper_figures", {"paper_figures", "analysis", "tst_study"}),
        ("experiments", {"experiments", "paper_figures", "analysis", "tst_study"}),
    ],
)
def test_imports_run_one_way_also_inside_functions(package: str, allowed: set[str]) -> None:
    ours = {"tst_study", "experiments", "analysis", "paper_figures"}
    for path in (ROOT / package).rglob("*.py"):
        used = {name.partition(".")[0] for name in _imported(path)} & ours
        assert used <= allowed, f"{path.relative_to(ROOT)} imports {used - allowed}"


@pytest.mark.parametrize("package", ["tst_study", "experiments", "analysis", "paper_figures"])
def test_no_subpackage_imports_what_imports_it(package: str) -> None:
    """A part: a subpackage, or a module beside them."""
    below: dict[str, set[str]] = {}
    for path in (ROOT / package).rglob("*.py"):
        name = path.relative_to(ROOT / package).with_suffix("").parts[0]
        part = name
        used = [one.split(".") for one in _imported(path)]
        others = {one[1] for one in used if one[0] == package and len(one) > 1}
        if not name.startswith("__"):
            below.setdefault(part, set()).update(others - {part})
    assert any(below.values())
    TopologicalSorter(below).prepare()  # raises CycleError


def test_help_answers_without_heavy_imports() -> None:
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
