"""The parts of `tst-study retrain`, which trains a run of an archive again and compares the results
with the record: find the run, restore its config, compare.

Equal bits are promised only on the same kind of processor (docs/reliability.md).
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tst_study.analysis.tables.columns import Tables, rows_of
from tst_study.analysis.tables.source import read_tables
from tst_study.config.identity import fingerprint
from tst_study.config.schema import Config, apply_override, from_dict, of_record
from tst_study.data.run_data import fingerprints
from tst_study.data.token_file import idx_path
from tst_study.errors import UserError
from tst_study.experiments.corpora import PREPARED, by_folder
from tst_study.experiments.plan.planned_run import matches


def recorded(archive: Path, name: str) -> Tables:
    """Return the tables of one run of an archive: the only one whose id `name` matches
    (`planned_run.matches`). Raises `UserError` if no run or several runs match."""
    tables = read_tables(archive)
    chosen = tables.runs["run_id"].map(lambda run_id: matches(run_id, name)).astype(bool)
    matching = tables.only(chosen)
    if len(matching.runs) != 1:
        there = ", ".join(sorted(matching.runs["run_id"])[:5]) or "no run"
        raise UserError(f"{archive}: {name!r} names {there}; give the whole id of one run")
    return matching


def config_of(record: Tables, overrides: Sequence[str] = ()) -> Config:
    """Return the config of a recorded run, changed so that the run can be trained here: from its
    first step, even if it was forked from a shared prefix run. A corpus whose folder is missing is
    taken from `PREPARED`, where the corpora of our studies are made if they are not there yet.

    `overrides`: as for `tst-study train --set`. Raises `UserError` if a corpus is not found, or
    if the texts or the overrides make this another run than the recorded one.
    """
    (run,) = rows_of(record.runs)
    if not isinstance(run["config"], str):
        raise UserError(f"{run['run_id']}: is imported, so its config is not known; name another")
    values = of_record(json.loads(run["config"]))
    values["execution"]["fork_from"] = None
    for corpus in values["data"]["corpora"]:
        if not (Path(corpus["path"]).is_dir() or idx_path(corpus["path"]).is_file()):
            corpus["path"] = str(PREPARED / Path(corpus["path"]).name)
    for override in overrides:
        apply_override(values, override)
    config = from_dict(values, source=run["run_id"])
    known = by_folder()
    for folder in {Path(corpus.path) for corpus in config.data.corpora} & known.keys():
        known[folder].prepare(folder)
    if (mark := fingerprint(config, fingerprints(config))) != run["fingerprint"]:
        raise UserError(
            f"{run['run_id']}: text or settings are not those of the record ({mark[:8]}, not "
            f"{run['fingerprint'][:8]}); name its text by --set 'data.corpora=[{{path=\"…\"}}]'"
        )
    return config


def compared(record: Tables, folder: Path) -> list[str]:
    """Return lines that say how far the run in `folder` is from the record. Training losses,
    gradient norms and held-out losses are compared at the steps that are logged in both."""
    again = read_tables(folder)
    lines = []
    for what, table, column in (
        ("training loss", "curves", "loss"),
        ("gradient norm", "curves", "gradient_norm"),
        ("held-out loss", "held_out", "nats_per_token"),
    ):
        known, trained = (getattr(of, table).set_index("step")[column] for of in (record, again))
        apart = (known - trained).abs().dropna()
        far, words = apart[apart > 0], "equal to the bit" if len(apart) else "nothing to compare"
        if len(far):
            words = (
                f"{len(far)} differ, first at step {far.index[0]:,}, by up to {far.max():.2e}, at "
                f"the end by {apart.iloc[-1]:.2e}"
            )
        lines.append(f"{what}: {len(apart)} steps in both, {words}")
    return lines
