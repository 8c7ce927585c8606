"""A folder with a valid configuration and the things that paths are mistaken for."""

import os
from pathlib import Path

import pytest

from tests.examples import example
from tst_study.config.schema import to_toml


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.input)


@pytest.fixture(scope="module")
def place(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run.toml`, `file`, `folder`, `loop` (a link to itself) and `fifo`."""
    folder = tmp_path_factory.mktemp("place")
    config = example(f"data.corpora=[{{path='{words}'}}]", "model.preset='laptop-32'")
    (folder / "run.toml").write_text(to_toml(config))
    (folder / "file").write_text("x")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    return folder
