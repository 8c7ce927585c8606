"""A setting of superposition: what tells one superposed run from another, and what it is called.

The paper's method has two numbers, s and r; `ABLATIONS` lists every way in which a run may leave
it. A new ablation is one more entry here (beside its key in the config and its place in the loop):
columns of the run table, labels, names, order and what is shared before the switch follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tst_study.superposition.loss_kinds import LOSSES, POOLINGS
from tst_study.superposition.steps import superposed_steps

Role = Literal["baseline", "superposition", "ablation"]


@dataclass(frozen=True)
class Ablation:
    """One way to leave the paper's method."""

    column: str
    """In the run table."""
    key: str
    """In the config, dotted; empty for what no config of ours has."""
    plain: Any
    """The paper's own, and the baseline's."""
    labels: Mapping[Any, str]
    """What its named values are called in a sentence; others by the column's name."""
    unsharded: tuple[Any, ...] = ()
    """Values that cannot be computed where the vocabulary is split over tensor ranks."""
    at_switch: bool = False
    """Without effect before the switch, so that runs which differ here share a shared prefix
    run."""

    @property
    def of_bags(self) -> bool:
        """Without effect where no step is superposed."""
        return self.key.startswith("superposition.")

    def value(self, config: Mapping[str, Any]) -> Any:
        """The value in a resolved config; a recorded one need not have keys that came later."""
        if not self.key:
            return self.plain
        section, _, key = self.key.rpartition(".")
        return (config[section] if section else config).get(key, self.plain)

    def is_sharded(self, value: Any) -> bool:
        """Whether tensor parallelism can compute it."""
        return (value.get("kind") if isinstance(value, Mapping) else value) not in self.unsharded

    def label(self, value: Any) -> str:
        if not self.key:
            return str(value)
        if isinstance(value, str | bool) and value in self.labels:
            return self.labels[value]
        return f"{self.column.replace('_', ' ')} {_cell(value)}"

    def name(self, value: Any) -> str:
        """For a run's folder: no spaces, and never long."""
        if isinstance(value, bool) or not self.of_bags:
            return self.column
        if not isinstance(value, str):
            return f"{self.column}_given"
        return self.labels[value].replace(" ", "_") if self.at_switch else value


ABLATIONS = (
    Ablation(
        "mode",
        "superposition.mode",
        "full",
        {"input_only": "input only", "output_only": "output only"},
    ),
    Ablation(
        "loss_kind",
        "superposition.loss",
        "mce",
        {
            "sum_to_one": "sum-to-one loss",
            "binary_cross_entropy": "binary cross-entropy",
            "hinge": "hinge loss",
        },
        unsharded=tuple(name for name, loss in LOSSES.items() if not loss.is_sharded),
    ),
    Ablation(
        "weighting",
        "superposition.weighting",
        "uniform",
        {
            "power_law": "power-law weights",
            "exponential": "exponential weights",
            "first_token": "first token only",
            "mutual_information": "mutual-information weights",
        },
    ),
    Ablation(
        "pooling",
        "superposition.pooling",
        "mean",
        {"max": "max-pooled bags"},
        unsharded=tuple(name for name in POOLINGS if name != "mean"),
    ),
    Ablation(
        "aligned_bags",
        "superposition.align_bags_to_documents",
        False,
        {True: "bags within documents"},
    ),
    Ablation(
        "shuffled_targets", "superposition.shuffle_targets", False, {True: "shuffled targets"}
    ),
    Ablation(
        "reinitialized",
        "superposition.reinitialize_at_switch",
        False,
        {True: "re-initialised"},
        at_switch=True,
    ),
    Ablation(
        "optimizer_at_switch",
        "superposition.optimizer_at_switch",
        "keep",
        {"reset": "optimizer reset"},
        at_switch=True,
    ),
    Ablation("label_smoothing", "label_smoothing", None, {}),
    Ablation("named_arm", "", None, {}),  # of other trainers' runs: another optimizer, say
)
COLUMNS = ("bag_size", "superposed_steps", "step_ratio", *(one.column for one in ABLATIONS))
"""Of the run table: equal in all of these, two runs have the same setting."""


@dataclass(frozen=True)
class SuperpositionSetting:
    bag_size: int
    """s; 1 for the baseline."""
    superposed_steps: int
    step_ratio: float
    """r, as the whole number of steps makes it."""
    ablations: tuple[tuple[Ablation, Any], ...] = ()
    """Where it leaves the paper's method, and how."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SuperpositionSetting:
        """Of a resolved config, as `schema.to_dict` gives it and `run.json` holds it."""
        values, steps = config["superposition"], config["schedule"]["steps"]
        superposed = superposed_steps(
            steps, values["bag_size"], values["step_ratio"], values["steps"]
        )
        return cls.of_row(
            {
                "bag_size": values["bag_size"],
                "superposed_steps": superposed,
                "step_ratio": superposed / steps,
                **{one.column: one.value(config) for one in ABLATIONS},
            }
        )

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> SuperpositionSetting:
        """Of a row of any table that has `COLUMNS`; what it lacks is as in the paper."""
        bag_size, superposed = int(row["bag_size"]), int(row["superposed_steps"])
        bags = bag_size > 1 and superposed > 0
        values = [(one, row.get(one.column)) for one in ABLATIONS if bags or not one.of_bags]
        found = tuple(
            (one, value)
            for one, value in values
            # A table that was read from a file has NaN where it has nothing.
            if value != one.plain and value is not None and value == value
        )
        if not bags:
            return cls(1, 0, 0.0, found) if found else BASELINE
        return cls(bag_size, superposed, float(row["step_ratio"]), found)

    @property
    def is_baseline(self) -> bool:
        return self.bag_size == 1 and not self.ablations

    @property
    def is_plain(self) -> bool:
        """Superposed as the paper does it."""
        return self.is_plain_but()

    def is_plain_but(self, *columns: str) -> bool:
        """As the paper does it, whatever these columns say."""
        left = [one for one, _ in self.ablations if one.column not in columns]
        return self.bag_size > 1 and not left

    @property
    def role(self) -> Role:
        if self.is_baseline:
            return "baseline"
        return "superposition" if self.is_plain else "ablation"

    @property
    def label(self) -> str:
        """For people: `baseline`, or `s = 4, r = 0.2` and whatever departs from the method."""
        if self.is_baseline:
            return "baseline"
        words = [one.label(value) for one, value in self.ablations]
        numbers = f"s = {self.bag_size}, r = {self.step_ratio:.3g}"
        return ", ".join([numbers, *words] if self.bag_size > 1 else words)

    @property
    def name(self) -> str:
        """For a run's folder: `baseline`, or `s4-r0.2` and whatever departs from the method."""
        if self.is_baseline:
            return "baseline"
        words = [one.name(value) for one, value in self.ablations]
        numbers = [f"s{self.bag_size}", f"r{self.step_ratio:.3g}"] if self.bag_size > 1 else []
        return "-".join([*numbers, *words])

    @property
    def prefix_name(self) -> str:
        """What runs that share their superposed phase are called by: neither r nor the switch."""
        words = [one.name(value) for one, value in self.ablations if not one.at_switch]
        return "-".join([f"s{self.bag_size}", *words])

    @property
    def order(self) -> tuple[Any, ...]:
        """For sorting: the baseline, the plain method by r and s, then what departs from it."""
        return (bool(self.ablations), self.step_ratio, self.bag_size, self.label)

    def columns(self) -> dict[str, Any]:
        """`COLUMNS` of the run table; without bags there is no value for what concerns them."""
        plain = {one.column: one.plain for one in ABLATIONS}
        if self.bag_size == 1:
            plain = {k: False if v is False else None for k, v in plain.items()}
        values = plain | {one.column: _cell(value) for one, value in self.ablations}
        return {
            "bag_size": self.bag_size,
            "superposed_steps": self.superposed_steps,
            "step_ratio": self.step_ratio,
            **values,
        }


BASELINE = SuperpositionSetting(1, 0, 0.0)


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping) and "kind" in value:  # of a loss with parameters
        return " ".join(str(inner) for item in value.items() for inner in item if inner != "kind")
    if isinstance(value, Mapping):  # of label smoothing
        return f"{value['epsilon']:g} in steps {value['first_step']} to {value['last_step']}"
    if not isinstance(value, list | tuple):
        return value
    rows = bool(value) and isinstance(value[0], list | tuple)
    return (" → " if rows else ", ").join(str(_cell(inner)) for inner in value)
