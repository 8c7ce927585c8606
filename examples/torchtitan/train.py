"""Superposition in torchtitan 0.3: a loader, an embedding and a loss in its configuration.

    python examples/torchtitan/train.py --bag-size 4 --step-ratio 0.25
    python examples/torchtitan/train.py --bag-size 1

Needs an environment of its own (Python 3.12 or 3.13, torch 2.14.1, `pip install torchtitan==0.3.0`)
and `tst_study.superposition`. Tests train both arms on one processor, where torchtitan has to be
told that there is no GPU (`on_processor`); with s = 1 the losses are those without our package, to
the bit. `tst-study import` reads the TensorBoard events that torchtitan writes. Not tried: GPUs,
several ranks, FSDP, pipeline stages, `torch.compile`, accumulated micro-batches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tst_study.superposition import Superposition

BOOKS = Path(__file__).parents[2] / "data" / "books"


def on_processor() -> None:
    """If the machine has no accelerator, tell torchtitan so. It would otherwise expect CUDA."""
    from torchtitan.tools import utils

    if torch.accelerator.is_available():
        return
    memory = SimpleNamespace(total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    lacking = {
        "get_device_name": lambda device=None: "cpu",
        "get_device_properties": lambda device=None: memory,
        "reset_peak_memory_stats": lambda: None,
        "empty_cache": lambda: None,
        "memory_stats": lambda device=None: {},
    }
    utils.device_type, utils.device_module = "cpu", SimpleNamespace(**vars(torch.cpu) | lacking)
    from torchtitan.distributed import utils as distributed

    distributed.set_pg_timeouts = lambda **unused: None  # its barrier names a device


on_processor()

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.loss import BaseLoss  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.common.embedding import Embedding  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402


class Phase:
    """The superposition and the current step, which loader, embedding and loss share."""

    tst: Superposition
    step = 0


class Loader(BaseDataLoader):
    """Sequences of the bundled books: s times as long in superposed steps. Counts the steps."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config: Config, *, seq_len: int, local_batch_size: int, **unused: Any):
        self.length, self.sequences, self.done = seq_len, local_batch_size, 0
        self.text = read("books.train-00.jsonl.xz")

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for step in itertools.count():
            count = Phase.tst.raw_length(step, self.length) + 1
            starts = torch.randint(len(self.text) - count, (self.sequences, 1), generator=generator)
            if step < self.done:  # a resumed run has read them
                continue
            Phase.step, self.done = step, step + 1
            tokens = self.text[starts + torch.arange(count)].long()
            yield {"input": tokens[:, :-1]}, tokens[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.done = state_dict.get("done", 0)


class SuperposedEmbedding(Embedding):
    """The look-up of torchtitan's own embedding, then the mean of each bag."""

    @dataclass(kw_only=True, slots=True)
    class Config(Embedding.Config):
        pass

    def forward(self, input: Tensor) -> Tensor:
        return Phase.tst.embed(LookUp(super().forward).train(self.training), input, Phase.step)


class LookUp(nn.Module):
    """A bound method, wrapped as a module because `embed` asks for one."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.forward = call


class Loss(BaseLoss):
    """The mean loss of a step on one rank. torchtitan's own division by valid labels is left
    out."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseLoss.Config):
        pass

    def __init__(self, config: Config, **unused: Any) -> None:
        self.fn = lambda logits, labels: Phase.tst.loss(logits, labels, Phase.step)

    def __call__(
        self, pred: Tensor, labels: Tensor, *unused: Any, **named: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self.fn(pred, labels), {}


class Bytes(BaseTokenizer):
    """The loader reads bytes: no tokenizer is needed."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **unused: Any) -> None:
        super().__init__()

    def encode(self, text: str, *unused: Any, **named: Any) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int], *unused: Any, **named: Any) -> str:
        return bytes(ids).decode(errors="replace")

    def get_vocab_size(self) -> int:
        return 256


def configuration(options: argparse.Namespace) -> Any:
    """torchtitan's own debugging model, with our loader, embedding and loss."""
    spec = model_registry("debugmodel")
    table = spec.model.tok_embeddings
    for layer in spec.model.layers:  # torchtitan's FlexAttention has no backward pass on a CPU
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    ours = {field.name: getattr(table, field.name) for field in fields(table) if field.init}
    spec = replace(
        spec, model=replace(spec.model, tok_embeddings=SuperposedEmbedding.Config(**ours))
    )
    config = llama3_debugmodel()
    config.model_spec = spec
    config.loss = Loss.Config()
    config.dataloader = Loader.Config()
    config.tokenizer = Bytes.Config()
    config.training = TrainingConfig(
        local_batch_size=options.sequences, seq_len=options.length, steps=options.steps
    )
    config.parallelism = ParallelismConfig()
    config.dump_folder = str(options.to)
    config.checkpoint.enable = config.validator.enable = False
    config.metrics.enable_tensorboard = True  # what `tst-study import` reads
    config.metrics.log_freq = options.every
    return config


def train(options: argparse.Namespace) -> list[float]:
    """The training loss of every step."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
    Phase.tst = Superposition(options.bag_size, options.step_ratio, options.steps)
    print(Phase.tst)
    losses: list[float] = []
    torch.manual_seed(0)
    trainer: Trainer = configuration(options).build()
    measured = trainer.loss_fn

    def logged(*given: Any, **named: Any) -> Any:
        loss, metrics = measured(*given, **named)
        losses.append(loss.item())
        return loss, metrics

    trainer.loss_fn = logged
    trainer.train()
    trainer.close()
    return losses


def read(name: str) -> Tensor:
    """A file of the bundled books as one row of bytes."""
    with lzma.open(BOOKS / name, "rt", encoding="utf8") as lines:
        text = "\n\n".join(json.loads(line)["text"] for line in lines)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Superposition in torchtitan.")
    parser.add_argument("--bag-size", type=int, default=4, help="s; 1 is the baseline")
    parser.add_argument("--step-ratio", type=float, default=0.25, help="r")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=64, help="positions of a sequence")
    parser.add_argument("--every", type=int, default=10, help="steps between rows of the log")
    parser.add_argument("--to", type=Path, default=Path("out"))
    return parser.parse_args(given)


if __name__ == "__main__":
    for step, loss in enumerate(train(arguments()), 1):
        print(f"step {step}  loss {loss:.4f}")
