"""Logs of other trainers become the three tables, and are judged like runs of our own."""

import gzip
import itertools
import json
import lzma
import math
import re
import shlex
import shutil
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zstandard

from tests.analysis.made_runs import imported
from tests.input.answers import answer
from tst_study.analysis.questions import ask
from tst_study.analysis.tables import foreign_logs
from tst_study.analysis.tables.archive import add_to_archive
from tst_study.analysis.tables.columns import Tables
from tst_study.analysis.tables.imports import import_logs, read_facts, write_template
from tst_study.analysis.tables.source import load, read_tables
from tst_study.analysis.verdict.comparison import compare
from tst_study.errors import UserError

STEPS = (10, 20, 30)
FACTS = {
    "arm": "baseline",
    "parameters": "1000000",
    "tokens_per_step": "512",
    "steps": "30",
    "seed": "0",
    "learning_rate": "0.001",
    "corpus": "books",
    "eval_set": "books held out",
    "annealed": "true",
}


def loss(step: int) -> float:
    return 4 - step / 100


def held_out(step: int) -> float:
    return 4.1 - step / 100


def tables(source: Path, **changed: str) -> Tables:
    return import_logs([str(source)], FACTS | changed)


def torchtitan(folder: Path) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step in STEPS:
            writer.add_scalar("loss_metrics/global_avg_loss", loss(step), step)
            writer.add_scalar("validation_metrics/loss", held_out(step), step)
    return folder


def wandb_page(folder: Path) -> Path:
    """As `Export panel to CSV` writes: a file for each panel."""
    folder.mkdir()
    for key, of in (("train/loss", loss), ("val/loss", held_out)):
        values = [of(step) for step in STEPS]
        columns = {"Step": STEPS, **{f"adam - {key}{end}": values for end in ("", "__MIN")}}
        pd.DataFrame(columns).to_csv(folder / f"{key[:3]}.csv", index=False)
    return folder


def trainer_state(folder: Path) -> Path:
    from transformers import TrainerState

    states = {"checkpoint-20": 20, "checkpoint-best": 20, "checkpoint-30": 30, "": 30}
    for name, last in states.items():
        state = TrainerState(max_steps=30, global_step=last)
        for step in (step for step in STEPS if step <= last):
            state.log_history.append({"loss": loss(step), "learning_rate": 0.001, "step": step})
            state.log_history.append({"eval_loss": held_out(step), "step": step})
        state.log_history.append({"train_loss": 9.0, "train_runtime": 1.0, "step": last})
        place = folder / name  # `Trainer.save_state` writes above the checkpoints
        place.mkdir(parents=True, exist_ok=True)
        state.save_to_json(str(place / "trainer_state.json"))
    return folder


def written(folder: Path, name: str, lines: Iterable[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def lingua(folder: Path) -> Path:
    """Losses in one file; in another mean log-likelihoods, which are negative."""
    rows = [
        json.dumps({"global_step": s, "loss/out": loss(s), "optim/lr": 1e-3, "created_at": "now"})
        for s in STEPS
    ]
    written(folder, "metrics.jsonl", [*rows, '{"global_step": 40, "lo'])
    evals = [{"global_step": s, "books": {"nll_per_token": -held_out(s)}} for s in STEPS]
    (folder / "metrics.validation.jsonl").write_text("\n".join(map(json.dumps, evals)))
    return folder


def json_lines(folder: Path) -> Path:
    rows = [{"step": s, "loss": loss(s), "held_out_loss": held_out(s)} for s in STEPS]
    return written(folder, "log.jsonl", [json.dumps({"seed": 0}), *map(json.dumps, rows)])


def long_parquet(folder: Path) -> Path:
    folder.mkdir()
    rows = [("one", s, "loss", loss(s)) for s in STEPS]
    rows += [("one", s, "val_loss", held_out(s)) for s in STEPS]
    frame = pd.DataFrame(rows, columns=["run", "step", "key", "value"])
    frame.to_parquet(folder / "all.parquet")
    return folder


def trackio_store(folder: Path) -> Path:
    """As trackio 0.43 writes it."""
    folder.mkdir()
    known = {"run_id": "c9cf", "run_name": "adam", "timestamp": "2026-11-26T05:21:10.205328+00:00"}
    logged = [{"train/loss": loss(step), "val/loss": held_out(step)} for step in STEPS]
    rows = [
        {"id": step, **known, "step": step, "metrics": json.dumps(row).encode()}
        for step, row in zip(STEPS, logged, strict=True)
    ]
    config = {"run_id": "c9cf", "run_name": "adam", "config": '{"learning_rate": 0.001}'}
    with closing(sqlite3.connect(folder / "project.db")) as store:
        pd.DataFrame(rows).to_sql("metrics", store, index=False)
        pd.DataFrame([config]).to_sql("configs", store, index=False)
    return folder


def mlflow_store(folder: Path) -> Path:
    """As mlflow-skinny 3 writes it."""
    run = folder / "1" / "dbc886"
    for name, of in (("train/loss", loss), ("val/loss", held_out)):
        (run / "metrics" / name).parent.mkdir(parents=True)
        rows = [f"1795670572562 {of(step)} {step}\n" for step in STEPS]
        (run / "metrics" / name).write_text("".join(rows))
    (run / "params").mkdir()
    (run / "params" / "learning_rate").write_text("0.001")
    (run / "meta.yaml").write_text(
        "end_time: 1795670572586\nrun_name: adam-0\nstart_time: 1795670572546\n"
    )
    (folder / "1" / "meta.yaml").write_text("name: opt\n")
    deleted = shutil.copytree(run, folder / "1" / "0b16d3")
    (deleted / "meta.yaml").write_text("lifecycle_stage: deleted\nrun_name: adam-1\n")
    return folder


def packed(folder: Path) -> Path:
    """A log in three parts, each packed by another program."""
    facts, *rows = (json_lines(folder) / "log.jsonl").read_text().splitlines(keepends=True)
    packers = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
    for row, (ending, pack) in zip(rows, packers.items(), strict=True):
        (folder / f"log.jsonl{ending}").write_bytes(pack((facts + row).encode()))
    (folder / "log.jsonl").unlink()
    return folder


def spreadsheet(folder: Path) -> Path:
    """As some save it: a byte-order mark and semicolons."""
    folder.mkdir()
    rows = [f"{s};{loss(s)};{held_out(s)}" for s in STEPS]
    text = "\r\n".join(["step;loss;val_loss", *rows, ";;"])
    (folder / "a.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    return folder


Rows = list[dict[str, object]]


def jsonl(folder: Path, rows: Rows) -> Path:
    return written(folder, "log.jsonl", [json.dumps(row) for row in rows])


def curve(**last: float) -> Rows:
    rows: Rows = [{"step": s, "loss": loss(s), "val_loss": held_out(s)} for s in STEPS]
    return [*rows[:-1], {**rows[-1], **last}]


FORMATS: tuple[Callable[[Path], Path], ...] = (torchtitan, wandb_page, trainer_state, lingua)
FORMATS += (trackio_store, mlflow_store, packed, spreadsheet, long_parquet)


@pytest.mark.parametrize("write", FORMATS)
def test_a_log_of_every_format_becomes_its_curve_and_its_evaluations(write, tmp_path):
    extra = {} if write is not lingua else {"nats_per_token": "books/nll_per_token"}
    found = import_logs([str(write(tmp_path / "run"))], FACTS, columns=extra)
    assert len(found.runs) == 1
    assert found.curves["step"].tolist() == list(STEPS)
    np.testing.assert_allclose(found.curves["loss"], [loss(step) for step in STEPS], rtol=1e-4)
    expected = [held_out(step) for step in STEPS]
    np.testing.assert_allclose(found.evaluations["nats_per_token"], expected, rtol=1e-4)
    assert found.runs["state"].item() == "done"
    assert found.evaluations["annealed"].tolist() == [False, False, True]
    if write in (torchtitan, trainer_state):  # whose files are called alike in every run
        assert found.runs["run_id"].item() == "run"


def test_the_first_of_several_known_names_counts(tmp_path):
    rows: Rows = [{"step": 30, "train/loss": 9.0, "loss": 3.0, "eval/loss": 8.0, "val_loss": 3.1}]
    run = tables(jsonl(tmp_path / "run", rows)).runs.iloc[0]
    assert (run["last_train_loss"], run["nats_per_token"]) == (3.0, 3.1)


def test_nanochat_prints_bits_per_byte_which_need_bytes_per_token(tmp_path):
    lines = []
    for step in STEPS:
        lines.append(f"step {step - 1:05d}/00030 (3.33%) | loss: {loss(step):.6f} | lrm: 1.00 | dt")
        lines.append(f"Step {step:05d} | Validation bpb: {held_out(step) / math.log(2) / 4:.6f}")
    log = written(tmp_path / "run", "log.txt", lines)
    with pytest.raises(UserError, match=r"'run'.*bytes_per_token"):
        tables(log)
    found = tables(log, bytes_per_token="4").evaluations
    np.testing.assert_allclose(found["nats_per_token"], [held_out(s) for s in STEPS], rtol=1e-5)
    assert found["step"].tolist() == list(STEPS)


UNITS: dict[str, Callable[[float], float]] = {
    "bits": lambda nats: nats / math.log(2),
    "perplexity": math.exp,
}


@pytest.mark.parametrize("unit", UNITS)
def test_losses_in_another_unit_are_converted_when_asked(unit, tmp_path):
    """Both losses or one of them, and whether the log counts its steps from 1 or 0."""
    rows: Rows = [{"step": s - 1, "loss": UNITS[unit](3.2), "val": UNITS[unit](3.0)} for s in STEPS]
    log, facts = str(jsonl(tmp_path / "run", rows)), FACTS | {"bytes_per_token": "4"}
    named = {"nats_per_token": "val"}
    for given, training in (([unit], 3.2), ([f"nats_per_token={unit}"], UNITS[unit](3.2))):
        found = import_logs([log], facts, columns=named, unit=given, steps_from=0)
        assert found.curves["step"].tolist() == list(STEPS)
        np.testing.assert_allclose(found.curves["loss"], training)
        np.testing.assert_allclose(found.evaluations["nats_per_token"], 3.0)
        assert found.evaluations["annealed"].tolist() == [False, False, True]
    said = [line for line in import_logs([log], facts, columns=named).problems if "guess" in line]
    assert bool(said) == (unit == "perplexity")  # bits cannot be told from a poor model's nats
    with pytest.raises(UserError, match="--unit 'hartleys'"):
        import_logs([log], FACTS, unit=["hartleys"])
    with pytest.raises(UserError, match=rf"step 30: nats_per_token -3\.4 cannot be in {unit}"):
        import_logs([str(jsonl(tmp_path / "x", curve(val_loss=-3.4)))], facts, unit=[unit])


def test_of_a_step_written_twice_the_later_counts_and_how_many_is_said(tmp_path):
    before: Rows = [{"step": s, "loss": 9.0} for s in (20, 30)]
    jsonl(tmp_path / "run", before).joinpath("log.jsonl").rename(tmp_path / "run" / "9.jsonl")
    written(tmp_path / "run", "10.jsonl", map(json.dumps, curve()))
    found = import_logs([f"run={tmp_path / 'run'}"], FACTS)
    assert found.curves["loss"].tolist() == [loss(step) for step in STEPS]
    assert "run: 2 steps written twice; the later counts" in found.problems
    written(tmp_path / "run", "11.jsonl", map(json.dumps, before[:1]))
    problems = import_logs([f"run={tmp_path / 'run'}"], FACTS).problems
    assert any("and ends before the earlier one, at step 20" in line for line in problems)


def test_two_foreign_optimizers_get_a_verdict(tmp_path):
    """Arms are named by folders, seeds by a filled-in template; each arm keeps its own rate."""
    logs, archive = tmp_path / "logs", tmp_path / "muon"
    for arm, rate, gain in (("adamw", 1e-3, 0.0), ("muon", 2e-2, 0.05)):
        (logs / arm).mkdir(parents=True)
        for seed in range(4):
            noise = 0.002 * (seed - 1.5) * (1 if arm == "muon" else -1)
            own = {"lr": rate, "val_loss": held_out(30) - gain + noise}
            rows = [{**row, **own, "loss": row["loss"] - gain + noise} for row in curve()]
            jsonl(logs / arm / f"seed{seed}", rows)
    page = (Path(__file__).parents[2] / "docs" / "import.md").read_text("utf8")
    (block,) = re.findall(r"```bash\n(tst-study import logs .*?)```", page, re.DOTALL)
    for line in block.replace("steps=5000", "steps=30").splitlines():
        if words := shlex.split(line, comments=True)[1:]:
            assert answer(words, tmp_path).status == 0
        else:
            filled = pd.read_csv(tmp_path / "runs.csv").assign(seed=[*range(4), *range(4)])
            filled.to_csv(tmp_path / "runs.csv", index=False)
    assert (tmp_path / "report" / "report.html").exists()
    stored = pd.read_parquet(archive / "runs.parquet")
    assert set(stored["learning_rate"]) == {1e-3, 2e-2}
    assert set(stored["arm"]) == {"baseline", "muon"}
    (row,) = compare(read_tables(archive).runs).table.to_dict("records")
    assert (row["setting"], row["seeds"], row["verdict"]) == ("muon", 4, "better")
    assert row["gain"] == pytest.approx(0.05)
    assert row["low"] < 0.05 < row["high"]
    with pytest.raises(UserError, match="no superposed run"):
        ask("bag-size", archive)


def test_one_table_of_final_losses_is_compared_and_fitted(tmp_path):
    """Every fact is a column: nothing is asked beside it."""
    random, rows = np.random.default_rng(0), []
    for seed in range(3):
        for bag in (1, 2, 4, 6, 8, 12):
            gain = 0.05 - 0.02 * np.log(bag / 5) ** 2 if bag > 1 else 0.0
            row = {"loss": 3.2 - gain + 0.01 * seed + 0.001 * random.standard_normal()}
            row |= {"params": 2.7e8, "tokens": 4.2e10, "steps": 20_000, "seed": seed}
            rows.append({**row, "bag_size": bag, "step_ratio": 0.3 * (bag > 1)})
    archive = imported(tmp_path, pd.DataFrame(rows))
    table = ask("comparison", archive).tables["Verdicts"]
    assert (len(table), set(table["seeds"])) == (5, {3})
    assert (table["gain"] > 0).all()
    path = tmp_path / "runs.csv"
    pd.DataFrame(rows).to_csv(path)
    with pytest.raises(UserError, match="annealed: missing"):
        import_logs([str(path)], {})
    decayed = {"annealed": "true"}
    assert set(compare(import_logs([str(path)], decayed).runs).table["seeds"]) == {3}
    some = pd.DataFrame(rows).assign(learning_rate=[1e-3] * 9 + [None] * 9)
    some.to_csv(path)
    with pytest.raises(UserError, match="learning_rate not known; give --set learning_rate="):
        import_logs([str(path)], decayed)
    some[some["bag_size"] == 1].assign(arm=["baseline", "muon", "other"]).to_csv(path)
    assert len(import_logs([str(path)], decayed).runs) == 3
    assert any("best" in one for one in ask("bag-size", archive).tables.values())
    unnamed = imported(tmp_path / "unnamed", pd.DataFrame(rows).drop(columns="seed"))
    found = compare(read_tables(unnamed).runs)
    assert found.table.empty
    assert found.excluded["reason"].str.contains("give each its own seed").all()


def test_what_cannot_be_compared_is_said_when_it_is_imported(tmp_path):
    rows: Rows = [{"step": step, "loss": loss(step)} for step in range(30)]
    log = jsonl(tmp_path / "run", rows)
    with pytest.raises(UserError, match=r"--column nats_per_token 'val/ce' is not known; .*loss"):
        import_logs([str(log)], FACTS, columns={"nats_per_token": "val/ce"})
    with pytest.raises(UserError, match=r"mode: .*output_only"):
        import_logs([str(log)], FACTS | {"mode": "outputonly"})
    said = import_logs([str(log)], FACTS).problems
    assert any("no held-out loss in run" in line and "--column" in line for line in said)
    assert any("run (29 of 30)" in line and "--steps-from 0" in line for line in said)


NO_LOGS = {"nowhere": "nowhere", "run=": "run=: no such file", "empty": "empty", "cut": "Trunc"}
NO_LOGS |= {"broken": "jsonl, line 1", "with .aim": "Aim.*query_metrics"}
NO_LOGS |= {"with mlflow.db": "get_metric_history"}


@pytest.mark.parametrize(("source", "words"), NO_LOGS.items())
def test_what_is_no_log_is_refused_by_name_and_a_store_with_its_export(source, words, tmp_path):
    for store in (".aim", "mlflow.db"):
        (tmp_path / f"with {store}" / store).mkdir(parents=True)
    written(tmp_path / "empty", "notes.txt", ["nothing"])
    written(tmp_path / "broken", "metrics.jsonl", ['{"step": 1, "lo', '{"step": 2, "loss": 1}'])
    cut = packed(tmp_path / "cut") / "log.jsonl.zst"
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises(UserError, match=words):
        tables(tmp_path / source)


def test_the_line_of_a_printed_number_that_is_none_is_named(tmp_path):
    log = written(tmp_path, "train.log", [*"." * 30, "at 1 of 9 was 1e"])
    with pytest.raises(UserError, match=r"train.log, line 31, loss: '1e' is not a number"):
        import_logs([str(log)], FACTS, lines=[r"at (?P<step>\d+) of 9 was (?P<loss>\S+)"])


def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch):
    log = torchtitan(tmp_path / "run")
    for name in {name for name in sys.modules if name.partition(".")[0] == "tensorboard"}:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        tables(log)


@pytest.mark.parametrize(
    ("rows", "state", "said"),
    [
        (curve(loss=math.nan), "diverged", "diverged (loss not finite at the end): run"),
        (curve(val_loss=math.inf), "diverged", "diverged"),
        ([*curve()[:1], *({**row, "val_loss": math.nan} for row in curve()[1:])], "done", ""),
        (curve(val_loss=math.nan), "diverged", "diverged"),
        ([{"step": s, "val_loss": 4.0 if s == 10 else math.nan} for s in STEPS], "diverged", ""),
        (curve()[:-1], "failed", "ends before the last step: run (20 of 30)"),
        ([*curve(), {"step": 40, "loss": 3.0}], "done", "goes on after the last step: run (40"),
    ],
)
def test_how_a_run_ended_follows_from_its_log(rows, state, said, tmp_path):
    found = tables(jsonl(tmp_path / "run", rows))
    assert found.runs["state"].item() == state
    assert not said or any(said in line for line in found.problems), found.problems


@pytest.mark.parametrize(("mode", "factor"), [("full", 4), ("input_only", 4), ("output_only", 1)])
def test_counters_follow_from_bags_and_the_switch(mode, factor, tmp_path):
    known = {key: value for key, value in FACTS.items() if key != "arm"}
    known |= {"bag_size": "4", "step_ratio": "0.5", "mode": mode}
    found = import_logs([str(json_lines(tmp_path / "run"))], known)
    assert found.runs["arm"].item().startswith("s = 4, r = 0.5")
    assert found.curves["phase"].tolist() == ["superposition", "recovery", "recovery"]
    steps = [factor * 10, factor * 15 + 5, factor * 15 + 15]
    assert found.curves["raw_tokens"].tolist() == [512 * step for step in steps]
    assert found.curves["flops"].iloc[-1] == 6 * 1_000_000 * 512 * 30
    assert found.curves["loss_name"].tolist() == ["bag loss", "next_token", "next_token"]


def test_what_is_set_beats_the_runs_csv_and_that_the_log(tmp_path):
    log = jsonl(tmp_path / "run", [{"study": "of the log", "batch": "of the log"}, *curve()])
    (tmp_path / "runs.csv").write_text("run,study,batch\nrun,of the row,of the row\n")
    found = import_logs([str(log)], FACTS | {"study": "as set"}, tmp_path / "runs.csv").runs
    assert (found["study"].item(), "of the row" in found["group"].item()) == ("as set", True)


def test_a_template_is_never_written_over_a_file(tmp_path):
    log = str(json_lines(tmp_path / "run"))
    assert write_template(tmp_path / "runs.csv", [log], {}) == 1
    with pytest.raises(UserError, match=r"runs\.csv: exists"):
        write_template(tmp_path / "runs.csv", [log], {})
    text = (tmp_path / "runs.csv").read_text()
    (tmp_path / "runs.csv").write_bytes(b"\xef\xbb\xbf" + text.replace(",", ";").encode())
    assert read_facts(tmp_path / "runs.csv") == {"run": {"seed": "0"}}


def test_how_long_a_run_was_trained_is_kept(tmp_path):
    line = "step:{}/30 train_loss:3.5000 train_time:{}ms step_avg:1.00ms"
    lines = [line.format(step, 100 * step) for step in STEPS]
    run = tables(written(tmp_path / "modded", "log.txt", lines)).runs.iloc[0]
    assert run["training_seconds"] == 3.0
    assert run["tokens_per_second"] == 512 * 30 / 3.0
    untimed = [re.sub(r"train_time:\S+ ", "train_time:0ms ", line) for line in lines]
    run = tables(written(tmp_path / "untimed", "log.txt", untimed)).runs.iloc[0]
    assert run[["training_seconds", "tokens_per_second"]].isna().all()


def test_a_checkpoint_that_is_named_counts_though_others_came_later(tmp_path):
    """`test_a_log_of_every_format_…` has the last of several."""
    one = trainer_state(tmp_path / "run") / "checkpoint-20"
    assert tables(one).curves["step"].max() == 20


def test_runs_of_an_arm_that_end_early_count_as_diverged_at_its_rate(tmp_path):
    """The second arm has a higher rate; two of its runs diverge, one of them in the warm-up."""
    rows = []
    for seed, (arm, rate) in itertools.product(range(5), (("baseline", 1e-3), ("muon", 3e-3))):
        lost = arm == "muon" and seed > 2
        low = (0.2 if seed == 3 else 1.0) if lost else 1.0
        log: Rows = [{"learning_rate": low * rate, **row} for row in curve()]
        for row in log if lost else []:
            row.pop("val_loss")
        log[-1] |= {"loss": math.nan} if lost else {"val_loss": 3.2 + 0.1 * seed - 10 * rate}
        place, known = jsonl(tmp_path / f"{arm}{seed}", log), FACTS | {"baseline": "baseline"}
        known.pop("learning_rate")
        rows.append(import_logs([str(place)], known | {"arm": arm, "seed": str(seed)}))
    for found in rows:
        add_to_archive(tmp_path / "archive", found)
    (verdict,) = compare(load(tmp_path / "archive")).verdicts.to_dict("records")
    assert (verdict["seeds"], verdict["diverged"]) == (3, 2)
    assert verdict["verdict"] == "unstable"


def test_runs_without_a_seed_are_left_out_beside_runs_of_their_setting_with_one(tmp_path):
    for seed, arm in itertools.product((*map(str, range(4)), ""), ("baseline", "muon")):
        place = jsonl(tmp_path / f"{arm}{seed}", curve(val_loss=3.0 + (arm == "muon")))
        known = {k: v for k, v in (FACTS | {"arm": arm, "seed": seed}).items() if v}
        add_to_archive(tmp_path / "archive", import_logs([str(place)], known))
    found = compare(load(tmp_path / "archive"))
    assert len(found.pairs) == 4
    assert found.excluded["run_id"].tolist() == ["muon"]


def test_large_seeds_keep_all_their_digits(tmp_path):
    seeds = 2**60 + 1, 2**60 + 2
    logs = [json_lines(tmp_path / str(seed)) for seed in seeds]
    for log, seed in zip(logs, seeds, strict=True):
        add_to_archive(tmp_path / "archive", tables(log, seed=str(seed)))
    assert tuple(read_tables(tmp_path / "archive").runs["seed"]) == seeds


def test_runs_without_seeds_are_stored_without_them(tmp_path):
    known = {key: value for key, value in FACTS.items() if key != "seed"}
    pd.DataFrame(curve()).assign(seed="").to_csv(tmp_path / "a.csv", index=False)
    found = import_logs([str(tmp_path / "a.csv")], known)
    assert any("no seed is known for a: such runs" in p for p in found.problems)
    add_to_archive(tmp_path / "archive", found)
    add_to_archive(tmp_path / "archive", tables(json_lines(tmp_path / "b"), seed="7"))
    first, second = read_tables(tmp_path / "archive").runs["seed"]
    assert (math.isnan(first), second) == (True, 7)


def test_a_table_of_finished_runs_needs_size_tokens_and_loss_alone(tmp_path):
    sizes, lengths = np.meshgrid(np.geomspace(5e7, 2e9, 5), np.geomspace(1e9, 4e10, 5))
    table = pd.DataFrame({"N": sizes.ravel(), "D": lengths.ravel()}).round()
    table["loss"] = 1.8 + 480 * table["N"] ** -0.35 + 2085 * table["D"] ** -0.37
    table.to_csv(tmp_path / "runs.csv", index=False)
    found = import_logs([str(tmp_path / "runs.csv")], {})
    assert any("all count as baselines" in problem for problem in found.problems)
    assert "steps are not known: one step stands for one position" in found.problems
    add_to_archive(tmp_path / "archive", found)
    fitted = ask("chinchilla", tmp_path / "archive")
    assert any("95% intervals" in title for title in fitted.tables)
    table.assign(C=6 * table["N"] * table["D"]).drop(columns="N").rename(
        columns={"loss": "final CE"}
    ).to_csv(tmp_path / "other.csv", index=False)
    columns = {"nats_per_token": "final CE", "loss": "D"}
    named = import_logs([str(tmp_path / "other.csv")], {}, columns=columns)
    assert named.runs["last_train_loss"].tolist() == table["D"].tolist()
    assert named.runs["parameters"].tolist() == table["N"].astype(int).tolist()


def test_a_fit_that_no_run_may_enter_says_why(tmp_path):
    rows = "N,D,loss,annealed\n" + "1e8,2e9,3.0,false\n" * 3
    (tmp_path / "runs.csv").write_text(rows)
    add_to_archive(tmp_path / "archive", import_logs([str(tmp_path / "runs.csv")], {}))
    for question in ("chinchilla", "compute", "bag-size"):
        with pytest.raises(UserError, match=r"3 runs left out: .*not annealed"):
            ask(question, tmp_path / "archive")


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("run,step,loss\nr,30,1\n", "run,step,loss\nr,30,2\n", r"is in .*a\.csv and .*b\.csv"),
        ("run,step,loss\nr,10,1\nr,20,1\n", "run,tokens,loss\nr,9e4,2\nr,1e5,2\n", "is in .*a"),
        ("run,N,D,loss\nr,1e8,1e9,3\nr,1e8,1e9,4\n", "", "line 3: run 'r' is also in .*line 2"),
        ('"x - loss","Step","x - loss"\n1,1,2\n', "", "column 'x - loss' is there twice"),
        ("step;val_loss\n30;3,456\n", "", r"'3,456' is not a number \(with a decimal point\)"),
        ("step;val_loss;lr\n30;3.456;0,001\n", "", "lr: '0,001' is not a number"),
    ],
)
def test_what_cannot_be_one_runs_log_is_refused(one, other, words, tmp_path):
    for name, text in (("a", one), ("b", other)):
        (tmp_path / f"{name}.csv").write_text(text)
    with pytest.raises(UserError, match=words):
        import_logs([str(tmp_path)], FACTS)


def test_logs_of_a_restart_and_tables_that_got_one_name_are_one_run(tmp_path):
    log = json_lines(tmp_path / "run") / "log.jsonl"
    log.with_name("log.jsonl.gz").write_bytes(gzip.compress(b'{"step": 10, "loss": 9.0}\n'))
    assert len(tables(tmp_path / "run").runs) == 1
    for name, value in (("a", 2), ("b", 3)):
        (tmp_path / f"{name}.csv").write_text(f"step,loss\n30,{value}\n")
    named = import_logs([f"r={tmp_path / name}.csv" for name in "ab"], FACTS)
    assert named.curves["loss"].tolist() == [3]


def test_logs_behind_links_are_read_once_and_hidden_copies_not(tmp_path):
    logs = written(tmp_path / "logs", "notes.txt", [])
    for place in (logs / "run", logs / ".ipynb_checkpoints", tmp_path / "far"):
        jsonl(place, curve())
    for link, to in {"far": "../far", "a": "run", "run/up": "..", "run/a": "log.jsonl"}.items():
        (logs / link).symlink_to(to)
    assert tables(logs).runs["run_id"].tolist() == ["far", "run"]
    (logs / "gone.csv").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"gone\.csv: is a link that leads nowhere"):
        tables(logs)


def test_runs_of_one_name_from_two_places_are_refused(tmp_path):
    for place in "ab":
        (tmp_path / place).mkdir()
        json_lines(tmp_path / place / "run")
    with pytest.raises(UserError, match=r"'run'.*NAME=PATH"):
        import_logs([str(tmp_path / place / "run") for place in "ab"], FACTS)
    named = [f"{place}={tmp_path / place / 'run'}" for place in "ab"]
    assert import_logs(named, FACTS).runs["run_id"].tolist() == ["a", "b"]


def test_at_step_0_a_baseline_is_no_superposed_run(tmp_path):
    found = tables(jsonl(tmp_path / "run", [{"step": 0, "loss": 4.2, "val_loss": 4.3}, *curve()]))
    assert {*found.curves["phase"], *found.evaluations["phase"]} == {"recovery"}
    assert {*found.curves["loss_name"]} == {"next_token"}


def test_an_archive_below_a_source_is_no_log_of_it(tmp_path):
    jsonl(tmp_path, curve())
    for _ in range(2):
        add_to_archive(tmp_path / "archive", tables(tmp_path))
    assert len(read_tables(tmp_path / "archive").runs) == 1
    (tmp_path / "archive/curves.parquet").unlink()
    with pytest.raises(UserError, match=r"curves\.parquet: "):
        read_tables(tmp_path)


def test_a_missing_or_wrong_fact_or_column_is_named(tmp_path):
    log = json_lines(tmp_path / "a")
    for key in ("parameters", "tokens_per_step", "steps", "annealed"):
        known = {name: value for name, value in FACTS.items() if name != key}
        with pytest.raises(UserError, match=rf"'a'.*{key}.*--set"):
            import_logs([str(log)], known)
    with pytest.raises(UserError, match="parameters, tokens_per_step, steps, annealed: missing"):
        import_logs([str(log)], {"bag_size": "1"})
    with pytest.raises(UserError, match="'a': sed: unknown key; did you mean seed"):
        tables(log, sed="1")
    with pytest.raises(UserError, match="--column 'los' is not known; did you mean 'loss'"):
        write_template(tmp_path / "runs.csv", [str(log)], {"los": "loss"})
    with pytest.raises(UserError, match="no loss among gain"):
        tables(jsonl(tmp_path / "b", [{"step": 1, "gain": 2}]))


def table(folder: Path, text: str, name: str = "runs.csv") -> str:
    return str(written(folder, name, [text]) / name)


def amounts(source: str, *unit: str, **given: str) -> list[tuple[int, int]]:
    """Parameters and tokens of each run."""
    runs = import_logs([source], given, unit=unit).runs
    return [*zip(runs["parameters"], runs["latent_tokens"], strict=True)]


@pytest.mark.parametrize(
    ("text", "units", "read"),
    [
        ("12,1.3\n124,4.6", ("millions", "billions"), [(12e6, 1.3e9), (124e6, 4.6e9)]),
        ("0.124,2.5\n0.35,7", ("billions", "billions"), [(124e6, 2.5e9), (350e6, 7e9)]),
        ("124M,2.5B\n0.35B,7e9", (), [(124e6, 2.5e9), (350e6, 7e9)]),
        ('"124,000,000","2,500,000,000"', (), [(124e6, 2.5e9)]),
        ("633111399.9,1579500858.99", (), [(633111400, 1579500859)]),
        ("5000,20000", ("units", "units"), [(5000, 20000)]),
        ("1e6,20", ("1", "1e9"), [(1e6, 20e9)]),
    ],
)
def test_amounts_are_read_as_people_write_them(text, units, read, tmp_path):
    losses = "\n".join(f"{row},{3.5 - 0.1 * i}" for i, row in enumerate(text.split("\n")))
    source = table(tmp_path, f"params,tokens,loss\n{losses}\n")
    named = [f"{name}={unit}" for name, unit in zip(("parameters", "tokens"), units, strict=False)]
    assert amounts(source, *named) == read


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params,tokens\n12,1.3\n124,4.6", r"parameters 12 are few.*--unit parameters=millions"),
        ("params,tokens\n.124,2.5\n.350,7", "--unit parameters=billions"),
        ("params,tokens\n1e8,1.3\n2e8,4.6", r"tokens 1\.3 for 100M.*--unit tokens=billions"),
        ("params,tokens\n1e8,6e7\n2e8,9e7", r"tokens 6e\+07 for 100M parameters are few"),
        ("params,tokens\n1e8,2.4e18", r"tokens 2\.4e\+18 are more than all text; are they FLOPs"),
        ("params,flops\n3.5e8,3e9", r"tokens? .*|flops .*for 350M.*--unit flops=billions"),
        ("params,tokens,flops\n3.5e8,7e9,1.47e10", r"flops are 1e-09 times 6 N D.*flops=giga"),
        ("params,tokens,steps\n1e5,2.5e6,1000000", r"tokens 2,500,000 are not steps"),
    ],
)
def test_amounts_that_cannot_be_meant_are_questioned(text, words, tmp_path):
    heading, *rows = text.split("\n")
    source = table(tmp_path, "\n".join([f"{heading},loss", *(f"{row},3.0" for row in rows)]))
    with pytest.raises(UserError, match=words):
        import_logs([source], {})


def test_tokens_below_parameters_are_believed_where_flops_agree(tmp_path):
    """The small end of an IsoFLOP line, whose parameters count embeddings."""
    source = table(tmp_path, "N,D,C,loss\n7e8,5e8,1e18,3.7\n1.2e8,4e9,1e18,3.6\n")
    said = import_logs([source], {}).problems
    assert any("0.35 to 0.48 times 6 N D" in line and "2 of 2" in line for line in said), said


def test_rows_of_one_size_and_rising_tokens_are_one_run(tmp_path):
    rows = [f"{s}0_000_000,{loss(s)},{held_out(s)}" for s in STEPS]
    source = table(tmp_path, "\n".join(["tokens,train_loss,val_loss", *rows]), "log.csv")
    with pytest.raises(UserError, match="annealed"):
        import_logs([source], {"parameters": "1M"})
    known = {"parameters": "1M", "annealed": "true"}
    found = import_logs([source], known)
    assert any("are the curve of one run" in line for line in found.problems)
    (run,) = found.runs.to_dict("records")
    assert (run["latent_tokens"], run["nats_per_token"]) == (300_000_000, held_out(30))
    assert found.curves["latent_tokens"].tolist() == [s * 10_000_000 for s in STEPS]
    assert found.evaluations["annealed"].tolist() == [False, False, True]
    source = table(tmp_path, "\n".join(["tokens,loss", *(f"0.{s},3" for s in STEPS)]), "log.csv")
    known |= {"tokens_per_step": "1e6"}
    steps = import_logs([source], known, unit=["tokens=billions"]).curves["step"]
    assert steps.tolist() == [10 * s for s in STEPS]
    named = "\n".join(["run,tokens,val_loss", *(f"{r},{s}e6,3" for r in "ab" for s in STEPS)])
    assert len(import_logs([table(tmp_path, named, "two.csv")], known).runs) == 2
    single = "\n".join(["run,N,D,loss", *(f"r{s},1e6,{s}e6,3" for s in STEPS)])
    assert len(import_logs([table(tmp_path, single, "three.csv")], {}).runs) == 3


def test_a_table_does_not_say_that_its_learning_rates_had_decayed(tmp_path):
    source = table(tmp_path, "N,D,loss\n1e8,2e9,3.0\n2e8,4e9,2.9\n")
    found = import_logs([source], {})
    assert any("--set annealed=true" in line and "bends a fit" in line for line in found.problems)
    assert found.runs["annealed"].isna().all()
    add_to_archive(tmp_path / "archive", found)
    again = read_tables(tmp_path / "archive")
    assert again.runs["annealed"].isna().all()
    assert again.evaluations["annealed"].isna().all()


def test_a_sweep_and_rows_that_repeat_are_named(tmp_path):
    rows = [f"{n},2e9,{bs},{3 - n / 1e9}" for n in (1e8, 2e8) for bs in (32, 64, 64)]
    found = import_logs([table(tmp_path, "\n".join(["N,D,bs,loss", *rows]))], {})
    assert any("2 rows repeat another one, such as that of line 3" in p for p in found.problems)
    assert any("a sweep of bs" in problem for problem in found.problems)
    assert found.runs["group"].nunique() == 4


STEP_NAMES = ("trainer/global_step", "train/global_step", "global_step", "iteration")


@pytest.mark.parametrize("name", STEP_NAMES)
def test_the_trainers_own_step_goes_before_wandbs_count_of_calls(name, tmp_path):
    rows = [f"{i},{s},{loss(s)},{held_out(s)}" for i, s in enumerate(STEPS)]
    text = "\n".join([f"_step,{name},train/loss_step,eval/loss", *rows])
    found = tables(Path(table(tmp_path, text)))
    assert found.curves["step"].tolist() == list(STEPS)
    chart = [f'"{name}","a - train/loss"', *(f"{s},{loss(s)}" for s in STEPS)]
    found = tables(Path(table(tmp_path / "chart", "\n".join(chart))))
    assert found.curves["step"].tolist() == list(STEPS)


def test_the_advice_on_wandbs_own_axis_leads_to_the_right_steps(tmp_path):
    rows = [f"{i},{s},{loss(s)},{held_out(s)}" for i, s in enumerate(STEPS)]
    text = "\n".join(["_step,my step,train/loss,eval/loss", *rows])
    source = table(tmp_path, text)
    (said,) = (line for line in tables(Path(source)).problems if "ends before" in line)
    assert "calls of W&B's `log`" in said
    assert "correct `steps`" not in said
    (option,) = re.findall(r"--column (\w+)=KEY", said)
    found = import_logs([source], FACTS, columns={option: "my step"})
    assert found.curves["step"].tolist() == list(STEPS)
    assert found.runs["state"].item() == "done"


def test_names_of_columns_are_the_users_in_templates_and_tables(tmp_path):
    text = "when,tok/step,size,ce\n10,512,1M,3.9\n30,512,1M,3.7\n"
    columns = {"step": "when", "tokens_per_step": "tok/step", "parameters": "size"}
    known = {name: value for name, value in FACTS.items() if name not in columns}
    found = import_logs([table(tmp_path, text)], known, columns=columns | {"loss": "ce"})
    run = found.runs.iloc[0]
    assert (run["parameters"], run["latent_tokens"]) == (1_000_000, 512 * 30)
    text = "size;read;CE;bag;r;No.\n1M;20M;3.4;1;0;7\n1M;20M;3.3;4;0.3;7\n"
    names = {"parameters": "size", "tokens": "read", "loss": "CE", "bag_size": "bag"}
    names |= {"step_ratio": "r", "seed": "No."}
    runs = import_logs([table(tmp_path, text)], {"annealed": "true"}, columns=names).runs
    assert [*zip(runs["bag_size"], runs["nats_per_token"], strict=True)] == [(1, 3.4), (4, 3.3)]
    assert (runs["seed"].tolist(), runs["group"].nunique()) == ([7, 7], 1)
    for wrong, says in (("3.4", "3,412"), ("20M", "2,5")):  # commas for decimals
        with pytest.raises(UserError, match=f"'{says}'"):
            import_logs([table(tmp_path, text.replace(wrong, says))], {}, columns=names)


PRINTED = {
    "Megatron-LM": (
        " [2026-01-01 10:00:00] iteration {step:8d}/      30 | elapsed time per iteration: 9.0 |"
        " lm loss: {loss:.6E} | loss scale: 1.0 | number of skipped iterations:   0 |",
        " validation loss at iteration {step} | lm loss value: {held_out:.6E} | lm PPL: 9.0E+00\n"
        " validation loss at iteration 30 on test set | lm loss value: 9.0E+00 | ",
    ),
    "nanoGPT": (
        "iter {before}: loss {loss:.4f}, time 20.00ms, mfu 3.00%",
        "step {step}: train loss 9.0000, val loss {held_out:.4f}",
    ),
    "modded-nanogpt": (
        "step:{step}/30 train_loss:{loss:.4f} train_time:10ms step_avg:1.00ms",
        "step:{step}/30 val_loss:{held_out:.4f} train_time:10ms step_avg:1ms",
    ),
    "torchtitan": (
        "[titan] 2026-05-18 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:"
        "  {loss:.5f}  \x1b[0mgrad_norm:  0.83  memory:  9.46GiB(65%)",
        "[titan] - root - INFO - validate step: {step}  loss:  {held_out:.4f}  memory: 9GiB",
    ),
    "nanotron": (
        "10/17/2025 [INFO|DP=0]: iteration: {step} / 30 | consumed_tokens: 10.5M | "
        "tokens_per_sec: 22.8K | lm_loss: {loss:.4g} | lr: 0.001 | grad_norm: 1.25",
    ),
    "gpt-neox": (
        " samples/sec: 7.1 | iteration {step:8}/      30 | elapsed time per iteration (ms): 9.9 |"
        " learning rate: 1.000E-03 | lm_loss: {loss:.6E} | loss scale: 1.0 |",
        " validation results at iteration {step} | lm_loss value: {held_out:.6E} | lm_loss_ppl ",
    ),
    "OLMo": (
        "[2024-04-17 09:42:26] INFO [olmo.train:816, rank=0] [step={step}/30]\n"
        "    train/CrossEntropyLoss={loss:.4g}\n    train/Perplexity=76,631",
    ),
    "OLMo-core": (
        "2026-08-08 INFO [console_logger:68] [step={step}/30,epoch=0,eta=5h11m]\n"
        "    optim/LR=0.001\n    train/CE loss={loss:.4g}\n    train/PPL=511.9",
    ),
    "NeMo": (
        "Training epoch 0, iteration {before}/29 | lr: 0.001 | global_batch_size: 8 | "
        "global_step: {before} | reduced_train_loss: {loss:.4g} | val_loss: 9.9",
    ),
    "litgpt": (
        "Epoch 1 | iter {twice} step {step} | loss train: {loss:.3f}, val: n/a | iter time: 9 ms",
        "iter {twice}: val loss {held_out:.4f}, val time: 90.00 ms",
    ),
    "MaxText": (
        "completed step: {before}, seconds: 1.234, total_weights: 65536, loss: {loss:.3f}",
        "eval metrics after step: {before}, loss={held_out:.3f}, total_weights=65536",
    ),
    "Hugging Face": (
        "{{'loss': {loss}, 'grad_norm': 1.2, 'learning_rate': 0.001, 'epoch': {epoch:.2f}}}",
        "{{'eval_loss': {held_out}, 'eval_runtime': 3.1, 'epoch': {epoch:.2f}}}",
    ),
    "build-nanogpt": ("step {before:5d} | loss: {loss:.6f} | lr 1.0e-03 | norm: 1.2 | dt: 9ms",),
    "--line": ("at {step} of thirty the loss was {loss:.4f}; on unseen text {held_out:.4f}",),
}
LINE = r"at (?P<step>\d+) of .* was (?P<loss>[\d.]+)(; on unseen text (?P<nats_per_token>\S+))?"


@pytest.mark.parametrize("program", PRINTED)
def test_what_a_trainer_prints_is_read(program, tmp_path):
    lines = ["import torch  # a program may print itself first", "[eval_step=1/2]"]
    for step in STEPS:
        of = {"step": step, "before": step - 1, "twice": 2 * step, "epoch": step / 15}
        of |= {"loss": loss(step), "held_out": held_out(step)}
        lines += [line.format(**of) for line in PRINTED[program]]
    log = str(written(tmp_path / "run", "train.log", lines))
    found = import_logs([log], FACTS, lines=[LINE] * (program == "--line"))
    assert found.curves["step"].tolist() == list(STEPS)
    np.testing.assert_allclose(found.curves["loss"], [loss(s) for s in STEPS], rtol=1e-3)
    tells = "held_out" in "".join(PRINTED[program])
    expected = [held_out(s) for s in STEPS] if tells else []
    np.testing.assert_allclose(found.evaluations["nats_per_token"], expected, rtol=1e-3)
    assert found.runs["state"].item() == "done"


def test_a_number_that_some_lines_leave_out_is_read_from_the_others(tmp_path):
    rate = " learning rate: 1.0E-03 |"
    lines = [f"iteration {n}/ 3 |{rate * (n < 3)} lm loss: {6 - n}.0E+00 |" for n in (1, 2, 3)]
    found = import_logs([str(written(tmp_path / "run", "train.log", lines))], FACTS | {"steps": 3})
    assert found.curves["loss"].tolist() == [5.0, 4.0, 3.0]
    assert found.curves["learning_rate"].fillna(0.0).tolist() == [1e-3, 1e-3, 0.0]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("", r"epochs are rounded to 0; import its trainer_state\.json"),
        ("{'loss': 2.0 'epoch': 0.0}", r"damaged \(.*'loss': 2\.0 'epoch'.* is no dictionary\)"),
    ],
)
def test_rows_of_the_trainer_that_cannot_be_read_are_said(tmp_path, last, said):
    lines = [f"{{'loss': {loss(step)}, 'epoch': 0.0}}" for step in STEPS]
    with pytest.raises(UserError, match=said):
        import_logs([str(written(tmp_path / "run", "train.log", [*lines, last]))], FACTS)


def test_a_pattern_may_tell_digits_apart(tmp_path):
    """Lines that differ in digits alone are read alike, but not if a pattern names a digit."""
    lines = [f"phase {n} step {s} of {s}: loss {loss(s) + n}" for s in STEPS for n in (1, 2)]
    place = str(written(tmp_path / "run", "train.log", lines))
    pattern = r"phase 1 step (?P<step>\d+) .* loss (?P<loss>\S+)"
    found = import_logs([place], FACTS, lines=[pattern])
    assert found.curves["loss"].tolist() == [loss(s) + 1 for s in STEPS]


def test_a_diverged_run_of_the_trainer_prints_numbers_that_python_does_not_read(tmp_path):
    lines = [f"{{'loss': {loss(step)}, 'epoch': {step / 15:.2f}}}" for step in STEPS[:-1]]
    lines += ["{'loss': nan, 'grad_norm': inf, 'epoch': 2.0}"]
    found = import_logs([str(written(tmp_path / "run", "train.log", lines))], FACTS)
    assert found.runs["state"].item() == "diverged"
    assert found.runs["last_train_loss"].item() == loss(STEPS[-2])


def test_a_line_that_no_known_program_prints_comes_with_a_pattern_that_reads_it(tmp_path):
    log = [f"  >> Step={s:,} | total loss = {loss(s):.3f} | 3 it/s" for s in STEPS]
    place = str(written(tmp_path / "run", "out.txt", log))
    with pytest.raises(UserError, match=r"no known program prints .*Step=10") as told:
        import_logs([place], FACTS)
    (pattern,) = re.findall("--line '(.*)'", str(told.value))
    found = import_logs([place], FACTS, lines=[pattern])
    assert found.curves["step"].tolist() == list(STEPS)
    for bad, words in (("(", "no regular expression"), (r"(?P<step>\d+)", r"needs \(\?P<step>")):
        with pytest.raises(UserError, match=words):
            import_logs([place], FACTS, lines=[bad])


def test_tables_are_known_by_what_they_hold(tmp_path):
    """A JSON array of finished runs, and a log with a header whose name does not end in .csv."""
    rows = [{"parameters": n, "compute_budget": 6 * n * 1e9, "final_loss": 3.0} for n in (1e8, 2e8)]
    path = tmp_path / "isoflops.json"
    path.write_text(json.dumps(rows, indent=1))
    assert amounts(str(path)) == [(10**8, 10**9), (2 * 10**8, 10**9)]
    log = table(tmp_path, "step\tloss\n" + "".join(f"{s}\t{loss(s)}\n" for s in STEPS), "train.log")
    assert tables(Path(log)).curves["step"].tolist() == list(STEPS)


def test_csv_files_that_trainers_write_are_read(tmp_path):
    """Lightning's, with a row for each call; thousands with commas; a header written again."""
    lightning = "epoch,step,train_loss_step,train_loss_epoch,val_loss\n0,9,3.9,,\n0,29,3.7,,\n"
    lightning += "0,29,,,3.8\n0,29,,3.85,\n"
    found = import_logs([table(tmp_path, lightning, "a.csv")], FACTS, steps_from=0)
    assert found.curves["loss"].tolist() == [3.9, 3.7]
    assert found.evaluations[["step", "nats_per_token"]].to_numpy().tolist() == [[30, 3.8]]
    again = 'step,loss,val_loss\n"10",3.9,4\nstep,loss,val_loss\n"30",3.7,3.8\n'
    assert tables(Path(table(tmp_path, again, "b.csv"))).curves["step"].tolist() == [10, 30]
    commas = 'step,loss,val_loss\n"1,000",3.9,4\n"20,000",3.7,3.8\n'
    found = tables(Path(table(tmp_path, commas, "c.csv")), steps="20k")
    assert found.curves["step"].tolist() == [1000, 20_000]


def test_a_long_log_is_read_by_columns(tmp_path):
    """30,000 rows in three formats are the same curve, with progress; no object is kept for a
    cell."""
    steps = np.arange(1, 30_001)
    values = (3 + 100 / steps).round(6)
    frame = pd.DataFrame({"step": steps, "loss": values, "other": 1.5})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_json(tmp_path / "b.jsonl", orient="records", lines=True)
    lines = [
        f"step:{s}/30000 train_loss:{v} train_time:{s}ms"
        for s, v in zip(steps, values, strict=True)
    ]
    (tmp_path / "c.txt").write_text("\n".join(lines))
    rows = foreign_logs.Rows()
    for row in frame.head(100).to_dict("records"):
        rows.add(row, 1)
    assert all(isinstance(cells, array) for _, cells in rows.columns.values())
    heard: list[str] = []
    import_logs([str(tmp_path / "b.jsonl")], {**FACTS, "steps": "30000"}, said=heard.append)
    assert heard == [f"reading b.jsonl: {rows} rows (file 1 of 1)" for rows in ("0", "20,000")]
    found = [tables(path, steps="30000").curves for path in sorted(tmp_path.iterdir())]
    for curve_ in found:
        assert curve_["step"].tolist() == steps.tolist()
        np.testing.assert_allclose(curve_["loss"], values)
        assert curve_["latent_tokens"].iloc[-1] == 512 * 30_000
