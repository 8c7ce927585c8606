"""A GPT of torch's own modules, trained on the bundled books with and without superposition.

    python examples/plain_pytorch.py --bag-size 4 --step-ratio 0.25 --log superposed.jsonl
    python examples/plain_pytorch.py --bag-size 1 --log baseline.jsonl

It needs torch and `tst_study.superposition`. The lines marked TST are all that superposition
changes, apart from the import and from what is printed and logged.
"""

import argparse
import json
import lzma
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tst_study.superposition import Superposition

BOOKS = Path(__file__).parents[1] / "data" / "books"
WORDS = 256  # the vocabulary: every byte is a token


class GPT(nn.Module):
    """A decoder-only transformer. Its `forward` starts after the embedding; the callers of
    `forward` embed the tokens."""

    def __init__(self, width: int, layers: int, heads: int, positions: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.positions = nn.Parameter(torch.zeros(positions, width))
        layer = nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS, bias=False)
        mask = nn.Transformer.generate_square_subsequent_mask(positions)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, L, width) embedded tokens or bags -> (B, L, WORDS) logits."""
        length = hidden.shape[1]
        mask = self.mask[:length, :length]
        hidden = self.layers(hidden + self.positions[:length], mask=mask, is_causal=True)
        return self.head(self.norm(hidden))


def read(name: str) -> Tensor:
    """Read all texts in a file of the bundled books as one row of bytes."""
    with lzma.open(BOOKS / name, "rt", encoding="utf8") as lines:
        text = "\n\n".join(json.loads(line)["text"] for line in lines)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def batch(data: Tensor, sequences: int, length: int, generator: torch.Generator) -> Tensor:
    """Return (sequences, length) token ids; each sequence begins at a random place in the text."""
    starts = torch.randint(len(data) - length, (sequences, 1), generator=generator)
    return data[starts + torch.arange(length)].long()


@torch.no_grad()
def held_out_loss(model: GPT, data: Tensor, length: int, pieces: int = 64) -> float:
    """Return the mean next-token loss, in nats, over evenly spaced pieces of the text, each of
    `length` positions. The pieces are the same at every call."""
    starts = torch.linspace(0, len(data) - length - 1, pieces).long()[:, None]
    tokens = data[starts + torch.arange(length + 1)].long()
    logits = model(model.embedding(tokens[:, :-1]))
    return float(F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Return the learning rate of a step: a linear warm-up to `peak` over the first twentieth of
    the steps, then constant, then a linear decay over the last three tenths."""
    return peak * min(1.0, (step + 1) / (0.05 * steps), (steps - step) / (0.3 * steps))


def train(options: argparse.Namespace) -> list[dict[str, object]]:
    """Train a model, and return the rows of its log, each with a training loss and a held-out
    loss. The training loss of the superposition phase is the bag loss."""
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    parts = (read(f"books.{part}.jsonl.xz") for part in ("train-00", "val"))
    text, held_out = (part.to(options.device) for part in parts)
    model = GPT(options.width, options.layers, options.heads, options.length).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.1)
    tst = Superposition(options.bag_size, options.step_ratio, options.steps)  # TST
    print(tst)
    rows: list[dict[str, object]] = []
    tokens_read, began = 0, time.monotonic()
    for step in range(options.steps):
        if options.minutes and time.monotonic() - began > 60 * options.minutes:
            raise SystemExit(f"{options.minutes:g} minutes are over at step {step}: fewer --steps")
        length = tst.raw_length(step, options.length)  # TST
        tokens = batch(text, options.sequences, length + 1, generator)
        hidden = tst.embed(model.embedding, tokens[:, :-1], step)  # TST
        loss = tst.loss(model(hidden), tokens[:, 1:], step)  # TST
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps, options.rate)
        optimizer.step()
        tokens_read += options.sequences * length
        done = step + 1
        if done % options.every == 0 or done == options.steps:
            row: dict[str, object] = {
                "step": done,
                "loss": loss.item(),
                "loss_name": tst.objective(step).name,
                "tokens": tokens_read,
                "held_out_loss": held_out_loss(model, held_out, options.length),
            }
            rows.append(row)
            print(json.dumps(row))
    return rows


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line, or the arguments that are given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bag-size", type=int, default=4, help="s; 1 is the baseline")
    parser.add_argument("--step-ratio", type=float, default=0.25, help="r")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--length", type=int, default=64, help="positions of a sequence")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--every", type=int, default=100, help="steps between rows of the log")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda", "mps"))
    parser.add_argument("--minutes", type=float, help="stop without a result after these")
    parser.add_argument("--log", type=Path, help="JSON lines, which `tst-study import` reads")
    return parser.parse_args(given)


def facts(options: argparse.Namespace) -> dict[str, object]:
    """Return the facts about a run that no row of its log has. `tst-study import` needs them: they
    become the log's first line."""
    model = GPT(options.width, options.layers, options.heads, options.length)
    known = {key: vars(options)[key] for key in ("bag_size", "step_ratio", "steps", "seed")}
    if options.bag_size == 1:
        known["step_ratio"] = 0.0
    known["parameters"] = sum(weights.numel() for weights in model.parameters())
    known["tokens_per_step"] = options.sequences * options.length
    known["learning_rate"] = options.rate
    return {**known, "corpus": "books", "eval_set": "books.val", "annealed": True}


if __name__ == "__main__":
    chosen = arguments()
    lines = train(chosen)
    if chosen.log:
        chosen.log.parent.mkdir(parents=True, exist_ok=True)
        chosen.log.write_text("".join(json.dumps(row) + "\n" for row in [facts(chosen), *lines]))
