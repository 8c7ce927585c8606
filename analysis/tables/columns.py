"""Columns of the three tables, with their kinds and units: `docs/tables.md` is made from them.

What tells one setting of superposition from another is `superposition_setting.ABLATIONS`, and so
are its columns here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from tst_study.config.superposition_setting import ABLATIONS, SuperpositionSetting

Kind = Literal["text", "whole", "number", "truth", "json"]


@dataclass(frozen=True)
class Column:
    name: str
    kind: Kind
    """`whole` numbers are at least 0, `number`s finite; `json` is text that holds JSON."""
    words: str
    """Meaning and unit. Losses are in nats per token, times in seconds, sizes in tokens."""
    optional: bool = True
    """Whether a cell may be missing."""


def _columns(text: str) -> tuple[Column, ...]:
    """One column for each line: name, kind (with `!` where no cell may be missing), words."""
    found = (line.split(None, 2) for line in text.strip().splitlines())
    return tuple(
        Column(name, kind.rstrip("!"), " ".join(words), not kind.endswith("!"))  # type: ignore[arg-type]
        for name, kind, *words in found
    )


_SETTING = tuple(
    Column(
        one.column,
        "truth" if one.plain is False else "text",
        f"`{one.key}` of the config; {'false' if one.plain is False else 'empty'} where it is not "
        "used"
        if one.key
        else "of an imported run, what it is called where that is not `baseline`",
    )
    for one in ABLATIONS
)

RUNS = (
    *_columns(
        """
run_id text! name of the run folder, unique in an archive
study text!
name text!
role text! for people; what a run is follows from its settings
state text! queued, running, preempted, diverged, done or failed
message text! why, where it did not end well
step whole! steps done
seed whole missing where it is not known: such runs are compared unpaired
data_seed whole of the order of the text
method text! baseline (no step is superposed, nothing else is changed) or superposition
arm text! what is compared: the label of the setting; of an imported run anything
layers whole
hidden_size whole
attention_heads whole
key_value_heads whole
feed_forward_size whole
vocabulary_size whole
experts whole
parameters whole!
active_parameters whole for one token; fewer than `parameters` in a mixture of experts
steps whole! planned
superposed_steps whole!
bag_size whole! s; 1 for a baseline
step_ratio number! r, as the whole number of steps makes it
"""
    ),
    *_SETTING,
    *_columns(
        """
corpus text! a label for people: the training folders' own names; `group` tells data apart
learning_rate number peak; read as 0 where arms of another trainer each have their own
schedule text
sequences whole per step
sequence_length whole latent positions
raw_tokens whole! planned, as the next four
latent_tokens whole!
unique_raw_tokens whole in the training text
data_multiplier number! raw over latent tokens: 1 + r(s − 1) for full superposition
flops number!
training_seconds number without evaluation and checkpoints, over all launches; as logged
tokens_per_second number raw tokens over training seconds, over the whole run so far
epochs number
last_train_loss number
last_train_loss_name text a bag loss is another quantity than `next_token`
eval_set text this and the next seven: the run's last held-out evaluation, at whatever step
nats_per_token number
standard_error number over held-out sequences, not over seeds
bits_per_byte number
eval_tokens whole
evaluated_step whole
evaluated_phase text
annealed truth whether the learning rate had decayed
optimal_nats_per_token number entropy of the held-out text, where it was generated and is known
exclusion text! why a person took the run out (`exclusions.csv`); empty for all others
dropped_rows whole! rows of the logs that a later launch wrote again
segments whole! launches
code text git commits of the launches, `+` after one with uncommitted changes
devices text
device_count whole of the last launch that named any
group text! runs that differ at most in arm, seeds and learning rate
family text! the same, whatever the number of steps
fingerprint text! sha256 of everything that changes the result
config json resolved config; of a path only the last name
data json fingerprints of corpora, tokenizer and held-out text
launches json of each launch: code, versions, devices, where it began, when, why it ended
"""
    ),
)
CURVES = _columns(
    """
step whole! this many steps had been done
phase text! superposition or recovery
raw_tokens whole! read so far
latent_tokens whole!
flops number! so far
bag_size whole! of this step
loss_name text! `next_token`, or the bag loss by its name: the two are never the same quantity
loss number nats, mean over the step's micro-batches and ranks
epochs number
learning_rate number
gradient_norm number before clipping
training_seconds number since the run began, without evaluation, checkpoints and compiling
tokens_per_second number raw tokens
mfu number
peak_memory whole bytes
moe json routing of a mixture of experts in this step
"""
)
EVALUATIONS = _columns(
    """
step whole!
phase text!
raw_tokens whole!
latent_tokens whole!
flops number!
eval_set text! name and fingerprint of what it was measured on; only equal ones may be compared
nats_per_token number next-token loss on held-out text; missing in rows of a task
bits_per_byte number
standard_error number of nats_per_token over held-out sequences; of a task's value over questions
tokens whole
document_losses json nats per token of each held-out document
document_tokens json
annealed truth! whether the learning rate had decayed
training_seconds number
task text missing for the held-out loss that every run logs
metric text of a task: which number `value` is
value number
samples whole documents, sequences or questions behind the standard error
details json settings of a task, and values by position or by sequence
"""
)
RUN_COLUMNS = (*(column.name for column in RUNS), "folder")
SHAPE: tuple[str, ...] = ("layers", "hidden_size", "attention_heads", "key_value_heads")
SHAPE += ("feed_forward_size", "vocabulary_size")
"""Columns that a model's configuration has by the same names."""


@dataclass(frozen=True)
class Tables:
    """What a set of runs came to (`columns`); `folder` joins the tables."""

    runs: pd.DataFrame
    """One row per run."""
    curves: pd.DataFrame
    """One row per logged training step that counts."""
    evaluations: pd.DataFrame
    """One row per held-out loss, and per number that a task measured."""
    problems: tuple[str, ...]
    """One sentence per run that could not be read."""
    roots: tuple[Path, ...] = ()
    """What was named, for what lies beside runs."""

    @property
    def held_out(self) -> pd.DataFrame:
        """Evaluations that are held-out losses."""
        return self.evaluations[self.evaluations["task"].isna()]

    def only(self, wanted: pd.Series) -> Tables:
        """The runs for which `wanted` is true, with their curves and evaluations."""
        runs = self.runs[wanted]
        curves, evaluations = (
            table[table["folder"].isin(runs["folder"])].reset_index(drop=True)
            for table in (self.curves, self.evaluations)
        )
        return replace(
            self, runs=runs.reset_index(drop=True), curves=curves, evaluations=evaluations
        )

    def thinned(self, rows: int) -> Tables:
        """With about so many rows of each curve, evenly, the first, the last and those of evaluated
        steps among them."""
        runs = self.curves.groupby("folder", observed=True)["step"]
        place, count = runs.cumcount(), runs.transform("size")
        steps, evaluated = (
            pd.MultiIndex.from_arrays([one["folder"].astype("str"), one["step"]])
            for one in (self.curves, self.held_out)
        )
        kept = (place % (count // rows).clip(lower=1) == 0) | (place == count - 1)
        kept |= steps.isin(evaluated)
        return replace(self, curves=self.curves[kept].reset_index(drop=True))

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, Any]],
        curves: pd.DataFrame,
        evaluations: pd.DataFrame,
        problems: Iterable[str] = (),
    ) -> Tables:
        """`rows`: of the runs, in `RUN_COLUMNS`, and in their order."""
        runs = pd.DataFrame(rows, columns=list(RUN_COLUMNS))
        if runs["seed"].isna().any():  # the others would become floating-point numbers
            seeds = [math.nan if pd.isna(row["seed"]) else row["seed"] for row in rows]
            runs["seed"] = pd.Series(seeds, runs.index, dtype=object)
        return cls(runs, curves, evaluations, tuple(problems))


def merged(parts: Sequence[Tables]) -> Tables:
    """The tables of several sources as one, in the order of their folders."""
    problems = [problem for part in parts for problem in part.problems]
    parts = [part for part in parts if len(part.runs)] or list(parts[:1])
    if len(parts) == 1:
        return replace(parts[0], problems=tuple(problems))
    rows = [row for part in parts for row in rows_of(part.runs)]
    rows.sort(key=lambda row: str(row["folder"]))
    curves, evaluations = (
        pd.concat([getattr(part, name).astype({"folder": "str"}) for part in parts])
        .astype({"folder": "category"})
        .reset_index(drop=True)
        for name in ("curves", "evaluations")
    )
    return Tables.of(rows, curves, evaluations, problems)


def typed(table: pd.DataFrame, columns: Iterable[Column]) -> pd.DataFrame:
    """With the dtypes of the columns' kinds; a count of which some are missing is a number."""
    for column in columns:
        values = table[column.name]
        if column.kind in ("text", "json"):
            table[column.name] = values.astype("str")
        elif column.kind == "truth" and not values.isna().any():
            table[column.name] = values.astype(bool)
        elif column.kind in ("number", "whole"):
            whole = column.kind == "whole" and not values.isna().any()
            table[column.name] = values.astype("int64" if whole else float)
    return table


def finished(steps: int, superposed: Mapping[str, Any], **known: Any) -> dict[str, Any]:
    """The row of a run that was trained elsewhere, to its last step; what is not known is None.

    `superposed`: the columns of its setting (`SuperpositionSetting.of_row`).
    """
    setting = SuperpositionSetting.of_row(superposed)
    return {
        **dict.fromkeys(RUN_COLUMNS),
        **setting.columns(),
        **dict.fromkeys(("step", "steps", "evaluated_step"), steps),
        "state": "done",
        "message": "",
        "exclusion": "",
        "role": setting.role,
        "method": "baseline" if setting.is_baseline else "superposition",
        "arm": setting.label,
        "evaluated_phase": "superposition" if setting.superposed_steps == steps else "recovery",
        **known,
    }


def rows_of(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows of a table as dictionaries by column name."""
    # By columns: pandas' own iterators build a Series for every row of a wide table.
    names = [str(name) for name in table.columns]
    columns = [table.iloc[:, place].tolist() for place in range(len(names))]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))
