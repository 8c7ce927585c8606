"""Studies at every scale; at scale `paper` they are the paper's runs to the digit."""

import csv
import shlex
from functools import cache
from pathlib import Path

import pytest

from tests.input.answers import answer
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config
from tst_study.cost.compute import count_parameters
from tst_study.errors import UserError
from tst_study.experiments.corpora import FINEWEB_EDU, Text
from tst_study.experiments.plan.layouts import Allocation, problems
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.studies import catalogue

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"
Row = dict[str, str]


@cache
def runs(name: str, scale: str) -> list[Config]:
    return catalogue.load(name, scale).runs(BestAt())


def published(file: str) -> list[Row]:
    with open(PUBLISHED / file, newline="") as lines:
        return list(csv.DictReader(lines))


def size(config: Config) -> str:
    sizes = {267_225_408: "270M", 600_208_320: "600M", 3_564_259_328: "3B"}
    return sizes[count_parameters(config.model).total]


def cell(config: Config) -> tuple[str, int, str, float, int]:
    """Return what tells a row of the published grid from the others."""
    arm, plan = config.superposition, plan_phases(config)
    return (size(config), plan.steps, str(arm.weighting), arm.step_ratio, plan.bag_size)


def test_a_layout_of_the_paper_s_scale_suits_every_optimizer():
    runs = Planner(catalogue.load("optimizers", "paper"), unprepared=True).whole()
    assert not problems(runs, lambda run: Allocation(64))


@pytest.mark.parametrize(
    ("name", "tables", "without_a_cell"), [("bag-grid", "456", 1), ("power-law", "7", 11)]
)
def test_grids_are_the_published_cells(name, tables, without_a_cell):
    """The paper prints no 600M at r = 1.0 for s = 5, and with power-law weights for s > 2."""
    cells = set()
    for row in published("final_loss_grid.csv"):
        if row["table"] in tables:
            baseline = row["bag_size"] == "1"
            weighting = "uniform" if baseline else row["bag_weighting"]
            steps, ratio = int(row["total_steps"]), float(row["step_ratio"])
            cells.add((row["params"], steps, weighting, ratio, int(row["bag_size"])))
    ours = {cell(config) for config in runs(name, "paper")}
    assert cells <= ours
    assert {(ratio) for *_, ratio, _ in ours - cells} == {1.0}
    assert len(ours - cells) == without_a_cell


def is_published(config: Config, row: Row) -> bool:
    plan = plan_phases(config)
    return (
        row["params"] == size(config)
        and int(row["total_steps"]) == plan.steps
        and int(row["bag_size"]) == plan.bag_size
        and ("reinit" in row["method"]) == config.superposition.reinitialize_at_switch
    )


@pytest.mark.parametrize("study", ["headline", "equal-cost", "reinitialise"])
def test_steps_and_tokens_are_those_of_tables_1_and_2(study):
    rows = [row for row in published("headline_runs.csv") if row["architecture"] == "dense"]
    found = []
    for config in runs(study, "paper"):
        (row,) = [row for row in rows if is_published(config, row)]
        plan = plan_phases(config)
        assert int(row["tst_steps"]) == plan.superposed_steps
        for name, steps in (("total", plan.steps), ("tst", plan.superposed_steps)):
            # Printed in billions; some are rounded there and some cut.
            assert float(row[f"{name}_tokens"]) == pytest.approx(plan.raw_tokens(steps), abs=1e9)
        found.append(row)
    if study == "headline":
        assert len(found) == len([row for row in rows if "reinit" not in row["method"]])


def test_ablations_at_scale_paper_are_those_of_figures_6_and_9():
    modes = {(c.superposition.mode, c.schedule.steps) for c in runs("input-output", "paper")}
    assert modes == {(mode, 40_000) for mode in ("full", "input_only", "output_only")}
    arms = {(c.superposition.bag_size, c.superposition.weighting)
            for c in runs("weightings", "paper")}  # fmt: skip
    drawn = ("uniform", "power_law", "exponential", "first_token")
    assert {(s, weighting) for s in (4, 16) for weighting in drawn} <= arms


class BestAt:
    """Losses by rate, lowest at another one for each optimizer."""

    def held_out(self, config: Config) -> float:
        factor = config.optimizer.learning_rate / 2e-3
        return abs(factor - {"adamw": 0.5, "muon": 2.0}[config.optimizer.kind])


ALL = [(name, scale) for name, (_, scales) in catalogue.described().items() for scale in scales]
OTHER_LENGTHS = ("mixture-10b-a1b", "rivals")
"""Studies whose arms differ in length: at equal loss, and where steps differ in cost."""


@pytest.mark.parametrize(("name", "scale"), [one for one in ALL if one[0] not in OTHER_LENGTHS])
def test_every_superposed_run_has_its_baseline_and_every_name_one_run(name, scale):
    configs = {c for c in catalogue.load(name, scale).runs(BestAt()) if c.role != "pilot"}
    shared = {"superposition", "label_smoothing", "name", "role", "execution"}
    baselines = {c.model_dump_json(exclude=shared) for c in configs if c.role == "baseline"}
    for config in configs:
        assert config.model_dump_json(exclude=shared) in baselines
        plain = not plan_phases(config).superposed_steps and not config.label_smoothing
        assert plain == (config.role == "baseline")
    assert len({config.name for config in configs}) == len(configs)
    assert {config.study for config in configs} == {name}


def test_each_optimizer_is_compared_at_the_rate_of_its_own_baseline():
    planned = catalogue.load("optimizers", "laptop").runs(BestAt())
    superposed = [config for config in planned if config.role == "superposition"]
    rates = {(config.optimizer.kind, config.optimizer.learning_rate) for config in superposed}
    assert rates == {("adamw", 1e-3), ("muon", 4e-3)}
    assert len(superposed) == 2 * 3


def test_a_hub_corpus_names_the_command_that_prepares_it():
    command = "not prepared; first: tst-study data prepare --source hf://HuggingFaceFW/fineweb-edu"
    with pytest.raises(UserError, match=command):
        FINEWEB_EDU.prepare(Path("prepared/fineweb"))


def test_a_corpus_of_a_hub_is_the_one_that_its_recipe_describes(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_text('{"text": "some of our words"}\n' * 99)
    ends = {"validation_share": 0.2, "within_documents": True, "limit_bytes": 1000}
    text = Text(name="ends", source=f"hf://{tmp_path}/hub", tokenizer="bytes", **ends)
    folder = tmp_path / "prepared"
    assert answer(shlex.split(text.command(folder))[1:], tmp_path).status == 0
    for limit in (1000, None):  # a text without a limit may be prepared in part
        text.model_copy(update={"limit_bytes": limit}).prepare(folder)
    for key, value in {
        "limit_bytes": 2000,
        "validation_share": 0.1,
        "tokenizer": "bpe:300",
    }.items():
        with pytest.raises(UserError, match=rf"another preparation \({key}: .*, now {value!r}\)"):
            text.model_copy(update={key: value}).prepare(folder)
