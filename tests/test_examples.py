"""The examples train in both arms, and with bags of one token they are the trainers without us."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tst_study.analysis.tables.imports import import_logs
from tst_study.analysis.verdict.comparison import compare

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class WithoutUs:
    """What a trainer does that has never heard of superposition."""

    def __init__(self, *unused: Any) -> None:
        pass

    def raw_length(self, step: int, positions: int) -> int:
        return positions

    def embed(self, embedding: nn.Module, tokens: Tensor, step: int) -> Any:
        return embedding(tokens)

    def loss(self, logits: Tensor, labels: Tensor, step: int) -> Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    def objective(self, step: int) -> Any:
        return type("Name", (), {"name": "next_token"})


def short(text: Tensor) -> Any:
    return lambda name: text


def imported(log: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Curves and evaluations of what a real trainer has written, as it lies there."""
    facts = {"arm": "baseline", "corpus": "books", "eval_set": "books", "annealed": "true"}
    numbers = {"parameters": 1, "tokens_per_step": 32, "steps": 4, "seed": 0, "learning_rate": 0}
    tables = import_logs([str(log)], {**{k: str(v) for k, v in numbers.items()}, **facts})
    return tables.curves, tables.evaluations


@pytest.fixture
def text() -> Tensor:
    return torch.arange(5000).remainder(97).to(torch.uint8)


def test_plain_pytorch(text: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("plain_pytorch.py")
    monkeypatch.setattr(module, "read", short(text))
    small = ["--steps", "8", "--every", "4", "--length", "16", "--width", "16", "--sequences", "2"]
    superposed = module.train(module.arguments([*small, "--step-ratio", "0.5"]))
    assert [row["loss_name"] for row in superposed] == ["bag_mce", "next_token"]
    assert [row["tokens"] for row in superposed] == [2 * 16 * 4 * 4, 2 * 16 * (4 * 4 + 4)]
    baseline = module.train(module.arguments([*small, "--bag-size", "1"]))
    monkeypatch.setattr(module, "Superposition", WithoutUs)
    assert module.train(module.arguments(small)) == baseline
    assert len((EXAMPLES / "plain_pytorch.py").read_text().splitlines()) <= 150
    for name, rows in (("4", superposed), ("1", baseline)):
        facts = module.facts(module.arguments([*small, "--bag-size", name]))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, [facts, *rows])))
    (pair,) = compare(import_logs([str(tmp_path)], {}).runs).pairs.to_dict("records")
    assert pair["gain"] == baseline[-1]["held_out_loss"] - superposed[-1]["held_out_loss"]


def test_hugging_face(text: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    module = example("huggingface/train.py")
    monkeypatch.setattr(module, "read", short(text))

    class Plain(module.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any):  # type: ignore[no-untyped-def]
            tokens = inputs["tokens"]
            logits = model(input_ids=tokens[:, :-1]).logits
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            return (loss, {}) if return_outputs else loss

    def losses(name: str, *more: str, kind: Any = module.SuperposedTrainer) -> list[float]:
        small = ["--steps", "4", "--every", "2", "--length", "16", "--sequences", "2"]
        options = module.arguments([*small, *more, "--to", str(tmp_path / name)])
        module.trainer(options, kind).train()
        (state,) = (tmp_path / name).glob("checkpoint-4/trainer_state.json")
        rows = json.loads(state.read_text())["log_history"]
        return [row[key] for row in rows for key in ("loss", "eval_loss") if key in row]

    superposed = losses("superposed", "--step-ratio", "0.5")
    baseline = losses("baseline", "--bag-size", "1")
    assert len(superposed) == len(baseline) == 4
    assert superposed != baseline
    assert losses("plain", "--bag-size", "1", kind=Plain) == baseline
    curves, evaluations = imported(tmp_path / "baseline")
    found = [*zip(curves.loss, evaluations.nats_per_token, strict=True)]
    assert [value for pair in found for value in pair] == baseline
    assert (curves.learning_rate > 0).any()


def test_torchtitan(text: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchtitan")
    module = example("torchtitan/train.py")
    monkeypatch.setattr(module, "read", short(text))

    def losses(name: str, *more: str) -> list[float]:
        small = ["--steps", "4", "--every", "1", "--length", "16", "--sequences", "2"]
        return module.train(module.arguments([*small, *more, "--to", str(tmp_path / name)]))

    superposed = losses("superposed", "--step-ratio", "0.5")
    baseline = losses("baseline", "--bag-size", "1")
    assert len(superposed) == len(baseline) == 4
    assert superposed != baseline
    assert imported(tmp_path / "baseline")[0].loss.tolist() == pytest.approx(baseline, abs=1e-6)
    monkeypatch.setattr(module, "Superposition", WithoutUs)
    assert losses("plain") == baseline
