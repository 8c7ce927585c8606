"""Train runs of a record again, from their first step, and hold every loss to the recorded one.

    python -m benchmarks.retrained docs/records/gate --runs 2 --seed 1 --json again.json

The runs are drawn at random; the corpora are read where the record's runs read them. Equal to the
bit is what design asks for on one kind of processor; elsewhere the largest difference is shown.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import machine_facts
from tst_study import run_record
from tst_study.config import from_dict
from tst_study.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("record", type=Path, help="folder of run folders")
    parser.add_argument("--runs", type=int, default=2, help="how many to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--json", type=Path, help="write the result there")
    given = parser.parse_args(arguments)
    folders = [path for path in run_record.find_run_folders(given.record) if _may_be_drawn(path)]
    if not folders:
        raise UserError(f"{given.record}: no run that is over")
    drawn = random.Random(given.seed).sample(folders, min(given.runs, len(folders)))
    with (
        TemporaryDirectory() as scratch,
        ProcessPoolExecutor(len(drawn), get_context("spawn")) as pool,
    ):
        again = [Path(scratch) / folder.name for folder in drawn]
        found = list(pool.map(compare_again, drawn, again))
    for row in found:
        same = "equal to the bit" if row["equal"] else f"off by up to {row['largest']:.2e}"
        print(f"{row['run']}: {row['losses']} losses and norms, {same}")
    if given.json:
        result = {"runs": found, "machine": machine_facts()}
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["equal"] for row in found) else 1


def _may_be_drawn(folder: Path) -> bool:
    return run_record.is_over(folder) and run_record.read_header(folder)["role"] != "trunk"


def compare_again(folder: Path, again: Path) -> dict[str, Any]:
    """Losses and gradient norms of one run, recorded and trained anew into `again`."""
    from tst_study.train import train

    record = run_record.read(folder)
    config = from_dict(record.header["config"], source=str(folder))
    train(config.executed(fork_from=None), again, progress=False)
    pairs = list(_pairs(record, run_record.read(again)))
    return {
        "run": folder.name,
        "losses": len(pairs),
        "equal": all(old == new for old, new in pairs),
        "largest": max(abs(old - new) for old, new in pairs),
    }


def _pairs(record: run_record.RunRecord, again: run_record.RunRecord) -> list[tuple[float, float]]:
    """Every recorded number with its partner: a record keeps some rows of the curve."""
    trained = {row["step"]: row for row in again.metrics}
    evaluated = {row["step"]: row["nats_per_token"] for row in again.evals}
    return [
        *((row["loss"], trained[row["step"]]["loss"]) for row in record.metrics),
        *((row["gradient_norm"], trained[row["step"]]["gradient_norm"]) for row in record.metrics),
        *((row["nats_per_token"], evaluated[row["step"]]) for row in record.evals),
    ]


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
