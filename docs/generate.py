"""Writes what the documentation says about the code from the code itself: `make docs`.

`docs/config.md` from the config's types and docstrings, `docs/tables.md` from the columns, the
table of studies in `docs/slurm.md`, the tables of `docs/findings.md` from the records; a test fails
where they are not what this writes.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

from analysis.tables.columns import CURVES, EVALUATIONS, RUNS
from docs.findings import with_tables
from experiments.studies.catalogue import STUDIES, module_of
from experiments.studies.scales import SCALES
from tst_study import config
from tst_study.configuration.presets import PRESETS

DOCS = Path(__file__).parent
HEAD = f"""# Configuration

Generated from `tst_study/config.py` by `make docs`; do not edit. The keys of a run's TOML file, by
section; `--set section.key=value` overrides one, and `tst-study train run.toml --dry-run` prints
them all with their values. `model.preset` names a whole shape, whose keys may be overridden:
{", ".join(PRESETS)}.
"""


def config_page() -> str:
    schema = config.Config.model_json_schema()
    parts = [HEAD]
    for path, name in [("", "Config"), *_sections(schema, "Config", "")]:
        about = " ".join((inspect.getdoc(getattr(config, name)) or "").split())
        parts += [f"## `[{path}]`\n" if path else "## Top level\n", f"{about}\n"]
        parts.append("| key | type | default | meaning |\n| --- | --- | --- | --- |")
        said = _docstrings(name)
        for key, field in _schema(schema, name)["properties"].items():
            if key in said:
                parts.append(f"| `{key}` | {_type(field)} | {_default(field)} | {said[key]} |")
        parts.append("")
    return "\n".join(parts)


def undocumented() -> list[str]:
    """Keys without a docstring; sections have one of their own."""
    schema, found = config.Config.model_json_schema(), []
    for path, name in [("", "Config"), *_sections(schema, "Config", "")]:
        known = {*_docstrings(name), *(below for below, _ in _sections(schema, name, ""))}
        keys = _schema(schema, name)["properties"].keys() - known
        found += [f"{path}.{key}".strip(".") for key in keys]
    return found


TABLES = """# The three tables

Generated from `analysis/tables/columns.py` by `make docs`; do not edit. An archive is a folder of
three parquet files, joined by `run_id`; pandas, polars and DuckDB open them without this package:

```python
runs = pandas.read_parquet("docs/records/campaign/runs.parquet")
evaluations = pandas.read_parquet("docs/records/campaign/evaluations.parquet")
```

`tst-study collect STUDY --keep ARCHIVE` adds what is over of a study, `tst-study import` what other
programs logged; every verb that takes `--runs` reads it. Losses are in nats per token, times in
seconds, sizes in tokens; what is not known is missing. The metadata of each file says the schema
version (`tst_study_schema_version`). No path, host or user name is kept. `questions.json` beside
them holds what the study asked.
"""


def tables_page() -> str:
    """Columns of runs, curves and evaluations."""
    parts = [TABLES]
    for name, table in (("runs", RUNS), ("curves", CURVES), ("evaluations", EVALUATIONS)):
        parts += [f"## `{name}.parquet`\n", "| column | kind | |\n| --- | --- | --- |"]
        if name != "runs":
            parts.append("| `run_id` | text | joins the tables |")
        parts += [f"| `{one.name}` | {one.kind} | {one.words} |" for one in table]
        parts.append("")
    return "\n".join(parts)


def studies_table() -> str:
    """Every study: title, what it shows, what of the paper, scales."""
    lines = ["| study | asks | of the paper | scales |", "| --- | --- | --- | --- |"]
    named = re.compile(r"(?:Table|Figure)s? \d+(?:(?:, | to | and )\d+)*")
    for name in STUDIES:
        found = module_of(name)
        scales = getattr(found, "SCALES", SCALES)
        which = "all" if tuple(scales) == tuple(SCALES) else ", ".join(scales)
        paper = ", ".join(named.findall((found.__doc__ or "").partition("\n\n")[0])) or "–"
        lines.append(f"| `{name}` | {found.TITLE}. {found.CLAIMS} | {paper} | {which} |")
    return "\n".join(lines)


def with_studies(page: str) -> str:
    """The page with the table between its two marks made anew."""
    before, _, rest = page.partition("<!-- studies -->\n")
    after = rest.partition("<!-- end -->")[2]
    return f"{before}<!-- studies -->\n{studies_table()}\n<!-- end -->{after}"


def pages() -> dict[Path, str]:
    slurm, found = DOCS / "slurm.md", DOCS / "findings.md"
    return {
        DOCS / "config.md": config_page(),
        DOCS / "tables.md": tables_page(),
        slurm: with_studies(slurm.read_text("utf8")),
        found: with_tables(found.read_text("utf8")),
    }


def _schema(schema: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = schema if name == "Config" else schema["$defs"][name]
    return found


def _sections(schema: dict[str, Any], name: str, path: str) -> list[tuple[str, str]]:
    """(dotted path, class) of the tables below a section, each before its own."""
    found = []
    for key, field in _schema(schema, name)["properties"].items():
        _, there, rest = json.dumps(field).partition("#/$defs/")
        if there:
            below, inner = f"{path}.{key}".strip("."), rest.partition('"')[0]
            found += [(below, inner), *_sections(schema, inner, below)]
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
    for bound, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
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
