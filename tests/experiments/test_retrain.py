"""A recorded run comes out again to the bit, and the check sees the last bit of a loss."""

from pathlib import Path

import numpy as np
import pytest

from tests.tiny_runs import run
from tst_study.errors import UserError
from tst_study.experiments import corpora
from tst_study.experiments.corpora import TopicalLanguage
from tst_study.experiments.retrain import compared, config_of, recorded
from tst_study.experiments.state.collect import keep
from tst_study.train import train


def test_a_run_of_an_archive_comes_out_again_to_the_bit(words, tmp_path, monkeypatch):
    run(words, tmp_path / "runs/one", "execution.evaluate_every=6")
    (name,) = keep(tmp_path / "runs", tmp_path / "kept")
    with pytest.raises(UserError, match="no run"):
        recorded(tmp_path / "kept", "another")
    foreign = recorded(tmp_path / "kept", name)
    foreign.runs["config"] = None
    with pytest.raises(UserError, match="is imported, so its config is not known"):
        config_of(foreign)
    monkeypatch.chdir(words.parent)
    record = recorded(tmp_path / "kept", name[-8:])
    with pytest.raises(UserError, match="not those of the record"):
        config_of(record, ["seed=77"])
    train(config_of(record), tmp_path / "again", progress=False)
    said = compared(record, tmp_path / "again")
    assert len(said) == 3
    assert all(line.endswith("equal to the bit") for line in said)
    last = record.evaluations.index[-1], "nats_per_token"
    record.evaluations.loc[last] = np.nextafter(record.evaluations.loc[last], 9)
    *_, held_out = compared(record, tmp_path / "again")
    assert "1 differ" in held_out


def test_the_text_of_a_study_is_made_where_it_is_missing(tmp_path, monkeypatch):
    small = TopicalLanguage(words=64, tokens=20_000, validation_tokens=4_000)
    monkeypatch.setattr(corpora, "KNOWN", (small,))
    folder = corpora.PREPARED / small.name
    for place in ("here", "elsewhere"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    small.prepare(folder)
    run(folder, Path("runs/one"))
    (name,) = keep(Path("runs"), tmp_path / "kept")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert config_of(recorded(tmp_path / "kept", name)).data.corpora[0].path == str(folder)
    assert folder.is_dir()
