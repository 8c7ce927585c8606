"""Writes what the documentation says about the code from the code itself: `make docs`.

The keys in `config.md`, the columns in `tables.md`, the studies in `slurm.md`, the verdicts in
`findings.md`; a test fails where they are not what this writes.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
from pathlib import Path
from typing import Any

from analysis.summary import summarise
from analysis.tables.columns import CURVES, EVALUATIONS, RUNS
from analysis.tables.source import read_tables
from analysis.wording import verdict_parts
from experiments.studies.catalogue import STUDIES
from experiments.studies.scales import SCALES
from tst_study.config import schema as config
from tst_study.config.presets import PRESETS

DOCS = Path(__file__).parent


def config_keys() -> str:
    """Every key by section: type, default and meaning."""
    schema = config.Config.model_json_schema()
    models = {"Config": schema, **schema["$defs"]}
    parts = [
        f"`model.preset` names a whole shape, whose keys may be overridden: {', '.join(PRESETS)}.\n"
    ]
    for path, name in [("", "Config"), *_sections(models, "Config", "")]:
        about = " ".join((inspect.getdoc(getattr(config, name)) or "").split())
        parts += [f"## `[{path}]`\n" if path else "## Top level\n", f"{about}\n"]
        parts.append("| key | type | default | meaning |\n| --- | --- | --- | --- |")
        said = _docstrings(name)
        for key, field in models[name]["properties"].items():
            if key in said:
                parts.append(f"| `{key}` | {_type(field)} | {_default(field)} | {said[key]} |")
        parts.append("")
    return "\n".join(parts)


def columns() -> str:
    """Of runs, curves and evaluations."""
    parts = []
    for name, table in (("runs", RUNS), ("curves", CURVES), ("evaluations", EVALUATIONS)):
        parts += [f"## `{name}.parquet`\n", "| column | kind | |\n| --- | --- | --- |"]
        parts += ["| `run_id` | text | joins the tables |"] if name != "runs" else []
        parts += [f"| `{one.name}` | {one.kind} | {one.words} |" for one in table]
        parts.append("")
    return "\n".join(parts)


def studies_table() -> str:
    """Every study: title, what it shows, scales."""
    lines = ["| study | asks | scales |", "| --- | --- | --- |"]
    for name, found in STUDIES.items():
        which = "all" if tuple(found.scales) == SCALES else ", ".join(found.scales)
        lines.append(f"| `{name}` | {found.title}. {found.claims} | {which} |")
    return "\n".join(lines)


def verdicts() -> str:
    """What `analysis.verdict.decide` says of every question of the first campaign."""
    found = summarise(read_tables(DOCS / "records/campaign")).comparison.verdicts
    lines = ["| question | gain | verdict | chosen afterwards |", "| --- | --- | --- | --- |"]
    for heading, words, cells in verdict_parts(found):
        lines.append(f"| **{heading}**: {', '.join(words[:2])} | | | |")
        lines += ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join(lines)


BLOCKS = {
    "config.md": ("keys", config_keys),
    "tables.md": ("columns", columns),
    "slurm.md": ("studies", studies_table),
    "findings.md": ("verdicts", verdicts),
}
"""Of each page what stands between its two marks, and what makes it."""


@functools.cache
def pages() -> dict[Path, str]:
    found = {}
    for name, (mark, made) in BLOCKS.items():
        before, _, rest = (DOCS / name).read_text("utf8").partition(f"<!-- {mark} -->\n")
        after = rest.partition("<!-- end -->")[2]
        found[DOCS / name] = f"{before}<!-- {mark} -->\n{made()}\n<!-- end -->{after}"
    return found


def _sections(models: dict[str, Any], name: str, path: str) -> list[tuple[str, str]]:
    """(dotted path, class) of the tables below a section, each before its own."""
    found = []
    for key, field in models[name]["properties"].items():
        _, there, rest = json.dumps(field).partition("#/$defs/")
        if there:
            below, inner = f"{path}.{key}".strip("."), rest.partition('"')[0]
            found += [(below, inner), *_sections(models, inner, below)]
    return found


def _docstrings(name: str) -> dict[str, str]:
    """The strings that stand below the keys of a class."""
    (body,) = ast.parse(inspect.getsource(getattr(config, name))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=text)):
                found[key] = " ".join(str(text).split())
    return found


BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"] if one.get("type") != "null")
    if "$ref" in field:
        return "table"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    words = {"string": "text", "boolean": "true or false"}.get(field["type"], field["type"])
    for bound, sign in BOUNDS.items():
        # Largest values in the thousands only keep typing errors out.
        if bound in field and not (sign in "≤<" and field[bound] > 1000):
            words += f" {sign} {field[bound]:g}"
    return words


def _default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return "required"
    value = field["default"]
    return "–" if value is None or isinstance(value, dict) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf8")
