"""Superposition in Hugging Face's Trainer: a stock Llama, one small subclass.

    python examples/huggingface/train.py --bag-size 4 --step-ratio 0.25 --to out/superposed
    python examples/huggingface/train.py --bag-size 1 --to out/baseline

Needs torch, transformers, accelerate and `tst_study.superposition`. Before the switch a batch holds
s times as many tokens; `trainer_state.json` in the last checkpoint is the log. The subclass and the
lines marked TST are all that superposition changes. Tests also run this example with accumulated
gradients and on two processes.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tst_study.superposition import Superposition

BOOKS = Path(__file__).parents[2] / "data" / "books"


class Batches(IterableDataset):  # type: ignore[type-arg]
    """The sequences of all steps, in order: those of superposed steps are s times as long."""

    def __init__(self, text: Tensor, tst: Superposition, sequences: int, seed: int = 0) -> None:
        """`sequences`: their number in a step of the optimizer, over all processes and
        micro-batches."""
        self.text, self.tst, self.sequences, self.seed = text, tst, sequences, seed

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        if get_worker_info():
            raise ValueError("num_workers must be 0: each worker would read the same sequences")
        generator = torch.Generator().manual_seed(self.seed)
        for step in range(self.tst.steps):
            length = self.tst.raw_length(step)  # TST
            for _ in range(self.sequences):
                start = int(torch.randint(len(self.text) - length - 1, (), generator=generator))
                yield piece(self.text, start, length)


def piece(text: Tensor, start: int, length: int) -> dict[str, Tensor]:
    """Return tokens and their labels, which are shifted here, not in the model."""
    tokens = text[start : start + length + 1].long()
    return {"input_ids": tokens[:-1], "labels": tokens[1:]}


class SuperposedTrainer(Trainer):
    """A Trainer that attaches superposition to the embedding and computes its loss."""

    def __init__(self, *args: Any, tst: Superposition, **named: Any) -> None:
        super().__init__(*args, **named)
        self.tst = tst
        tst.attach(self.model.get_input_embeddings())  # TST
        # Our loss is a mean: the Trainer must divide it by the number of micro-batches in a step.
        # It would not do so where a batch has `labels` and the model takes `num_items_in_batch`.
        self.model_accepts_loss_kwargs = False

    def compute_loss(  # type: ignore[override]
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **unused: Any
    ) -> Any:
        self.tst.advance(to=self.state.global_step)  # TST
        outputs = model(input_ids=inputs["input_ids"])
        if model.training:
            loss = self.tst.loss(outputs.logits, inputs["labels"])  # TST
        else:  # evaluation is ordinary: next-token loss
            loss = F.cross_entropy(outputs.logits.flatten(0, 1), inputs["labels"].flatten())
        if getattr(outputs, "aux_loss", None) is not None:  # of a mixture of experts
            loss = loss + self.model.config.router_aux_loss_coef * outputs.aux_loss
        return (loss, {}) if return_outputs else loss


def trainer(options: argparse.Namespace) -> Trainer:
    """Return a trainer that is ready for the call of `train`."""
    torch.manual_seed(options.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=options.length,
        )
    )
    tst = Superposition(  # TST
        options.bag_size, options.step_ratio, options.steps, positions=options.length
    )
    print(tst)
    train, held_out = (read(f"books.{name}.jsonl.xz") for name in ("train-00", "val"))
    settings = TrainingArguments(
        output_dir=str(options.to),
        max_steps=options.steps,
        per_device_train_batch_size=options.sequences,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=options.rate,
        lr_scheduler_type="cosine",
        warmup_steps=options.steps // 20,
        logging_steps=options.every,
        eval_strategy="steps",
        eval_steps=options.every,
        save_steps=options.steps,
        remove_unused_columns=False,
        prediction_loss_only=True,
        report_to=[],
        seed=options.seed,
        use_cpu=not torch.cuda.is_available(),
    )
    starts = range(0, len(held_out) - options.length - 1, len(held_out) // 64)
    # Without torchrun, transformers itself spreads a step over all GPUs that it sees.
    sequences = settings.train_batch_size * options.accumulate * settings.world_size
    return SuperposedTrainer(
        model,
        settings,
        train_dataset=Batches(train, tst, sequences, options.seed),
        eval_dataset=[piece(held_out, i, options.length) for i in starts],  # type: ignore[arg-type]
        tst=tst,  # TST
    )


def read(name: str) -> Tensor:
    """A file of the bundled books as one row of bytes."""
    with lzma.open(BOOKS / name, "rt", encoding="utf8") as lines:
        text = "\n\n".join(json.loads(line)["text"] for line in lines)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Superposition in Hugging Face's Trainer.")
    parser.add_argument("--bag-size", type=int, default=4, help="s; 1 is the baseline")
    parser.add_argument("--step-ratio", type=float, default=0.25, help="r")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sequences", type=int, default=16, help="of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--length", type=int, default=64, help="positions of a sequence")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--every", type=int, default=100, help="steps between rows of the log")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path, default=Path("out"), help="checkpoints and log")
    return parser.parse_args(given)


if __name__ == "__main__":
    trainer(arguments()).train()
