"""Token superposition in any trainer: embed bags of tokens, and predict the next bag.

    tst = Superposition(bag_size=6, step_ratio=0.3, steps=10_000, positions=L)
    for step in range(10_000):
        tokens = read(batch, tst.raw_length(step) + 1)
        hidden = tst.embed(model.embedding, tokens[:, :-1], step)
        loss = tst.loss(model(hidden), tokens[:, 1:], step)

Everything else of a trainer stays: optimizer, schedule, layers, parallelism.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils.hooks import RemovableHandle

from tst_study.superposition.bags import bag_inputs
from tst_study.superposition.embedding import bag_embedding, pool
from tst_study.superposition.linear_loss import CrossEntropy, linear_bag_loss
from tst_study.superposition.loss_kinds import (
    IGNORE,
    MODES,
    POOLINGS,
    LossSetting,
    Mode,
    Pooling,
    check_loss_kind,
    loss_of,
)
from tst_study.superposition.losses import bag_loss
from tst_study.superposition.steps import NEXT_TOKEN, Objective, Phases, superposed_steps
from tst_study.superposition.weighting import (
    Weighting,
    WeightingOverSteps,
    offset_weights,
    weight_rows,
)


class _Seen:
    """What a `Superposition` remembers of its calls: the step, and what serves to find mistakes."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self.go_to(0)
        self.resumed = 0  # the step at which a checkpoint was loaded
        self.warned = False
        self.length: int | None = None  # of the first call: positions, or `equal_raw_length` tokens
        self.tokens: Tensor | None = None  # embedded by the last call
        self.evaluated = False  # the last call was in evaluation mode
        self.checked: set[bool] = set()  # phases (superposed or not) whose labels were looked at
        self.__setstate__({})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.key = next(_KEYS)  # a copy has one of its own
        _SEEN[self.key] = self

    def go_to(self, step: int) -> None:
        """Remember that `step` steps are done.

        A compiler takes a number that it finds here for a constant, so that code that read the
        step would be compiled anew in each. What depends on it alone is whether it is superposed.
        """
        self.step = step
        self.superposed = step < self.phases.superposed_steps


_KEYS = itertools.count()
_SEEN: WeakValueDictionary[int, _Seen] = WeakValueDictionary()
"""By key: compiled code cannot hold Python objects."""


@dataclass(frozen=True)
class Superposition:
    """The paper's method for a run of so many steps; steps count from 0.

    Every call takes the step, which is the number of steps done. A loop that leaves it out calls
    `advance` after each step of the optimizer instead.

    Raises ValueError, in one line, for settings that do not go together.
    """

    bag_size: int
    """s, tokens per bag; 1 is the baseline."""
    step_ratio: float
    """r, the superposed share of the steps; their number is rounded to the nearest."""
    steps: int
    """Of both phases together. Steps beyond them are next-token steps, with a warning."""
    mode: Mode = "full"
    """`input_only`: bags in, one next token out. `output_only`: tokens in, next bag out."""
    loss_kind: LossSetting = "mce"
    """A loss of bags: a name, a table of its name and parameters, or an object (`loss_kinds`)."""
    weighting: WeightingOverSteps | Callable[[int], Weighting] = "uniform"
    """Weights of the s targets: a name, s numbers, rows of s numbers that lie evenly over the
    superposed steps, or a function of the step that returns a name or s numbers."""
    pooling: Pooling = "mean"
    """How the vectors of a bag become one; `max` is an ablation."""
    positions: int | Literal["any"] | None = None
    """L, latent positions per sequence, which every call is checked against. None: those of the
    first call. "any": lengths vary, and nothing is checked."""
    equal_raw_length: bool = False
    """Patch-level training: sequences of L tokens in both phases, hence L/s positions in superposed
    steps, which then cost fewer FLOPs than the others."""
    phases: Phases = field(init=False, repr=False, compare=False)
    """What each step reads and predicts, as plain numbers."""
    _seen: _Seen = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.bag_size < 1 or self.steps < 1 or not 0.0 <= self.step_ratio <= 1.0:
            raise ValueError(
                f"bag_size = {self.bag_size} and steps = {self.steps} must be at least 1, and "
                f"step_ratio = {self.step_ratio} lie in 0 … 1"
            )
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is unknown: use one of {', '.join(MODES)}")
        if self.pooling not in POOLINGS:
            raise ValueError(
                f"pooling {self.pooling!r} is unknown: use one of {', '.join(POOLINGS)}"
            )
        superposed = superposed_steps(self.steps, self.bag_size, self.step_ratio)
        phases = Phases(
            self.steps,
            superposed,
            self.bag_size,
            self.mode,
            self.loss_kind,
            self.weighting,
            self.pooling,
        )
        object.__setattr__(self, "phases", phases)  # frozen: settings do not change under way
        object.__setattr__(self, "_seen", _Seen(phases))
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
        text = f"{self.data_multiplier:.4g} times the text of a baseline with the same FLOPs"
        if self.equal_raw_length:
            text = "as many tokens a sequence in both phases"
        return (
            f"Token superposition{how}: bags of s = {self.bag_size} tokens in steps 1 to "
            f"{self.superposed_steps:,} of {self.steps:,}, then next-token training; {text}"
        )

    @property
    def superposed_steps(self) -> int:
        """Steps of the superposition phase, the first ones; none for bags of one."""
        return self.phases.superposed_steps

    @property
    def data_multiplier(self) -> float:
        """Text read over that of a baseline of as many steps: 1 + r(s − 1) with bags as input."""
        return self.phases.data_multiplier

    @property
    def step(self) -> int:
        """Steps done, as `advance` counts them or the last call named them."""
        return self._seen.step

    def advance(self, to: int | None = None) -> None:
        """Count one step, after the optimizer's; or say how many are done."""
        self._seen.go_to(_not_negative(self._seen.step + 1 if to is None else to))

    def is_superposed(self, step: int | None = None) -> bool:
        """Whether the step after `step` steps is of the superposition phase."""
        return self.phases.phase(self._number(step)) == "superposition"

    def objective(self, step: int | None = None) -> Objective:
        """What a step reads and predicts."""
        return self.phases.objective(self._number(step))

    def raw_length(self, step: int, positions: int | None = None) -> int:
        """Token ids that a sequence of `positions` latent positions reads, L by default: s times as
        many before the switch with bags as input. Read one more, for the last label."""
        positions = positions if positions is not None else self.positions  # type: ignore[assignment]
        if not isinstance(positions, int):
            raise ValueError("raw_length needs positions: give it, or Superposition(positions=L)")
        stride = self.phases.tokens_per_position(self.phases.phase(self._number(step)))
        return positions if self.equal_raw_length else positions * stride

    def embed(self, embedding: nn.Module, tokens: Tensor, step: int | None = None) -> Tensor:
        """The model's input: one vector for each latent position.

        Call it where the model would call its embedding, in `forward`: DDP, FSDP and
        torch.compile then see nothing new. A plain `nn.Embedding` is read once, by a fused sum in
        float32. Any other module is called on the tokens, and its outputs are averaged, which
        keeps what it does beyond a look-up (scales, shards, hooks). After the superposition phase,
        and for a module in evaluation mode (`model.eval()`), the module itself is the answer.

        Args:
            embedding: the module that maps (B, n) ids to (B, n, d), not its weight.
            tokens: (B, l·s) ids, int64 or int32; (B, l) where the input is not bagged.
            step: steps done.

        Returns:
            (B, l, d).

        Raises:
            ValueError: a length that is no multiple of s or not what `positions` says, ids of
                another type, a negative step, or a shard of the weight outside `forward`;
                TypeError for a weight in place of its module.
        """
        if not isinstance(embedding, nn.Module):
            raise TypeError(
                f"embedding is a {type(embedding).__name__}: pass the module, not its weight, so "
                "that its scale, shards and hooks stay in force"
            )
        stride = self._check_tokens(tokens, step, embedding.training)
        if _is_sharded(embedding):
            raise ValueError(
                "the embedding's weight is a DTensor that nothing gathers here: call embed inside "
                "the model's forward"
            )
        if stride > 1 and _is_plain(embedding):
            bags = bag_inputs(tokens, stride)
            return bag_embedding(embedding.weight, bags, pooling=self.pooling)  # type: ignore[arg-type]
        return self._pooled(embedding(tokens), tokens, stride)

    def attach(self, embedding: nn.Module) -> RemovableHandle:
        """Let an embedding return what `embed` does, by a forward hook.

        For a model whose `forward` you cannot edit, and which takes its length from the embedding's
        output, as Hugging Face's do. The step is that of `advance`.
        """

        def bagged(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            stride = self._check_tokens(inputs[0], None, module.training)
            return self._pooled(output, inputs[0], stride)

        return embedding.register_forward_hook(bagged)

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        step: int | None = None,
        *,
        valid_counts: Tensor | None = None,
        vocabulary_start: int = 0,
        group: ProcessGroup | None = None,
    ) -> Tensor:
        """Multi-hot cross-entropy against the next bag, then cross-entropy, in nats.

        Add your model's auxiliary losses (router balance, z-loss) to it.

        Args:
            logits: (B, l, V).
            labels: (B, l·s), the ids after each token of `embed`: shifted by one, −100 where there
                is no target; (B, l) where the input is not bagged.
            step: steps done.
            valid_counts: with gradient accumulation or data parallelism, `objective(step)
                .count_targets(labels)` summed over the whole step; losses then add up to its mean.
            vocabulary_start, group: where the vocabulary is sharded, as of `bag_loss`.

        Returns:
            A scalar, float32 (float64 for float64 logits).

        Raises:
            ValueError: shapes that do not fit, labels that are not shifted by one, another ignore
                index, an embedding that was in evaluation mode.
        """
        chosen, weighting, labels = self._targets(labels, step)
        return bag_loss(
            logits,
            labels,
            chosen.bag_size,
            kind=chosen.loss,
            weighting=weighting,
            stride=chosen.stride,
            valid_counts=valid_counts,
            vocabulary_start=vocabulary_start,
            group=group,
        )

    def linear_loss(
        self,
        hidden: Tensor,
        head: nn.Module | Tensor,
        labels: Tensor,
        step: int | None = None,
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
        chosen, weighting, labels = self._targets(labels, step)
        if not chosen.loss.in_one_pass:
            raise ValueError(f"linear_loss has no {chosen.loss}: use loss(head(hidden), …)")
        if isinstance(head, nn.Module) and getattr(head, "bias", None) is not None:
            raise ValueError("head has a bias, which linear_loss leaves out: use loss")
        return linear_bag_loss(
            hidden,
            head.weight if isinstance(head, nn.Module) else head,  # type: ignore[arg-type]
            labels,
            chosen.bag_size,
            weighting=weighting,
            stride=chosen.stride,
            valid_counts=valid_counts,
            batch_first=True,
            cross_entropy=cross_entropy,
        )

    def state_dict(self) -> dict[str, Any]:
        """The step and the settings, for a checkpoint."""
        return {"step": self.step, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the step of a checkpoint; a call that names an earlier one is then an error.

        Raises ValueError where the run was begun with other settings.
        """
        for name, value in self._settings().items():
            if name in state and state[name] != value:
                raise ValueError(
                    f"{name} = {value!r}, but the checkpoint's run has {state[name]!r}: resume "
                    "with the same settings"
                )
        self._seen.go_to(state["step"])
        self._seen.resumed = state["step"]

    def _settings(self) -> dict[str, Any]:
        names = ("bag_size", "step_ratio", "steps", "mode", "pooling", "equal_raw_length")
        if callable(self.weighting):
            weighting = getattr(self.weighting, "__name__", "a function")
        elif isinstance(self.weighting, str):
            weighting = self.weighting
        else:  # some formats make lists of tuples
            weighting = str([list(row) for row in weight_rows(self.weighting)])
        loss = str(loss_of(self.loss_kind))
        return {name: getattr(self, name) for name in names} | {
            "weighting": weighting,
            "loss": loss,
        }

    def _pooled(self, vectors: Tensor, tokens: Tensor, bag_size: int) -> Tensor:
        """(B, l·s, d) -> (B, l, d), pooled in float32 or better."""
        if bag_size == 1:
            return vectors
        if vectors.shape[:2] != tokens.shape:
            raise ValueError(
                f"the embedding returns {tuple(vectors.shape)} for tokens {tuple(tokens.shape)}, "
                "not (batch, tokens, d): turn off what scatters positions, as sequence parallelism "
                "does"
            )
        return pool(vectors.view(len(vectors), -1, bag_size, vectors.shape[-1]), self.pooling)

    def _number(self, step: int | None) -> int:
        """The step that a question is about."""
        return self._seen.step if step is None else _not_negative(step)

    def _begin(self, step: int | None) -> bool:
        """Whether the step that is being trained is superposed. Warns once beyond the end."""
        seen = self._seen
        if step is not None:
            if _not_negative(step) < seen.resumed:
                raise ValueError(
                    f"step = {step}, but the run was resumed at step {seen.resumed}: pass the "
                    "number of steps done"
                )
            seen.go_to(step)
        if not torch.compiler.is_compiling() and not seen.warned and seen.step >= self.steps:
            seen.warned = True
            warnings.warn(
                f"step {seen.step} lies beyond the {self.steps} steps: it is a next-token step",
                stacklevel=4,
            )
        return seen.superposed

    def _check_tokens(self, tokens: Tensor, step: int | None, training: bool) -> int:
        """The stride of a step. Raises ValueError where the tokens do not fit it."""
        seen = self._seen
        seen.evaluated = not training
        if not training:
            return 1
        superposed = self._begin(step)
        stride = self.phases.tokens_per_position("superposition" if superposed else "recovery")
        _check_ids(tokens, "tokens")
        if tokens.dim() != 2 or not tokens.shape[1] or tokens.shape[1] % stride:
            raise ValueError(
                f"tokens {tuple(tokens.shape)} at step {seen.step} must be (batch, "
                f"l · {stride}): read raw_length(step, L) ids a sequence"
            )
        seen.tokens = tokens
        length = tokens.shape[1] if self.equal_raw_length else tokens.shape[1] // stride
        if self.positions is None and seen.length is None:
            seen.length = length
        wanted = seen.length if self.positions is None else self.positions
        if length != wanted and wanted != "any":
            raise ValueError(
                f"{tokens.shape[1]} ids are {length} positions at step {seen.step}, not {wanted}: "
                f"the loader must read raw_length(step, L) ids, {self.bag_size} times as many "
                "before the switch as after it; evaluate without tst or after model.eval(); "
                'Superposition(positions="any") lets lengths vary'
            )
        return stride

    def _targets(
        self, labels: Tensor, step: int | None
    ) -> tuple[Objective, Weighting | Tensor, Tensor]:
        """The objective of a step, its weights, and the labels, which are checked once a phase."""
        superposed, seen = self._begin(step), self._seen
        if seen.evaluated:
            raise ValueError(
                "the last embed was in evaluation mode: methods are compared by next-token loss, "
                "F.cross_entropy, without tst"
            )
        _check_ids(labels, "labels")
        if seen.tokens is not None and seen.tokens.shape == labels.shape:
            if torch.compiler.is_compiling():
                labels = _checked_labels(seen.tokens, labels, seen.key, self.bag_size, superposed)
            else:
                _check_labels(seen.tokens, labels, seen.key, self.bag_size, superposed)
        if not superposed:
            return NEXT_TOKEN, "uniform", labels
        if not self.phases.weighting_changes:
            chosen = self.phases.objective(0)
        elif torch.compiler.is_compiling():
            weights = _weights_at(labels, seen.key, step, self.bag_size)
            return self.phases.superposed_objective(), weights, labels
        else:
            chosen = self.phases.objective(seen.step)
        return chosen, chosen.weighting, labels


def _check_labels(
    tokens: Tensor, labels: Tensor, key: int, bag_size: int, superposed: bool
) -> None:
    """Once a phase, find labels that are not the tokens shifted by one; the host waits once.

    Raises ValueError, which names the shift, or an ignore index that is not `IGNORE`.
    """
    seen = _SEEN.get(key)
    if seen is None or superposed in seen.checked:
        return
    length = labels.shape[1]
    shifts = [k for k in (1, 0, *range(2, 2 * bag_size + 1), -1) if k < length]
    is_target = labels != IGNORE
    strange = (labels < 0) & is_target
    fits = [
        (
            (
                labels[:, max(0, -k) : length - max(0, k)]
                == tokens[:, max(0, k) : length + min(0, k)]
            )
            | ~is_target[:, max(0, -k) : length - max(0, k)]
        ).all()
        for k in shifts
    ]
    least, *found = torch.stack([torch.where(strange, labels, 0).min(), *fits]).tolist()
    if least:
        raise ValueError(f"labels hold {least}: mark positions without a target by {IGNORE}")
    by = next((k for k, fit in zip(shifts, found, strict=True) if fit), None)
    if by == 0:
        raise ValueError(
            "labels are the tokens themselves: shift them by one, tokens[:, 1:] (Hugging Face's "
            "models shift inside, this loss does not)"
        )
    if by not in (1, None):
        raise ValueError(
            f"labels are shifted by {by}: shift them by one, tokens[:, 1:], also where they are "
            "the next bag"
        )
    seen.checked.add(superposed)
    if by is None:
        warnings.warn("labels are not the embedded tokens shifted by one", stacklevel=5)


@torch.library.custom_op("tst_study::checked_labels", mutates_args=())
def _checked_labels(
    tokens: Tensor, labels: Tensor, key: int, bag_size: int, superposed: bool
) -> Tensor:
    """The labels, once `_check_labels` has looked at them: a step that no compiler looks into."""
    _check_labels(tokens, labels, key, bag_size, superposed)
    return labels.clone()


@_checked_labels.register_fake
def _(tokens: Tensor, labels: Tensor, key: int, bag_size: int, superposed: bool) -> Tensor:
    return torch.empty_like(labels)


@torch.library.custom_op("tst_study::weights_at", mutates_args=())
def _weights_at(labels: Tensor, key: int, step: int | None, bag_size: int) -> Tensor:
    """The weights (s,) of a superposed step, which a compiler must not take for constants."""
    seen = _SEEN[key]
    weights = offset_weights(
        seen.phases.weighting_at(seen.step if step is None else step), bag_size
    )
    return torch.tensor(weights, dtype=torch.float64).to(labels.device, non_blocking=True)


@_weights_at.register_fake
def _(labels: Tensor, key: int, step: int | None, bag_size: int) -> Tensor:
    return labels.new_empty(bag_size, dtype=torch.float64)


def _not_negative(step: int) -> int:
    if step < 0:
        raise ValueError(f"step = {step}: steps count from 0")
    return step


def _check_ids(ids: Tensor, name: str) -> None:
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} are {ids.dtype}: convert them, {name}.long()")


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _is_sharded(module: nn.Module) -> bool:
    """Whether a plain embedding's weight is spread over ranks and no hook gathers it."""
    kind = type(getattr(module, "weight", None)).__name__
    return kind == "DTensor" and type(module) is nn.Embedding and not _has_hooks(module)


def _is_plain(module: nn.Module) -> bool:
    """Whether an embedding's forward is the look-up of its own, whole rows and nothing else."""
    return (
        type(module) is nn.Embedding
        and type(module.weight) is nn.Parameter
        and module.max_norm is None
        and module.padding_idx is None
        and not module.scale_grad_by_freq
        and not module.sparse
        and not _has_hooks(module)
    )
