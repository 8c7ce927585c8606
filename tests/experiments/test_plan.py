"""The plan says what a study costs and what it can show, before anything is there."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from tests.examples import example
from tests.record.test_record import DATA, evaluation, metrics
from tst_study import file_lock
from tst_study.analysis.statistics import smallest_detectable
from tst_study.analysis.verdict.question import Arm, Question
from tst_study.config.schema import Config
from tst_study.cost.devices import device_named
from tst_study.cost.prices import Prices
from tst_study.data import run_data
from tst_study.errors import UserError
from tst_study.experiments import cli
from tst_study.experiments.corpora import TopicalLanguage
from tst_study.experiments.launcher import Options, launcher_of
from tst_study.experiments.plan.layouts import Allocation
from tst_study.experiments.plan.planned_run import PlannedRun, total_flops
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import cancel_mark
from tst_study.experiments.state.plan_table import detectable, table
from tst_study.experiments.studies import catalogue
from tst_study.experiments.study import Study
from tst_study.record.writer import RunWriter, header_of


def seeded(count: int) -> list[Config]:
    return [
        example(f"superposition={{bag_size={s}, step_ratio=0.2}}", f"role={role}", f"seed={seed}",
                f"name=s{s}-seed{seed}")
        for seed in range(count)
        for s, role in ((1, "baseline"), (4, "superposition"))
    ]  # fmt: skip


def study_of(configs: list[Config], folder: Path) -> Study:
    return Study("s", "test", "Title", "Claims.", {}, lambda results: configs, folder)


def listed(text: list[str]) -> list[str]:
    """The lines of the runs, between sums and headings and the lines of the arms."""
    first = text.index("", 3) + 2
    return text[first : text.index("", first)]


def test_a_plan_lists_the_runs_that_are_asked_for_in_the_width_there_is(tmp_path):
    planner = Planner(study_of(seeded(2), tmp_path), unprepared=True)
    assert len(listed(table(planner, pattern="s4-*"))) == 2
    narrow = listed(table(planner, width=60))
    names = [line.split()[0] for line in narrow]
    assert len(set(names)) == 4
    assert table(planner, width=60, pattern="s4")[3] == "4 runs: 4 waiting"


def test_an_arm_s_tokens_are_those_of_a_whole_run_and_its_hours_those_of_all(tmp_path, monkeypatch):
    """A branch once seemed to read less text than its baseline: its own steps alone counted."""
    monkeypatch.setattr(run_data, "fingerprints", lambda config: DATA)
    configs = [
        example(f"superposition={{bag_size={s}, step_ratio={r}}}", f"seed={seed}",
                f"name=s{s}-r{r}-seed{seed}", f"role={'superposition' if r else 'baseline'}")
        for s, r in ((1, 0.0), (4, 0.2), (4, 0.3))
        for seed in range(2)
    ]  # fmt: skip
    shown = table(Planner(study_of(configs, tmp_path)), prices=Prices("H100", 0.4))
    arms = {line.split()[0]: line.split()[1:] for line in shown[-4:]}
    assert list(arms) == ["s1-r0.0", "trunk-s4-20steps", "s4-r0.2", "s4-r0.3"]
    flops = {name: float(cells[1]) for name, cells in arms.items()}
    assert flops["s4-r0.2"] + flops["trunk-s4-20steps"] == pytest.approx(flops["s1-r0.0"], 0.01)
    for name, (runs, _, hours, raw, *_, latent) in arms.items():
        assert (runs, float(hours)) == ("2", pytest.approx(flops[name] / 0.4 / 989e12 / 3600, 0.1))
        if not name.startswith("trunk"):
            ratio = float(name.rpartition("r")[2])
            assert latent == arms["s1-r0.0"][-1] == "102k"
            assert float(raw.strip("k")) == pytest.approx(102.4 * (1 + 3 * ratio), abs=1)


def test_runs_from_other_initial_weights_are_other_runs(tmp_path, monkeypatch):
    marks = {None: None, "hf:a": "1", "hf:b": "2"}
    weights = lambda config: {**DATA, "initial_weights": marks[config.fork_from]}  # noqa: E731
    monkeypatch.setattr(run_data, "fingerprints", weights)
    (config,) = seeded(1)[:1]
    configs = [config.model_copy(update={"fork_from": place}) for place in marks]
    assert len(Planner(study_of(configs, tmp_path)).decided()) == 3


@pytest.mark.usefixtures("without_data")
def test_a_plan_shows_the_states_that_status_shows(tmp_path):
    planning = Planner(study_of(seeded(1), tmp_path))
    begun = planning.decided()[0]
    RunWriter(begun.folder, header_of(begun.config, DATA)).status("running", 3)
    assert table(planning)[3] == "2 runs: 1 interrupted, 1 waiting"
    with file_lock.hold(begun.folder):
        assert table(planning)[3] == "2 runs: 1 running, 1 waiting"
    cancel_mark(begun.folder).touch()
    assert table(planning)[3] == "2 runs: 1 cancelled, 1 waiting"


@pytest.mark.usefixtures("without_data")
def test_a_run_keeps_its_folder_when_it_is_renamed_and_leaves_a_damaged_one(tmp_path):
    """`reliability.md` has it moved away, perhaps to a name in the same folder."""
    table_of_loss = 'superposition.loss={kind="mce",label_smoothing=0.1}'
    study = study_of([example("seed=1", table_of_loss)], tmp_path)
    (run,) = Planner(study).decided()
    RunWriter(run.folder, header_of(run.config, DATA)).status("running", 3)
    older = run.folder.rename(tmp_path / f"before-{run.run_id}")
    assert Planner(study).decided()[0].folder == older
    (older / "run.json").write_text("{}")
    assert Planner(study).decided()[0].folder == run.folder


def finish(run: PlannedRun, loss: float) -> None:
    writer = RunWriter(run.folder, header_of(run.config, DATA))
    segment = writer.start_segment(None, {})
    writer.metrics({**metrics(segment, 100, loss), "training_seconds": 360.0})
    writer.evaluation(evaluation(segment, 100, loss))
    writer.status("done", 100)


def test_what_seeds_detect_is_said_in_nats_and_the_other_way_round(tmp_path):
    def lines(configs: list[Config], *questions: Question, **known: float) -> list[str]:
        study = replace(study_of(configs, tmp_path), questions=questions)
        return detectable(study, Planner(study, unprepared=True).asked_for(), **known)

    first, last = lines(seeded(3))
    least = 0.011 * (smallest_detectable(3) or 0)
    assert f"1 question, 3 seeds: they detect a gain of {least:.2g} nats" in first
    assert "0.011 nats, which six of eight arms of our second campaign" in last
    more = [
        *seeded(4),
        example("superposition={bag_size=2,step_ratio=0.2}", "name=pilot", "seed=0", "role=pilot"),
        *(example("superposition={bag_size=8,step_ratio=0.2}", f"seed={n}") for n in range(3)),
    ]
    first, last = lines(more, deviation=0.1)
    wider = smallest_detectable(3, 2) or 0  # the pilot's one seed does not count
    assert f"2 questions, 3 seeds: they detect a gain of {0.1 * wider:.2g} nats" in first
    arm = Arm(name="s = 4", where={"seed": (0, 1, 2)})
    asked = [
        Question(name=name, family="f", arm=arm, against=arm, smallest_gain=0.2) for name in "ab"
    ]
    first, needed, last = lines(seeded(3), *asked, deviation=0.1)
    assert f"f: 2 questions, 3 seeds: they detect a gain of {0.1 * wider:.2g} nats" in first
    seeds = next(n for n in range(3, 99) if (smallest_detectable(n, 2) or 9) <= 2)
    assert needed.strip() == f"A gain of 0.2 nats needs {seeds} seeds."
    assert len(lines(seeded(3), *asked, deviation=0.01)) == 2  # they detect 0.2, too
    assert "Verdicts need 3" in lines(seeded(1))[0]
    assert lines(seeded(3)[::2]) == []
    # Two finished pairs leave more open than they show: the upper end of 80% counts.
    runs = Planner(study_of(seeded(3), tmp_path), unprepared=True).asked_for()
    for run in runs:
        if (seed := run.config.seed) < 2:
            finish(run, 3.0 + 0.01 * seed * (run.config.role == "baseline"))
    two = Question(
        name="two",
        family="f",
        arm=Arm(name="s", where={"role": "superposition"}),
        against=Arm(name="baseline", where={"role": "baseline"}),
    )
    most = 0.01 / 2**0.5 / stats.chi2.ppf(0.2, 1) ** 0.5
    last = lines(seeded(3), two)[-1]
    assert f"{most:.3g} nats, the most that this study's finished pairs" in last


def test_hours_that_are_known_are_said_beside_the_number_of_runs_whose_are_not(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(run_data, "fingerprints", lambda config: DATA)
    wider = [example("model.hidden_size=32", f"name=wider{i}", f"seed={i}") for i in range(2)]
    planning = Planner(study_of(seeded(1) + wider, tmp_path))
    for run in planning.asked_for()[:2]:
        finish(run, 3.0)
    (run.folder / "metrics.jsonl").write_text("{}\n")  # damage, which tells no time
    assert planning.held_out(run.config) == 3.0
    text = "\n".join(table(planning))
    assert "12.0 min of wall time, one at a time (12.0 min of training, by the runs that" in text
    assert "; hours of 2 runs not known: give --time" in text


def test_a_plan_needs_neither_corpora_nor_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = catalogue.load("equal-cost", "paper")
    text = table(Planner(chosen, unprepared=True), prices=Prices("B200", 0.4, 3.0))
    prefix, branch = listed(text)[:2]
    assert prefix.startswith("trunk-s1-32400steps-seed0-")
    assert prefix.split()[1] == "32,400"
    assert branch.split()[1] == "18,000–20,000"
    assert any("shared prefix runs save 40.0%" in line for line in text)
    assert any("GPU-hours of B200" in line and "(3 per GPU-hour)" in line for line in text)
    assert any("At 40% MFU" in line for line in text)
    head = text[: text.index("", 3)]
    assert any(", 1 seed. Verdicts need 3" in line for line in head)
    assert any(line.startswith("prepared/dclm-llama3: not prepared yet;") for line in head)


@pytest.mark.parametrize(
    ("study", "device", "ends", "source"),
    [
        ("equal-cost", "B200", (0.45, 0.24), "At 24%–45% MFU, the paper's Table 1"),
        ("mixture-10b-a1b", "GB200", (0.31, 0.20), "At 20%–31% MFU, Megatron-Bridge"),
    ],
)
def test_without_a_measured_mfu_hours_are_a_range_with_its_source(
    study, device, ends, source, tmp_path
):
    planner = Planner(catalogue.load(study, "paper", tmp_path), unprepared=True)
    text = table(planner, prices=Prices(device, per_gpu_hour=3.0))
    known, flops = device_named(device), total_flops(planner.decided()[:1])
    hours = [f"{flops / (known.peak * mfu * 3600):,.0f}" for mfu in ends]
    assert listed(text)[0].split()[3] == "–".join(hours)
    assert any(line.startswith(source) for line in text)


def test_a_layout_that_cannot_work_is_named_in_the_plan(tmp_path):
    """More ranks than sequences used to end the plan with a ZeroDivisionError."""
    planner = Planner(study_of(seeded(1), tmp_path), unprepared=True)
    for ranks in (3, 64):
        text = table(planner, lambda run, ranks=ranks: Allocation(ranks))
        (line,) = [line for line in text if "cannot be trained" in line]
        assert f"1 more cannot be trained on {ranks} ranks: batch.sequences = 16" in line


@pytest.mark.usefixtures("without_data")
def test_no_launcher_trains_what_its_layout_forbids(tmp_path):
    chosen = study_of(seeded(1), tmp_path)
    local = launcher_of("local", Options(processes=3))
    with pytest.raises(UserError, match=r"cannot be trained on 3 ranks: batch\.sequences = 16"):
        local.submit(chosen)
    assert not any(tmp_path.glob("*/job"))


def test_wall_time_follows_from_the_ranks(tmp_path):
    planner = Planner(study_of(seeded(1)[:1], tmp_path), unprepared=True)
    # As many FLOPs an hour that a run takes 10 GPU-hours.
    mfu = total_flops(planner.decided()) / (989e12 * 36000)
    text = table(planner, lambda run: Allocation(4, on_gpu=True), Prices("H100", mfu))
    (run,) = listed(text)
    assert run.split()[3] == "10"
    assert run.split()[6:8] == ["2.5", "h"]


def test_timing_prepares_the_text_first(tmp_path, monkeypatch, capsys):
    """As on a fresh checkout."""
    text = TopicalLanguage(words=64, tokens=20_000, validation_tokens=4_000)
    folder = tmp_path / "prepared" / text.name
    run = example(f"data.corpora=[{{path='{folder}'}}]", "batch.sequences=2")
    study = Study("mine", "smoke", "", "", {folder: text}, lambda results: [run], tmp_path)
    monkeypatch.setattr(catalogue, "load", lambda *names, **more: study)
    cli.plan(["mine"], time=True)
    assert re.search(r"of training, by \d+ steps", capsys.readouterr().out)
