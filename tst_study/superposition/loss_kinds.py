"""Modes and losses of superposed steps. Importing this module does not import torch.

To add a loss, write its class here, its entry in `LOSSES` and its name in `BagLossKind`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

from tst_study.superposition.weighting import WeightingOverSteps, offset_weights, weight_rows

if TYPE_CHECKING:
    from torch import Tensor

Mode: TypeAlias = Literal["full", "input_only", "output_only"]
"""The sides of a superposed step that are bagged: input and targets, the input alone, or the
targets alone."""
BagLossKind: TypeAlias = Literal["mce", "sum_to_one", "binary_cross_entropy", "hinge"]
"""The names of the losses in `LOSSES`."""

MODES: tuple[Mode, ...] = get_args(Mode)

IGNORE = -100
"""The label of a position without a target, which no loss counts. It is torch's default, too."""


class BatchOfBags(Protocol):
    """What our losses ask of a batch. `losses.Bags` answers, and has the tensors for losses that
    ask for more."""

    def log_probabilities(self) -> Tensor: ...
    def one_vs_rest(self, kind: Literal["binary_cross_entropy", "hinge"]) -> Tensor: ...
    def members(self) -> Tensor: ...
    def mean(self, losses: Tensor) -> Tensor: ...
    def mean_of_positions(self, losses: Tensor) -> Tensor: ...
    def mean_above_vocabulary(self) -> Tensor: ...


@dataclass(frozen=True)
class BagLoss:
    """A loss of each position's logits against its bag of targets. The fields of a subclass are the
    loss's parameters.

    Called with a batch as `losses.Bags`, it returns the mean loss of its positions, a scalar in
    nats (the hinge loss has no unit).
    """

    takes_weights = False
    """Whether the s targets may have different weights."""
    in_one_pass = False
    """Whether `linear_bag_loss` can compute this loss together with the output head."""
    is_sharded = True
    """Whether the loss can be computed if the vocabulary is split over tensor-parallel ranks."""

    def __call__(self, bags: Any) -> Tensor:
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The loss's name in `LOSSES`, or that of its class if it is not there."""
        names = {kind: name for name, kind in LOSSES.items()}
        return names.get(type(self), type(self).__name__)

    @property
    def setting(self) -> str | dict[str, Any]:
        """What names this loss to `loss_of`: its name in `LOSSES` if all parameters have their
        defaults, and otherwise a table of `kind` and all parameters. For a class that is not in
        `LOSSES`, `kind` is where it is imported from, and `source` a hash of its module's file. A
        change of what that module imports is not seen."""
        if self.name in LOSSES:
            is_plain = self == LOSSES[self.name]()
            return self.name if is_plain else {"kind": self.name, **asdict(self)}
        place = f"{type(self).__module__}:{type(self).__qualname__}"
        return {"kind": place, "source": _source(type(self).__module__), **asdict(self)}


@dataclass(frozen=True)
class MultiHot(BagLoss):
    """Multi-hot cross-entropy, the paper's: `sum_i g(i) CE_i / sum_i g(i)`, where CE_i is the mean
    of `logsumexp(z) - z[y_i]` over the valid positions of offset i.

    Here z are the logits of a position, y_i is its target at offset i, and g(i) the weight of that
    offset. This is a cross-entropy, not a divergence: the entropy of the target (log s if its s
    tokens differ and weigh the same) is not subtracted, and the loss starts near log V for any s.
    With `label_smoothing` ε each target keeps 1 − ε of its weight, and all tokens of the vocabulary
    share ε evenly, as in `F.cross_entropy`.
    """

    label_smoothing: float = 0.0
    takes_weights = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing = {self.label_smoothing} must be from 0 to below 1")

    @property
    def in_one_pass(self) -> bool:  # type: ignore[override]
        return not self.label_smoothing

    def __call__(self, bags: BatchOfBags) -> Tensor:
        loss = bags.mean(-bags.log_probabilities())
        if self.label_smoothing:
            loss = loss + self.label_smoothing * bags.mean_above_vocabulary()
        return loss


MULTI_HOT = MultiHot()
"""The loss without label smoothing; with bags of one token it is next-token cross-entropy."""


@dataclass(frozen=True)
class SumToOne(BagLoss):
    """`-log sum_{y in Y} P(y)`, where Y is the set of a position's valid targets.

    A token that occurs several times in the bag counts once. So the sum is a probability, and the
    loss is not negative.
    """

    def __call__(self, bags: BatchOfBags) -> Tensor:
        members = bags.members()
        # The loss of an empty set would be inf and its gradient nan, and a weight of zero would
        # remove neither. So a position without a valid target keeps its first target anyway.
        keep = members.clone()
        keep[:, 0] |= ~members.any(dim=1)
        kept = bags.log_probabilities().masked_fill(~keep, float("-inf"))
        return bags.mean_of_positions(-kept.logsumexp(dim=1))


@dataclass(frozen=True)
class BinaryCrossEntropy(BagLoss):
    """`1/V sum_v softplus(-t_v z_v)`, where t_v = +1 if token v is a valid target of the position,
    and -1 if it is not."""

    def __call__(self, bags: BatchOfBags) -> Tensor:
        return bags.mean_of_positions(bags.one_vs_rest("binary_cross_entropy"))


@dataclass(frozen=True)
class Hinge(BagLoss):
    """`1/V sum_v max(0, 1 - t_v z_v)`, with t_v as in `BinaryCrossEntropy`."""

    def __call__(self, bags: BatchOfBags) -> Tensor:
        return bags.mean_of_positions(bags.one_vs_rest("hinge"))


LOSSES: dict[str, type[BagLoss]] = {
    "mce": MultiHot,
    "sum_to_one": SumToOne,
    "binary_cross_entropy": BinaryCrossEntropy,
    "hinge": Hinge,
}
"""The losses by the names that configurations and logs use."""

LossSetting: TypeAlias = BagLossKind | Mapping[str, Any] | BagLoss
"""The name of a loss, a table with its name as `kind` and its parameters, or the loss itself. A
`kind` such as `my_losses:Focal` is a subclass of `BagLoss` in a module of one's own, which may lie
in the working directory or beside a study's file."""


def is_own(setting: Any) -> bool:
    """Return whether a setting is a table of a class of one's own, which `loss_of` imports."""
    return isinstance(setting, Mapping) and ":" in str(setting.get("kind"))


def loss_of(setting: LossSetting) -> BagLoss:
    """Return the loss that a setting names. A class of one's own is imported, so its code is run.

    Raises `ValueError` for an unknown name or parameter, a value that a parameter cannot have, a
    class that cannot be imported, and one whose `source` is another than that of the setting.
    """
    if isinstance(setting, BagLoss):
        return setting
    given: dict[str, Any] = {"kind": setting} if isinstance(setting, str) else dict(setting)
    found = _imported(str(given["kind"])) if is_own(given) else LOSSES.get(given.get("kind") or "")
    kind, source = given.pop("kind", None), given.pop("source", None)
    if found is None:
        raise ValueError(f"loss kind {kind!r} is unknown: use {', '.join(LOSSES)} or MODULE:CLASS")
    if source is not None and source != _source(found.__module__):
        raise ValueError(f"loss kind {kind!r} has other code than when the run began: restore it")
    known = {one.name: one for one in fields(found) if one.init}
    for key, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key not in known or not is_number or not abs(value) < 1e300:
            raise ValueError(
                f"loss kind {kind!r} has no parameter {key} = {value!r}: "
                + (f"use numbers for {', '.join(known)}" if known else "it has none")
            )
    for key, one in known.items():
        value = given.get(key, one.default)
        if value is MISSING and one.default_factory is MISSING:
            raise ValueError(f"loss kind {kind!r} needs a number for {key}")
        # Whether a parameter is given as 1 or as 1.0, the loss is the same, and so is the run's id.
        if one.type in (float, "float") and isinstance(value, int):
            given[key] = float(value)
        if one.type in (int, "int") and isinstance(value, float):
            if not value.is_integer():
                raise ValueError(f"loss kind {kind!r}: {key} = {value} must be a whole number")
            given[key] = int(value)
    return found(**given)


@cache  # so that an edit of the file during a run changes nothing
def _imported(place: str) -> type[BagLoss]:
    """Return the class at `MODULE:CLASS`. Raises ValueError if there is none of this kind."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
        _source(found.__module__)  # of the code that was just imported
    except (Exception, SystemExit) as error:  # whatever a user's code may raise
        raise ValueError(f"loss kind {place!r} cannot be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, BagLoss)):
        raise ValueError(f"loss kind {place!r} is no subclass of BagLoss")
    return found


@cache
def _source(module: str) -> str:
    return sha256(Path(str(sys.modules[module].__file__)).read_bytes()).hexdigest()[:12]


def files_of(setting: LossSetting) -> Iterator[Path]:
    """Yield the files from which a loss of one's own is imported, that is, its module's and those
    of the packages around it; none for an installed one."""
    module = type(loss_of(setting)).__module__
    while module:
        file = getattr(sys.modules[module], "__file__", None)  # a folder may be a package without
        if file and "site-packages" not in Path(file).parts:
            yield Path(file)
        module = module.rpartition(".")[0]


def check_loss_kind(setting: LossSetting, weighting: WeightingOverSteps = "uniform") -> None:
    """Check that a loss exists and takes the weighting. A loss that sees the bag as a set has no
    term for each offset, and takes "uniform" only. The weighting itself is not checked.

    Raises `ValueError` as `loss_of` does, and for a weighting that the loss does not take.
    """
    loss = loss_of(setting)
    if not loss.takes_weights and weighting != "uniform":
        raise ValueError(
            f"loss kind {loss.name!r} sees the bag as a set and takes weighting 'uniform' only, "
            f"got {weighting!r}; use a loss that takes weights, such as 'mce'"
        )


def check_targets(setting: LossSetting, weighting: WeightingOverSteps, bag_size: int) -> None:
    """Check a loss, the weights of the s targets of a bag, and whether they go together.

    Raises `ValueError` as `check_loss_kind` and `offset_weights` do.
    """
    check_loss_kind(setting, weighting)
    for row in weight_rows(weighting) or (weighting,):
        offset_weights(row, bag_size)  # type: ignore[arg-type]
