"""The lines that known programs print while they train, as patterns; a suggestion for others.

A pattern's groups are `step`, `steps` (planned), `milliseconds` (of training), columns of `KEYS`,
or `key` and `value`, for programs that print a line for each quantity. A match without a step
belongs to the step that was printed before it. The patterns follow these programs, as of November
2026: Megatron-LM's `training_log` and gpt-neox's, nanotron's `LoggerWriter`, torchtitan's
`components/metrics.py`, OLMo's and OLMo-core's console loggers, NeMo's progress printer, litgpt's
`pretrain.py`, MaxText's `metric_logger.py`, nanoGPT, modded-nanogpt, nanochat's `base_train`, and
the dictionaries that Hugging Face's Trainer prints.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tst_study.errors import UserError
from tst_study.text import decimal, short


class Line(NamedTuple):
    """A kind of line that a program prints."""

    pattern: re.Pattern[bytes]
    more: int = 0
    """What makes the printed step the number of steps done: 1 for programs that count from 0."""


def _line(pattern: str, more: int = 0) -> Line:
    return Line(re.compile(pattern.encode(), re.MULTILINE), more)


EPOCH = "epoch"
_OF_TRAINER = r"\{'(?:loss|eval_loss|train_runtime)': .*?\}"
PROGRAMS: Mapping[str, tuple[Line, ...]] = {
    # NeMo comes before Megatron-LM, whose pattern matches its lines, too. Its `val_loss` is printed
    # again on every later line, so that the step cannot be told.
    "NeMo": (
        _line(
            r"Training epoch \d+, iteration \d+/\d+ \|(?:.*? lr: (?P<learning_rate>\S+) \|)?"
            r".*? global_step: (?P<step>\d+) \|.*? reduced_train_loss: (?P<loss>[^\s|]+)",
            1,
        ),
    ),
    "Megatron-LM, gpt-neox": (
        _line(
            r"iteration +(?P<step>\d+)/ *(?P<steps>\d+) \|(?:.*? learning rate: "
            r"(?P<learning_rate>\S+) \|)?"
            r"(?:.*? lm[ _]loss: (?P<loss>\S+) \|)?(?:.*? grad norm: (?P<gradient_norm>\S+) \|)?"
        ),
        _line(  # must not match the line on the test set
            r"validation (?:loss|results) at iteration (?P<step>\d+)\b(?! on test)[^|\n]*\| "
            r"lm[ _]loss value: (?P<nats_per_token>\S+)"
        ),
    ),
    "nanotron": (
        _line(
            r"iteration: (?P<step>[\d.,]+[KM]?) / (?P<steps>[\d.,]+[KM]?) \|.*? lm_loss: "
            r"(?P<loss>\S+)(?:.*? lr: (?P<learning_rate>\S+))?"
            r"(?:.*? grad_norm: (?P<gradient_norm>\S+))?"
        ),
    ),
    "torchtitan": (
        _line(
            r"(?<!validate )step: *(?P<step>[\d,]+) +loss: *(?P<loss>\S+)"
            r"(?: +grad_norm: *(?P<gradient_norm>\S+))?"
        ),
        _line(r"validate step: *(?P<step>[\d,]+) +loss: *(?P<nats_per_token>\S+)"),
    ),
    "OLMo, OLMo-core": (
        _line(r"\[step=(?P<step>[\d,]+)/(?P<steps>[\d,]+)[],]"),
        _line(r"^    (?P<key>(?:train|eval|optim|val)[^=\n]*)=(?P<value>[-+\d.,e]+|nan|inf)\s*$"),
    ),
    "litgpt": (
        _line(
            r"\biter \d+ step (?P<step>\d+)(?: \| loss train: |: loss )(?P<loss>[^\s,]+),"
            r"(?: val: [^|\n]* \|)? iter time"
        ),
        _line(r"^iter \d+: val loss (?P<nats_per_token>[^\s,]+), val time"),
    ),
    "MaxText": (
        _line(r"completed step: (?P<step>\d+), seconds: .*?[ ,]loss: (?P<loss>[^\s,]+)", 1),
        _line(r"eval metrics after step: (?P<step>\d+), loss=(?P<nats_per_token>[^\s,]+)", 1),
    ),
    # It prints `step N` before training step N, and `iter N` after it.
    "nanoGPT": (
        _line(r"^step (?P<step>\d+): train loss \S+, val loss (?P<nats_per_token>\S+)"),
        _line(r"^iter (?P<step>\d+): loss (?P<loss>[^\s,]+), time", 1),
    ),
    "build-nanogpt": (_line(r"^step +(?P<step>\d+) \| loss: (?P<loss>[^\s|]+) \|", 1),),
    "modded-nanogpt": (
        _line(
            r"step:(?P<step>\d+)/(?P<steps>\d+) (?:val_loss:(?P<nats_per_token>\S+)"
            r"|train_loss:(?P<loss>\S+)) train_time:(?P<milliseconds>\d+)?"
        ),
    ),
    "nanochat": (  # at the same moments as nanoGPT
        _line(r"^Step (?P<step>\d+) \| Validation bpb: (?P<bits_per_byte>\S+)"),
        _line(r"^step (?P<step>\d+)/(?P<steps>\d+) \([^)]*\) \| loss: (?P<loss>\S+)", 1),
    ),
    # It prints no steps, but epochs.
    "Hugging Face Trainer": (
        _line(rf"(?P<row>{_OF_TRAINER})"),
        _line(r"Total optimization steps = (?P<steps>[\d,]+)"),
    ),
}
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")


def program_of(start: str, given: Sequence[Line] = ()) -> tuple[Line, ...] | None:
    """Return the kinds of lines of the program that printed a text, or those that a person gave, if
    one of them is in the text; None if none is."""
    text = _COLOURS.sub(b"", start.encode(errors="replace"))
    for lines in [tuple(given)] if given else PROGRAMS.values():
        if any(line.pattern.search(text) for line in lines):
            return lines
    return None


def patterns(given: Sequence[str]) -> tuple[Line, ...]:
    """Compile what a person gave as `--line`. Raises `UserError` for a text that is no regular
    expression, and if all of them together name no step or no other quantity."""
    lines = []
    for text in given:
        try:
            lines.append(_line(text))
        except re.error as error:
            raise UserError(f"--line {short(text)}: is no regular expression ({error})") from None
    groups = {name for line in lines for name in line.pattern.groupindex}
    if lines and ("step" not in groups or len(groups) < 2):
        raise UserError(f"--line {short(given[0])}: needs (?P<step>…) and one such as (?P<loss>…)")
    return tuple(lines)


Cells = tuple[str, NDArray[np.int64], NDArray[Any]]
"""A name, the numbers of the matches that have it, and their values."""
_OF_TEXT = {"steps", "row", "loss_name"}
"""Groups that hold texts. The others are read as numbers, which are much smaller."""


def _texts(texts: pa.Array) -> NDArray[Any]:
    pieces = texts.cast(pa.large_binary()).to_pylist()
    return np.array([piece.decode(errors="replace") for piece in pieces], object)


def _numbers(texts: pa.Array) -> NDArray[Any]:
    """Return texts as numbers; those that are none as they are."""
    try:
        return np.asarray(texts.cast(pa.float64()))
    except pa.ArrowInvalid:
        read = ((text, decimal(text)) for text in _texts(texts))
        return np.array([text if number is None else number for text, number in read], object)


_NOT_FINITE = re.compile(r"(?<=: )(-?inf|nan)\b")
"""Numbers that Python prints in a dictionary, but does not read there."""


def of_trainer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of Hugging Face's Trainer. Its summary, at the end, has as `train_loss` a mean
    over the run, which is left out."""
    return {k: v for k, v in row.items() if "train_runtime" not in row or k != "train_loss"}


_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_OF_DIGITS = re.compile(rb"\d|\(\?P=")
"""What may stand in a pattern that does not take all digits alike."""


def matches(block: bytes, lines: Sequence[Line]) -> tuple[NDArray[np.int64], list[Cells]]:
    """Return what a block of whole lines says: for each match, in the order of the text, how many
    line breaks are before it, and the cells of each group, with the number of steps done as `step`.
    Dictionaries stand in a column without a name.

    Of lines that differ in their digits alone, only the first is searched: the groups stand at the
    same places in the others."""
    block = _COLOURS.sub(b"", block)
    alike = not any(_OF_DIGITS.search(line.pattern.pattern) for line in lines)
    texts = (block.translate(_ZEROS) if alike else block).split(b"\n")
    kinds: dict[bytes, int] = {}
    kind = np.array([kinds.setdefault(text, len(kinds)) for text in texts])
    found = [[m for line in lines for m in line.pattern.finditer(text)] for text in kinds]
    each = np.array([*map(len, found)])
    breaks = np.repeat(np.arange(len(texts)), each[kind])
    # The number of each match in `every`.
    which = np.arange(len(breaks)) - (np.cumsum(each[kind]) - np.cumsum(each)[kind])[breaks]
    every = [match for of_kind in found for match in sorted(of_kind, key=re.Match.start)]
    lengths = np.array([*map(len, texts)]) + 1
    begins = (np.cumsum(lengths) - lengths)[breaks]

    data, cells = np.frombuffer(block, np.uint8), list[Cells]()

    def cut(pattern: re.Pattern[bytes], name: str) -> tuple[NDArray[np.int64], pa.Array]:
        """Return the numbers of the matches that have this group, and its texts."""
        spans = [match.span(name) if match.re is pattern else (-1, -1) for match in every]
        first, last = np.array(spans, np.int64).reshape(-1, 2)[which].T
        at = np.flatnonzero(first >= 0)
        long = (last - first)[at]
        ends = np.cumsum(long)
        place = np.arange(long.sum()) + np.repeat((begins + first)[at] - ends + long, long)
        buffers = pa.py_buffer(np.append(0, ends)), pa.py_buffer(data[place])
        return at, pa.LargeStringArray.from_buffers(len(at), *buffers)

    for pattern, more in lines:
        for name in (name for name in pattern.groupindex if name != "key"):
            there, cut_out = cut(pattern, name)
            values = (_texts if name in _OF_TEXT else _numbers)(cut_out)
            if name == "step" and values.dtype == float:
                values = values + more
            elif name == "milliseconds":
                name, values = "training_seconds", values / 1000
            elif name == "row":
                name, values = (
                    "",
                    np.array([of_trainer(_dictionary(row)) for row in values], object),
                )
            if name == "value" and "key" in pattern.groupindex:
                keys = _texts(cut(pattern, "key")[1])
                cells += [(key, there[keys == key], values[keys == key]) for key in {*keys}]
            elif len(there):
                cells.append((name, there, values))
    return breaks, cells


def _dictionary(text: str) -> Mapping[str, Any]:
    """Return a row that was printed as a Python dictionary. Raises `ValueError` if it is none."""
    try:
        return dict(ast.literal_eval(_NOT_FINITE.sub(r"'\1'", text)))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"{short(text)} is no dictionary") from None


_STEP = re.compile(r"((?:step|iter(?:ation)?)s?\W{1,3})(\d[\d,]*\b)", re.IGNORECASE)
_LOSS = re.compile(r"(loss\w*\W{1,3})(\d+\.\d+\S*?)(?=[\s,;|}\]]|$)", re.IGNORECASE)


def suggestion(lines: Iterator[str]) -> str | None:
    """Return a line that looks as if it told a step and a loss, and a `--line` to start from; None
    if there is no such line."""
    for line in lines:
        text = _COLOURS.sub(b"", line.strip().encode()).decode()
        step, loss = _STEP.search(text), _LOSS.search(text)
        if step and loss and decimal(step[2]) is not None:
            parts = [(step.start(), rf"{re.escape(step[1])}(?P<step>[\d,]+)")]
            parts.append((loss.start(), rf"{re.escape(loss[1])}(?P<loss>[\d.]+)"))
            pattern = ".*?".join(part for _, part in sorted(parts)).replace(r"\ ", " ")
            return f"no known program prints {short(text)}; start from --line '{pattern}'"
    return None
