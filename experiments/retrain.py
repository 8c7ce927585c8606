"""Train a recorded run again from what its archive says, and tell how far it comes out.

Equal bits are promised on one kind of processor only (docs/reliability.md).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tst_study.config.identity import fingerprint
from tst_study.config.schema import Config, apply_override, from_dict, of_record
from tst_study.data.run_data import fingerprints
from tst_study.errors import UserError
from tst_study.record import reader as run_record


@dataclass(frozen=True)
class Recorded:
    run_id: str
    config: Config
    """As it is trained here: from the first step, from text that lies here."""
    losses: dict[tuple[str, int], float]
    """Recorded values by kind (such as `held-out loss`) and step."""


def recorded(archive: Path, name: str, overrides: Sequence[str] = ()) -> Recorded:
    """The run of an archive that `name` begins or ends.

    Raises `UserError` where it is none or several, where its text is not here, and where overrides
    make it another run.
    """
    from tst_study.analysis.tables.columns import rows_of
    from tst_study.analysis.tables.source import read_tables

    tables = read_tables(archive)
    ids = tables.runs["run_id"]
    meant = ids.map(lambda run_id: run_id.startswith(name) or run_id.endswith(name))
    matching = tables.only((ids == name) if name in set(ids) else meant)
    if len(matching.runs) != 1:
        there = ", ".join(sorted(matching.runs["run_id"])[:5]) or "no run"
        raise UserError(f"{archive}: {name!r} names {there}; give the whole id of one run")
    (run,) = rows_of(matching.runs)
    values = of_record(json.loads(run["config"]))
    values["execution"]["fork_from"] = None
    for corpus in values["data"]["corpora"]:  # where studies put them
        name = Path(corpus["path"]).name
        places = (f"{folder}{name}" for folder in ("", "prepared/", "runs/*/prepared/"))
        found_there = (path for place in places for path in Path().glob(place) if path.is_dir())
        corpus["path"] = str(next(found_there, Path(name)))
    for override in overrides:
        apply_override(values, override)
    config = from_dict(values, source=f"{archive}: {run['run_id']}")
    if (mark := fingerprint(config, fingerprints(config))) != run["fingerprint"]:
        raise UserError(
            f"{run['run_id']}: text or settings are not those of the record ({mark[:8]}, not "
            f"{run['fingerprint'][:8]}); name its text by --set 'data.corpora=[{{path=\"…\"}}]'"
        )
    losses = {
        (what, row["step"]): row[column]
        for what, table, column in (
            ("training loss", matching.curves, "loss"),
            ("gradient norm", matching.curves, "gradient_norm"),
            ("held-out loss", matching.held_out, "nats_per_token"),
        )
        for row in rows_of(table)
    }
    return Recorded(run["run_id"], config, losses)


def compared(record: Recorded, folder: Path) -> list[str]:
    """How far the run in `folder` came out from the record: lines for a terminal."""
    again = run_record.read(folder)
    trained = {
        **{("training loss", row["step"]): row["loss"] for row in again.metrics},
        **{("gradient norm", row["step"]): row["gradient_norm"] for row in again.metrics},
        **{("held-out loss", row["step"]): row["nats_per_token"] for row in again.evals},
    }
    lines = []
    for what in dict.fromkeys(what for what, _ in record.losses):
        pairs = [
            (step, abs(value - known))
            for (kind, step), value in record.losses.items()
            if kind == what and (known := trained.get((what, step))) is not None
        ]
        far = [pair for pair in pairs if pair[1] > 0]
        words = "equal to the bit"
        if far:
            words = f"{len(far)} differ, first at step {far[0][0]:,}, by up to " + (
                f"{max(distance for _, distance in far):.2e}, at the end by {pairs[-1][1]:.2e}"
            )
        lines.append(f"{what}: {len(pairs)} rows of the record, {words}")
    return lines
