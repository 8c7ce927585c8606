"""The picture of context checks: paired, on equal tokens, and its intervals name what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paper_figures.catalogue import find
from paper_figures.item import Missing
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from tests.analysis.made_runs import config, write_run
from tst_study.run.writer import append_task_results

PLACES = [1, 2, 4, 8, 16, 32, 64, 128]
COUNTERS = {
    "step": 1000,
    "phase": "recovery",
    "raw_tokens": 1,
    "latent_tokens": 1,
    "flops": 1,
    "annealed": True,
}


def measured(folder: Path, level: float, data: str = "40x257-aa", step: int = 1000) -> None:
    """A run's loss by position, falling from `level`, and its word-order gain of a tenth of it."""
    spread = np.random.default_rng(0).normal(0, 0.1, (40, len(PLACES)))
    losses = level - 0.2 * np.arange(len(PLACES)) + spread
    common: dict[str, Any] = {**COUNTERS, "step": step, "data": data, "samples": 40, "seconds": 1.0}
    positions = {
        "task": "loss_by_position",
        "metrics": {},
        "details": {
            "training_length": 32,
            "tokens_read": PLACES,
            "nats_of_sequences": losses.tolist(),
        },
    }
    gain = {"order_gain_bags_of_4": level / 10, "order_gain_bags_of_4_stderr": 0.01}
    order = {"task": "word_order", "metrics": gain, "details": {}}
    append_task_results(folder, [{**common, **positions}, {**common, **order}])


def study(root: Path, seeds: int) -> tuple[list[Path], list[Path]]:
    baselines = [write_run(root, config(seed), 3.5) for seed in range(seeds)]
    superposed = [write_run(root, config(seed, 4, 0.2), 3.4) for seed in range(seeds)]
    return baselines, superposed


def the_picture(root: Path) -> Picture:
    (picture,) = find(["context_checks"]).entries[0].items(Sources(root))
    assert isinstance(picture, Picture)
    return picture


def test_differences_are_paired_by_seed_with_an_interval_over_seeds(tmp_path: Path) -> None:
    baselines, superposed = study(tmp_path, 3)
    for seed, (one, other) in enumerate(zip(baselines, superposed, strict=True)):
        measured(one, 5.0 + seed)  # seeds differ by far more than methods
        measured(other, 4.9 + seed + 0.01 * (seed - 1))
    picture = the_picture(tmp_path)
    data = picture.data
    difference = data["arm"] == "difference"
    rows = data[difference & (data["check"] == "loss_by_position")]
    assert list(rows["x"]) == PLACES
    assert rows["value"].to_numpy() == pytest.approx(0.1)
    assert ((rows["low"] > 0.05) & (rows["high"] < 0.15)).all()
    assert set(rows["interval_over"]) == {"seeds"}
    gains = data[data["check"] == "word_order"].set_index("arm")["value"]
    assert gains.to_dict() == pytest.approx(
        {"baseline": 0.6, "superposition": 0.59, "difference": -0.01}
    )
    assert "95% interval over seeds; up to 3 seeds" in picture.caption
    assert set(picture.folders) == {str(folder) for folder in (*baselines, *superposed)}
    assert len(picture.figure().axes) == 4


def test_one_seed_has_an_interval_over_sequences_and_says_so(tmp_path: Path) -> None:
    (baseline,), (superposed,) = study(tmp_path, 1)
    measured(baseline, 5.0)
    measured(superposed, 4.9)
    picture = the_picture(tmp_path)
    positions = picture.data[picture.data["check"] == "loss_by_position"]
    rows = positions[positions["arm"] == "baseline"]
    width = rows["high"] - rows["low"]
    assert width.to_numpy() == pytest.approx(2 * 1.96 * 0.1 / 40**0.5, rel=0.4)
    # The same sequences in both arms: their difference is known better than either.
    paired = positions[positions["arm"] == "difference"]
    assert (paired["high"] - paired["low"]).to_numpy() == pytest.approx(0, abs=1e-6)
    assert "over sequences of one seed" in picture.caption


@pytest.mark.parametrize("other", [{"data": "40x257-bb"}, {"step": 500}])
def test_other_tokens_or_other_steps_are_not_compared(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    (baseline,), (superposed,) = study(tmp_path, 1)
    measured(baseline, 5.0)
    measured(superposed, 4.9, **other)
    (missing,) = find(["context_checks"]).entries[0].items(Sources(tmp_path))
    assert isinstance(missing, Missing)
    assert "tst-study evaluate RUN --context" in missing.sentence
