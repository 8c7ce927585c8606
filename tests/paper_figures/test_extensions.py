"""What the paper does not show: expert load, effects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paper_figures.catalogue import find
from paper_figures.item import Item, Missing
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from tests.analysis.made_runs import config, write_run


def made(name: str, runs: Path) -> list[Item | Missing]:
    return find([name]).entries[0].items(Sources(runs))


def mixture(seed: int, size: int, ratio: float) -> Any:
    experts = {"count": 4, "per_token": 2, "feed_forward_size": 32}
    return config(seed, size, ratio, model__experts=experts, model__qk_norm=True)


def log_router(folder: Path, switch: int) -> None:
    """Give every row of a run the router's health, as the trainer logs it."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        busy = 1.2 if row["step"] <= switch else 1.8
        row["moe"] = {
            "balance_loss": 1.01,
            "z_loss": 0.0,
            "router_entropy": 1.3,
            "dropped": 0.0,
            "load": {"max": [busy, busy + 0.2], "min": [0.5, 0.7], "deviation": [0.1, 0.3]},
        }
        if row["step"] in (switch, switch + 50, rows[-1]["step"]):
            row["moe"]["expert_load"] = [[busy, 0.9, 0.8, 0.5]] * 2
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_expert_load_is_drawn_across_the_switch(tmp_path: Path) -> None:
    log_router(write_run(tmp_path, mixture(0, 1, 0.0), 3.5), 0)
    log_router(write_run(tmp_path, mixture(0, 4, 0.2), 3.45), 200)
    (item,) = made("expert_load", tmp_path)
    assert isinstance(item, Picture)
    own = item.data[item.data["bag_size"] == 4].set_index("step")
    assert own.loc[200, "busiest"] == pytest.approx(1.3)  # mean over both layers
    assert own.loc[250, "busiest"] == pytest.approx(1.9)
    assert list(item.fits["load by layer and expert"]) == ["step 200", "step 250", "step 1,000"]
    assert item.finding is not None
    assert "1.30 times an even share before the switch, 1.90 after it" in item.finding.measured
    assert len(item.figure().axes) == 7


def test_a_run_of_one_seed_is_no_effect(tmp_path: Path) -> None:
    write_run(tmp_path, config(0), 3.5)
    write_run(tmp_path, config(0, 4, 0.2), 3.4)
    (item,) = made("effects", tmp_path)
    assert not isinstance(item, Picture)
