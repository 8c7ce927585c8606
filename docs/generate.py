"""Write the parts of the documentation that are generated from the code and the records.

`make docs` runs this. The generated parts are the keys in `config.md`, the columns in `tables.md`,
the answers in `should_i_use_it.md`, the results in
`evidence.md`, arms and verdicts in `research/campaign.md`, and two tables of
`research/coverage.md`. A test fails if a page differs from what this module would write.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import verdict_coverage
from tst_study.analysis import published
from tst_study.analysis.advice.intended_run import REGIMES
from tst_study.analysis.summary import Summary, summarise
from tst_study.analysis.tables.columns import CURVES, EVALUATIONS, RUNS, rows_of
from tst_study.analysis.tables.source import read_tables
from tst_study.analysis.wording import signed, verdict_parts
from tst_study.config import schema as config
from tst_study.config.presets import PRESETS
from tst_study.paper_figures.report import sections
from tst_study.paper_figures.table import markdown_grid
from tst_study.text import big

DOCS, SECOND, THIRD, FOURTH = Path(__file__).parent, "what-does-the-work", "tuned", "batch"
"""The folder of the documentation; the later campaigns' archives in `docs/records/`."""
METHODS = ("moderated", "paired")
"""The methods that `coverage_of_verdicts` sets side by side."""


def config_keys() -> str:
    """Return a table for each section of the config, with type, default and meaning of every key
    that has a description."""
    models = {"Config": (schema := config.Config.model_json_schema()), **schema["$defs"]}
    shapes = ", ".join(PRESETS)
    parts = [f"`model.preset` names a whole shape, whose keys may be overridden: {shapes}.\n"]
    for path, name in [("", "Config"), *_sections(models, "Config", "")]:
        rows = [
            [f"`{key}`", _type(described), _default(described), _words(described)]
            for key, described in models[name]["properties"].items()
            if "description" in described
        ]
        parts += [f"## `[{path}]`\n" if path else "## Top level\n", f"{_words(models[name])}\n"]
        parts += [_table(["key", "type", "default", "meaning"], rows), ""]
    return "\n".join(parts)


def columns() -> str:
    """Return three tables, which list the columns of the runs, the curves and the evaluations."""
    parts = []
    for name, table in (("runs", RUNS), ("curves", CURVES), ("evaluations", EVALUATIONS)):
        rows = [] if name == "runs" else [["`run_id`", "text", "joins the tables"]]
        rows += [[f"`{column.name}`", column.kind, column.words] for column in table]
        parts += [f"## `{name}.parquet`\n", _table(["column", "kind", ""], rows), ""]
    return "\n".join(parts)


def arms(record: str) -> str:
    """Return a table of a campaign's arms: seeds, loss, text and FLOPs of each."""
    return markdown_grid(sections.arms(summary(record)))


def verdicts(record: str) -> str:
    """Return a table of a campaign's questions with their verdicts, which `analysis.verdict.decide`
    has reached. `record`: the name of its archive in `docs/records/`."""
    parts = list(verdict_parts(summary(record).verdicts))
    titles = list(dict.fromkeys(title for *_, cells in parts for title in cells[0]))
    rows = []
    for heading, words, cells in parts:
        rows.append([f"**{heading}**: {', '.join(words[:2])}", *[""] * (len(titles) - 1)])
        rows += [[row.get(title, "") for title in titles] for row in cells]
    return _table(titles, rows)


def left_out() -> str:
    """Return a table that tests the law behind `tst-study advise` on published runs that were left
    out of its fit. It shows how well the law predicts their gains. It also shows how many nats the
    law's choice of s and r loses against the best of these runs, beside two simpler ways to
    choose."""
    rows = []
    for row in published.evidence()["left_out"]:
        cells = f"{row['held']:.0%} of {row['cells']:.0f}", f"{row['half']:.3f}"
        choice = f"{row['s']:.3g}, {row['r']:.2g}"
        errors = (f"{row[way]:.4f}" for way in ("error", "copied", "scaled"))
        lost = (f"{row[way]:.4f}" for way in ("law", "always", "nearest"))
        rows.append([row["left_out"], *cells, *errors, choice, *lost])
    titles = ["left out", "gains inside", "half-width", "the law's error", "copying", "scaled copy"]
    titles += ["the law's s, r", "law loses"]
    return _table([*titles, "always s = 6, r = 0.3", "best near cell"], rows)


def regimes() -> str:
    """Return the table of answers: which runs, the first word, and what it rests on."""
    rows = [[one.where, f"**{one.word}**", one.evidence] for one in REGIMES.values()]
    return _table(["your run", "answer", "it rests on"], rows)


def others() -> str:
    """Return a table of the results that others published, with grades."""
    rows = []
    for row in rows_of(published.others()):
        size, length = (
            "not stated" if math.isnan(row[name]) else big(row[name])
            for name in ("params", "tokens")
        )
        losses = f"{row['baseline']:g} → {row['superposed']:g}, **{signed(row['gain'])}**"
        setting = f"s = {row['s']:.0f}, r = {row['r']:g}, {row['variant']}"
        where = f"[{row['who']}]({row['source']})"
        rows.append([row["grade"], where, f"{size}, {length}", setting, losses])
    return _table(["grade", "who", "size, tokens", "setting", "loss"], rows)


@functools.cache
def summary(record: str) -> Summary:
    """Return the analysis of the archive of this name in `docs/records/`."""
    return summarise(read_tables(DOCS / "records" / record))


def coverage_of_verdicts() -> str:
    """Return a table from the record of `benchmarks/verdict_coverage.py`.

    Its columns are the range of coverage over families of 1 to 30 contrasts, and half-widths of the
    intervals of nine contrasts. Each cell has the value of `moderated-1`, then that of paired
    t-tests.
    """
    record = json.loads(verdict_coverage.RECORD.read_text("utf8"))
    cases = {row["case"]: row for row in record}
    rows = []
    for spread in (verdict_coverage.MEASURED, *verdict_coverage.SPREADS):
        for seeds in verdict_coverage.SEEDS:
            names = (f"{seeds} seeds, {n} contrasts, {spread}" for n in verdict_coverage.CONTRASTS)
            own = [cases[name] for name in names if name in cases]
            nine = cases.get(f"{seeds} seeds, 9 contrasts, {spread}")
            if nine:
                shares = [[row[method]["coverage"] for row in own] for method in METHODS]
                cells = ["; ".join(f"{min(each):.3f} to {max(each):.3f}" for each in shares)]
                for width in ("median", "95%", "widest"):
                    cells.append("; ".join(f"{nine[method][width]:,.0f}" for method in METHODS))
                rows.append([spread, str(seeds), *cells])
    titles = ["circumstance", "seeds", "coverage, 1 to 30 contrasts", "median", "95th percentile"]
    return _table([*titles, "widest"], rows)


BLOCKS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("config.md", "keys", config_keys),
    ("tables.md", "columns", columns),
    ("should_i_use_it.md", "regimes", regimes),
    ("evidence.md", "others", others),
    ("research/coverage.md", "left out", left_out),
    ("research/campaign.md", "arms of parts", lambda: arms(SECOND)),
    ("research/campaign.md", "verdicts of parts", lambda: verdicts(SECOND)),
    ("research/campaign.md", "arms of tuned", lambda: arms(THIRD)),
    ("research/campaign.md", "verdicts of tuned", lambda: verdicts(THIRD)),
    ("research/campaign.md", "arms of batch", lambda: arms(FOURTH)),
    ("research/campaign.md", "verdicts of batch", lambda: verdicts(FOURTH)),
    ("research/coverage.md", "verdict coverage", coverage_of_verdicts),
    ("research/campaign.md", "verdicts", lambda: verdicts("campaign")),
)
"""The generated blocks: the page, the mark (a comment in the page) after which a block begins, and
the function that returns its text. A block ends at the next `end` mark."""


@functools.cache
def pages() -> dict[Path, str]:
    """Return the whole text of each page in `BLOCKS`, with its generated blocks written anew."""
    texts: dict[Path, str] = {}
    for name, mark, made in BLOCKS:
        text = texts.get(DOCS / name) or (DOCS / name).read_text("utf8")
        before, _, rest = text.partition(f"<!-- {mark} -->\n")
        after = rest.partition("<!-- end -->")[2]
        texts[DOCS / name] = f"{before}<!-- {mark} -->\n{made()}\n<!-- end -->{after}"
    return texts


def _table(titles: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def _sections(models: dict[str, Any], name: str, path: str) -> list[tuple[str, str]]:
    """Return the dotted path and the class name of every section below a section. Each comes before
    the sections that it holds."""
    below_it = []
    for key, field in models[name]["properties"].items():
        _, there, rest = json.dumps(field).partition("#/$defs/")
        if there:
            below, inner = f"{path}.{key}".strip("."), rest.partition('"')[0]
            below_it += [(below, inner), *_sections(models, inner, below)]
    return below_it


BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(
            _type(choice) for choice in field["anyOf"] if choice.get("type") != "null"
        )
    if "$ref" in field:
        return "table"
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    words = {"string": "text", "boolean": "true or false", "object": "table"}.get(
        field["type"], field["type"]
    )
    for bound, sign in BOUNDS.items():
        # An upper bound above 1,000 is not shown: it is there only to catch typing errors.
        if bound in field and not (sign in "≤<" and field[bound] > 1000):
            words += f" {sign} {field[bound]:g}"
    return words


def _words(described: dict[str, Any]) -> str:
    return " ".join(described["description"].split())


def _default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return "required"
    value = field["default"]
    return "–" if value is None or isinstance(value, dict) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf8")
