"""Superposition in Lightning: one callback, and the loss in `training_step`.

    python examples/lightning/train.py --bag-size 4 --step-ratio 0.25
    python examples/lightning/train.py --bag-size 1

Needs torch, lightning and `tst_study.superposition`. The callback and the lines marked TST are all
that superposition changes. Not tried: several processes, GPUs.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tst_study.superposition import Superposition

BOOKS = Path(__file__).parents[2] / "data" / "books"
WORDS = 256  # bytes


class SuperposedSteps(lightning.Callback):
    """Bag the outputs of an embedding, and keep the step in Lightning's checkpoints."""

    def __init__(self, tst: Superposition, embedding: nn.Module) -> None:
        self.tst, self.embedding = tst, embedding

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.hook = self.tst.attach(self.embedding)

    def on_train_batch_end(self, trainer: Any, *unused: Any) -> None:
        self.tst.advance(to=trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self.hook.remove()

    def state_dict(self) -> dict[str, Any]:
        return self.tst.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tst.load_state_dict(state_dict)


class GPT(lightning.LightningModule):
    def __init__(self, tst: Superposition, options: argparse.Namespace) -> None:
        super().__init__()
        self.tst, self.rate, self.losses = tst, options.rate, []
        self.embedding = nn.Embedding(WORDS, options.width)
        self.positions = nn.Parameter(torch.zeros(options.length, options.width))
        layer = nn.TransformerEncoderLayer(
            options.width, 2, 4 * options.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(options.width, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        length = hidden.shape[1]  # of the embedding's output, not of the tokens
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=hidden.device)
        hidden = self.layers(hidden + self.positions[:length], mask=mask, is_causal=True)
        return self.head(hidden)

    def training_step(self, tokens: Tensor) -> Tensor:
        loss = self.tst.loss(self(tokens[:, :-1]), tokens[:, 1:])  # TST
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, tokens: Tensor) -> None:  # ordinary: next-token loss
        logits = self(tokens[:, :-1]).flatten(0, 1)
        self.log("held_out_loss", F.cross_entropy(logits, tokens[:, 1:].flatten()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.rate)


class Batches(IterableDataset):  # type: ignore[type-arg]
    """The sequences of all steps, in order: those of superposed steps are s times as long."""

    def __init__(self, text: Tensor, tst: Superposition, options: argparse.Namespace) -> None:
        self.text, self.tst, self.sequences = text, tst, options.sequences * options.accumulate
        self.seed = options.seed

    def __iter__(self) -> Iterator[Tensor]:
        if get_worker_info():
            raise ValueError("num_workers must be 0: each worker would read the same sequences")
        generator, first = torch.Generator().manual_seed(self.seed), self.tst.step  # TST
        for step in range(self.tst.steps):
            length = self.tst.raw_length(step) + 1  # TST
            for _ in range(self.sequences):
                start = int(torch.randint(len(self.text) - length, (), generator=generator))
                if step >= first:  # a resumed run has read the others
                    yield self.text[start : start + length].long()


def read(name: str) -> Tensor:
    """A file of the bundled books as one row of bytes."""
    with lzma.open(BOOKS / name, "rt", encoding="utf8") as lines:
        text = "\n\n".join(json.loads(line)["text"] for line in lines)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def train(options: argparse.Namespace, checkpoint: Path | None = None) -> GPT:
    torch.manual_seed(options.seed)
    tst = Superposition(  # TST
        options.bag_size, options.step_ratio, options.steps, positions=options.length
    )
    print(tst)
    model = GPT(tst, options)
    trainer = lightning.Trainer(
        max_steps=options.steps,
        accumulate_grad_batches=options.accumulate,
        callbacks=[SuperposedSteps(tst, model.embedding)],  # TST
        default_root_dir=options.to,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=1,
        logger=CSVLogger(options.to),  # what `tst-study import` reads
        log_every_n_steps=options.every,
        limit_val_batches=8,
        num_sanity_val_steps=1,
        enable_progress_bar=False,
        use_distributed_sampler=False,
    )
    held_out = read("books.val.jsonl.xz").long().unfold(0, options.length + 1, options.length)
    trainer.fit(
        model,
        DataLoader(Batches(read("books.train-00.jsonl.xz"), tst, options), options.sequences),
        DataLoader(held_out, options.sequences),  # type: ignore[arg-type]
        ckpt_path=checkpoint,
    )
    trainer.save_checkpoint(Path(options.to) / "last.ckpt")
    return model


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Superposition in Lightning.")
    parser.add_argument("--bag-size", type=int, default=4, help="s; 1 is the baseline")
    parser.add_argument("--step-ratio", type=float, default=0.25, help="r")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sequences", type=int, default=16, help="of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--length", type=int, default=64, help="positions of a sequence")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--every", type=int, default=10, help="steps between rows of the log")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--to", type=Path, default=Path("out"), help="checkpoints")
    return parser.parse_args(given)


if __name__ == "__main__":
    for step, loss in enumerate(train(arguments()).losses, 1):
        print(f"micro-batch {step}  loss {loss:.4f}")
