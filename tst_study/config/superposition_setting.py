"""The superposition setting of a run, by which the arms of a comparison are told apart, and the
setting's label and name.

An arm is a group of runs that differ in their seeds alone. The paper's method has two numbers: the
bag size s, and r, the share of the steps that are superposed. `ABLATIONS` lists every departure
from it. A new ablation needs a key in the config, the code that acts on it, and one entry here. The
entry also settles its column in the run table, its words in labels and folder names, and which runs
can use the same prefix run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tst_study.config.schema import RIVALS
from tst_study.superposition.steps import superposed_steps

Role = Literal["baseline", "superposition", "ablation"]


@dataclass(frozen=True)
class Ablation:
    """One way in which a run may differ from the paper's method."""

    column: str
    """The name of the column in the run table."""
    key: str
    """The dotted key in the config; empty if only imported runs can have the ablation."""
    plain: Any
    """The value that means no ablation: that of the paper's method and of the baseline."""
    labels: Mapping[Any, str]
    """Words for its values. A value that is not listed is shown after the name of the column."""
    words: str = ""
    """For values that are tables: a template of their words, with the table's keys as its fields.
    A table without one is shown key by key."""
    at_switch: bool = False
    """Whether it has no effect before the switch between the phases. Runs that differ only in such
    ablations can share a prefix run."""

    @property
    def of_bags(self) -> bool:
        """Whether it concerns superposed steps only, so has no effect on a run without any."""
        return self.key.startswith("superposition.")

    def value(self, config: Mapping[str, Any]) -> Any:
        """Return the value in a config (plain JSON values). If the key is missing, as in configs
        recorded before it existed, the value is `plain`."""
        if not self.key:
            return self.plain
        section, _, key = self.key.rpartition(".")
        return (config[section] if section else config).get(key, self.plain)

    def label(self, value: Any) -> str:
        """Return a value in words; a value of imported runs is its own label."""
        if not self.key:
            return str(value)
        if isinstance(value, str | bool) and value in self.labels:
            return self.labels[value]
        return f"{self.column.replace('_', ' ')} {self.cell(value)}"

    def cell(self, value: Any) -> Any:
        """Return a value as a cell of a table: tables and lists as text, others as they are."""
        if isinstance(value, Mapping) and self.words:
            return self.words.format(**value)
        return _cell(value)

    def name(self, value: Any) -> str:
        """Return the part of a run folder's name that stands for a value, without spaces.

        It is the column for `true` and for keys outside `[superposition]`, the column and `given`
        for tables and lists, and otherwise the value or its label.
        """
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
    Ablation(
        "label_smoothing",
        "label_smoothing",
        None,
        {},
        words="{epsilon:g} in steps {first_step} to {last_step}",
    ),
    *(Ablation(key, key, None, {}, words=rival.words) for key, rival in RIVALS.items()),
    Ablation("named_arm", "", None, {}),  # of imported runs, for example another optimizer
)
COLUMNS = (
    "bag_size",
    "superposed_steps",
    "step_ratio",
    *(ablation.column for ablation in ABLATIONS),
)
"""The columns of the run table that hold a run's setting; runs that agree in all of them have the
same setting."""


@dataclass(frozen=True)
class SuperpositionSetting:
    """s, r and the ablations of a run."""

    bag_size: int
    """s; 1 for a run without superposed steps."""
    superposed_steps: int
    step_ratio: float
    """The actual r: superposed steps divided by all steps."""
    ablations: tuple[tuple[Ablation, Any], ...] = ()
    """The ablations in which the setting differs from the paper's method, with their values."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SuperpositionSetting:
        """Return the setting of a config with all its keys, as `schema.to_dict` returns it."""
        values, steps = config["superposition"], config["schedule"]["steps"]
        superposed = superposed_steps(
            steps, values["bag_size"], values["step_ratio"], values["steps"]
        )
        return cls.of_row(
            {
                "bag_size": values["bag_size"],
                "superposed_steps": superposed,
                "step_ratio": superposed / steps,
                **{ablation.column: ablation.value(config) for ablation in ABLATIONS},
            }
        )

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> SuperpositionSetting:
        """Return the setting of a row of the run table.

        The row must have `bag_size`, `superposed_steps` and `step_ratio`. A missing or empty
        ablation has the paper's value. Without superposed steps, ablations that concern only such
        steps are ignored.
        """
        bag_size, superposed = int(row["bag_size"]), int(row["superposed_steps"])
        bags = bag_size > 1 and superposed > 0
        values = [(kind, row.get(kind.column)) for kind in ABLATIONS if bags or not kind.of_bags]
        ablations = tuple(
            (kind, value)
            for kind, value in values
            # In a table that was read from a file, an empty cell is NaN, which is unequal to
            # itself.
            if value != kind.plain and value is not None and value == value
        )
        if not bags:
            return cls(1, 0, 0.0, ablations) if ablations else BASELINE
        return cls(bag_size, superposed, float(row["step_ratio"]), ablations)

    @property
    def is_baseline(self) -> bool:
        """Whether this is ordinary training: no superposed steps and no ablation."""
        return self.bag_size == 1 and not self.ablations

    @property
    def is_rival(self) -> bool:
        """Whether its first steps cost less than its baseline's, so that the two are matched in
        total FLOPs."""
        return any(kind.column in RIVALS for kind, _ in self.ablations)

    @property
    def is_plain(self) -> bool:
        """Whether this is the paper's method with some s and r."""
        return self.is_plain_but()

    def is_plain_but(self, *columns: str) -> bool:
        """Return whether this is the paper's method if ablations in these columns are
        disregarded."""
        others = [ablation for ablation, _ in self.ablations if ablation.column not in columns]
        return self.bag_size > 1 and not others

    @property
    def role(self) -> Role:
        """The `role` of a run with this setting: "ablation" for everything except the baseline and
        the paper's method."""
        if self.is_baseline:
            return "baseline"
        return "superposition" if self.is_plain else "ablation"

    @property
    def label(self) -> str:
        """The setting in words: `baseline`; `s = 4, r = 0.2` and the ablations; or only the
        ablations, if no steps are superposed."""
        if self.is_baseline:
            return "baseline"
        numbers = f"s = {self.bag_size}, r = {self.step_ratio:.3g}" if self.bag_size > 1 else ""
        return ", ".join(filter(None, (numbers, self.variant)))

    @property
    def variant(self) -> str:
        """The ablations in words; empty for the paper's method."""
        return ", ".join(ablation.label(value) for ablation, value in self.ablations)

    @property
    def name(self) -> str:
        """The setting in a folder's name: `baseline`; `s4-r0.2` and the ablations; or only the
        ablations, if no steps are superposed."""
        if self.is_baseline:
            return "baseline"
        words = [ablation.name(value) for ablation, value in self.ablations]
        numbers = [f"s{self.bag_size}", f"r{self.step_ratio:.3g}"] if self.bag_size > 1 else []
        return "-".join([*numbers, *words])

    @property
    def prefix_name(self) -> str:
        """A name for the setting of a shared prefix run, such as `s4`, or `s1` for a baseline. It
        leaves out r and the ablations at the switch, in which the runs that share the prefix may
        differ."""
        words = [kind.name(value) for kind, value in self.ablations if not kind.at_switch]
        return "-".join([f"s{self.bag_size}", *words])

    @property
    def order(self) -> tuple[Any, ...]:
        """A sort key: first the baseline, then the paper's method by r and s, then all settings
        with ablations by r, s and label."""
        return (bool(self.ablations), self.step_ratio, self.bag_size, self.label)

    def columns(self) -> dict[str, Any]:
        """Return the values of `COLUMNS` for a row of the run table.

        If no steps are superposed, each ablation that the run does not have is None, or False if
        the paper's value is False.
        """
        plain = {ablation.column: ablation.plain for ablation in ABLATIONS}
        if self.bag_size == 1:
            plain = {k: False if v is False else None for k, v in plain.items()}
        values = plain | {one.column: one.cell(value) for one, value in self.ablations}
        return {
            "bag_size": self.bag_size,
            "superposed_steps": self.superposed_steps,
            "step_ratio": self.step_ratio,
            **values,
        }


BASELINE = SuperpositionSetting(1, 0, 0.0)


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):  # the key `kind` of a loss with parameters goes without saying
        return " ".join(str(inner) for item in value.items() for inner in item if inner != "kind")
    if not isinstance(value, list | tuple):
        return value
    rows = bool(value) and isinstance(value[0], list | tuple)
    return (" → " if rows else ", ").join(str(_cell(inner)) for inner in value)
