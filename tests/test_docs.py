"""The documentation agrees with the code."""

import ast
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from docs import generate
from tst_study.command_line import program
from tst_study.config import schema as config
from tst_study.config.schema import from_dict

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.md"))


def test_generated_pages_are_current():
    """`make docs` writes them."""
    for path, text in generate.pages().items():
        assert path.read_text("utf8") == text, path


def test_every_key_of_the_config_says_what_it_means():
    page = generate.config_keys()
    schema = config.Config.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for key in section.get("properties", ()):
            assert f"| `{key}` |" in page or re.search(rf"## `\[(\w+\.)*{key}\]`", page), key
    assert "| `bag_size` | integer ≥ 1 | `1` | Tokens of a bag, s; 1 is the baseline. |" in page
    assert "## `[model.experts]`" in page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text("utf8")):
        assert link.startswith("http") or (path.parent / link).exists(), link


def test_the_lines_of_python_about_a_campaign_run(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "analysis.md").read_text("utf8")
    *_, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(code.splitlines()) <= 14
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "lines.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("lines.py")
    assert "s = 4, r = 0.25" in capsys.readouterr().out


def test_the_run_in_the_readme_is_a_whole_one():
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text("utf8"), re.DOTALL)
    run = from_dict(tomllib.loads(text))
    assert (run.model.layers, run.schedule.steps, run.superposition.bag_size) == (2, 1250, 4)


def commands() -> Iterator[tuple[str, str]]:
    """Lines of our program in the pages' blocks, as (page, line)."""
    for path in PAGES:
        text = path.read_text("utf8").replace("\\\n", " ")
        blocks = re.findall(r"(?ms)^ *```(\w*)\n(.*?)^ *```", text)
        shells = [block for language, block in blocks if language in ("", "sh", "bash", "console")]
        for line in re.findall(r"(?m)^\s*(?:\$ )?(?:\.venv/bin/)?(tst-study .*)", "".join(shells)):
            yield path.name, line


@pytest.mark.parametrize(("page", "line"), commands())
def test_every_command_of_the_pages_is_one(page, line):
    """Verb, options and the kinds of their values; nothing is run."""
    words = shlex.split(re.sub(r"[\[\]]", "", re.split(r" \|+ ", line)[0]), comments=True)[1:]
    command: Any = get_command(program())
    while isinstance(command, TyperGroup):
        name, *words = words
        command = command.commands[name]
    command.make_context(command.name, words)


def test_errors_that_are_explained_are_the_code_s_own():
    sources = [
        path.read_text("utf8")
        for package in ("tst_study", "experiments", "analysis")
        for path in (ROOT / package).rglob("*.py")
    ]
    nodes = (node for source in sources for node in ast.walk(ast.parse(source)))
    texts = "\n".join(str(node.value) for node in nodes if isinstance(node, ast.Constant))
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf8")
    messages = re.findall(r"^\| (?:state )?`([^`]+)`", page, re.MULTILINE)
    assert len(messages) >= 15
    for message in messages:
        fixed = re.sub(r"4,096 of 131,072 ", "", message).split(" held-out")[0]
        assert fixed in texts, message
