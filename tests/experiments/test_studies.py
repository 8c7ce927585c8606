"""Studies at every scale; at scale `paper` they are the paper's runs to the digit."""

from __future__ import annotations

import csv
import lzma
from functools import cache
from pathlib import Path

import pytest

from tst_study.analysis.tables import source
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config
from tst_study.cost.compute import count_flops, count_parameters
from tst_study.errors import UserError
from tst_study.experiments.corpora import Books
from tst_study.experiments.studies import catalogue, data_constrained
from tst_study.experiments.studies.scales import FINEWEB_EDU, SCALES, scale_of

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"
OTHERS = ("laptop", "gate", "mixture-10b-a1b", "optimizers", "what-does-the-work", "tuned")
FIXED = [name for name in catalogue.STUDIES if name not in OTHERS]
Row = dict[str, str]


class NoResults:
    def held_out(self, config: Config) -> float | None:
        raise AssertionError("these studies decide nothing by results")


@cache
def runs(name: str, scale: str) -> list[Config]:
    return catalogue.load(name, scale).runs(NoResults())


def published(file: str) -> list[Row]:
    with open(PUBLISHED / file, newline="") as lines:
        return list(csv.DictReader(lines))


def size(config: Config) -> str:
    millions = round(count_parameters(config.model).total / 1e6)
    return {267: "270M", 600: "600M", 3564: "3B"}[millions]


def cell(config: Config) -> tuple[str, int, str, float, int]:
    """Return what tells a row of the published grid from the others."""
    superposition, plan = config.superposition, plan_phases(config)
    return (
        size(config),
        plan.steps,
        str(superposition.weighting),
        superposition.step_ratio,
        plan.bag_size,
    )


@pytest.mark.parametrize(
    ("name", "tables", "without_a_cell"), [("bag-grid", "456", 1), ("power-law", "7", 11)]
)
def test_grids_are_the_published_cells(name: str, tables: str, without_a_cell: int) -> None:
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


@pytest.mark.parametrize("name", FIXED)
def test_batch_and_schedule_at_scale_paper(name: str) -> None:
    for config in runs(name, "paper"):
        assert config.batch.sequences * config.batch.sequence_length == 2**21
        assert config.schedule.kind == "wsd"
        assert (config.schedule.warmup_steps, config.schedule.decay_ratio) == (2000, 0.1)
        assert (config.optimizer.beta1, config.optimizer.beta2) == (0.9, 0.95)
        if name not in ("learning-rates", "loss-against-compute"):
            rate = {"270M": 2e-3, "600M": 1e-3, "3B": 2e-4}[size(config)]
            assert config.optimizer.learning_rate == rate


def tokens_agree(printed: str, tokens: int) -> bool:
    """Printed in billions; some are rounded there and some cut."""
    return abs(float(printed) - tokens) < 1e9


def is_published(config: Config, row: Row) -> bool:
    plan = plan_phases(config)
    return (
        row["params"] == size(config)
        and int(row["total_steps"]) == plan.steps
        and int(row["bag_size"]) == plan.bag_size
        and ("reinit" in row["method"]) == config.superposition.reinitialize_at_switch
    )


@pytest.mark.parametrize("name", ["headline", "equal-cost", "reinitialise"])
def test_steps_and_tokens_are_those_of_tables_1_and_2(name: str) -> None:
    rows = [row for row in published("headline_runs.csv") if row["architecture"] == "dense"]
    found = []
    for config in runs(name, "paper"):
        (row,) = [row for row in rows if is_published(config, row)]
        plan = plan_phases(config)
        assert int(row["tst_steps"]) == plan.superposed_steps
        assert tokens_agree(row["total_tokens"], plan.raw_tokens(plan.steps))
        assert tokens_agree(row["tst_tokens"], plan.raw_tokens(plan.superposed_steps))
        found.append(row)
    if name == "headline":
        assert len(found) == len([row for row in rows if "reinit" not in row["method"]])


def test_equal_cost_is_what_it_says() -> None:
    base, superposed, _equal_loss, equal_data = runs("equal-cost", "paper")
    assert count_flops(base).total == count_flops(superposed).total
    plans = [plan_phases(config) for config in (superposed, equal_data)]
    assert plans[0].raw_tokens(plans[0].steps) == plans[1].raw_tokens(plans[1].steps)


def test_ablations_at_scale_paper_are_those_of_figures_6_and_9() -> None:
    assert {
        (config.superposition.mode, config.schedule.steps)
        for config in runs("input-output", "paper")
    } == {("full", 40_000), ("input_only", 40_000), ("output_only", 40_000)}
    drawn = {"uniform", "power_law", "exponential", "first_token"}
    for bag_size in (4, 16):
        arms = {
            str(config.superposition.weighting)
            for config in runs("weightings", "paper")
            if config.superposition.bag_size == bag_size
        }
        assert drawn <= arms


class BestAt:
    """Losses by rate, lowest at another one for each optimizer."""

    def held_out(self, config: Config) -> float:
        factor = config.optimizer.learning_rate / scale_of("laptop").setting.learning_rate
        return abs(factor - {"adamw": 0.5, "muon": 2.0}[config.optimizer.kind])


ALL = [(name, scale) for name, study in catalogue.STUDIES.items() for scale in study.scales]
MIXTURE = "mixture-10b-a1b"
"""Its superposed runs are shorter: equal loss is what it asks for."""


@pytest.mark.parametrize(("name", "scale"), [one for one in ALL if one[0] != MIXTURE])
def test_every_superposed_run_has_its_baseline_and_every_name_one_run(
    name: str, scale: str
) -> None:
    configs = {*catalogue.load(name, scale).runs(BestAt())}
    shared = {"superposition", "label_smoothing", "name", "role", "execution"}
    baselines = {c.model_dump_json(exclude=shared) for c in configs if c.role == "baseline"}
    for config in configs:
        assert config.model_dump_json(exclude=shared) in baselines
        plain = not plan_phases(config).superposed_steps and not config.label_smoothing
        assert plain == (config.role == "baseline")
    assert len({config.name for config in configs}) == len(configs)
    assert {config.study for config in configs} == {name}


def test_each_optimizer_is_compared_at_the_rate_of_its_own_baseline() -> None:
    planned = catalogue.load("optimizers", "laptop").runs(BestAt())
    superposed = [config for config in planned if config.role == "superposition"]
    rates = {(config.optimizer.kind, config.optimizer.learning_rate) for config in superposed}
    assert rates == {("adamw", 1e-3), ("muon", 4e-3)}
    assert len(superposed) == 2 * len(scale_of("laptop").seeds)


def test_little_text_has_as_many_tokens_as_its_epochs_are_counted_by() -> None:
    """Checked against all of the bundled prose and the token count of a committed run."""
    root = Path(__file__).parents[2]
    files = root.glob("data/books/books.train-*.jsonl.xz")
    size = sum(len(lzma.decompress(file.read_bytes())) for file in files)
    tokens = int(source.load(root / "docs/records/gate")["unique_raw_tokens"].iloc[0])
    for recipe, counted in data_constrained._texts(scale_of("desktop")):
        assert isinstance(recipe, Books)
        assert recipe.megabytes
        assert counted == pytest.approx(recipe.megabytes * 1e6 * tokens / size, rel=0.01)


def test_scales_grow() -> None:
    costs = [
        sum(count_flops(config).total for config in runs("bag-grid", scale)) for scale in SCALES
    ]
    assert costs == sorted(costs)
    assert scale_of("paper").setting.model == "270m"


def test_a_hub_corpus_names_the_command_that_prepares_it() -> None:
    command = "not prepared; first: tst-study data prepare --source hf://HuggingFaceFW/fineweb-edu"
    with pytest.raises(UserError, match=command):
        FINEWEB_EDU.prepare(Path("prepared/fineweb"))


def test_runs_in_another_folder_bring_their_corpora_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written into the `prepared/` of wherever the command was typed."""
    monkeypatch.chdir(tmp_path)
    (usual,) = catalogue.load("bag-grid", "smoke").corpora
    assert usual == Path("prepared/books-bpe1024-first1")
    elsewhere = catalogue.load("bag-grid", "smoke", tmp_path / "mine")
    assert elsewhere.folder == tmp_path / "mine"
    (made,) = elsewhere.corpora
    assert made == tmp_path / "mine" / usual
    assert {run.data.corpora[0].path for run in elsewhere.runs(BestAt())} == {str(made)}
    usual.mkdir(parents=True)
    (usual / "manifest.json").touch()
    elsewhere = catalogue.load("bag-grid", "smoke", tmp_path / "mine")
    assert set(elsewhere.corpora) == {usual}
