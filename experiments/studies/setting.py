"""A training set-up: everything about a run except its superposition and its seed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tst_study.config.schema import Config, SuperposedPhase, from_dict, read_toml, set_key, to_dict
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError

BASELINE = SuperposedPhase()
"""The arm without superposition."""
LABELS = ("study", "name", "role", "seed", "superposition")
"""Top-level keys of a config that a set-up does not have; a study gives them to each run."""


@dataclass(frozen=True)
class Setting:
    """A set-up. `config` turns it into the config of a run. `in_grid`, `changed` and the methods
    that begin with `with_` return a changed copy."""

    values: Mapping[str, Any]
    """Sections of a config, as in a file that `train` takes, without the keys `LABELS`."""
    grid: str = ""
    """The beginning of the runs' names; by default the model's preset, or else the study's name."""
    arm_name: str = ""
    """The arm's name in the names of its runs; by default they name its superposition."""
    tags: tuple[str, ...] = ()
    """Further parts of the runs' names."""

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return the set-up of a file that `train` takes. Raises `UserError` if it cannot be
        read."""
        values = {key: value for key, value in read_toml(path).items() if key not in LABELS}
        return cls(values)

    def config(
        self, study: str, superposition: SuperposedPhase = BASELINE, seed: int = 0, role: str = ""
    ) -> Config:
        """Return the config of a run, with a name made of its length, arm and seed.

        `role`: by default that of its superposition. Raises `UserError` for values that are wrong.
        """
        values: dict[str, Any] = {
            **self.values,
            "study": study,
            "seed": seed,
            "superposition": superposition.model_dump(),
        }
        config = from_dict(values, source=study)
        method = SuperpositionSetting.from_config(to_dict(config))
        stem = self.grid or values.get("model", {}).get("preset", study)
        words = (stem, f"{config.schedule.steps}", self.arm_name or method.name, *self.tags)
        last = f"-seed{seed}"
        values["name"] = "-".join(words)[: 80 - len(last)] + last
        values["role"] = role or method.role
        return from_dict(values, source=study)

    def __getitem__(self, key: str) -> Any:
        """The value of a dotted key such as `model.preset`; None where the set-up has none."""
        value: Any = self.values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def times(self, key: str, factor: float) -> int | float:
        """Return the value of a dotted key times a factor; a whole number stays one. Raises
        `UserError` if it has no such number."""
        value = self[key]
        if not isinstance(value, int | float):
            raise UserError(f"{key} has no value here to multiply; take it out of `times`")
        return round(value * factor) if isinstance(value, int) else value * factor

    @cached_property
    def plain(self) -> Config:
        """A baseline, for whoever asks what its values are. Raises `UserError` as `config` does."""
        return self.config("any")

    @property
    def steps(self) -> int:
        return self.plain.schedule.steps

    def changed(self, tag: str, changes: Mapping[str, Any]) -> Self:
        """Return a copy with other values of some keys, such as `{"model.qk_norm": True}`. The
        `tag`, unless empty, becomes part of the runs' names."""
        values = dict(self.values)
        for key, value in changes.items():
            set_key(values, key, value)
        return replace(self, values=values, tags=(*self.tags, tag) if tag else self.tags)

    def in_grid(self, grid: str) -> Self:
        """Return a copy whose runs' names begin with `grid`."""
        return replace(self, grid=grid)

    def with_steps(self, steps: int) -> Self:
        """Return a copy of another length. The warm-up stays the same, so that runs of several
        lengths can share the steps before the learning rate decays."""
        return self.changed("", {"schedule.steps": steps})

    def with_batch(self, sequences: int) -> Self:
        """Return a copy with this many sequences per step. Its steps and warm-up steps change so
        that the run, and its warm-up, read as much text as before."""
        factor = sequences / self.plain.batch.sequences
        schedule = {
            f"schedule.{key}": round((self[f"schedule.{key}"] or 0) / factor)
            for key in ("steps", "warmup_steps")
        }
        return self.changed("", {"batch.sequences": sequences, **schedule})

    def with_rate(self, learning_rate: float) -> Self:
        """Return a copy with another learning rate, which becomes part of the runs' names."""
        others = tuple(tag for tag in self.tags if not tag.startswith("lr"))
        other = replace(self, tags=(*others, f"lr{learning_rate:g}"))
        return other.changed("", {"optimizer.learning_rate": learning_rate})
