"""A study as a file of the user's: what a grid, a Python file and run configs mean."""

import dataclasses
import json
import math
import os
import sys
from collections import Counter
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

from tst_study.analysis.tables.archive import add_to_archive
from tst_study.analysis.tables.source import read_tables
from tst_study.analysis.verdict.question import read_questions, register
from tst_study.atomic_files import write_json
from tst_study.config.identity import fingerprint
from tst_study.config.schema import Config, to_dict
from tst_study.config.schema import load as load_config
from tst_study.cost.compute import count_flops
from tst_study.data.preparation.generated_language import LanguageParameters, generate
from tst_study.errors import UserError
from tst_study.experiments.plan.planner import Planner, prepare
from tst_study.experiments.run_process import write_config
from tst_study.experiments.state.collect import keep_existing, mark_left
from tst_study.experiments.state.plan_table import table
from tst_study.experiments.studies.catalogue import STUDIES, load
from tst_study.experiments.study import Study

RUN = """
study = "ignored"
[model]
layers = 2
hidden_size = 48
attention_heads = 3
key_value_heads = 3
head_size = 16
feed_forward_size = 128
vocabulary_size = 2000
[data]
corpora = [{path = "prepared/ours"}]
[batch]
sequences = 16
sequence_length = 64
[optimizer]
learning_rate = 2e-3
[superposition]
bag_size = 8
step_ratio = 0.5
[schedule]
steps = 200
warmup_steps = 20
"""
GRID = """
study = "ours"
asks = "Does superposition gain on our text?"
base = "run.toml"
seeds = [0, 1, 2]
[arms]
baseline = {}
both = {bag_size = [2, 4], step_ratio = [0.2, 0.3]}
output = {bag_size = [2, 4], step_ratio = [0.2, 0.3], mode = "output_only"}
[cross]
"schedule.steps" = [10_000, 20_000]
[tune]
"optimizer.learning_rate" = [2e-3, 4e-3]
per = "arm"
steps = 10_000
seeds = [100]
extend = 2
[matched]
data = true
loss = [0.5, 0.7, 1.4, 2.0]
[setups.m350]
model = {layers = 24, hidden_size = 1024, attention_heads = 16, key_value_heads = 16}
skip = true
[resources.m350]
gpus_per_node = 8
[[questions]]
family = "primary"
arm = {arm = "both", bag_size = 4, step_ratio = 0.3}
against = {arm = "baseline"}
matched = ["flops", "data", "loss"]
where = {steps = 20_000}
predicted = [-0.01, 0.02]
smallest_gain = 0.005
"""


class Bowl:
    """Losses that are lowest at one rate, for superposed arms at another."""

    def __init__(self, rate: float, superposed: float | None = None) -> None:
        self.rate, self.superposed = rate, superposed or rate
        self.told: list[str] = []

    def held_out(self, config: Config) -> float:
        best = self.superposed if config.superposition.bag_size > 1 else self.rate
        return 3 + math.log(config.optimizer.learning_rate / best) ** 2

    def dead_end(self, why: str) -> None:
        self.told.append(why)

    def remark(self, what: str) -> None:
        self.told.append(what)


def study(folder: Path, grid: str = GRID, run: str = RUN, **more: str) -> Study:
    folder.mkdir(exist_ok=True)
    (folder / "run.toml").write_text(run)
    (folder / "ours.toml").write_text(grid)
    for name, text in more.items():
        (folder / f"{name}.toml").write_text(text)
    return load(str(folder / "ours.toml"))


def ids(configs: list[Config]) -> Counter[str]:
    return Counter(fingerprint(config, {}) for config in configs)


def test_the_grid_of_a_lab_has_the_runs_that_its_page_counts(tmp_path):
    ours = study(tmp_path)
    runs = ours.runs(Bowl(2.9e-3))
    pilots = [run for run in runs if run.role == "pilot"]
    others = [run for run in runs if run.role != "pilot"]
    assert len(ids(pilots)) == 9 * 3  # with two rates one is at an edge, so a third is tried
    crossed = [run for run in others if run.schedule.steps in (10_000, 20_000)]
    assert len(ids(crossed)) == 54
    assert len(ids(others)) - len(ids(crossed)) == 39
    assert len(Planner(ours, unprepared=True).whole()) > 36 + 54 + 39  # ladders at their longest
    assert {run.study for run in runs} == {"ours"}
    assert {run.seed for run in pilots} == {100}
    assert len({run.name for run in others}) == len(ids(others))
    assert all(len(run.name) <= 80 for run in runs)
    both = study(tmp_path, GRID.replace("skip = true", ""))
    larger = [run for run in both.runs(Bowl(2.9e-3)) if run.model.layers == 24]
    assert {run.model.feed_forward_size for run in larger} == {128}  # tables merge key by key
    assert both.resources_of(larger[0]) == {"gpus_per_node": 8}
    assert both.resources_of(runs[0]) == {}


def test_every_arm_is_measured_at_its_own_best_rate(tmp_path):
    """The ladder goes on beyond its edge by √2; longer baselines take the baseline's rate."""
    ours = study(tmp_path)
    runs = ours.runs(Bowl(2e-3, superposed=1e-3))
    rates = {
        (run.superposition.bag_size > 1, run.optimizer.learning_rate)
        for run in runs
        if run.role != "pilot"
    }
    assert rates == {(False, 2e-3), (True, 9.97e-4)}
    by_baseline = study(tmp_path, GRID.replace('per = "arm"', 'per = "baseline"'))
    runs = by_baseline.runs(Bowl(2e-3, superposed=1e-3))
    assert {run.optimizer.learning_rate for run in runs if run.role != "pilot"} == {2e-3}
    assert {run.superposition.bag_size for run in runs if run.role == "pilot"} == {1}


def test_a_plan_says_nothing_of_choices_that_no_result_has_made(tmp_path):
    tuned = '[tune]\n"optimizer.weight_decay" = [0.01, 0.1, 0.3]\nseeds = [9]\n'
    planner = Planner(study(tmp_path, GRID.split("[tune]")[0] + tuned), unprepared=True)
    shown = table(planner)
    assert not [line for line in shown if "at an edge" in line or "rate" in line]
    assert any(line.endswith("not chosen yet") for line in shown)


def test_a_question_covers_the_arms_as_declared(tmp_path):
    ours = study(tmp_path)
    flops, data, loss = ours.questions
    assert (flops.family, data.family, loss.family) == (
        "primary", "primary, equal data", "primary, equal loss",
    )  # fmt: skip
    assert flops.primary
    assert flops.arm.where["superposition.step_ratio"] == 0.3
    assert "optimizer.learning_rate" not in flops.arm.where  # each at its own rate
    assert flops.arm.where["seed"] == (0, 1, 2)
    assert (flops.against.where["schedule.steps"], data.against.where["schedule.steps"]) == (
        20_000, 38_000,
    )  # fmt: skip
    assert "schedule.steps" not in loss.against.where
    assert (flops.predicted, flops.smallest_gain) == ((-0.01, 0.02), 0.005)
    assert (data.predicted, loss.smallest_gain) == (None, None)
    grid = GRID.replace('{arm = "both"', '{arm = "output"').replace('["flops", "data"', '["data"')
    assert study(tmp_path, grid).questions[0].against.where["schedule.steps"] == 20_000


def test_a_question_stays_the_same_when_the_grid_grows(tmp_path):
    before = study(tmp_path).questions
    grown = GRID.replace("both = {bag_size = [2, 4]", "both = {bag_size = [2, 4, 8]")
    assert study(tmp_path, grown).questions == before


def test_paths_start_from_the_file_wherever_the_command_is_run(tmp_path, monkeypatch):
    ours = study(tmp_path / "lab")
    assert ours.folder == tmp_path / "lab" / "runs" / "ours"
    (run, *_) = Planner(ours, unprepared=True).decided()
    assert run.config.data.corpora[0].path == str(tmp_path / "lab" / "prepared" / "ours")
    monkeypatch.chdir(tmp_path / "lab")
    here = load("ours.toml")
    (same, *_) = Planner(here, unprepared=True).decided()
    assert same.config.data.corpora[0].path == "prepared/ours"
    assert here.folder == Path("runs/ours")


def test_a_text_with_a_recipe_is_made_from_the_lab_s_file(tmp_path):
    text = '[text.ours]\nsource = "my*.jsonl"\ntokenizer = "bpe:262"\n'
    lab = tmp_path / "lab"
    ours = study(lab, GRID + text)
    lines = (f'{{"text": "{n} {"some words of ours " * 9}"}}\n' for n in range(900))
    (lab / "mytext.jsonl").write_text("".join(lines))
    ours = load(str(lab / "ours.toml"))
    prepare(ours)
    assert (lab / "prepared" / "ours" / "tokenizer.json").exists()
    assert [path.name for path in (lab / "prepared").iterdir()] == ["ours"]
    prepare(ours)
    other = '[text.ours]\nsource = "my*.jsonl"\ntokenizer = "bytes"\n'
    with pytest.raises(UserError, match=r"belongs to another .*tokenizer: 'bpe:262', now 'bytes'"):
        prepare(study(lab, GRID + other))
    (lab / "mytext.jsonl").unlink()
    prepare(ours)  # on a machine that has the token files alone


def test_scales_override_any_table_and_the_first_is_the_default(tmp_path):
    scales = "[scales.tiny]\nseeds = [7]\n[scales.tiny.cross]\n'schedule.steps' = [50]\n"
    scales += "[scales.large.arms.output]\nbag_size = 16\n"
    ours = study(tmp_path, GRID.replace("where = {steps = 20_000}", "") + scales)
    assert (ours.scale, ours.folder.name) == ("tiny", "ours-tiny")
    measured = [run for run in ours.runs(Bowl(2.9e-3)) if run.role != "pilot"]
    assert {run.seed for run in measured} == {7}
    large = load(str(tmp_path / "ours.toml"), "large").runs(Bowl(2.9e-3))
    assert {run.superposition.bag_size for run in large} == {1, 2, 4, 16}


CHOICE = """
study = "ours"
base = "run.toml"
seeds = [0, 1]
order = "setups"
[arms]
baseline = {}
both = {bag_size = 4, step_ratio = 0.3}
smoothed = {"label_smoothing.epsilon" = 0.1, "label_smoothing.last_step" = 9}
[setups]
base = {skip = true}
half = {pilot = true, tag = "half", arms = ["baseline"], batch.sequences = 8}
double = {pilot = true, arms = ["both", "baseline"], cross."optimizer.learning_rate" = [1e-3, 2e-3]}
[setups.best]
best_of = ["half", "double"]
times = {"schedule.steps" = 2.5}
name = "whole"
data.corpora = [{path = "prepared/other"}]
[[questions]]
family = "primary"
name = "gain"
arm = {arm = "both", setup = "best"}
called = ["both sides", "one token"]
registered = "00112233445566778899aabbccddeeff00112233"
[[questions]]
family = "in full"
arm = {name = "double", where = {name = "double-*"}}
against = {name = "half", where = {role = "pilot"}}
"""


def test_a_set_up_begins_from_the_best_of_others(tmp_path):
    """The one whose baselines have the lowest loss, with its crossed values."""
    runs = study(tmp_path, CHOICE).runs(Bowl(1e-3, superposed=9.0))
    measured = ["baseline", "superposition", "ablation"] * 2
    assert [run.role for run in runs] == [*["pilot"] * 10, *measured]
    assert runs[10].name == "whole-500-baseline-lr0.001-seed0"
    assert (runs[10].batch.sequences, runs[10].schedule.steps) == (16, 500)


def test_questions_find_their_runs_whichever_set_up_is_the_best(tmp_path):
    """Wherever the text lies, and without runs that differ in a section which is null elsewhere."""
    ours = study(tmp_path, CHOICE)
    asked, in_full = ours.questions
    assert (asked.name, asked.arm.name, asked.against.name) == ("gain", "both sides", "one token")
    assert asked.registered == "00112233445566778899aabbccddeeff00112233"
    assert (in_full.name, in_full.arm.where) == ("double against half", {"name": "double-*"})
    for rate in (1e-3, 2e-3):  # the second set-up; the first, at a tie
        runs = [ours.placed(run) for run in ours.runs(Bowl(rate))]
        table = pd.DataFrame({"name": [run.name for run in runs], "seed": [r.seed for r in runs]})
        table["config"] = [json.dumps(to_dict(run)) for run in runs]
        for arm, name in ((asked.arm, "both"), (asked.against, "baseline")):
            found = arm.runs(table)["name"]
            assert found.str.contains(f"whole-500-{name}").tolist() == [True, True]


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ("base = ", "[model]\nbase = ", "has [model] and arms: put the run's own keys"),
        ("bag_size = [2, 4], step_ratio = [0.2, 0.3]}\no", "bag_sise = 2}\no", "mean bag_size?"),
        ("baseline = {}", "", "[arms] has 0 baselines; exactly one arm is {}"),
        ("baseline = {}", "baseline = {}\nplain = {}", "[arms] has 2 baselines"),
        ("step_ratio = [0.2, 0.3]}\no", "step_ratio = 0.0}\no", "superposes no step"),
        ("both = {", "twin = {bag_size = 4, step_ratio = 0.3}\nboth = {", "is the same run as"),
        ('"schedule.steps" = ', '"schedule.step" = ', "key 'schedule.step' is not known; did you"),
        ("[cross]", "[cross]\nsteps = [1]", "key 'steps' is not known; did you mean sched"),
        ("[cross]", '[cross]\n"superposition.mode" = [1]', "is set by other tables; take it out"),
        ("skip = true", "seed = 1", "[setups.m350] seed is set by other tables"),
        ("[matched]\ndata = true", "[matched]", "no run has: set data = true in [matched]"),
        ('= "baseline"}', '= "output"}', "reads as much as both-s4-r0.3 in 38,000 steps"),
        ('[cross]\n"schedule.steps" = [10_000, 20_000]', "", "no arm is arm = both, bag_size"),
        ("[2, 4], step_ratio = [0.2, 0.3], mode", "2, steps = 30_000, mode", "arm output: superpo"),
        ('family = "primary"', "", "[[questions]] 1.family: missing"),
        ("[cross]", '[cross]\n"execution.threads" = [1]', "is no key to cross"),
        ("[cross]", '[cross]\n"optimizer.learning_rate" = [1.0]', "is tuned; take it out"),
        ("[10_000, 20_000]", "10_000", "[cross] schedule.steps = 10000: give a list of values"),
        ("seeds = [100]", "seeds = [2]", "2 is a seed of the measured runs too"),
        ("extend = 2", "extent = 2", "[tune] key 'extent' is not known; did you mean extend?"),
        ("skip = true", "batch = {sequences = [8]}", "a list; only a tuned key takes one"),
        ("[resources.m350]", "[resources.m35]", "did you mean 'm350'"),
        ("[resources.m350]", "[resources]", "set-up 'gpus_per_node' is not known"),
        ("gpus_per_node = 8", "gpus = 8", "[resources.m350] gpus: unknown key; there are: nodes"),
        ('arm = "both", bag_size = 4', 'arm = "both", bag_size = 5', "no arm is"),
        ('arm = "both", bag_size = 4', 'arm = "both", s = 4', "[[questions]] key 's' is not known"),
        ("seeds = [0, 1, 2]", f"seeds = {[*range(101, 5101)]}", "90,000 runs; at most 20,000"),
        ("where = {steps = 20_000}", "where = {stepps = 20_000}", "did you mean 'steps'"),
        ("seeds = [0, 1, 2]", "seeds = []", "seeds: should not be empty"),
        ("seeds = [0, 1, 2]", "seeds = [0, 0]", "one is there twice; take it out"),
        ("seeds = [0, 1, 2]", 'seeds = "0, 1"', "should be a list"),
        ("bag_size = [2, 4]", "s = [2, 4]", "did you mean bag_size?"),
        ("bag_size = [2, 4]", "bag_size = []", "[arms.both] bag_size is an empty list"),
        ('"optimizer.learning_rate"', '"optimizer.lr"', "is not known; there are: kind"),
        ("[2e-3, 4e-3]", '[2e-3, "4e-3"]', "learning_rate: '4e-3': should be a valid number"),
        ("[10_000, 20_000]", '["ten"]', "set-up base: schedule.steps: 'ten'"),
        ("loss = [0.5", "loss = [1e-9", "schedule.steps: 0: should be greater than"),
        ("[[questions]]", "[questions]", "write [[questions]]"),
        ('against = {arm = "baseline"}', 'against = {arm = "both"}', "needs one other arm"),
        ("where = {steps = 20_000}", "where = {seed = 7}", "no run has seed 7"),
        ("predicted = [-0.01, 0.02]", "predicted = [0.02, -0.01]", "give the lower end first"),
        ('base = "run.toml"', 'base = "ours.toml"', "is a grid; name a file of a run"),
        ('base = "run.toml"', 'base = "nope.toml"', "base = 'nope.toml': no such file"),
        ('["half", "double"]', '["half", "best"]', "name set-ups that stand before it"),
        ("[setups]", "[tune]\nseeds = [9]\noptimizer.beta1 = [0.9]\n[setups]", "without [tune]"),
        ('"schedule.steps" = 2.5', '"schedule.kind" = 2.5', "schedule.kind has no value here to"),
        ('where = {role = "pilot"}', 'where = {roll = "pilot"}', "did you mean 'role'?"),
    ],
)  # fmt: skip
def test_a_wrong_grid_is_refused_in_a_line(was, becomes, says, tmp_path):
    grid = GRID if was in GRID else CHOICE
    assert was in grid
    with pytest.raises(UserError) as refused:
        study(tmp_path, grid.replace(was, becomes, 1))
    assert says in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "ours.toml"))
    assert "\n" not in str(refused.value)


def test_what_is_no_study_is_refused_in_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ours.yaml").write_text("study: ours")
    Path("empty.toml").write_text("")
    Path("notes.txt").write_text("")
    study(tmp_path)
    for words, says in (
        (["ours.yaml"], "YAML is not read"),
        (["empty.toml"], "neither a grid"),
        (["notes.txt"], "nor a study in TOML or Python"),
        (["absent.toml"], "no such file; `tst-study new absent.toml` writes a grid"),
        (["ours.toml", "run.toml"], "a study of its own"),
        (["bag-gird"], "did you mean 'bag-grid'"),
    ):
        with pytest.raises(UserError, match=says):
            load(words)
    with pytest.raises(UserError, match="has no scales; leave it out"):
        load("ours.toml", "quick")
    with pytest.raises(UserError, match="a grid of runs; train them by: tst-study submit ours"):
        load_config("ours.toml")


PYTHON = """
from pathlib import Path
from helper import SEEDS
from tst_study.config.schema import SuperposedPhase
from tst_study.experiments import BASELINE, Arm, Declared, Part, Question, Setting, Tuning

BASE = Setting.read(Path(__file__).with_name("run.toml"))
S4 = SuperposedPhase(bag_size=4, step_ratio=0.3)
LADDER = tuple(BASE.in_grid("pilot").with_rate(rate) for rate in (1e-3, 2e-3, 4e-3))


def measured(best):
    longer = best[BASELINE].with_steps(best[S4].steps * 2)
    parts = [Part((best[arm],), (arm,), SEEDS) for arm in best]
    return [*parts, Part((longer,), (BASELINE,), SEEDS)]


S = [Arm(name=f"s = {s}", where={"superposition.bag_size": s}) for s in (4, 1)]
ASKED = Question(name="s = 4", family="primary", arm=S[0], against=S[1])
STUDY = Declared("Ours", "?", [Tuning((LADDER,), (BASELINE, S4), measured, [9])], [ASKED])
"""


def test_a_python_study_says_what_toml_cannot(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "ours.py").write_text(PYTHON)
    (tmp_path / "helper.py").write_text("SEEDS = [0, 1, 2]\n")
    ours = load(str(tmp_path / "ours.py"))
    runs = ours.runs(Bowl(2e-3))
    assert Counter(run.role for run in runs) == {"pilot": 6, "baseline": 6, "superposition": 3}
    assert [path.name for path in ours.files] == ["ours.py", "helper.py"]
    assert ours.folder == tmp_path / "runs" / "ours"
    assert [question.name for question in ours.questions] == ["s = 4"]
    assert load(str(tmp_path / "ours.py")).files == ours.files
    (tmp_path / "ours.py").write_text("STUDY = 1\n")
    with pytest.raises(UserError, match="STUDY is no `Declared`"):
        load(str(tmp_path / "ours.py"))
    (tmp_path / "ours.py").write_text("1 / 0\n")
    with pytest.raises(UserError, match="ZeroDivisionError: division by zero; mend the file"):
        load(str(tmp_path / "ours.py"))


def test_the_files_of_a_python_study_are_those_it_imports_wherever_it_lies(tmp_path, monkeypatch):
    """In a folder called like the package, behind a link, and beside an installed package."""
    real, linked = tmp_path / "tst_study", tmp_path / "linked"
    real.mkdir()
    linked.symlink_to(real)
    (real / "run.toml").write_text(RUN)
    (real / "ours.py").write_text(f"import installed\n{PYTHON}")
    (real / "helper.py").write_text("SEEDS = [0, 1, 2]\n")
    (real / "unused.py").write_text("")
    library = real / ".venv" / "lib"
    library.mkdir(parents=True)
    (library / "installed.py").write_text("")
    monkeypatch.setattr(sys, "prefix", str(real / ".venv"))
    monkeypatch.syspath_prepend(library)
    monkeypatch.syspath_prepend(real)
    import_module("unused")
    for folder in (real, linked):
        assert load(str(folder / "ours.py")).files == (folder / "ours.py", folder / "helper.py")
    assert [path.name for path in load("tuned").files] == ["tuned.py"]


def test_several_run_configs_are_a_study_that_shares_its_prefixes(tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    for ratio in (0.1, 0.2, 0.3, 0.4, 0.5):
        (folder / f"r{ratio}.toml").write_text(RUN.replace("0.5", f"{ratio}"))
    runs = load([str(folder)])
    assert (runs.name, len(runs.runs(Bowl(1)))) == ("ignored", 5)
    assert [run.config.role for run in Planner(runs, unprepared=True).decided()].count("trunk") == 1
    (folder / "again.toml").write_text(RUN)
    with pytest.raises(UserError, match=r"is the same run as .*again\.toml; take one out"):
        load([str(folder)])
    (folder / "again.toml").write_text(RUN.replace("ignored", "another"))
    with pytest.raises(UserError, match="give all the same"):
        load([str(folder)])


def test_a_folder_of_another_file_s_runs_is_refused(tmp_path):
    ours = study(tmp_path)
    ours.keep_files()
    assert (ours.folder / "study" / "ours.toml").read_text() == GRID
    load(str(tmp_path / "runs/../ours.toml")).keep_files()
    (tmp_path / "copy.toml").write_text(GRID)
    with pytest.raises(UserError, match=r"holds the runs of .*ours\.toml; name another --runs"):
        load(str(tmp_path / "copy.toml"))
    os.remove(tmp_path / "ours.toml")  # renamed
    load(str(tmp_path / "copy.toml")).keep_files()


def test_a_bundled_study_goes_on_under_another_installation(tmp_path):
    """Such as a new environment, with the old one still there."""
    for name, refused in (("batch", False), ("gate", True)):
        old = tmp_path / f"old/experiments/studies/{name}.toml"
        for folder in (old.parent, tmp_path / "runs/study"):
            folder.mkdir(parents=True, exist_ok=True)
        old.touch()
        write_json(tmp_path / "runs/study/study.json", {"file": str(old)})
        with pytest.raises(UserError, match="holds the runs of") if refused else nullcontext():
            load("batch", runs=tmp_path / "runs")


def test_a_question_keeps_the_registration_that_an_archive_has(tmp_path):
    """As on another machine, which has the archive and not the folder of runs."""
    ours = study(tmp_path)
    register(tmp_path / "archive", ours.questions, ours.files)
    register(ours.folder, ours.questions, ours.files, archives=[tmp_path / "archive"])
    first, again = (read_questions(folder) for folder in (tmp_path / "archive", ours.folder))
    assert [one.registration for one in first] == [one.registration for one in again]
    assert again[0].registration is not None


@pytest.mark.parametrize("name", STUDIES)
def test_bundled_studies_are_files_like_a_user_s(name):
    assert load(name).scale in ("quick", "")  # as every bundled study's default
    assert load(name).runs(Bowl(2e-3))


def test_arms_of_cheaper_steps_are_longer_until_all_have_the_same_total_flops():
    """Unless the file gives their length. The questions about them ask for those lengths."""
    rivals = load("rivals", "laptop")
    measured = [run for run in rivals.runs(Bowl(2e-3)) if run.seed == 3]
    costs = [count_flops(run) for run in measured]
    assert {round(cost.total / cost.per_step) for cost in costs} == {5000}
    asked = {one.arm.name: one.arm.where["schedule.steps"] for one in rivals.questions}
    assert asked.items() >= {
        "both, s = 4, r = 0.25": 5000, "output, s = 4, r = 0.25": 5000, "batch": 6152,
        "sequence": 6184,
    }.items()  # fmt: skip


def test_a_run_that_two_archives_hold_is_kept_once(tmp_path):
    """The archive of a study that goes on holds the older runs, too, which its `existing` names."""
    records = Path("docs/records").absolute()
    keep_existing(load("batch", runs=tmp_path / "runs", recorded=records / "batch"))
    kept = read_tables(tmp_path / "runs").runs
    assert {"tuned", "what-does-the-work"} <= {*kept["study"]}
    assert not kept["fingerprint"].duplicated().any()

    archive = read_tables(records / "batch")
    other = archive.runs.assign(nats_per_token=archive.runs["nats_per_token"] + 1e-3)
    add_to_archive(tmp_path / "other", dataclasses.replace(archive, runs=other))
    with pytest.raises(UserError, match=r"one run with two results, .*; keep the archive of one"):
        keep_existing(load("batch", runs=tmp_path / "again", recorded=tmp_path / "other"))


def test_runs_that_a_changed_file_asks_for_no_more_are_listed_until_it_asks_again(tmp_path):
    generate(tmp_path / "prepared/ours", 20_000, 4_000, LanguageParameters(words=64, classes=8))
    grid = 'study = "ours"\nbase = "run.toml"\nseeds = [0, 1]\n[arms]\nbaseline = {}\n'
    ours = study(tmp_path, grid)
    for run in Planner(ours).decided():
        write_config(run.config, run.folder)
    listed = ours.folder / "no_longer_asked.csv"
    mark_left(ours)
    assert not listed.exists()
    mark_left(study(tmp_path, grid.replace("[0, 1]", "[0]")))
    (left,) = listed.read_text().splitlines()[1:]
    assert "seed1" in left
    (tmp_path / "prepared").rename(tmp_path / "away")  # then no run can be recognised
    mark_left(study(tmp_path, grid))
    assert "seed1" in listed.read_text()
    (tmp_path / "away").rename(tmp_path / "prepared")
    mark_left(study(tmp_path, grid))
    assert listed.read_text() == "run,reason\n"
