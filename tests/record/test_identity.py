"""A run's identity holds everything that changes its result, and nothing else."""

import json
from pathlib import Path
from typing import Annotated, Any

import pytest

from tests.examples import example
from tst_study.analysis.tables import source
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.tables.run_folders import of_config
from tst_study.config import schema as configuration
from tst_study.config.identity import fingerprint, identity_form, run_id
from tst_study.config.schema import AddedLater, Config, from_dict, of_record, to_dict

RECORDS = [
    {**row, "config": json.loads(row["config"]), "data": json.loads(row["data"])}
    for row in rows_of(source.load(Path(__file__).parents[2] / "docs" / "records"))
]
assert len(RECORDS) >= 430
DATA = {"corpora": [{"fingerprint": "ab", "weight": 1.0}], "tokenizer": "cd"}


def identity(*overrides: str, data: dict[str, Any] = DATA) -> str:
    return fingerprint(example(*overrides), data)


UNHASHED = [
    "data.corpora=[{path = 'elsewhere'}]",
    "data.validation=elsewhere",
    "execution.threads=2",
    "execution.micro_batch=4",
    "execution.parallel.tensor=2",
    "name=another",
    "study=another",
    "role=ablation",
    "data_seed=0",
    "superposition={bag_size = 4, steps = 20}",  # the same steps, said in another way
]
HASHED = [
    "seed=1",
    "data_seed=1",
    "superposition.step_ratio=0.3",
    "superposition.shuffle_targets=true",
    "label_smoothing={epsilon = 0.1, last_step = 20}",
    "schedule.steps=101",
    "numerics.dtype=bfloat16",
]


@pytest.mark.parametrize("override", [*UNHASHED, *HASHED])
def test_what_changes_the_result_is_another_run_and_nothing_else_is(override):
    assert (identity(override) == identity()) is (override in UNHASHED)
    assert identity(override) != identity(override, data={**DATA, "tokenizer": "ef"})


@pytest.mark.parametrize("header", RECORDS, ids=lambda row: row["run_id"])
def test_a_committed_record_keeps_its_id(header):
    again = from_dict(of_record(header["config"]))
    assert fingerprint(again, header["data"]) == header["fingerprint"]
    assert run_id(again, header["fingerprint"]) == header["run_id"]


def test_a_section_that_nobody_thought_of_counts():
    values = to_dict(example())
    assert identity_form({**values, "invented": {"a": 1}}, DATA) != identity_form(values, DATA)
    assert identity_form({**values, "invented": {"a": 1}}, DATA, ["invented"]) == identity_form(
        values, DATA, ["invented"]
    )


def test_a_key_added_with_its_default_changes_no_record(monkeypatch):
    """As a new version would: one key in an old section, one section that did not exist."""
    groups = [of_config(header["config"], header["data"]) for header in RECORDS]

    class LaterOptimizer(configuration.Optimizer):
        kind: Annotated[str, AddedLater("adamw")] = "muon"  # whatever its default is by then

    class Dropout(configuration.Strict):
        rate: float = 0.0

    class LaterConfig(Config):
        optimizer: LaterOptimizer
        dropout: Annotated[Dropout, AddedLater({"rate": 0.0})] = Dropout()

    monkeypatch.setattr("tst_study.config.identity.Config", LaterConfig)
    monkeypatch.setattr("tst_study.config.schema.Config", LaterConfig)
    for header, known in zip(RECORDS, groups, strict=True):
        values = of_record(header["config"])
        values["optimizer"] = {**values["optimizer"], "kind": "adamw"}
        later = configuration.from_dict(values)
        assert "dropout" in to_dict(later)
        assert fingerprint(later, header["data"]) == header["fingerprint"]
        new = {**header, "config": to_dict(later)}
        assert of_config(new["config"], new["data"]) == known
        values["optimizer"]["kind"] = "muon"
        other = configuration.from_dict(values)
        assert fingerprint(other, header["data"]) != header["fingerprint"]
