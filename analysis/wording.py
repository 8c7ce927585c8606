"""Words for settings, groups, intervals and verdicts, in one place so that all pages agree."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from tst_study.analysis.tables.columns import rows_of
from tst_study.config.schema import of_record
from tst_study.text import ENDLESS, big, fitted, listed, wrapped


def group_label(runs: pd.DataFrame) -> str:
    """Name a group of comparable runs by its corpus and length."""
    first = runs.iloc[0]
    return f"{first['corpus']}, {first['steps']:,} steps"


def disambiguate(names: Sequence[str], *details: Sequence[str]) -> list[str]:
    """Make equal names distinct, as far as the details allow.

    Each of `details` is a list of texts, one for each name, such as the learning rates. Equal
    names get their texts from the first list appended, if these texts differ. Names that are equal
    even then get those from the second list, and so on.
    """
    distinct = list(names)
    for more in details:
        known = Counter(name for name, _ in set(zip(distinct, more, strict=True)))
        distinct = [
            name if known[name] == 1 or not detail else f"{name}, {detail}"
            for name, detail in zip(distinct, more, strict=True)
        ]
    return distinct


def disambiguate_by_set_up(
    names: Sequence[str], rows: Sequence[Mapping[str, Any] | pd.Series]
) -> list[str]:
    """Add to equal names what distinguishes their rows: parameters, learning rate, held-out text,
    settings of the config (`qk_norm=true, decay_ratio=0.3`) and, if all of these agree, the key of
    their family. The parameters may be None, and the config may be missing."""
    texts = pd.Series([row.get("config") for row in rows], dtype=object).fillna("{}")
    configs = pd.json_normalize([of_record(json.loads(text)) for text in texts])
    chosen = r"^(model|optimizer|schedule(?!\.steps)|batch)\."
    configs = configs.filter(regex=chosen).map(json.dumps)
    settings = pd.Series("", range(len(names)))
    for _, own in configs.groupby(list(names)):
        differing = own.loc[:, own.nunique() > 1].drop(
            columns="optimizer.learning_rate", errors="ignore"
        )
        for column, values in differing.items():
            settings[own.index] += f", {str(column).split('.')[-1]}=" + values
    return disambiguate(
        names,
        [f"{big(row['parameters'])} parameters" if row["parameters"] else "" for row in rows],
        [f"learning rate {row['learning_rate']:g}" for row in rows],
        [f"held out: {row['eval_set']}" for row in rows],
        list(settings.str.removeprefix(", ")),
        [f"[{row['family']}]" for row in rows],
    )


def group_details(runs: pd.DataFrame) -> str:
    """Describe model, steps and batch of a group of comparable runs for a caption, as far as they
    are known."""
    first = runs.iloc[0]
    said: dict[str, Callable[[int], str]] = {
        "layers": lambda count: number(count, "layer"),
        "hidden_size": "hidden size {}".format,
        "experts": "{} experts".format,
        "vocabulary_size": "vocabulary {:,}".format,
    }
    # A column of whole numbers holds floats if some of the runs lack it.
    shape = ", ".join(say(int(first[name])) for name, say in said.items() if pd.notna(first[name]))
    description = f"{big(first['parameters'])} parameters" + f" ({shape})" * bool(shape)
    description += f", {first['steps']:,} steps"
    if first[["sequences", "sequence_length"]].notna().all():
        description += (
            f" of {first['sequences']:.0f} × {first['sequence_length']:.0f} latent tokens"
        )
    return description


def gain(row: Mapping[str, Any], digits: int | None = None) -> str:
    """Return `+0.155 [+0.124, +0.186]`, the gain alone if there is no interval, and a dash if there
    is no gain.

    digits: number of decimals; by default 4 if the interval is narrower than 0.01 or, without an
    interval, if the gain is smaller than that; otherwise 3.
    """
    if pd.isna(row["gain"]):
        return "–"
    if digits is None:
        size = abs(row["gain"]) if pd.isna(row["low"]) else row["high"] - row["low"]
        digits = _digits(size)
    mean = signed(row["gain"], digits)
    return mean if pd.isna(row["low"]) else f"{mean} {_interval(row['low'], row['high'], digits)}"


def _digits(size: float) -> int:
    return 4 if round(size, 9) < 0.01 else 3


def _interval(low: float, high: float, digits: int) -> str:
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def named(question: str) -> str:
    """Return the name of a question, or of its family, in the words of all pages. An archive keeps
    the names that it was registered with, and the third campaign's say weights for parameters."""
    return re.sub(r"\b(million|per) weight", r"\1 parameter", question)


def bounds(row: Mapping[str, Any]) -> str:
    """Return the ends of an interval as `0.75, 1.51`, with `open` for an end that is not bounded;
    empty if neither is."""
    ends = (row["low"], row["high"])
    if all(map(pd.isna, ends)):
        return ""
    shown = ("open" if pd.isna(end) else f"{end:.2f}".replace("-", "−") for end in ends)
    return ", ".join(shown)


def verdict_parts(verdicts: pd.DataFrame) -> Iterator[tuple[str, list[str], list[dict[str, str]]]]:
    """Yield for each family of verdicts a heading, words on how it was judged, and a table row for
    each of its questions, with cells by the title of their column.

    Columns that are empty for the whole family are left out. `cost` is relative to the comparison
    arm. `chosen afterwards` is the result of the package's default method, if it differs from that
    of the method that the question named.
    """
    unplanned = (verdicts["heading"] == verdicts["family"]).all()
    for (heading, family), rows in verdicts.groupby(["heading", "family"], sort=False):
        first = next(rows_of(rows))
        words = [] if heading == family else [named(str(family))]
        words += [span(rows["seeds"], "seed")]
        if len(documents := rows["documents"].dropna()):
            words += [span(documents.astype(int), "held-out document")]
        words += [METHODS[first["method"]]]
        several = int(rows["comparisons"].max())
        words += [f"intervals hold for all {several} together"] if several > 1 else []
        commits = sorted({item[:7] for item in rows["registered"] if item and pd.notna(item)})
        times = sorted({item for item in rows["registered_at"] if item and pd.notna(item)})
        where = [f" in {', '.join(commits)}"] if commits else []
        where += [f" at {times[0]} UTC"] if times else []
        words += [f"registered{''.join(where)}"] if where else []
        cells = []
        for row in rows_of(rows):
            after = ""
            if pd.notna(row["afterwards"]):
                estimate = {name: row[f"afterwards_{name}"] for name in ("gain", "low", "high")}
                changed = row["afterwards"] if row["afterwards"] != row["verdict"] else ""
                after = f"{gain(estimate)} {changed}".strip() if gain(estimate) != gain(row) else ""
            cells.append(
                {
                    "question": named(row["question"]),
                    "gain": gain(row),
                    "verdict": f"{row['verdict']}{_remarks(row)}",
                    "over seeds and documents": _over_documents(row),
                    "differs": row["differs"],
                    "predicted": _predicted(row) if heading == PLANNED else "",
                    "cost": _cost(row),
                    "during training": row.get("since", ""),
                    "chosen afterwards": after,
                }
            )
        filled = [title for title in cells[0] if any(cell[title] for cell in cells)]
        title = "All settings; no question was registered" if unplanned else str(heading)
        yield title, words, [{item: cell[item] for item in filled} for cell in cells]


PLANNED, TIME_UNKNOWN, AFTERWARDS = "Planned", "Time unknown", "Asked afterwards"
"""The headings under which questions stand (`verdict.registration`)."""
MEANINGS = {
    PLANNED: "Registered before the runs of one side began. That proves the order, not honesty.",
    TIME_UNKNOWN: "Neither recorded times nor commits here show whether the runs came later.",
    AFTERWARDS: "Not registered before its runs, or runs are excluded: results may have shaped it.",
}
"""What the headings of questions mean, where the heading does not say it all."""


def verdict_lines(verdicts: pd.DataFrame, width: int = ENDLESS) -> list[str]:
    """Return all verdicts as lines for a terminal: the planned questions, family by family, and
    then the settings that they do not cover."""
    lines: list[str] = []
    dropped: dict[str, None] = {}
    for heading, words, cells in verdict_parts(verdicts):
        said = MEANINGS.get(heading)
        lines += (
            [] if heading in lines else ["", heading, *wrapped([f"  {said}"] * bool(said), width)]
        )
        lines += wrapped([f"  {', '.join(words)}"], width)
        rows = [[_titled(*cell) for cell in row.items()] for row in cells]
        titles = list(cells[0])
        more = range(len(titles) - 1, titles.index("verdict"), -1)
        table, gone = fitted(rows, width - 5, dispensable=more)
        dropped |= dict.fromkeys(titles[place] for place in gone)
        lines += [f"     {line}" for line in table]
    heading = "Gains in held-out nats per token (positive: better), with 95% intervals"
    if dropped:
        out = f"Left out for the width: {', '.join(dropped)}; --json has all columns."
        lines += ["", *wrapped([out], width)]
    return [heading, *lines] if lines else []


def _titled(title: str, cell: str) -> str:
    return f"{title}: {cell}" if cell and title not in ("question", "gain", "verdict") else cell


MODERATED = "method moderated-1 (t-tests whose variance is partly the whole family's)"
METHODS = {
    "paired": "t-test over each pair's seeds",
    "simultaneous": f"{MODERATED} in place of the planned `simultaneous`",
    "moderated-1": MODERATED,
}
"""Words for each method of making intervals (`question.Method`)."""


def _over_documents(row: Mapping[str, Any]) -> str:
    """Return the interval over seeds and held-out documents, `[+0.006, +0.018]`; empty where it is
    not known."""
    if pd.isna(row.get("documents")):
        return ""
    low, high = row["documents_low"], row["documents_high"]
    return _interval(low, high, _digits(high - low))


def _predicted(row: Mapping[str, Any]) -> str:
    """Return the predicted interval, and `right` or `wrong` for whether the gain lies in it:
    `+0.004 to +0.018, right`. Empty without a prediction."""
    if row.get("predicted") is None:
        return ""
    low, high = row["predicted"]
    interval = f"{signed(low)} to {signed(high)}"
    if pd.isna(row["gain"]):
        return interval
    return f"{interval}, {'right' if low <= row['gain'] <= high else 'wrong'}"


def _cost(row: Mapping[str, Any]) -> str:
    if pd.isna(row["text"]) or pd.isna(row["flops"]):
        return ""
    flops = "" if abs(row["flops"] - 1) < 1e-6 else f", {row['flops']:.3g}× FLOPs"
    return f"{row['text']:.3g}× text{flops}"


def _remarks(row: Mapping[str, Any]) -> str:
    diverged = {"the arm": row["diverged"], "the comparison arm": row["diverged_against"]}
    parts = [
        f"{number(count, 'seed')} of {name} diverged" for name, count in diverged.items() if count
    ]
    parts += ["unpaired: no seeds"] if row["unpaired"] else []
    parts += [row[note] for note in ("alone", "order") if row[note]]
    return f" ({'; '.join(parts)})" if parts else ""


def signed(value: float, digits: int = 3, plus: Literal["+", ""] = "+") -> str:
    """Return a number with its sign, which is U+2212 for minus. One that rounds to zero has no
    sign."""
    text = f"{value:{plus}.{digits}f}"
    if float(text) == 0:
        return f"{0:.{digits}f}"
    return text.replace("-", "−")


def number(count: int, noun: str) -> str:
    """Return a count with its noun: `1 seed`, `3 seeds`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def span(counts: Iterable[int], noun: str) -> str:
    """Return the range of some counts with their noun: `3 seeds`, `1 to 3 seeds`."""
    least, most = min(counts), max(counts)
    return number(most, noun) if least == most else f"{least:,} to {number(most, noun)}"


FEW_REASONS, FEW_NAMES = 8, 4
"""The most reasons, and the most names of runs for each reason, that a terminal lists."""


def left_out(excluded: pd.DataFrame) -> list[str]:
    """List the runs that were left out (columns `run_id` and `reason`), with a line for each
    reason. After `FEW_REASONS` of these a last line says how many further reasons there are."""
    if excluded.empty:
        return []
    lines = [
        f"Left out: {listed(list(map(str, rows['run_id'])), FEW_NAMES)}: {reason}."
        for reason, rows in excluded.groupby("reason", sort=False)
    ]
    if (more := len(lines) - FEW_REASONS) > 0:
        lines[FEW_REASONS:] = [f"Left out for {number(more, 'further reason')}, too: see --json."]
    return lines
