"""One study and its report, drawn once for all tests of this folder."""

from pathlib import Path

import pytest

from tests.analysis.made_runs import write_study
from tst_study.paper_figures.build import Built, build


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def built(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(study, tmp_path_factory.mktemp("figures"), only=["study", "report"])
