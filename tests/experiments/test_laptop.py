"""Studies that choose by results: they are what was recorded, and seeds are paired."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tst_study.analysis.tables.source import load
from tst_study.config.identity import digest, identity_form
from tst_study.config.schema import Config, from_dict, of_record, to_dict
from tst_study.experiments.studies import catalogue

RECORDS = Path(__file__).parents[2] / "docs/records"


@dataclass(frozen=True)
class Known:
    """Losses of recorded runs; of others, those of a baseline that is best at this rate."""

    best: float | None = None
    recorded: dict[str, float] = field(default_factory=dict)

    def held_out(self, config: Config) -> float | None:
        usual = None if self.best is None else abs(config.optimizer.learning_rate - self.best)
        return self.recorded.get(identity(config), usual)


def identity(config: Config) -> str:
    """But for where the text lies."""
    values = to_dict(config)
    texts = [Path(one["path"]).name for one in values["data"]["corpora"]]
    return digest(identity_form(values, {"corpora": texts}, ()))


@pytest.mark.parametrize(("record", "study"), [("gate", "gate"), ("campaign", "laptop")])
def test_a_study_is_what_was_recorded_as_its_results_came(record, study):
    """The pilot sweep and G1 to G6 of docs/research/plan-of-runs.md: every arm, length, rate and
    seed."""
    table = load(RECORDS / record).query("role != 'trunk'")
    runs = [from_dict(of_record(json.loads(one))) for one in table["config"]]
    recorded = dict(zip(map(identity, runs), table["nats_per_token"], strict=True))
    chosen = catalogue.load(study, "desktop")
    listed = {identity(run): run.role for run in chosen.runs(Known(recorded=recorded))}
    assert listed == dict(zip(map(identity, runs), table["role"], strict=True))
    before = [run for run in chosen.runs(Known()) if identity(run) not in listed]
    assert not before


def test_desktop_goes_on_from_what_laptop_has_trained():
    small, large = (
        {run.model_dump_json(exclude={"execution"}) for run in load.runs(Known(2e-3))}
        for load in (catalogue.load("laptop", scale) for scale in ("laptop", "desktop"))
    )
    assert small < large
