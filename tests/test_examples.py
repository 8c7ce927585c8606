"""The examples train in both arms, and with bags of one token they are the trainers without us."""

import inspect
import json
import os
import sys
from contextlib import nullcontext
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib import pyplot
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.distributed import run_ranks
from tests.tiny_runs import built, tiny
from tst_study.analysis.tables.imports import import_logs
from tst_study.analysis.verdict.comparison import compare
from tst_study.superposition import Superposition, bag_embedding

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(path: str) -> ModuleType:
    loader = SourceFileLoader("example", str(EXAMPLES / path))
    module = ModuleType("example")
    module.__file__ = loader.path
    loader.exec_module(module)
    return module


class WithoutUs:
    """A stand-in for `Superposition` in a trainer without it: plain next-token training."""

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
    """Curves and evaluations of the log that a real trainer has written."""
    facts = {"arm": "baseline", "corpus": "books", "eval_set": "books", "annealed": "true"}
    numbers = {"parameters": 1, "tokens_per_step": 32, "steps": 4, "seed": 0, "learning_rate": 0}
    tables = import_logs([str(log)], {**{k: str(v) for k, v in numbers.items()}, **facts})
    return tables.curves, tables.evaluations


@pytest.fixture
def text() -> Tensor:
    return torch.arange(5000).remainder(97).to(torch.uint8)


def test_plain_pytorch(text, tmp_path, monkeypatch):
    module = example("plain_pytorch.py")
    monkeypatch.setattr(module, "read", short(text))
    small = ["--steps", "8", "--every", "4", "--length", "16", "--width", "16", "--sequences", "2"]
    superposed = module.train(module.arguments([*small, "--step-ratio", "0.5"]))
    assert [row["loss_name"] for row in superposed] == ["bag_mce", "next_token"]
    assert [row["tokens"] for row in superposed] == [2 * 16 * 4 * 4, 2 * 16 * (4 * 4 + 4)]
    baseline = module.train(module.arguments([*small, "--bag-size", "1"]))
    monkeypatch.setattr(module, "Superposition", WithoutUs)
    assert module.train(module.arguments(small)) == baseline
    for name, rows in (("4", superposed), ("1", baseline)):
        facts = module.facts(module.arguments([*small, "--bag-size", name]))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, [facts, *rows])))
    (pair,) = compare(import_logs([str(tmp_path)], {}).runs).pairs.to_dict("records")
    assert pair["gain"] == baseline[-1]["held_out_loss"] - superposed[-1]["held_out_loss"]


def test_the_notebook(monkeypatch, capsys):
    """Its code, with less of everything, as plain Python: no Jupyter is among what is installed."""
    notebook = json.loads((EXAMPLES / "first_study.ipynb").read_text("utf8"))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    for cell, given, less in (
        (0, "STEPS = 1_000\n", "STEPS = 20\n"),
        (1, "=1_000_000,", "=50_000,"),
        (1, "=65_536,", "=4_096,"),
        (2, '"validation_tokens": 32_768', '"validation_tokens": 1_024'),
        (2, "STEPS // 10", "STEPS // 2"),
        (7, '"--steps", "100"', '"--steps", "8"'),
    ):
        assert code[cell].count(given) == 1
        code[cell] = code[cell].replace(given, less)
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)
    drawn: list[str] = []
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: drawn.append(pyplot.gca().get_ylabel()))
    cells: dict[str, Any] = {}
    for source in code:
        exec(compile(source, "first_study.ipynb", "exec"), cells)
    (verdict,) = cells["verdict"].to_dict("records")
    assert (verdict["seeds"], verdict["verdict"] != "") == (3, True)
    assert drawn == ["held-out loss, nats per token"]
    assert capsys.readouterr().out.rstrip().endswith("1 with one seed and no claim.")


@pytest.fixture
def hugging_face(text: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example, as a function from options to the losses that it logs."""
    pytest.importorskip("accelerate")
    module = example("huggingface/train.py")
    monkeypatch.setattr(module, "read", short(text))

    def losses(name: str, *more: str) -> list[float]:
        small = ["--steps", "4", "--every", "2", "--length", "16", "--sequences", "4"]
        options = module.arguments([*small, *more, "--to", str(tmp_path / name)])
        module.trainer(options).train()
        if not (tmp_path / name).exists():  # of another process than the first
            return []
        (state,) = (tmp_path / name).glob("checkpoint-4/trainer_state.json")
        rows = json.loads(state.read_text())["log_history"]
        return [row[key] for row in rows for key in ("loss", "eval_loss") if key in row]

    return module, losses


def test_hugging_face(hugging_face, tmp_path, monkeypatch):
    module, losses = hugging_face

    class Plain(module.Trainer):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, tst: Any, **named: Any) -> None:
            super().__init__(*args, **named)

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any):  # type: ignore[no-untyped-def]
            logits = model(input_ids=inputs["input_ids"]).logits
            loss = F.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten())
            return (loss, {}) if return_outputs else loss

    superposed = losses("superposed", "--step-ratio", "0.5")
    baseline = losses("baseline", "--bag-size", "1")
    assert len(superposed) == len(baseline) == 4
    assert superposed != baseline
    monkeypatch.setattr(module, "SuperposedTrainer", Plain)
    assert losses("plain", "--bag-size", "1") == baseline
    curves, evaluations = imported(tmp_path / "baseline")
    pairs = [*zip(curves.loss, evaluations.nats_per_token, strict=True)]
    assert [value for pair in pairs for value in pair] == baseline
    assert (curves.learning_rate > 0).any()


def test_hugging_face_splits_a_step_over_micro_batches_and_processes(hugging_face):
    _, losses = hugging_face

    def of_a_rank() -> list[float]:
        rank = str(dist.get_rank())
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # the group is there
        return losses("ranks", "--step-ratio", "0.5", "--sequences", "2")  # type: ignore[no-any-return]

    whole = losses("whole", "--step-ratio", "0.5")
    halves = losses("halves", "--step-ratio", "0.5", "--sequences", "2", "--accumulate", "2")
    assert halves == pytest.approx(whole, abs=2e-3)
    assert run_ranks(2, of_a_rank)[0] == pytest.approx(whole, abs=2e-3)


def test_the_routers_loss_is_added_to_ours(hugging_face):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "output_router_logits": True}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**size, **heads))
    tst, tokens = Superposition(bag_size=1, step_ratio=0.0, steps=1), torch.randint(32, (2, 17))
    inputs, labels = tokens[:, :-1], tokens[:, 1:].contiguous()
    trainer = SimpleNamespace(tst=tst, model=model, state=SimpleNamespace(global_step=0))
    batch = {"input_ids": inputs, "labels": labels}
    loss = hugging_face[0].SuperposedTrainer.compute_loss(trainer, model, batch)
    assert loss == model(inputs, labels=inputs, shift_labels=labels).loss


def test_torchtitan(text, tmp_path, monkeypatch):
    pytest.importorskip("torchtitan")
    module = example("torchtitan/train.py")
    monkeypatch.setattr(module, "read", short(text))

    def losses(name: str, *more: str) -> list[float]:
        small = ["--steps", "4", "--every", "1", "--length", "16", "--sequences", "2"]
        return module.train(module.arguments([*small, *more, "--to", str(tmp_path / name)]))

    superposed = losses("superposed", "--step-ratio", "0.5")
    baseline = losses("baseline", "--bag-size", "1")
    assert superposed != baseline
    halves = losses("halves", "--bag-size", "1", "--sequences", "1", "--accumulate", "2")
    # Up to rounding, of which AdamW makes much.
    assert torch.tensor(halves).view(-1, 2).sum(1).tolist() == pytest.approx(baseline, abs=0.01)
    assert imported(tmp_path / "baseline")[0].loss.tolist() == pytest.approx(baseline, abs=1e-6)
    monkeypatch.setattr(module, "Superposition", WithoutUs)
    assert losses("plain") == baseline


def test_lightning(text, tmp_path, monkeypatch):
    """Accumulated gradients are those of whole steps; a run resumes at its step."""
    pytest.importorskip("lightning")
    module = example("lightning/train.py")
    monkeypatch.setattr(module, "read", short(text))

    def run(name: str, *more: str, checkpoint: Path | None = None) -> list[Tensor]:
        small = ["--length", "16", "--width", "16", "--sequences", "4", "--step-ratio", "0.5"]
        options = module.arguments(["--steps", "4", *small, *more, "--to", str(tmp_path / name)])
        return [p.detach() for p in module.train(options, checkpoint).parameters()]

    whole = run("whole")
    halves = run("halves", "--sequences", "2", "--accumulate", "2")
    torch.testing.assert_close(halves, whole, rtol=0, atol=2e-4)  # AdamW makes much of little
    state = torch.load(tmp_path / "whole" / "last.ckpt", weights_only=False)["callbacks"]
    assert state["SuperposedSteps"]["steps"] == 4
    with pytest.raises(ValueError, match="bag_size = 2, but the checkpoint's run has 4"):
        run("other", "--bag-size", "2", checkpoint=tmp_path / "whole" / "last.ckpt")
    tst = Superposition(4, 0.5, 4, positions=16)
    options = module.arguments(["--sequences", "2"])
    batches = [x.tolist() for x in module.Batches(text, tst, options)]
    tst.advance(to=3)
    assert [x.tolist() for x in module.Batches(text, tst, options)] == batches[6:]
    baseline = run("baseline", "--bag-size", "1")
    monkeypatch.setattr(Superposition, "attach", lambda *_: SimpleNamespace(remove=lambda: None))
    assert all(map(torch.equal, run("plain", "--bag-size", "1"), baseline))


class OnProcessors(TorchFunctionMode):
    """Tensors that Megatron makes on "cuda" by name are made here."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        here = {"device": "cpu"} if (kwargs or {}).get("device") == "cuda" else {}
        return function(*args, **{**(kwargs or {}), **here})


@pytest.mark.parametrize("bag_size", [1, 4])
def test_megatron_lm(words, bag_size, monkeypatch):
    """Its GPTModel and its schedule, with two micro-batches: the mean of their losses."""
    module = example("megatron_lm/pretrain_patch.py")
    tst = Superposition(bag_size=bag_size, step_ratio=0.5, steps=2, positions=8)
    settings = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "hidden_dropout": 0.0}
    with built(tiny(words)), OnProcessors():
        # The random state of its dropout, which is off here, lives on a GPU.
        monkeypatch.setattr(get_cuda_rng_tracker(), "fork", nullcontext)
        model = GPTModel(
            TransformerConfig(**settings, use_cpu_initialization=True, attention_dropout=0.0),
            get_gpt_layer_local_spec(),
            vocab_size=64,
            max_sequence_length=8,
        )
        module.superpose(model, tst)
        for step in range(2):
            length = tst.raw_length(step)
            tokens = torch.randint(64, (2, 3, length + 1))
            places = torch.arange(length).expand(3, -1)
            mask = torch.ones(3, 1, length, length).triu(1).bool()  # what Megatron's loader gives
            batches = iter(
                (x[:, :-1], x[:, 1:], torch.ones(3, length), mask, places) for x in tokens
            )
            losses = forward_backward_no_pipelining(
                forward_step_func=partial(
                    module.superposed_forward_step, tst, next, partial(int, step)
                ),
                data_iterator=batches,
                model=model,
                num_microbatches=2,
                seq_length=8,
                micro_batch_size=3,
            )
            table = model.embedding.word_embeddings.weight
            for x, loss in zip(tokens, losses, strict=True):
                means = bag_embedding(table, tst.objective(step).fold(x[:, :-1]))
                hidden = means + model.embedding.position_embeddings.weight
                logits = model(None, None, None, decoder_input=hidden.transpose(0, 1))
                torch.testing.assert_close(loss["lm loss"][0], tst.loss(logits, x[:, 1:], step))
            assert table.grad is not None
        model.eval()
        length = tst.raw_length(0)  # the loader's, also for held-out text
        held = tokens[0].repeat(1, bag_size)[:, : length + 1]
        batch = held[:, :-1], held[:, 1:], torch.ones(3, length), None, places.repeat(1, bag_size)
        logits, loss_func = module.superposed_forward_step(
            tst, next, partial(int, 0), iter([batch]), model
        )
        expected = F.cross_entropy(logits.flatten(0, 1), held[:, 1:9].flatten())
        torch.testing.assert_close(loss_func(logits)[0], expected)


LITGPT = (  # what docs/in_your_trainer.md says to change in litgpt 0.5's own functions
    ("x = self.transformer.wte(idx)", ""),
    ("T = idx.size(1)", "x = self.transformer.wte(idx); T = x.size(1)"),
    ("0 : model.max_seq_length]", "0 : tst.raw_length(tst.step)]"),
    ("1 : (model.max_seq_length + 1)]", "1 : tst.raw_length(tst.step) + 1]"),
    ("loss = chunked_cross_entropy(logits, targets)", "loss = tst.loss(logits, targets)"),
    ('state["step_count"] += 1', 'state["step_count"] += 1; tst.advance()'),
)


def test_litgpt(text, tmp_path, monkeypatch):
    """60 steps of two micro-batches each, from a loader with one batch more, and a checkpoint."""
    pretrain = pytest.importorskip("litgpt.pretrain")
    from litgpt.args import EvalArgs, TrainArgs

    tst = Superposition(bag_size=4, step_ratio=0.5, steps=60, positions=16)
    applied = []

    def changed(function: Any) -> Any:
        source = inspect.cleandoc("\n" + inspect.getsource(function))
        for old, new in LITGPT:
            applied.extend([old] if old in source else [])
            source = source.replace(old, new)
        space = {**vars(sys.modules[function.__module__]), "tst": tst}
        exec(source, space)
        return space[function.__name__]

    config = pretrain.Config(block_size=16, n_layer=1, n_head=2, n_embd=16, padded_vocab_size=128)
    fabric = pretrain.L.Fabric(accelerator="cpu", devices=1)
    model = pretrain.GPT(config)
    model.forward = changed(pretrain.GPT.forward).__get__(model)
    tst.attach(model.transformer.wte)
    model = fabric.setup(model)
    batches = [
        text[torch.arange(2)[:, None] * 99 + torch.arange(tst.raw_length(i // 2) + 1) + i]
        for i in range(2 * 60 + 1)
    ]
    held_out = [text[:17].expand(2, -1)]
    state = {"model": model, "iter_num": 0, "step_count": 0}
    state["optimizer"] = fabric.setup_optimizers(torch.optim.AdamW(model.parameters()))
    args = TrainArgs(
        global_batch_size=4,
        micro_batch_size=2,
        max_tokens=2 * 60 * 2 * 16,
        max_norm=1.0,
        save_interval=None,
        log_interval=60,
        lr_warmup_steps=2,
    )
    options = EvalArgs(interval=30, max_iters=1)
    fit = changed(pretrain.fit)
    fit(fabric, 1, state, batches, held_out, tmp_path, None, args, options)
    monkeypatch.setattr(sys, "argv", ["litgpt", "pretrain", "pythia-14m"])  # saved beside it
    pretrain.save_checkpoint(fabric, state, None, tmp_path / "lit_model.pth")
    assert (applied, tst.step) == ([old for old, _ in LITGPT], 60)
    assert (tmp_path / "lit_model.pth").exists()
