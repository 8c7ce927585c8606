"""A training set-up: everything about a run except its superposition and its seed."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

from tst_study.config.schema import (
    Config,
    DeviceName,
    Parallel,
    SuperposedPhase,
    apply_override,
    from_dict,
)
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.experiments.corpora import PREPARED, Recipe

BASELINE = SuperposedPhase()
"""The arm without superposition."""


@dataclass(frozen=True)
class Setting:
    """A set-up. `config` turns it into the config of a run. `in_grid`, `changed` and the methods
    that begin with `with_` return a changed copy."""

    model: str
    """Name of a model preset."""
    corpora: tuple[Recipe, ...]
    """Blended in equal parts; the first one's validation split is held out."""
    sequences: int
    sequence_length: int
    steps: int
    warmup_steps: int
    learning_rate: float
    dtype: str = "float32"
    threads: int | None = None
    logged_as: int | None = None
    """Log, evaluate and checkpoint at the same steps as a run of this many steps would; by default
    `steps`. Runs of several lengths can then share the rows that record the steps they have in
    common."""
    validation_tokens: int | None = None
    parallel: Parallel = field(default_factory=Parallel)
    """Layout over GPUs. It changes how a run is computed, and not its identity."""
    device: DeviceName = "auto"
    evaluations: int = 8
    """Number of held-out evaluations in a run of `logged_as` steps."""
    changes: tuple[str, ...] = ()
    """Overrides of the config, such as `model.qk_norm=true`; later ones win."""
    grid: str = ""
    """The beginning of the runs' names, for studies with several grids of runs; by default
    `model`."""
    tags: tuple[str, ...] = ()
    """Further parts of the runs' names."""

    def config(
        self, study: str, superposition: SuperposedPhase = BASELINE, seed: int = 0
    ) -> Config:
        """Return the config of a run, with a name made of its length, arm and seed."""
        length = self.logged_as or self.steps
        values: dict[str, Any] = {
            "study": study,
            "seed": seed,
            "model": {"preset": self.model},
            "superposition": superposition.model_dump(),
            "data": {
                "corpora": [{"path": str(PREPARED / recipe.name)} for recipe in self.corpora],
                "validation_tokens": self.validation_tokens,
            },
            "batch": {"sequences": self.sequences, "sequence_length": self.sequence_length},
            "optimizer": {"learning_rate": self.learning_rate},
            "schedule": {"steps": self.steps, "warmup_steps": self.warmup_steps},
            "numerics": {"dtype": self.dtype},
            "execution": {
                "parallel": self.parallel.model_dump(),
                "threads": self.threads,
                "device": self.device,
                "log_every": max(10, length // 400),
                "evaluate_every": max(1, length // self.evaluations),
                "checkpoint_every": max(500, length // 20),
            },
        }
        for change in self.changes:
            apply_override(values, change)
        method = SuperpositionSetting.from_config(values)
        words = (self.grid or self.model, f"{self.steps}", method.name, *self.tags)
        values |= {"name": f"{'-'.join(words)}-seed{seed}", "role": method.role}
        return from_dict(values, source="study")

    def label(self, superposition: SuperposedPhase) -> str:
        """Return the name that the run table gives this superposition at this length."""
        values = {"superposition": superposition.model_dump(), "schedule": {"steps": self.steps}}
        return SuperpositionSetting.from_config(values).label

    @property
    def hidden_size(self) -> int:
        """The model's hidden size, overrides included."""
        return self.config("any").model.hidden_size

    def in_grid(self, grid: str) -> Self:
        """Return a copy whose runs' names begin with `grid`."""
        return replace(self, grid=grid)

    def with_steps(self, steps: int) -> Self:
        """Return a copy of another length. The warm-up and the logged steps stay the same, so that
        runs of several lengths can share the steps before the learning rate decays, and the rows
        of these steps."""
        return replace(self, steps=steps, logged_as=self.logged_as or self.steps)

    def with_batch(self, sequences: int) -> Self:
        """Return a copy with this many sequences per step. Its steps and warm-up steps change so
        that the run, and its warm-up, read as much text as before."""
        factor = sequences / self.sequences
        return replace(
            self,
            sequences=sequences,
            steps=round(self.steps / factor),
            warmup_steps=round(self.warmup_steps / factor),
            logged_as=self.logged_as and round(self.logged_as / factor),
        )

    def with_rate(self, learning_rate: float) -> Self:
        """Return a copy with another learning rate, which becomes part of the runs' names."""
        others = (tag for tag in self.tags if not tag.startswith("lr"))
        return replace(self, learning_rate=learning_rate, tags=(*others, f"lr{learning_rate:g}"))

    def changed(self, tag: str, *changes: str) -> Self:
        """Return a copy with further overrides. The `tag`, unless empty, becomes part of the runs'
        names."""
        tags = (*self.tags, tag) if tag else self.tags
        return replace(self, changes=(*self.changes, *changes), tags=tags)

    def with_corpus(self, corpus: Recipe, tag: str) -> Self:
        """Return a copy that reads only this corpus. The `tag` becomes part of the runs' names."""
        return replace(self, corpora=(corpus,), tags=(*self.tags, tag))
