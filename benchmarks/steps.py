"""Whole training steps, ours and plain PyTorch's, as functions without arguments.

`speed.py` and the GPU benchmarks time them or compare their gradients. A step of ours calls the
parts that a step of `tst_study.train` calls, in the same order. But it reads fixed synthetic tokens
and logs nothing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from tst_study.config.schema import Config, Model, from_dict
from tst_study.cost.parallel_layout import layout_of
from tst_study.model.layers import ATTENTION, attention_backend, compile_layers
from tst_study.model.model import build_model
from tst_study.parallel.forward_backward import forward_backward, gradient_buffers, micro_batches
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.superposition.steps import NEXT_TOKEN, Objective

Step = Callable[[], Tensor]
"""A training step; it returns its loss."""
Compiler = Literal["inductor", "eager"]
"""The backend of torch.compile. `eager` only traces the model and generates no code: it compiles
quickly, and steps are no faster."""


def step_config(
    model: dict[str, Any],
    sequences: int,
    length: int,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: str = "cpu",
    **superposition: Any,
) -> Config:
    """Return a config with this model, batch, dtype and device, and a placeholder for the corpus.

    `superposition`: keys of the section of that name. With a `bag_size` above 1 the first step is
    superposed, unless a `step_ratio` says otherwise.
    """
    phase = {} if "step_ratio" in superposition else {"steps": 1}
    return from_dict(
        {
            "model": model,
            "superposition": {**phase, **superposition},
            "data": {"corpora": [{"path": "synthetic"}]},
            "batch": {"sequences": sequences, "sequence_length": length},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"steps": 100},
            "numerics": {"dtype": dtype},
            "execution": {"device": device},
        }
    )


class PackageSteps:
    """One model of the package with its optimizer; steps of both phases update the same weights."""

    def __init__(
        self, config: Config, device: torch.device, compiler: Compiler | None = None
    ) -> None:
        self.config, self.device = config, device
        self.model = build_model(config)
        if compiler is not None:
            compile_layers(self.model.decoder.layers, compiler)
            self.model.compiled_loss = device.type == "cuda"  # as `train` does
        self.data_parallel = gradient_buffers(self.model, layout_of(config))
        self.optimizer = ModelOptimizer(self.data_parallel, config.optimizer)

    def step(self, objective: Objective = NEXT_TOKEN) -> Step:
        """Return a whole step under this objective, always on the same synthetic tokens."""
        ids, labels = synthetic_tokens(self.config, objective.stride, self.device)

        def run() -> Tensor:
            loss = self.gradients(ids, labels, objective)
            self.optimizer.step(self.config.optimizer.learning_rate)
            return loss

        return run

    def gradients(self, ids: Tensor, labels: Tensor, objective: Objective) -> Tensor:
        """Fill the gradient buffers and return the loss. `ids` and `labels` are (b, l·stride); the
        stride, `objective.stride`, is the number of raw tokens per position."""
        self.optimizer.zero_gradients()
        valid_counts = objective.count_targets(labels)
        size = self.config.execution.micro_batch or len(ids)
        batch = micro_batches(ids, labels, objective, valid_counts, size)
        return forward_backward(self.data_parallel, batch)


def attention_of(config: Config, device: torch.device) -> AbstractContextManager[Any]:
    """Compute attention by the backend that `train` would choose, within this context."""
    return sdpa_kernel(ATTENTION[attention_backend(config, device)])


def plain_step(config: Config, device: torch.device, compiler: Compiler | None = None) -> Step:
    """Return a whole baseline step of plain PyTorch with fused AdamW, as torchtitan does it on one
    GPU. In bfloat16 the model's weights and gradients are bfloat16, and AdamW updates float32 main
    copies. With a compiler the layers and the loss are compiled."""
    model = PlainModel(config.model, config.batch.sequence_length).to(device)
    if compiler is not None:
        compile_layers(model.layers, compiler)
        model.loss = torch.compile(model.loss, backend=compiler)
    weights = main = list(model.parameters())
    if config.numerics.dtype == "bfloat16":
        main = [weight.detach().clone() for weight in weights]
        for weight, copy in zip(weights, main, strict=True):
            weight.data, copy.grad = weight.data.bfloat16(), torch.empty_like(copy)
    optimizer = torch.optim.AdamW(main, lr=1e-3, weight_decay=0.1, fused=True)
    ids, labels = synthetic_tokens(config, 1, device)

    def run() -> Tensor:
        loss: Tensor = model(ids, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if main is not weights:
            torch._foreach_copy_([copy.grad for copy in main], [w.grad for w in weights])
        torch.nn.utils.clip_grad_norm_(main, 1.0)
        optimizer.step()
        if main is not weights:
            with torch.no_grad():
                torch._foreach_copy_(weights, main)
        model.zero_grad()
        return loss.detach()

    return run


def synthetic_tokens(config: Config, stride: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return uniformly random token ids and their next-token labels, each (b, l·stride). Equal
    arguments give equal tokens."""
    generator = torch.Generator().manual_seed(0)
    shape = config.batch.sequences, config.batch.sequence_length * stride + 1
    tokens = torch.randint(config.model.vocabulary_size, shape, generator=generator).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class PlainModel(nn.Module):
    """The package's Llama-style decoder written in plain PyTorch: the reference for speed.

    Shapes and arithmetic (RMSNorm, rotary positions, SDPA, SwiGLU) are the package's. It has no
    Megatron, parallel layouts or superposition, and does not normalise queries and keys. From token
    ids and labels it computes the mean next-token loss. Raises `ValueError` for a mixture of
    experts.
    """

    def __init__(self, config: Model, length: int) -> None:
        super().__init__()
        if config.experts is not None:
            raise ValueError("PlainModel: only dense models")
        self.embedding = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.head = nn.Linear(config.hidden_size, config.vocabulary_size, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config.initial_deviation)
        exponents = torch.arange(0, config.head_size, 2) / config.head_size
        angles = torch.outer(torch.arange(length), config.rope_theta**-exponents).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())
        self.loss = mean_cross_entropy

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean next-token loss of ids and labels (b, l)."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        return self.loss(self.head(self.norm(x)), labels)


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (b, l, V) and labels (b, l), in float32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class Layer(nn.Module):
    """One layer of `PlainModel`."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        hidden, feed_forward = config.hidden_size, config.feed_forward_size
        self.heads, self.groups = config.attention_heads, config.key_value_heads
        self.head_size = config.head_size
        self.attention_norm = nn.RMSNorm(hidden, eps=config.norm_epsilon)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.groups) * self.head_size, bias=False)
        self.projection = nn.Linear(self.heads * self.head_size, hidden, bias=False)
        self.feed_forward_norm = nn.RMSNorm(hidden, eps=config.norm_epsilon)
        self.gate_and_up = nn.Linear(hidden, 2 * feed_forward, bias=False)
        self.down = nn.Linear(feed_forward, hidden, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Return the hidden states (b, l, d) after this layer, given those before it, `x`."""
        x = x + self._attention(self.attention_norm(x), cosines, sines)
        gate, up = self.gate_and_up(self.feed_forward_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def _attention(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        query, key, value = qkv.split([self.heads, self.groups, self.groups], dim=1)
        mixed = F.scaled_dot_product_attention(
            rotate(query, cosines, sines),
            rotate(key, cosines, sines),
            value,
            is_causal=True,
            enable_gqa=self.heads != self.groups,
        )
        return self.projection(mixed.transpose(1, 2).flatten(2))


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate x (b, heads, l, head_size) by its positions; the result has the dtype of x. `cosines`
    and `sines` are (l, head_size)."""
    first, second = x.chunk(2, dim=-1)
    return (x * cosines + torch.cat([-second, first], dim=-1) * sines).to(x.dtype)
