"""Studies that choose by results: pairs at matched FLOPs, one rate for both arms, seeds paired."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from analysis.tables.source import load
from analysis.verdict.comparison import compare
from experiments.corpora import TopicalLanguage
from experiments.studies import catalogue, gate, laptop
from experiments.studies.scales import scale_of
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config, of_record
from tst_study.cost.compute import count_flops
from tst_study.errors import UserError


@dataclass(frozen=True)
class Known:
    """Every run is done; the baseline is best at this rate."""

    best: float

    def held_out(self, config: Config) -> float | None:
        return abs(config.optimizer.learning_rate - self.best)


class NothingYet:
    def held_out(self, config: Config) -> float | None:
        return None


def prose(runs: list[Config]) -> list[Config]:
    return [run for run in runs if "generated" not in run.name]


def test_only_the_sweeps_of_the_sizes_wait_for_results() -> None:
    decided, whole = (
        catalogue.load("laptop", "desktop").runs(results) for results in (NothingYet(), Known(4e-3))
    )
    later = {run.name for run in whole} - {run.name for run in decided}
    assert later
    assert all(name.startswith("sizes-laptop-") for name in later)


def test_both_arms_of_a_size_use_the_rate_that_its_baseline_chose() -> None:
    for rate in (1e-3, 2e-3, 4e-3):
        runs = catalogue.load("laptop", "desktop").runs(Known(rate))
        superposed = [
            run for run in runs if run.name.startswith("sizes-") and run.role != "baseline"
        ]
        assert superposed
        assert {run.optimizer.learning_rate for run in superposed} == {rate}


@pytest.mark.parametrize("scale", laptop.STUDY.scales)
def test_seeds_are_repeated(scale: str) -> None:
    seeds: dict[str, set[int]] = defaultdict(set)
    for run in catalogue.load("laptop", scale).runs(Known(4e-3)):
        seeds[run.name.rpartition("-seed")[0]].add(run.seed)
    assert all(len(found) >= 2 for found in seeds.values())


@pytest.mark.parametrize("scale", ["smoke", "quick"])
def test_short_scales_repeat_no_text(scale: str) -> None:
    for run in catalogue.load("laptop", scale).runs(Known(4e-3)):
        plan = plan_phases(run)
        # A file of the bundled books holds about 10M tokens at 1,024 words.
        language = 1_000_000 if scale == "smoke" else TopicalLanguage().tokens
        words = language if "generated" in run.name else 10_000_000
        assert plan.raw_tokens(plan.steps) <= words


def test_desktop_goes_on_from_what_laptop_has_trained() -> None:
    small, large = (
        {run.model_dump_json(exclude={"execution"}) for run in load.runs(Known(2e-3))}
        for load in (catalogue.load("laptop", scale) for scale in ("laptop", "desktop"))
    )
    assert small < large


def test_desktop_is_the_plan_of_runs() -> None:
    """docs/research/plan-of-runs.md, G1 to G6: arms, lengths and numbers of seeds."""
    runs = catalogue.load("laptop", "desktop").runs(Known(2e-3))
    grids: dict[str, list[Config]] = defaultdict(list)
    for run in prose(runs):
        grids[run.name.split("-")[0]].append(run)
    lengths = grids["lengths"]
    assert len(lengths) == 9 * 8
    assert {run.seed for run in lengths} == set(range(3, 11))
    assert {run.schedule.steps for run in lengths if run.role == "superposition"} == {
        *(5_000, 10_000, 20_000, 28_000)
    }
    reads = {
        run.schedule.steps: plan_phases(run).raw_tokens(run.schedule.steps)
        for run in lengths
        if run.role == "superposition" or run.schedule.steps == 35_000
    }
    assert reads[20_000] == reads[35_000]
    assert {run.superposition.bag_size for run in grids["bag"]} == {2, 3, 6, 8, 12, 16}
    assert {run.superposition.step_ratio for run in grids["step"]} == {0.1, 0.4, 0.6}
    assert {run.optimizer.learning_rate for run in grids["rates"]} == {5e-4, 1e-3, 4e-3}
    assert len(grids["rates"]) == 3 * 2 * 4
    assert len(grids["ablations"]) == 7 * 4
    assert {run.role for run in grids["ablations"]} == {"ablation"}
    assert {run.model.hidden_size for run in grids["sizes"]} == {32, 128}
    for name in ("rates", "bag", "step", "ablations", "little"):
        assert {run.seed for run in grids[name]} == {3, 4, 5, 6}
        assert {run.schedule.steps for run in grids[name]} == {20_000}
    assert {run.superposition.mode for run in grids["output"]} == {"output_only"}
    assert {run.seed for run in grids["output"]} == {7, 8, 9, 10}
    little = grids["little"]
    assert {str(run.data.corpora[0].path) for run in little} == {"prepared/books-bpe1024-9MB"}


def test_lengths_share_one_warm_up() -> None:
    for name in ("laptop", "gate"):
        runs = prose(catalogue.load(name, "desktop").runs(Known(2e-3)))
        assert len({run.schedule.warmup_steps for run in runs}) == 1


def test_the_gate_tries_rate_and_decay_before_heads_and_norm() -> None:
    chosen = catalogue.load("gate", "desktop")
    first = chosen.runs(NothingYet())
    rates = {(run.optimizer.learning_rate, run.schedule.decay_ratio) for run in first}
    assert rates == {(1e-3, 0.1), (1e-3, 0.3), (2e-3, 0.1), (2e-3, 0.3)}
    assert {run.seed for run in first} == set(range(3, 3 + gate.SEEDS))
    both = chosen.runs(Known(1e-3))
    more = [run for run in both if run not in first]
    assert len(more) == 3 * 2 * gate.SEEDS
    tried = {
        (run.model.attention_heads, run.model.qk_norm, run.optimizer.learning_rate) for run in more
    }
    assert tried == {(4, False, 1e-3), (2, True, 1e-3), (2, True, 2e-3)}
    assert {run.schedule.decay_ratio for run in more} == {0.1}
    baselines = [run for run in both if run.role == "baseline" and not run.model.qk_norm]
    assert len({count_flops(run).total for run in baselines}) == 1
    assert {run.schedule.steps for run in both} == {8_000}
    assert scale_of("desktop").seeds.start == 3  # 0 to 2 were looked at before


def test_the_campaign_stands_where_the_gate_chose() -> None:
    """docs/records/gate and the rule of docs/research/plan-of-runs.md."""
    runs = load(Path(__file__).parents[2] / "docs/records/gate")
    pairs = compare(runs).pairs
    chosen = pairs.groupby(["group", "learning_rate"])["baseline"].transform("mean").idxmin()
    (text,) = runs[runs["folder"] == pairs["baseline_folder"][chosen]]["config"]
    of_gate = of_record(json.loads(text))
    campaign = catalogue.load("laptop", "desktop").runs(NothingYet())[0].model_dump(mode="json")
    for section in ("model", "optimizer", "batch", "data", "numerics"):
        assert campaign[section] == of_gate[section], section
    assert {**campaign["schedule"], "steps": 8_000} == of_gate["schedule"]


def test_unknown_names_are_refused_with_what_there_is() -> None:
    with pytest.raises(UserError, match="did you mean 'laptop'"):
        catalogue.load("labtop", "quick")
    with pytest.raises(UserError, match="there are: smoke, quick, laptop, desktop"):
        catalogue.load("laptop", "paper")
