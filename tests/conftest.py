"""Corpora that several tests read, made once per session."""

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # a busy one takes seconds for an example
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Hide what would change outputs: GPUs, which `make gpu` checks, and the width of 80 columns
    that pytest-xdist gives its workers. One thread a process: threads wait for each other by
    spinning, and where workers share the cores, that takes most of the time."""
    os.environ.pop("COLUMNS", None)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder of a generated language of 64 words."""
    from tst_study.data.preparation.generated_language import LanguageParameters, generate

    folder = tmp_path_factory.mktemp("corpora") / "words"
    generate(folder, 20_000, 500, LanguageParameters(words=64, classes=8, topics=4))
    return folder


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder of short texts in bytes: ids below 257, each text with its end."""
    from tst_study.data.preparation.prepare import prepare
    from tst_study.data.preparation.request import Request

    folder = tmp_path_factory.mktemp("corpora")
    letters = random.Random(0)
    with open(folder / "texts.jsonl", "w") as file:
        for _ in range(500):
            text = "".join(letters.choices("abcdefgh ", k=letters.randrange(5, 60)))
            file.write(json.dumps({"text": text}) + "\n")
    to = folder / "documents"
    prepare(Request([str(folder / "texts.jsonl")], "bytes"), to)
    return to


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies whose runs read nothing: their trainer is `fake_site`'s."""
    from tests.slurm.fake_site.fake_trainer import DATA
    from tst_study.data import run_data

    monkeypatch.setattr(run_data, "fingerprints", lambda config: DATA)


@pytest.fixture
def terminal() -> Iterator[None]:
    """SIGHUP ends what is started here, as from a terminal, though the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
