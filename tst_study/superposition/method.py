"""Token superposition in any trainer: what a step reads, embeds and predicts, by its number.

    tst = Superposition(bag_size=6, step_ratio=0.3, steps=10_000)
    for step in range(10_000):
        tokens = read(batch, tst.raw_length(step, L) + 1)
        hidden = tst.embed(model.embedding, tokens[:, :-1], step)
        loss = tst.loss(model(hidden), tokens[:, 1:], step)

Everything else of a trainer stays: optimizer, schedule, layers, parallelism. There is nothing to
save: what the object remembers of its last call only serves to notice mistakes, and a run that
resumes calls it with the step at which it resumes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tst_study.superposition.bags import bag_inputs, count_valid_targets
from tst_study.superposition.embedding import bag_embedding
from tst_study.superposition.linear_loss import CrossEntropy, linear_bag_loss
from tst_study.superposition.loss_kinds import IGNORE, MODES, BagLossKind, Mode, check_loss_kind
from tst_study.superposition.losses import bag_loss
from tst_study.superposition.weighting import (
    Weighting,
    WeightingOverSteps,
    offset_weights,
    weight_rows,
    weighting_at,
)


@dataclass(frozen=True)
class Objective:
    """What the steps of a phase read and predict: all that the switch between phases changes."""

    name: str
    bag_size: int
    """Targets per latent position; 1 is next-token prediction."""
    stride: int
    """Raw tokens per latent position: what the input fold averages."""
    kind: BagLossKind = "mce"
    weighting: Weighting = "uniform"
    label_smoothing: float = 0.0
    """Of a target's weight, what the whole vocabulary shares."""

    def fold(self, token_ids: Tensor) -> Tensor:
        """(B, l·stride) token ids -> (B, l, stride) bags."""
        return bag_inputs(token_ids, self.stride)

    def count_targets(self, labels: Tensor) -> Tensor:
        """(s,) valid targets per offset; their sum over a step makes its mean exact."""
        return count_valid_targets(labels, self.bag_size, self.stride)


NEXT_TOKEN = Objective("next_token", bag_size=1, stride=1)


def superposed_objective(
    bag_size: int, mode: Mode = "full", kind: BagLossKind = "mce", weighting: Weighting = "uniform"
) -> Objective:
    """Section 3 of the paper, and its one-sided ablations (Figure 6)."""
    if mode == "input_only":
        # Bags in, the one next token out: the bag loss with all weight on the first offset.
        return Objective("bag_first_token", bag_size, bag_size, "mce", "first_token")
    stride = 1 if mode == "output_only" else bag_size
    return Objective(f"bag_{kind}", bag_size, stride, kind, weighting)


@dataclass
class Superposition:
    """The paper's method for a run of so many steps; steps count from 0.

    Raises ValueError, in one line, for settings that do not go together.
    """

    bag_size: int
    """s, tokens per bag; 1 is the baseline."""
    step_ratio: float
    """r, the superposed share of the steps; their number is rounded to the nearest."""
    steps: int
    """Of both phases together."""
    mode: Mode = "full"
    """`input_only`: bags in, one next token out. `output_only`: tokens in, next bag out."""
    loss_kind: BagLossKind = "mce"
    """Multi-hot cross-entropy, or a loss that sees the bag as a set (`bag_loss`)."""
    weighting: WeightingOverSteps | Callable[[int], Weighting] = "uniform"
    """Weights of the s targets: a name, s numbers, rows of s numbers that lie evenly over the
    superposed steps, or a function of the step that returns a name or s numbers."""
    _last: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _bags: int | None = field(default=None, init=False, repr=False, compare=False)
    """Positions of the last sequence of bags."""

    def __post_init__(self) -> None:
        if self.bag_size < 1 or self.steps < 1 or not 0.0 <= self.step_ratio <= 1.0:
            raise ValueError(
                f"bag_size = {self.bag_size} and steps = {self.steps} must be at least 1, and "
                f"step_ratio = {self.step_ratio} lie in 0 … 1"
            )
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is unknown: use one of {', '.join(MODES)}")
        if callable(self.weighting):
            return
        check_loss_kind(self.loss_kind, self.weighting)
        for row in weight_rows(self.weighting) or (self.weighting,):
            offset_weights(row, self.bag_size)  # type: ignore[arg-type]  # raises where it is wrong

    def __str__(self) -> str:
        if not self.superposed_steps:
            return f"Baseline: next-token training for {self.steps:,} steps"
        how = "" if self.mode == "full" else f", {self.mode.replace('_', ' ')}"
        if self.weighting != "uniform":
            how += f", weights {getattr(self.weighting, '__name__', self.weighting)}"
        return (
            f"Token superposition{how}: bags of s = {self.bag_size} tokens in steps 1 to "
            f"{self.superposed_steps:,} of {self.steps:,}, then next-token training; "
            f"{self.data_multiplier:.4g} times the text of a baseline with the same FLOPs"
        )

    @property
    def superposed_steps(self) -> int:
        """Steps of the superposition phase, the first ones; none for bags of one."""
        return 0 if self.bag_size == 1 else round(self.step_ratio * self.steps)

    @property
    def data_multiplier(self) -> float:
        """Text read over that of a baseline of as many steps: 1 + r(s − 1) with bags as input."""
        superposed = self.superposed_steps
        return 1 + superposed / self.steps * (self.raw_length(0, 1) - 1 if superposed else 0)

    def is_superposed(self, step: int) -> bool:
        """Whether the step after `step` steps is of the superposition phase."""
        if not 0 <= step < self.steps:
            raise ValueError(f"step = {step} lies outside 0 … {self.steps - 1}: steps count from 0")
        return step < self.superposed_steps

    def objective(self, step: int) -> Objective:
        """What a step reads and predicts."""
        if not self.is_superposed(step):
            return NEXT_TOKEN
        weighting: Weighting = (
            self.weighting(step)
            if callable(self.weighting)
            else weighting_at(self.weighting, step / self.superposed_steps)
        )
        return superposed_objective(self.bag_size, self.mode, self.loss_kind, weighting)

    def raw_length(self, step: int, positions: int) -> int:
        """Token ids that a sequence of `positions` latent positions reads: s times as many before
        the switch with bags as input. Read one more, for the last label."""
        return positions * self.objective(step).stride

    def embed(self, embedding: nn.Module, tokens: Tensor, step: int) -> Tensor:
        """The model's input: one vector for each latent position.

        A plain `nn.Embedding` is read once, by a fused sum in float32. Any other module is called
        on the tokens, and its outputs are averaged, which keeps what it does beyond a look-up
        (scales, shards, hooks). Outside the superposition phase the module itself is the answer.

        Args:
            embedding: the module that maps (B, n) ids to (B, n, d), not its weight.
            tokens: (B, l·s) ids, int64 or int32; (B, l) where the input is not bagged.
            step: steps done.

        Returns:
            (B, l, d).

        Raises:
            ValueError: a length that is no multiple of s, or that a loader did not change at the
                switch, ids of another type, a step beyond the end; TypeError for a weight in place
                of its module.
        """
        if not isinstance(embedding, nn.Module):
            raise TypeError(
                f"embedding is a {type(embedding).__name__}: pass the module, not its weight, so "
                "that its scale, shards and hooks stay in force"
            )
        stride = self.objective(step).stride
        _check_ids(tokens, "tokens")
        if tokens.dim() != 2 or not tokens.numel() or tokens.shape[1] % stride:
            raise ValueError(
                f"tokens {tuple(tokens.shape)} at step {step} must be (batch, l · {stride}): read "
                f"raw_length(step, L) ids a sequence"
            )
        if not torch.compiler.is_compiling():
            self._last = tokens
            self._check_positions(tokens.shape[1] // stride, bagged=stride > 1)
        if stride == 1:
            vectors: Tensor = embedding(tokens)
            return vectors
        if _is_plain(embedding):
            return bag_embedding(embedding.weight, bag_inputs(tokens, stride))  # type: ignore[arg-type]
        vectors = embedding(tokens)
        bags = vectors.view(len(vectors), -1, stride, vectors.shape[-1])
        wide = torch.promote_types(vectors.dtype, torch.float32)
        return bags.mean(dim=2, dtype=wide).to(vectors.dtype)

    def loss(
        self, logits: Tensor, labels: Tensor, step: int, *, valid_counts: Tensor | None = None
    ) -> Tensor:
        """Multi-hot cross-entropy against the next bag, then cross-entropy, in nats.

        Args:
            logits: (B, l, V).
            labels: (B, l·s), the ids after each token of `embed`: shifted by one, −100 where there
                is no target; (B, l) where the input is not bagged.
            step: steps done.
            valid_counts: with gradient accumulation or data parallelism, `objective(step)
                .count_targets(labels)` summed over the whole step; losses then add up to its mean.

        Returns:
            A scalar, float32 (float64 for float64 logits).

        Raises:
            ValueError: shapes that do not fit, labels that are not shifted, another ignore index.
        """
        chosen = self.objective(step)
        self._check_labels(labels)
        return bag_loss(
            logits,
            labels,
            chosen.bag_size,
            kind=chosen.kind,
            weighting=chosen.weighting,
            stride=chosen.stride,
            valid_counts=valid_counts,
        )

    def linear_loss(
        self,
        hidden: Tensor,
        head: nn.Module | Tensor,
        labels: Tensor,
        step: int,
        *,
        valid_counts: Tensor | None = None,
        cross_entropy: CrossEntropy | None = None,
    ) -> Tensor:
        """`loss(head(hidden), …)` without the logits of a batch ever being held; of `mce` alone.

        Args:
            hidden: (B, l, d), what the head reads.
            head: the output head (without bias), or its weight (V, d).
            labels, step, valid_counts: as of `loss`.
            cross_entropy: another fused kernel (`linear_bag_loss`).

        Raises:
            ValueError: as `loss`; a head with a bias, or hidden states and head swapped.
        """
        chosen = self.objective(step)
        self._check_labels(labels)
        if chosen.kind != "mce":
            raise ValueError(f"linear_loss has no kind {chosen.kind!r}: use loss(head(hidden), …)")
        if isinstance(head, nn.Module) and getattr(head, "bias", None) is not None:
            raise ValueError("head has a bias, which linear_loss leaves out: use loss")
        return linear_bag_loss(
            hidden,
            head.weight if isinstance(head, nn.Module) else head,  # type: ignore[arg-type]
            labels,
            chosen.bag_size,
            weighting=chosen.weighting,
            stride=chosen.stride,
            valid_counts=valid_counts,
            batch_first=True,
            cross_entropy=cross_entropy,
        )

    def _check_positions(self, positions: int, *, bagged: bool) -> None:
        if not bagged and self._bags and positions == self._bags * self.bag_size:
            raise ValueError(
                f"{self._bags} positions before the switch and {positions} after it: the loader "
                f"must read raw_length(step, L) ids, {self.bag_size} times as many before as after"
            )
        self._bags = positions if bagged else None

    def _check_labels(self, labels: Tensor) -> None:
        _check_ids(labels, "labels")
        if torch.compiler.is_compiling():
            return
        last, self._last = self._last, None
        if labels.device.type != "cpu":
            return  # looking at values would make the host wait for the device
        negative = labels[(labels < 0) & (labels != IGNORE)]
        if negative.numel():
            raise ValueError(
                f"labels hold {int(negative[0])}: mark positions without a target by {IGNORE}"
            )
        if last is None or last.shape != labels.shape or _are_shifted(labels, last, 1):
            return
        if _are_shifted(labels, last, 0):
            raise ValueError(
                "labels are the tokens themselves: shift them by one, tokens[:, 1:] (Hugging "
                "Face's models shift inside, this loss does not)"
            )
        if self.bag_size < labels.shape[1] and _are_shifted(labels, last, self.bag_size):
            raise ValueError(
                f"labels are shifted by {self.bag_size}: shift them by one, tokens[:, 1:], also "
                "where they are the next bag"
            )


def _are_shifted(labels: Tensor, tokens: Tensor, by: int) -> bool:
    """Whether all (B, n) labels that are targets are the tokens so many places on."""
    known = labels[:, : labels.shape[1] - by]
    return bool(((known == tokens[:, by:]) | (known == IGNORE)).all())


def _check_ids(ids: Tensor, name: str) -> None:
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} are {ids.dtype}: convert them, {name}.long()")


def _is_plain(module: nn.Module) -> bool:
    """An embedding whose forward pass is the look-up of its own, whole rows and nothing else."""
    return (
        type(module) is nn.Embedding
        and type(module.weight) is nn.Parameter
        and module.max_norm is None
        and module.padding_idx is None
        and not module.scale_grad_by_freq
        and not module.sparse
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and not module._backward_hooks
        and not module._backward_pre_hooks
    )
