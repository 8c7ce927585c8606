"""Finds mistakes in the calls of a `Superposition`: steps, lengths and labels that the caller
cannot have meant.

The type and shape of tokens are checked in every call. Labels are compared with the tokens only
once in each phase, because the comparison makes the host wait for the device. Code that
torch.compile has made compares them too, by a custom operator.
"""

import itertools
import warnings
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from tst_study.superposition.loss_kinds import IGNORE
from tst_study.superposition.steps import Phases
from tst_study.superposition.weighting import offset_weights, weight_rows


class Calls:
    """The step that a `Superposition` is at, and what it remembers of earlier calls in order to
    check the next ones."""

    def __init__(self, phases: Phases, positions: int | Literal["any"] | None) -> None:
        self.phases = phases
        self.positions = positions  # of a sequence; None until the first call sets it
        self.changing_weights: Tensor | None = None
        """(superposed steps, s) the weights of each step's targets; None if all steps have the
        same."""
        if phases.mode != "input_only" and len(weight_rows(phases.weighting)) > 1:
            rows = [
                offset_weights(phases.weighting_at(step), phases.bag_size)
                for step in range(phases.superposed_steps)
            ]
            self.changing_weights = torch.tensor(rows, dtype=torch.float64)
        self.go_to(0)
        self.resumed = 0  # the step at which a checkpoint was loaded
        self.warned = False
        # All ids embedded in training mode since the last loss: beside the tokens those of hash or
        # n-gram tables, or the next tokens of multi-token prediction. `MOST` are kept.
        self.streams: list[Tensor] = []
        # The shift of labels that fit a later target than the next one, which is right for an
        # auxiliary loss, if the main loss comes after it; and the ids that they were compared with.
        self.later: tuple[int, list[Tensor]] | None = None
        self.evaluated = False  # whether since the last loss only evaluation mode has embedded
        # The phases whose labels have been checked: True is the superposed one, False the other.
        self.checked_phases: set[bool] = set()
        self.tries = 0  # the number of labels that were looked at in order to check them
        self._register()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give a copy, or what comes from a pickle, a key of its own."""
        self.__dict__.update(state)
        self._register()

    def _register(self) -> None:
        self.key = next(_KEYS)
        _CALLS[self.key] = self

    def go_to(self, step: int) -> None:
        """Remember that `step` steps are done. Raises ValueError if the number is negative.

        torch.compile treats Python numbers as constants, so code that reads `step` would be
        compiled again for every step. Compiled code reads `superposed` instead and, if weights
        change over steps, the tensor `weights`.
        """
        self.step = _not_negative(step)
        self.superposed = step < self.phases.superposed_steps
        changes = self.superposed and self.changing_weights is not None
        self.weights = self.changing_weights[step] if changes else None  # type: ignore[index]

    def resolve(self, step: int | None) -> int:
        """Return `step`, or the current one for None. Raises ValueError if it is negative."""
        return self.step if step is None else _not_negative(step)

    def stride(self, tokens: Tensor, step: int | None, training: bool) -> int:
        """Make `step` the current one, and return how many raw tokens a position reads in it.
        `tokens`: those to embed.

        In evaluation mode (`training` is False) the number is 1, the current step stays as it is,
        and nothing is checked. Otherwise raises ValueError if the type or shape of the tokens does
        not fit the step, or for a step that cannot be meant.
        """
        if not training:
            self.evaluated = not self.streams
            return 1
        self.evaluated = False
        if not torch.compiler.is_compiling():
            self._refuse_later()
        superposed = self._enter(step)
        stride = self.phases.tokens_per_position("superposition" if superposed else "recovery")
        _check_ids(tokens, "tokens")
        if tokens.dim() != 2 or not tokens.shape[1] or tokens.shape[1] % stride:
            raise ValueError(
                f"tokens {tuple(tokens.shape)} at step {self.step} must be (batch, "
                f"l · {stride}): {_LENGTHS}"
            )
        # Gradient checkpointing embeds once more in the backward pass, after the loss.
        in_forward = torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1
        is_new = len(self.streams) < MOST and not any(tokens is known for known in self.streams)
        if in_forward and is_new:
            self.streams.append(tokens)
        length = tokens.shape[1] // stride
        if self.positions is None:
            self.positions = length
        if length != self.positions and self.positions != "any":
            raise ValueError(
                f"{tokens.shape[1]} ids at step {self.step}, not {self.positions * stride}: "
                f"{_LENGTHS}; evaluate without tst or after model.eval(); "
                'Superposition(positions="any") lets lengths vary'
            )
        return stride

    def checked(self, labels: Tensor, step: int | None) -> tuple[bool, Tensor]:
        """Make `step` the current one; return whether it is superposed, and the labels.

        Raises ValueError if the tokens were embedded in evaluation mode, if the labels are not of
        an integer type or do not fit the tokens (`_check_labels`), or for a step that cannot be
        meant.
        """
        superposed = self._enter(step)
        if self.evaluated:
            raise ValueError(
                "the last embed was in evaluation mode: methods are compared by next-token loss, "
                "F.cross_entropy, without tst"
            )
        _check_ids(labels, "labels")
        # A model that is spread over devices has its labels where its logits are.
        place = (labels.shape, labels.device)
        streams = [ids for ids in self.streams if (ids.shape, ids.device) == place]
        self.streams = []
        if torch.compiler.is_compiling():
            labels = _checked_labels(streams, labels, self.key, superposed)
        elif streams or self.later:
            _check_labels(streams, labels, self.key, superposed)
        return superposed, labels

    def forget(self) -> None:
        """Forget the tokens that were embedded: a step of the optimizer has been done."""
        self.streams = []
        self._refuse_later()

    def _refuse_later(self) -> None:
        """Raise ValueError if labels of a later target were the only ones."""
        if self.later is not None:
            by, self.later = self.later[0], None
            raise ValueError(_shifted(by))

    def _enter(self, step: int | None) -> bool:
        """Make `step` the current one, if it is given; return whether the current one is
        superposed.

        Raises ValueError for a step that is negative or before the one resumed from. Warns once if
        the step lies beyond the last one.
        """
        if step is not None:
            if 0 <= step < self.resumed:
                raise ValueError(
                    f"step = {step}, but the run was resumed at step {self.resumed}: pass the "
                    "number of steps done"
                )
            self.go_to(step)
        if not torch.compiler.is_compiling() and not self.warned and self.step >= self.phases.steps:
            self.warned = True
            warnings.warn(
                f"step {self.step} lies beyond the {self.phases.steps} steps: it is a next-token "
                "step",
                stacklevel=4,
            )
        return self.superposed


_LENGTHS = "embed raw_length(step, L) ids a sequence; the loader reads one more, for the labels"
TRIES = 20
MOST = 8
_KEYS = itertools.count()
_CALLS: WeakValueDictionary[int, Calls] = WeakValueDictionary()
"""All `Calls` that exist, by their keys. Compiled code cannot hold Python objects, so it holds a
key."""


def _shifted(by: int) -> str:
    return (
        f"labels are shifted by {by}: shift them by one, tokens[:, 1:], also where they are the "
        "next bag"
    )


def _check_labels(streams: list[Tensor], labels: Tensor, key: int, superposed: bool) -> None:
    """Find labels that are none of the embedded ids shifted by one (`Calls.streams`). Only the
    first labels of each phase are checked, because the comparison makes the host wait for the
    device. Where they hold no target to compare, the next ones are, up to `TRIES` of them.

    Labels of a later target (shifted by 1 + s, …) are those of an auxiliary loss, as in multi-token
    prediction: they are refused only if those of the main loss do not follow.

    Raises ValueError if the labels are embedded ids shifted by another number, or if they hold a
    negative number other than `IGNORE`. Warns if they are not embedded ids shifted by any number
    that is tried: −1 to 2s.
    """
    calls = _CALLS.get(key)
    if calls is None or superposed in calls.checked_phases:
        return
    if not streams and calls.later is not None:
        streams = [ids for ids in calls.later[1] if ids.shape == labels.shape]
    if not streams:
        return
    length = labels.shape[1]
    tried = (1, 0, *range(2, 2 * calls.phases.bag_size + 1), -1)
    shifts = [k for k in tried if abs(k) < length and length > 1]  # one label shows no shift
    is_target = labels != IGNORE
    strange = (labels < 0) & is_target
    fits = [
        (
            (labels[:, max(0, -k) : length - max(0, k)] == ids[:, max(0, k) : length + min(0, k)])
            | ~is_target[:, max(0, -k) : length - max(0, k)]
        ).all()
        for k in shifts
        for ids in streams
    ]
    least, shown, *every = torch.stack(
        [torch.where(strange, labels, 0).min(), is_target[:, :-1].any(), *fits]
    ).tolist()
    if least:
        raise ValueError(f"labels hold {least}: mark positions without a target by {IGNORE}")
    calls.tries += 1
    if length > 1 and not shown and calls.tries < TRIES:
        return
    fitting = [any(every[i : i + len(streams)]) for i in range(0, len(every), len(streams))]
    by = next((k for k, fit in zip(shifts, fitting, strict=True) if fit), None)
    stride = calls.phases.tokens_per_position("superposition" if superposed else "recovery")
    if by is not None and by > 1 and by % stride == 1 % stride:
        calls.later = by, streams
        return
    calls.later = None
    if by == 0:
        raise ValueError(
            "labels are the tokens themselves: shift them by one, tokens[:, 1:] (Hugging Face's "
            "models shift inside, this loss does not)"
        )
    if by not in (1, None):
        raise ValueError(_shifted(by))
    calls.checked_phases.add(superposed)
    if by is None and length > 1:
        warnings.warn("labels are not the embedded tokens shifted by one", stacklevel=5)


@torch.library.custom_op("tst_study::checked_labels", mutates_args=())
def _checked_labels(streams: list[Tensor], labels: Tensor, key: int, superposed: bool) -> Tensor:
    """Call `_check_labels` and return a copy of the labels. As a custom operator this also runs in
    compiled code, because torch.compile does not look into it."""
    _check_labels(streams, labels, key, superposed)
    return labels.clone()


@_checked_labels.register_fake
def _(streams: list[Tensor], labels: Tensor, key: int, superposed: bool) -> Tensor:
    return torch.empty_like(labels)


def _not_negative(step: int) -> int:
    if step < 0:
        raise ValueError(f"step = {step}: steps count from 0")
    return step


def _check_ids(ids: Tensor, name: str) -> None:
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} are {ids.dtype}: convert them, {name}.long()")
