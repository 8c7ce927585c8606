"""A study of the fake trainer whose last run depends on the results of the others."""

from __future__ import annotations

import os

from tests.experiments.fake_training import config
from tst_study.config.schema import Config
from tst_study.experiments.studies.grid import Declared
from tst_study.experiments.study import Results


class Part:
    """Two rates, of which the first may fail, and a pair at the better one."""

    def runs(self, make: object, results: Results) -> list[Config]:
        first = os.environ.get("TST_STUDY_FIRST_RATE", "a")
        sweep = [config(first, "seed=1"), config("b", "seed=2")]
        is_over = None not in map(results.held_out, sweep)
        return [*sweep, *([config("pair", "seed=3")] if is_over else [])]

    def corpora(self) -> list[None]:
        return []


STUDY = Declared("A fake sweep", "Shows nothing.", lambda scale: [Part()])  # type: ignore[list-item]
