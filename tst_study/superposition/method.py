"""Token superposition in any trainer: embed bags of tokens, and predict the next bag.

    tst = Superposition(bag_size=6, step_ratio=0.3, steps=10_000, positions=L)
    for step in range(10_000):
        tokens = read(batch, tst.raw_length(step) + 1)
        hidden = tst.embed(model.embedding, tokens[:, :-1], step)
        loss = tst.loss(model(hidden), tokens[:, 1:], step)

Here L is the number of positions that the model runs per sequence. Everything else of a trainer
stays as it is: optimizer, schedule, layers, parallelism.
"""

import warnings
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils.hooks import RemovableHandle

from tst_study.superposition.bags import (
    LatentDocuments,
    bag_documents,
    bag_inputs,
    document_numbers,
    own_tokens,
)
from tst_study.superposition.embedding import bag_embedding, mean_of_bags
from tst_study.superposition.linear_loss import CrossEntropy, linear_bag_loss
from tst_study.superposition.loss_kinds import MODES, LossSetting, Mode, check_targets, loss_of
from tst_study.superposition.losses import bag_loss
from tst_study.superposition.misuse import Calls
from tst_study.superposition.steps import NEXT_TOKEN, Objective, Phases, superposed_steps
from tst_study.superposition.weighting import Weighting, WeightingOverSteps, weight_rows


@dataclass(frozen=True)
class Superposition:
    """The paper's method for a run of `steps` optimizer steps, which count from 0.

    A `step` argument is the number of optimizer steps done. A loop may leave it out and call
    `advance` after each optimizer step instead; only `raw_length` always needs it.

    Raises ValueError, in one line, for settings that are not possible or do not go together.
    """

    bag_size: int
    """s, tokens per bag; 1 is the baseline."""
    step_ratio: float | None = None
    """r, the superposed share of the steps. r · `steps` is rounded to the nearest whole number,
    with a warning if that is 0."""
    steps: int = 0
    """Number of steps in both phases together. Any further steps are next-token steps, with one
    warning."""
    mode: Mode = "full"
    """`full`: bags in, next bag out. `input_only`: bags in, one next token out, by cross-entropy;
    `loss_kind` and `weighting` have no effect. `output_only`: tokens in, next bag out."""
    loss_kind: LossSetting = "mce"
    """The loss of bags: a name, a table of its name and parameters, or an object (see
    `loss_kinds.py`)."""
    weighting: WeightingOverSteps = "uniform"
    """Weights of the s targets: a name, s numbers, or rows of s numbers. Rows lie evenly over the
    superposed steps, and weights are interpolated between them (see `weighting.py`)."""
    positions: int | Literal["any"] | None = None
    """L, the positions that the model runs per sequence. `embed` refuses sequences whose length
    does not fit L. None: the first call of `embed` sets L. "any": any length fits."""
    superposed_steps: int | None = None
    """The number of superposed steps, in place of `step_ratio`: it stays where it is when `steps`
    change. `steps_of_budget` finds it from tokens, seconds or FLOPs."""
    phases: Phases = field(init=False, repr=False, compare=False)
    """The two phases that follow from these settings: their numbers of steps, and what their steps
    read and predict."""
    _calls: Calls = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        counts = map(_is_count, (self.bag_size, self.steps))
        ratio = self.step_ratio
        boundary = self.superposed_steps
        if (ratio is None) == (boundary is None):
            raise ValueError(
                f"step_ratio = {ratio!r}, superposed_steps = {boundary!r}: give one of the two"
            )
        is_ratio = isinstance(ratio, Real) and 0.0 <= ratio <= 1.0
        if not all(counts) or not (is_ratio or ratio is None):
            raise ValueError(
                f"bag_size = {self.bag_size} and steps = {self.steps} must be whole numbers of at "
                f"least 1, and step_ratio = {ratio!r} a number in 0 … 1"
            )
        if boundary is not None and not (
            hasattr(boundary, "__index__") and 0 <= boundary <= self.steps
        ):
            raise ValueError(
                f"superposed_steps = {boundary!r} must be a whole number in 0 … steps = "
                f"{self.steps}"
            )
        if self.positions not in (None, "any") and not _is_count(self.positions):
            raise ValueError(
                f'positions = {self.positions!r} must be L, a whole number of at least 1, or "any"'
            )
        if as_numbers := getattr(self.weighting, "tolist", None):  # an array or tensor
            object.__setattr__(self, "weighting", as_numbers())
        # A checkpoint with numbers of numpy could not be loaded by torch's safe loader.
        numbers = {"bag_size": int, "steps": int, "step_ratio": float, "superposed_steps": int}
        for name, kind in numbers.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, kind(getattr(self, name)))
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is unknown: use one of {', '.join(MODES)}")
        superposed = superposed_steps(self.steps, self.bag_size, ratio or 0.0, boundary)
        if self.bag_size > 1 and ratio and not superposed:
            warnings.warn(
                f"step_ratio = {ratio:g} of {self.steps} steps is rounded to none: this "
                "is the baseline",
                stacklevel=3,
            )
        try:
            loss = loss_of(self.loss_kind)
            check_targets(loss, self.weighting, self.bag_size)
        except TypeError as error:
            raise ValueError(
                f"loss_kind = {self.loss_kind!r} or weighting = {self.weighting!r}: {error}"
            ) from error
        bags = self.bag_size, self.mode, loss, self.weighting
        phases = Phases(self.steps, superposed, *bags)
        # The dataclass is frozen, because settings do not change during a run.
        object.__setattr__(self, "phases", phases)
        object.__setattr__(self, "_calls", Calls(phases, self.positions))

    @property
    def step(self) -> int:
        """The number of steps done: counted by `advance`, or the last `step` that was given to
        `embed` or a loss."""
        return self._calls.step

    def advance(self, to: int | None = None) -> None:
        """Count one more step as done, or set the number of steps done to `to`. A loop calls this
        after each step of the optimizer."""
        self._calls.go_to(self._calls.step + 1 if to is None else to)
        self._calls.forget()

    def objective(self, step: int | None = None) -> Objective:
        """Return what a step reads and predicts; by default the current step."""
        return self.phases.objective(self._calls.resolve(step))

    def raw_length(self, step: int, positions: int | None = None) -> int:
        """Return the number of token ids that `embed` takes per sequence: s·L in superposed steps
        with bags as input, else L. The loader reads one id more, the label of the last one.

        `positions`: L, by default that of the constructor. Raises ValueError if neither is a
        number, or for a negative step.
        """
        known = self.positions if positions is None else positions
        if known is None or known == "any":
            raise ValueError("raw_length needs positions: give it, or Superposition(positions=L)")
        phase = self.phases.phase(self._calls.resolve(step))
        return known * self.phases.tokens_per_position(phase)

    def latent_documents(
        self, documents: Tensor, tokens: Tensor, step: int | None = None
    ) -> LatentDocuments:
        """Return whose each of the L positions is, for the masks of attention: that of the last
        token which it reads. Arguments are those of `embed`."""
        stride = self.objective(step).stride
        return LatentDocuments(bag_documents(document_numbers(documents, tokens)[:, :-1], stride))

    def embed(
        self,
        embedding: nn.Module,
        tokens: Tensor,
        step: int | None = None,
        *,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Return the model's input, one vector for each position.

        Call it where the model would call its embedding, in `forward`: DDP, FSDP and
        torch.compile then see nothing new. A plain `nn.Embedding` is read once, by a fused sum in
        float32. Any other module is called on the tokens and its outputs are averaged, so that what
        it does beyond a look-up (scales, shards, hooks) takes effect.

        If the input is not bagged, the module's own output is returned. This is so after the
        superposition phase, in the mode `output_only`, and for a module in evaluation mode
        (`model.eval()`), whose tokens and step are not checked.

        Args:
            embedding: the module that maps (B, n) ids to (B, n, d), not its weight.
            tokens: (B, l·s) ids, int64 or int32; (B, l) if the input is not bagged.
            step: steps done; by default the current number, which `advance` counts.
            documents: where rows hold several documents or padding, whose each token is: ids
                (B, l·s), negative for padding, or `cu_seqlens` (see `document_numbers`). A bag
                belongs to the document of its last token that is no padding, and its mean leaves
                out all others. Tokens equal to the module's `padding_idx` are padding, too.

        Returns:
            (B, l, d).

        Raises:
            ValueError: a length that is not a multiple of s or not what `positions` says, ids of
                another type, a step that is negative or before the one resumed from, or, if the
                input is bagged, a module that does not return (B, n, d).
            TypeError: a weight in place of its module.
        """
        if not isinstance(embedding, nn.Module):
            raise TypeError(
                f"embedding is a {type(embedding).__name__}: pass the module, not its weight, so "
                "that its scale, shards and hooks stay in force"
            )
        stride = self._calls.stride(tokens, step, embedding.training)
        if stride > 1 and _is_plain(embedding):
            bags, members = bag_inputs(tokens, stride), _members(tokens, stride, documents)
            return bag_embedding(embedding.weight, bags, mask=members)  # type: ignore[arg-type]
        return self._pooled(embedding, embedding(tokens), tokens, stride, documents)

    def attach(self, embedding: nn.Module, model: nn.Module | None = None) -> RemovableHandle:
        """Register a forward hook that makes an embedding return what `embed` returns, up to
        rounding.

        This is for a model whose `forward` you cannot edit, and which takes its length from the
        embedding's output, as most of Hugging Face's models do (GPT-2 does not). The step is the
        current number of steps done, which `advance` counts. A copy of the model
        (`copy.deepcopy`) counts the same steps; a pickled one has a count of its own.

        A model with several tables of token ids (value embeddings, hashes, a LoRA's) needs each of
        them attached, or a wrapper around them. Give `model`, and tables in it that are forgotten
        raise ValueError with their names when they read the tokens of bags.
        """
        for key, hook in [*embedding._forward_pre_hooks.items()]:
            if isinstance(hook, _Guard):
                del embedding._forward_pre_hooks[key]
        for name, module in model.named_modules() if model is not None else ():
            hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
            known = any(isinstance(hook, _Guard | _Hook) for hook in hooks)
            if isinstance(module, nn.Embedding) and module is not embedding and not known:
                module.register_forward_pre_hook(_Guard(self, name))
        return embedding.register_forward_hook(_Hook(self), with_kwargs=True)

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        step: int | None = None,
        *,
        valid_counts: Tensor | None = None,
        documents: Tensor | None = None,
        vocabulary_start: int = 0,
        group: ProcessGroup | None = None,
    ) -> Tensor:
        """Return the mean loss in nats: in superposed steps the loss of bags that `mode` and
        `loss_kind` define, afterwards next-token cross-entropy. (The hinge loss has no unit.)

        Add your model's auxiliary losses (router balance, z-loss) to it.

        Args:
            logits: (B, l, V).
            labels: (B, l·s), for each token given to `embed` the id that follows it, or −100 if
                there is no target; (B, l) if the input is not bagged.
            step: steps done; by default the current number, such as that given to `embed`.
            valid_counts: with gradient accumulation or data parallelism,
                `objective(step).count_targets(labels)` summed over all micro-batches and ranks of
                the step. The sum of their losses is then the mean of the whole step. Where ranks
                average their gradients, as DDP and FSDP do, multiply the loss by their number.
            documents: as for `embed`, whose each token is; (B, l·s + 1) ids say it for the last
                label, too. No target then lies in another document than its position's; give them
                to `count_targets`, too.
            vocabulary_start, group: as for `bag_loss`, if the vocabulary is sharded.

        Returns:
            A scalar, float32 (float64 for float64 logits).

        Raises:
            ValueError: shapes that do not fit together; labels that are the tokens themselves or
                the tokens shifted by another number than one (other labels that do not fit the
                tokens draw a warning); an ignore index other than −100; labels of another type than
                int64 or int32; a step that is negative or before the one resumed from; or a call
                after `embed` in evaluation mode.
        """
        objective, weighting, labels = self._targets(labels, step)
        return bag_loss(
            logits,
            labels,
            objective.bag_size,
            kind=objective.loss,
            weighting=weighting,
            stride=objective.stride,
            valid_counts=valid_counts,
            documents=documents,
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
        documents: Tensor | None = None,
        cross_entropy: CrossEntropy | None = None,
    ) -> Tensor:
        """Return `loss(head(hidden), …)` without ever holding the logits of a whole batch. In
        superposed steps this works only for `mce` without label smoothing, and for the mode
        `input_only`.

        Args:
            hidden: (B, l, d), what the head reads.
            head: the output head, a plain `nn.Linear` without a bias (or the embedding that it is
                tied to), or its weight (V, d).
            labels, step, valid_counts, documents: as for `loss`.
            cross_entropy: a fused kernel to use in place of ours, as for `linear_bag_loss`.

        Raises:
            ValueError: as for `loss`; also for a loss of another kind, a head that does more than
                multiply by its weight, or hidden states and head swapped.
        """
        objective, weighting, labels = self._targets(labels, step)
        if not objective.loss.in_one_pass:
            raise ValueError(f"linear_loss has no {objective.loss}: use loss(head(hidden), …)")
        if isinstance(head, nn.Module):
            plain = type(head) in (nn.Linear, nn.Embedding) and not _is_changed(head, _Hook)
            if not plain or getattr(head, "bias", None) is not None:
                raise ValueError(
                    "head has a bias, a hook or a forward of its own, which linear_loss would "
                    "leave out: use loss(head(hidden), …)"
                )
            head = head.weight
        return linear_bag_loss(
            hidden,
            head,  # type: ignore[arg-type]
            labels,
            objective.bag_size,
            weighting=weighting,
            stride=objective.stride,
            valid_counts=valid_counts,
            documents=documents,
            batch_first=True,
            cross_entropy=cross_entropy,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps done and the settings, for a checkpoint."""
        boundary = {"superposed_steps": self.phases.superposed_steps, "steps": self.steps}
        return {"step": int(self.step), **boundary, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the step of a checkpoint. Giving an earlier step to `embed` or a loss is then an
        error.

        Raises ValueError if the checkpoint's run has other settings. `positions` may differ, and so
        may `steps`, if the boundary between the phases stays where it was.
        """
        before, now = state["superposed_steps"], self.phases.superposed_steps
        if before != now and state["bag_size"] == self.bag_size:
            raise ValueError(
                f"superposed_steps = {now} of {self.steps} steps, but the checkpoint's run has "
                f"{before} of {state['steps']}: give superposed_steps={before} in place of "
                "step_ratio, so that the switch stays where it was"
            )
        for name, value in self._settings().items():
            if state[name] != value:
                raise ValueError(
                    f"{name} = {value!r}, but the checkpoint's run has {state[name]!r}: resume "
                    "with the same settings"
                )
        self._calls.go_to(state["step"])
        self._calls.resumed = state["step"]

    def _settings(self) -> dict[str, Any]:
        # Lists, because some checkpoint formats turn tuples into them.
        rows = [list(map(float, row)) for row in weight_rows(self.weighting)]
        own = {"weighting": rows or self.weighting, "loss": str(self.phases.loss_kind)}
        return {"bag_size": self.bag_size, "mode": self.mode, **own}

    def _pooled(
        self,
        embedding: nn.Module,
        vectors: Tensor,
        tokens: Tensor,
        bag_size: int,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Pool the vectors of each bag of `bag_size` tokens into one: (B, l·s, d) -> (B, l, d).

        Raises ValueError if there is not one vector for each token.
        """
        if bag_size == 1:
            return vectors
        if vectors.shape[1] * bag_size == tokens.shape[1]:
            raise ValueError(
                "the embedding's output is bagged already: attach once, and not beside embed"
            )
        if vectors.shape[:2] != tokens.shape:
            raise ValueError(
                f"the embedding returns {tuple(vectors.shape)} for tokens {tuple(tokens.shape)}, "
                "not (batch, tokens, d): turn off what scatters positions, as sequence parallelism "
                "does"
            )
        members = _members(tokens, bag_size, documents, getattr(embedding, "padding_idx", None))
        vectors = vectors.view(len(vectors), -1, bag_size, vectors.shape[-1])
        return mean_of_bags(vectors, members)

    def _targets(
        self, labels: Tensor, step: int | None
    ) -> tuple[Objective, Weighting | Tensor, Tensor]:
        """Check the labels; return a step's objective, the weights of its targets and the labels.

        All superposed steps have the same objective, apart from weights that change over them.
        Such weights are a tensor, because compiled code would keep numbers as constants.
        """
        superposed, labels = self._calls.checked(labels, step)
        if not superposed:
            return NEXT_TOKEN, "uniform", labels
        objective, weights = self.phases.objective(0), self._calls.weights
        if weights is None:
            return objective, objective.weighting, labels
        return objective, weights.to(labels.device, non_blocking=True), labels


@dataclass(frozen=True)
class _Hook:
    """The forward hook that `Superposition.attach` registers. It is an object, because a function
    inside another could not be pickled with the model."""

    superposition: Superposition

    def __call__(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> Tensor:
        tokens = next(iter((*inputs, *named.values())))
        # Torch's tensor parallelism turns the ids into a `DTensor`, which holds them all.
        tokens = tokens.to_local() if hasattr(tokens, "to_local") else tokens
        stride = self.superposition._calls.stride(tokens, None, module.training)
        if stride > 1 and hasattr(output, "redistribute"):
            # `parallelize_module` was called after `attach`: each rank has a part of each vector.
            from torch.distributed.tensor import Replicate  # which takes a second to import

            mesh = output.device_mesh  # type: ignore[attr-defined]
            output = output.redistribute(placements=[Replicate()] * mesh.ndim)
        return self.superposition._pooled(module, output, tokens, stride)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


@dataclass(frozen=True)
class _Guard:
    """The hook on a table that was not attached. It refuses the ids of bags."""

    superposition: Superposition
    name: str

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        calls, ids = self.superposition._calls, inputs[0] if inputs else None
        phase = "superposition" if calls.superposed else "recovery"
        stride = calls.phases.tokens_per_position(phase)  # type: ignore[arg-type]
        bagged = [known.shape for known in calls.streams] if stride > 1 else []
        if module.training and isinstance(ids, Tensor) and ids.shape in bagged:
            raise ValueError(
                f"layer {self.name!r} reads {ids.shape[1]} ids for {ids.shape[1] // stride} "
                "positions: attach it, too, or the module around all tables, or give it one id per "
                "position"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def _members(
    tokens: Tensor, bag_size: int, documents: Tensor | None, padding: int | None = None
) -> Tensor | None:
    """Mark the tokens that count in the mean of their bag, (B, l, s) bool; None for all."""
    if documents is None and padding is None:
        return None
    if documents is None:
        numbers = torch.zeros_like(tokens)
    else:
        numbers = document_numbers(documents, tokens)[:, :-1]
    return own_tokens(
        numbers if padding is None else numbers.where(tokens != padding, -1), bag_size
    )


def _is_plain(module: nn.Module) -> bool:
    """Return whether a module does nothing but look up whole rows of its own weight."""
    return (
        type(module) is nn.Embedding
        and type(module.weight) is nn.Parameter
        and module.max_norm is None
        and module.padding_idx is None
        and not module.scale_grad_by_freq
        and not module.sparse
        and not _is_changed(module)
    )


def _is_changed(module: nn.Module, besides: type | tuple[()] = ()) -> bool:
    """Return whether a module has hooks, or a `forward` in place of that of its class. `besides`:
    a class of forward hooks that do not count."""
    after = [hook for hook in module._forward_hooks.values() if not isinstance(hook, besides)]
    hooks = after or module._forward_pre_hooks or module._backward_hooks
    hooks = hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in module.__dict__


def _is_count(number: Any) -> bool:
    return hasattr(number, "__index__") and number >= 1
