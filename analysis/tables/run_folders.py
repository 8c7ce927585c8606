"""Reads run folders, which `tst-study train` writes, into tables of runs, curves and evaluations.

All values but the column `folder` come from what a run recorded, none from the name of its folder.
A run that cannot be read is reported as a problem, and the others are read all the same.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis.tables.columns import (
    CURVES,
    EVALUATIONS,
    SHAPE,
    Column,
    Tables,
    columns_of,
    typed,
)
from tst_study.config.architecture import HUGGING_FACE
from tst_study.config.identity import SEEDS, digest, identity_form
from tst_study.config.schema import RIVALS, from_record
from tst_study.config.superposition_setting import ABLATIONS, SuperpositionSetting
from tst_study.cost.compute import count_flops
from tst_study.errors import UserError
from tst_study.record.reader import RunRecord, measures, read

VARIED = (
    *SEEDS,
    "superposition",
    *(one.key for one in ABLATIONS if one.key and not one.of_bags),
    "optimizer.learning_rate",
    "data.validation",
)
"""Keys of the config in which runs of one group may differ. The held-out text is among them on
purpose: if two runs were evaluated on different texts, the reason why they are not compared can
then name the text, instead of saying that there is no similar run."""
FACTS: tuple[str, ...] = ("resumed_from", "start", "end", "ended", "code", "versions", "python")
FACTS += ("devices", "forked_from")
"""Facts that a table keeps of each launch: when it ran and what its result may depend on. Host and
user are not kept."""


def read_folders(folders: Sequence[Path]) -> Tables:
    """Read run folders into tables; `problems` has a sentence for each run that could not be
    read."""
    records: list[RunRecord] = []
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for folder in folders:
        try:
            record = read(folder)
            rows.append(run_row(record))
            records.append(record)
        except (UserError, OSError) as error:
            problems.append(str(error))
    names = [str(record.folder) for record in records]
    curves = _long(names, (record.metrics for record in records), CURVES)
    evaluations = _long(names, map(_evaluations, records), EVALUATIONS)
    return Tables.of(rows, curves, evaluations, problems)


def _long(
    names: Sequence[str], rows_by_run: Iterable[list[Any]], columns: Sequence[Column]
) -> pd.DataFrame:
    """Join the rows of many runs in one table, whose first column says the run's folder
    (`names`)."""
    groups = list(rows_by_run)
    codes = np.repeat(np.arange(len(names)), [len(rows) for rows in groups])
    every = [row for rows in groups for row in rows]
    cells: dict[str, list[Any]] = {
        column.name: [row.get(column.name) for row in every] for column in columns
    }
    for column in (column for column in columns if column.kind == "json"):
        cells[column.name] = list(map(_text, cells[column.name]))
    table = pd.DataFrame(cells)
    folders = pd.Categorical.from_codes(codes, categories=pd.Index(names))
    table.insert(0, "folder", pd.Series(folders))
    return typed(table, columns)


_OF_HEADER = ("run_id", "study", "name", "role", "fingerprint", "raw_tokens", "latent_tokens")
_OF_LAST_EVALUATION = ("eval_set", "nats_per_token", "standard_error", "bits_per_byte")


def run_row(record: RunRecord) -> dict[str, Any]:
    """Return a run's row of the run table, with the keys `RUN_COLUMNS`."""
    header: Mapping[str, Any] = record.header
    status: Mapping[str, Any] = record.status or {"message": "", "step": 0}
    last: Mapping[str, Any] = record.metrics[-1] if record.metrics else {}
    final: Mapping[str, Any] = record.evals[-1] if record.evals else {}
    config, plan = header["config"], header["plan"]
    model, order_seed = config["model"], config.get("data_seed")
    seconds = last.get("training_seconds")
    used = [row["devices"] for row in record.segments if row.get("devices")]
    validation = header["data"].get("validation")
    optimum = validation.get("optimal_nats_per_token") if isinstance(validation, dict) else None
    return {
        **of_config(config, header["data"]),
        **{name: header[name] for name in (*_OF_HEADER, "unique_raw_tokens")},
        **{name: model[name] for name in SHAPE},
        **{name: config["batch"][name] for name in ("sequences", "sequence_length")},
        **{name: final.get(name) for name in _OF_LAST_EVALUATION},
        "state": record.state,
        "message": status["message"],
        "step": status["step"],
        "seed": config["seed"],
        "data_seed": config["seed"] if order_seed is None else order_seed,
        "experts": (model["experts"] or {}).get("count"),
        "parameters": header["parameters"]["total"],
        "active_parameters": header["parameters"]["active"],
        "embeddings": "counted",
        "non_embedding_parameters": _without_embeddings(header["parameters"]),
        "steps": plan["steps"],
        "corpus": _corpus(config, generated=optimum is not None),
        "learning_rate": config["optimizer"]["learning_rate"],
        "schedule": config["schedule"]["kind"],
        "data_multiplier": header["raw_tokens"] / header["latent_tokens"],
        "flops": header["flops"]["total"],
        "training_seconds": seconds,
        "tokens_per_second": last["raw_tokens"] / seconds if seconds else None,
        "epochs": last.get("epochs"),
        "last_train_loss": last.get("loss"),
        "last_train_loss_name": last.get("loss_name"),
        "eval_tokens": final.get("tokens"),
        "evaluated_step": final.get("step"),
        "evaluated_phase": final.get("phase"),
        "annealed": bool(final.get("annealed")),
        "optimal_nats_per_token": optimum,
        "exclusion": "",
        "dropped_rows": record.dropped_rows,
        "segments": len(record.segments),
        "code": ", ".join(_distinct(map(_code, record.segments))),
        "devices": ", ".join(_distinct(f"{some['count']} × {some['name']}" for some in used)),
        "device_count": used[-1]["count"] if used else None,
        "config": _text(config),
        "data": _text(header["data"]),
        "launches": _text([{k: one.get(k) for k in FACTS} for one in record.segments]),
        "folder": str(record.folder),
    }


def of_config(config: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that follow from a run's config and data alone: those of its setting, and
    the keys `group` and `family`, which it shares with the runs that it may be compared with. A
    family joins groups that differ in steps and warm-up alone.

    They are computed anew for the runs of an archive when it is read, so that its runs can be
    compared with runs of a later version of this package.
    """
    setting = SuperpositionSetting.from_config(config)
    if any(config.get(key) for key in RIVALS):  # then runs of equal total FLOPs are one group
        flops = count_flops(from_record(config))
        steps = {"steps": round(flops.total / flops.per_step)}
        config = {**config, "schedule": {**config["schedule"], **steps}}
    form = identity_form(config, data, VARIED)
    rest = {k: v for k, v in form["schedule"].items() if k not in ("steps", "warmup_steps")}
    family = {**form, "schedule": rest}
    return {**columns_of(setting), "group": digest(form)[:12], "family": digest(family)[:12]}


def _evaluations(record: RunRecord) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = [*record.evals]
    for task in record.tasks:
        shared = {**task, "eval_set": task["data"]}
        rows += (
            {**shared, "metric": name, "value": value, "standard_error": error}
            for name, value, error in measures(task["metrics"])
        )
    return rows


def _text(value: Any) -> str | None:
    """Return a value as JSON, or None for None. A text that begins with `/`, `~` or `..`, also
    after `hf:`, is taken for a path and cut to its last name, because tables must not tell where
    files lay."""
    text = json.dumps(value, separators=(",", ":"))
    return None if value is None else _PLACE.sub(_last_name, text)


_PLACE = re.compile(rf'(?<!\\)"(?:{HUGGING_FACE})?(?:/|~|\.\.)(?:[^"\\]|\\.)*"(?!:)')
"""A value that is taken for a path, in JSON without spaces."""


def _last_name(place: re.Match[str]) -> str:
    path: str = json.loads(place[0])
    scheme = HUGGING_FACE * path.startswith(HUGGING_FACE)
    return json.dumps(scheme + Path(path.removeprefix(scheme)).name)


def _code(segment: dict[str, Any]) -> str:
    code = segment.get("code") or {}
    changed = "+" if code.get("dirty") else ""
    return f"{code['commit'][:12]}{changed}" if code.get("commit") else ""


def _corpus(config: dict[str, Any], generated: bool) -> str:
    if generated:
        return "generated language"
    return " + ".join(_distinct(Path(corpus["path"]).name for corpus in config["data"]["corpora"]))


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value))


def _without_embeddings(parameters: Mapping[str, int]) -> int | None:
    """Return the active parameters without both embeddings; None where these are not told."""
    ends = [parameters.get(name) for name in ("input_embedding", "output_head")]
    known = [number for number in ends if number is not None]
    return parameters["active"] - sum(known) if len(known) == len(ends) else None
