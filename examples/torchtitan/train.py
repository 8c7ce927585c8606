"""Superposition in torchtitan 0.3: a loader, an embedding and a loss in its configuration.

    python examples/torchtitan/train.py --bag-size 4 --step-ratio 0.25
    python examples/torchtitan/train.py --bag-size 1

Needs an environment of its own (Python 3.12 or 3.13, torch 2.14.1, `pip install torchtitan==0.3.0`)
and `tst_study.superposition`. Tests train both arms on one processor, where torchtitan has to be
told that there is no GPU (`on_processor`); with s = 1 the losses are those without our package, to
the bit. `tst-study import` reads the TensorBoard events that torchtitan writes. A checkpoint must
hold the loader's state, which counts the steps; torchtitan saves it unless told otherwise. Its
validator gets the next-token loss, but needs a loader that leaves `Phase.step` alone. Not tried:
GPUs, pipeline stages, `torch.compile`.
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
import torch.nn.functional as F
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
    accumulate = 1  # micro-batches of a step
    seed = 0


class Loader(BaseDataLoader):
    """Sequences of the bundled books: s times as long in superposed steps. Counts the steps."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(
        self,
        config: Config,
        *,
        seq_len: int,
        local_batch_size: int,
        dp_rank: int = 0,
        dp_world_size: int = 1,
        **unused: Any,
    ):
        self.length, self.done = seq_len, 0
        self.all = local_batch_size * dp_world_size  # of which this rank reads its own
        self.own = slice(dp_rank * local_batch_size, (dp_rank + 1) * local_batch_size)
        self.text = read("books.train-00.jsonl.xz")

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        generator = torch.Generator().manual_seed(Phase.seed)
        for batch in itertools.count():
            # torchtitan reads all micro-batches of a step before it computes the first.
            step = batch // Phase.accumulate
            count = Phase.tst.raw_length(step, self.length) + 1
            starts = torch.randint(len(self.text) - count, (self.all, 1), generator=generator)
            if batch < self.done:  # a resumed run has read them
                continue
            Phase.step, self.done = step, batch + 1
            tokens = self.text[starts[self.own] + torch.arange(count)].long()
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
    """The share of a micro-batch in the mean loss of a step. torchtitan adds up the losses, and the
    gradients, of all micro-batches and ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseLoss.Config):
        pass

    def __init__(self, config: Config, **unused: Any) -> None:
        self.fn = lambda logits, labels: Phase.tst.loss(logits, labels, Phase.step)

    def __call__(
        self, pred: Tensor, labels: Tensor, global_valid_tokens: Any = None, **named: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if global_valid_tokens is None:  # torchtitan's validator wants the sum of next-token losses
            logits = pred.flatten(0, 1).float()
            return F.cross_entropy(logits, labels.flatten(), reduction="sum"), {}
        return self.fn(pred, labels) * ((labels != -100).sum() / global_valid_tokens), {}


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
        local_batch_size=options.sequences,
        global_batch_size=options.sequences * options.accumulate * int(os.environ["WORLD_SIZE"]),
        seq_len=options.length,
        steps=options.steps,
        disable_cuda_graphs=True,  # sequences of two lengths
    )
    config.parallelism = ParallelismConfig()
    config.dump_folder = str(options.to)
    config.checkpoint.enable = config.validator.enable = False
    config.metrics.enable_tensorboard = True  # what `tst-study import` reads
    config.metrics.log_freq = options.every
    return config


def train(options: argparse.Namespace) -> list[float]:
    """The summands of the training loss: one for each micro-batch of each step."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
    Phase.tst = Superposition(options.bag_size, options.step_ratio, options.steps)
    Phase.accumulate, Phase.seed = options.accumulate, options.seed
    print(Phase.tst)
    losses: list[float] = []
    torch.manual_seed(options.seed)
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
    parser.add_argument("--sequences", type=int, default=8, help="of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=64, help="positions of a sequence")
    parser.add_argument("--every", type=int, default=10, help="steps between rows of the log")
    parser.add_argument("--to", type=Path, default=Path("out"))
    return parser.parse_args(given)


if __name__ == "__main__":
    for number, loss in enumerate(train(arguments()), 1):
        print(f"micro-batch {number}  loss {loss:.4f}")
