"""The configuration of a run: typed, strict and frozen, read from TOML files and overrides.

A `Config` has three kinds of keys. Those of `execution` say how a result is computed; `study`,
`name` and `role` are labels. Neither kind is part of the run's identity (`identity.py`). All other
keys may change the result and make up the identity. Text and initial weights count by their
content, not by their paths.

The docstrings of sections and keys are published in `docs/config.md`.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from tst_study.atomic_files import read_json
from tst_study.config.architecture import HUGGING_FACE, from_huggingface
from tst_study.config.keys import problem_of, sections_of
from tst_study.config.optimizer_kinds import OptimizerName
from tst_study.config.presets import expand_preset
from tst_study.errors import UserError
from tst_study.superposition.loss_kinds import BagLossKind, Mode, check_targets, is_own, loss_of
from tst_study.superposition.steps import superposed_steps
from tst_study.superposition.weighting import NamedWeighting
from tst_study.text import whole_amount


def _as_count(given: Any) -> Any:
    """Read a whole number as people write it, such as `5k` or `1e6`. Any other value is returned
    unchanged, and the type of the key accepts or refuses it."""
    with suppress(UserError):
        return whole_amount(str(given)) if isinstance(given, str | float) else given
    return given


def written(pattern: str, how: str) -> AfterValidator:
    """Accept text that matches the pattern as a whole. Other text is refused with `how`, which says
    how it is to be written."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(how)
        return text

    return AfterValidator(check)


COUNT = BeforeValidator(_as_count)
"""Lets a key that holds a whole number take text such as `5k` as well."""
Positive = Annotated[int, Field(ge=1, le=10**12), COUNT]
Width = Annotated[int, Field(ge=1, le=2**20), COUNT]
Recompute = Literal["none", "layer"]
DeviceName = Literal["auto", "cpu", "cuda"]
TrackerName = Literal["tensorboard", "wandb"]
NotNegative = Annotated[int, Field(ge=0, le=10**12), COUNT]
Seed = Annotated[int, Field(ge=0, lt=2**63), COUNT]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Momentum = Annotated[float, Field(ge=0.0, lt=1.0)]
NotNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
FolderName = Annotated[
    str,
    written(
        r"\w[\w.,=+@ -]{0,99}",
        "a name has at most 100 letters, digits, spaces and _.,=+@- (a letter or digit first)",
    ),
]
PathText = Annotated[str, Field(min_length=1)]
HuggingFacePlace = Annotated[str, written(f"{HUGGING_FACE}.+", f"write {HUGGING_FACE}FOLDER")]


def _plainest(setting: Any, info: ValidationInfo) -> Any:
    """Return the canonical form of a loss setting (`BagLoss.setting`), so that equal losses give a
    run the same identity. A class of one's own is imported only if the context says so."""
    plain = setting if is_own(setting) and not info.context else loss_of(setting).setting
    return plain if isinstance(plain, str) else _Table(plain)


class _Table(dict[str, Any]):
    """A table that is never changed, so that a config with it can be the key of a dictionary."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items())))


@dataclass(frozen=True)
class AddedLater:
    """Marks a key that was added to the config after runs had been recorded without it.

    The mark is never edited, even if the key's own default changes, so that those runs keep their
    identity.
    """

    default: Any
    """The value that describes what those runs did."""


class Strict(BaseModel):
    """A section in which unknown keys are errors, types are not coerced (but `COUNT` reads `5k`),
    and values cannot be changed afterwards."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,  # `docs/config.md` is made from the schema
        defer_build=True,  # a validator takes long to build, and most commands need few
    )


EXPERT_UNIT = {"float32": 4, "bfloat16": 8}
"""Both widths of an expert are multiples of this, because torch's grouped product takes matrices
whose rows are multiples of 16 bytes only."""


class Experts(Strict):
    """A mixture of experts in place of every feed-forward layer (Qwen3-MoE's kind: no shared
    expert, softmax router, top-k weights normalised to one)."""

    count: Width
    """Experts of each layer."""
    per_token: Width
    """Experts that each position is sent to; at least 2."""
    feed_forward_size: Width
    """Width of one expert."""
    balance_loss: NotNegativeFloat = 1e-3
    """Coefficient of the sequence-wise load-balancing loss (not stated in the paper)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.per_token > self.count:
            raise ValueError(f"per_token = {self.per_token} is more than count = {self.count}")
        if self.per_token == 1:  # its weight would be a constant 1
            raise ValueError("per_token = 1 leaves the router without a gradient: give 2 or more")
        return self


class Model(Strict):
    """A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    layers: Annotated[int, Field(ge=1, le=10_000), COUNT]
    """Decoder layers."""
    hidden_size: Width
    """Width of the residual stream."""
    attention_heads: Width
    """Query heads."""
    key_value_heads: Width
    """Key and value heads, which divide the query heads; fewer than query heads means
    grouped-query attention."""
    head_size: Annotated[Width, Field(multiple_of=2)]
    """Width of one head; even, since rotary positions need pairs."""
    feed_forward_size: Width
    """Width of the SwiGLU layer; not used where `experts` is set."""
    vocabulary_size: Annotated[int, Field(ge=2, lt=2**31), COUNT]
    """Rows of the embedding; at least the tokenizer's number of tokens."""
    tied_embeddings: bool = False
    """Whether the output head is the input embedding."""
    qk_norm: bool = False
    """Whether queries and keys are normalised, head by head."""
    rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary positions."""
    norm_epsilon: PositiveFloat = 1e-5
    """Epsilon of every RMSNorm."""
    initial_deviation: PositiveFloat = 0.02
    """Standard deviation of all matrices at the start; projections back into the residual stream
    use this over sqrt(2 · layers). (The paper states no initialisation.)"""
    experts: Experts | None = None
    """A mixture of experts; without it layers are dense."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.attention_heads % self.key_value_heads:
            raise ValueError(
                f"attention_heads = {self.attention_heads} is not a multiple of "
                f"key_value_heads = {self.key_value_heads}"
            )
        return self


class SuperposedPhase(Strict):
    """Phase 1 of the paper (section 3): what is bagged, for how long, under which loss."""

    bag_size: Width = 1
    """Tokens of a bag, s; 1 is the baseline."""
    step_ratio: Fraction = 0.0
    """Superposed share r of the steps; the number of steps is rounded to the nearest."""
    steps: NotNegative | None = None
    """Superposed steps given outright, in place of `step_ratio`."""
    mode: Mode = "full"
    """`full`: bags in, next bag out. `input_only`: bags in, one next token out. `output_only`:
    tokens in, next bag out."""
    loss: Annotated[BagLossKind | dict[str, float | int | str], AfterValidator(_plainest)] = "mce"
    """`mce`: multi-hot cross-entropy, the paper's; the others see the next bag as a set. A table
    sets a loss's parameters: `{kind = "mce", label_smoothing = 0.1}`. A class of your own, a
    `BagLoss`: `{kind = "my_losses:Focal", gamma = 2.0}`; the file of its module, without what that
    imports, is part of the run's identity."""
    weighting: (
        NamedWeighting | tuple[NotNegativeFloat, ...] | tuple[tuple[NotNegativeFloat, ...], ...]
    ) = Field(default="uniform", union_mode="left_to_right")
    """Weights of the s tokens of the next bag in the loss: a name, s numbers, or rows of s numbers.
    Rows are placed at equal distances over the superposed steps, and each weight changes linearly
    from one row to the next."""
    shuffle_targets: Annotated[bool, AddedLater(False)] = False
    """Control: every position gets the next bag of another position of the step's batch, drawn anew
    in each step."""
    reinitialize_at_switch: bool = False
    """Ablation (Table 2): new input embedding and output head between the phases."""
    optimizer_at_switch: Literal["keep", "reset"] = "keep"
    """Ablation: whether the optimizer's state is forgotten between the phases."""

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        if self.steps is not None and self.step_ratio:
            raise ValueError("steps and step_ratio are both set: keep one")
        # The values to which a mode restricts some keys. `input_only` predicts one token, so
        # weights and losses of bags do not apply. The targets of `output_only` overlap, so they
        # cannot be shuffled.
        meaningful: dict[Mode, dict[str, tuple[Any, ...]]] = {
            "full": {},
            "input_only": {"weighting": ("uniform", "first_token"), "loss": ("mce",)},
            "output_only": {"shuffle_targets": (False,)},
        }
        for key, values in meaningful[self.mode].items():
            if getattr(self, key) not in values:
                raise ValueError(f"{key} has no meaning with mode = {self.mode!r}")
        is_data = is_own(self.loss) and not info.context
        check_targets("mce" if is_data else self.loss, self.weighting, self.bag_size)
        return self


class LabelSmoothing(Strict):
    """Soft targets in some next-token steps: the next token keeps 1 − epsilon of the weight, and
    all tokens of the vocabulary share epsilon evenly."""

    epsilon: Annotated[float, Field(gt=0.0, lt=1.0)]
    """Weight that the vocabulary shares."""
    first_step: Positive = 1
    """The first smoothed step; steps are counted from 1, as in the logs."""
    last_step: Positive
    """The last smoothed step."""

    @model_validator(mode="after")
    def _steps_in_order(self) -> Self:
        if self.first_step > self.last_step:
            raise ValueError(f"first_step = {self.first_step} lies after {self.last_step}")
        return self

    def covers(self, step: int) -> bool:
        """Return whether step `step` is smoothed. `step` is numbered from 0, but `first_step` and
        `last_step` are numbered from 1."""
        return self.first_step <= step + 1 <= self.last_step


class Rival(Strict):
    """A rival of superposition: the first steps are smaller, and each reads and costs only a part
    of a whole step."""

    divided: ClassVar[Literal["sequences", "sequence_length"]]
    """The key of `[batch]` that is divided into parts."""
    words: ClassVar[str]
    """A template of the words for it in labels, with its keys as fields."""

    step_ratio: Fraction
    """Small share r of the steps; their number is rounded so that they read the text of whole
    steps."""

    @property
    def group(self) -> tuple[tuple[int, int], ...]:
        """The fewest small steps, stage by stage: how many they are, and into how many parts they
        divide a whole step, of which each reads one. Quarters and then halves are
        `((4, 4), (2, 2))`. The first stage has the smallest steps."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _stages_read_whole_steps(self) -> Self:
        if any(steps % parts or self.group[0][1] % parts for steps, parts in self.group):
            raise ValueError(
                f"group = {self.group}: a stage has a multiple of its parts as steps, and its "
                "parts divide those of the first stage"
            )
        return self

    @property
    def group_size(self) -> int:
        """The fewest small steps."""
        return sum(steps for steps, _ in self.group)

    def stages(self, of: int) -> tuple[tuple[int, int], ...]:
        """Return the stages of the small steps in a run of `of` steps, as `group` does."""
        size = self.group_size
        groups = min(round(self.step_ratio * of / size), of // size)
        return tuple((groups * steps, parts) for steps, parts in self.group)


class Warmup(Rival):
    """A rival all of whose small steps are of one size."""

    words = "from 1/{parts} over {step_ratio:.3g} of the steps"

    parts: Annotated[int, Field(ge=2, le=2**20), COUNT]
    """Small steps that together read the text of one whole step."""

    @property
    def group(self) -> tuple[tuple[int, int], ...]:
        return ((self.parts, self.parts),)


class BatchWarmup(Warmup):
    """A rival of superposition: the first steps read fewer sequences. Each costs only a part of a
    whole step, so at equal total FLOPs the run has more steps (set `schedule.steps`)."""

    divided = "sequences"


class SequenceWarmup(Warmup):
    """A rival of superposition: the first steps read shorter sequences. Each costs only a part of a
    whole step, so at equal total FLOPs the run has more steps (set `schedule.steps`)."""

    divided = "sequence_length"


RIVALS: Mapping[str, type[Rival]] = {"batch_warmup": BatchWarmup, "sequence_warmup": SequenceWarmup}
"""The keys of the config that hold a rival. At most one of them is set, and only without
superposition."""


class Corpus(Strict):
    """One prepared folder (`tst-study data prepare`) or one Megatron `.bin/.idx` prefix."""

    path: PathText
    """The folder, or the prefix without `.bin`."""
    weight: PositiveFloat = 1.0
    """Share of the sequences, relative to that of the other corpora."""


class Data(Strict):
    """The text that is read, and what is held out of it."""

    corpora: Annotated[tuple[Corpus, ...], Field(min_length=1)]
    """The text to train on: one corpus, or a blend of several."""
    validation: PathText | None = None
    """Held-out folder or prefix; by default the `validation` split beside the first corpus."""
    validation_tokens: Positive | None = None
    """Held-out tokens to evaluate on; by default 131,072, or all where there are fewer."""
    held_out: Annotated[Literal["spread", "beginning"], AddedLater("beginning")] = "spread"
    """`spread`: pieces of at most one sequence, taken evenly from all documents, with a loss for
    each document (with more than 256 documents, for each group of neighbouring ones). `beginning`:
    the first tokens, the only behaviour before this key existed."""

    @property
    def held_out_tokens(self) -> int:
        return self.validation_tokens or 131_072


class Batch(Strict):
    """A step: `sequences` of `sequence_length` latent positions, in both phases."""

    sequences: Annotated[int, Field(ge=1, lt=2**31), COUNT]
    """Sequences of a step, over all ranks."""
    sequence_length: Annotated[int, Field(ge=2, le=2**24), COUNT]
    """Latent positions of a sequence, L; a superposed one reads s · L tokens."""

    @property
    def positions(self) -> int:
        """Latent positions of a step."""
        return self.sequences * self.sequence_length


class Optimizer(Strict):
    """The paper's AdamW (decay, clipping and epsilon are not stated there), or another rule."""

    kind: Annotated[OptimizerName, AddedLater("adamw")] = "adamw"
    """`muon`: Muon for the projections of attention and feed-forward layers, AdamW for the rest."""
    learning_rate: PositiveFloat
    """The peak of the schedule."""
    beta1: Momentum = 0.9
    """Decay of AdamW's mean of gradients."""
    beta2: Momentum = 0.95
    """Decay of AdamW's mean of squared gradients."""
    epsilon: PositiveFloat = 1e-8
    """Small number added to AdamW's denominator."""
    momentum: Annotated[Momentum, AddedLater(0.95)] = 0.95
    """Nesterov momentum of Muon; AdamW's is `beta1`."""
    weight_decay: NotNegativeFloat = 0.1
    """Decoupled weight decay, scaled by the learning rate."""
    decay_embeddings: bool = False
    """Whether input embedding and output head decay too; norms never do."""
    gradient_clip: NotNegativeFloat = 1.0
    """Largest global gradient norm; 0 turns clipping off."""


class Schedule(Strict):
    """Learning rate over steps; the paper's is warm-up, constant, decay over the last tenth."""

    steps: Positive
    """Steps of both phases together."""
    kind: Literal["wsd", "cosine"] = "wsd"
    """`wsd`: warm-up, stable rate, decay. `cosine`: warm-up, half a wave."""
    warmup_steps: NotNegative = 0
    """Steps over which the rate grows from zero."""
    decay_ratio: Fraction = 0.1
    """Share of the steps over which `wsd` decays, linearly; with 0 the rate stays constant."""
    final_ratio: Fraction = 0.0
    """Learning rate at which the decay ends, as a share of the peak one (`wsd` and `cosine`). It is
    reached after the last step, so that this step still moves the weights."""
    stop_after: Annotated[Positive | None, AddedLater(None)] = None
    """A shared prefix run: ends after this step, for other runs to fork from
    (`tst_study.config.identity`)."""

    @property
    def last_step(self) -> int:
        """The number of steps that are trained."""
        return self.stop_after or self.steps

    @property
    def decay_steps(self) -> int:
        """Steps of the final decay; for `cosine` all steps after warm-up."""
        if self.kind == "cosine":
            return self.steps - self.warmup_steps
        return round(self.decay_ratio * self.steps)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stop_after is not None and self.stop_after >= self.steps:
            raise ValueError(f"stop_after = {self.stop_after} is not before steps = {self.steps}")
        decay = max(1, self.decay_steps)
        if self.warmup_steps + decay > self.steps:  # the rate would jump where they overlap
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} and {decay} of decay do not fit into "
                f"steps = {self.steps}: lower warmup_steps or decay_ratio"
            )
        return self


class Numerics(Strict):
    """Number formats, and when a run is given up."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and activations in the model; optimizer and reductions stay in float32.
    `tst-study train` takes bfloat16 on a GPU where no file or `--set` names a type."""
    divergence_loss: PositiveFloat = 100.0
    """A training loss above this many nats ends the run as 'diverged', as does a training or
    held-out loss that is not finite. The training loss is read at steps that are logged, evaluated
    or saved."""


class Parallel(Strict):
    """How the work is laid out over ranks; data parallelism fills what is left.

    What cannot work is refused by `parallel_layout.check`, which knows the number of ranks.
    """

    tensor: Positive = 1
    """Ranks that share each matrix."""
    sequence_parallel: bool = False
    """Whether tensor ranks also divide the positions, in all that lies between the matrices."""
    expert: Positive = 1
    """Ranks over which the experts of a layer are divided; data-parallel ranks serve for it. With
    `expert = 1`, tensor ranks share each expert's matrices; otherwise each expert is whole."""
    optimizer: Literal["replicated", "distributed"] = "replicated"
    """`distributed`: each data-parallel rank keeps and updates its share of the optimizer state.
    On several GPUs it is the default of `train`, except with Muon."""
    overlap_gradients: bool = False
    """Sum gradients over ranks during the backward pass, bucket by bucket. On several GPUs `train`
    does this by default."""

    @property
    def expert_tensor_ranks(self) -> int:
        """Ranks that share one expert's matrices."""
        return self.tensor if self.expert == 1 else 1


class ForkPoint(Strict):
    """A checkpoint of another run that is, bit for bit, a checkpoint of this one."""

    folder: PathText
    """The shared prefix run's run folder."""
    step: Positive
    """The step after which that checkpoint was written."""


class Execution(Strict):
    """Everything that must not change the result beyond floating-point reordering."""

    micro_batch: Positive | None = None
    """Sequences per forward pass and rank; by default a rank's whole share of the batch, on a GPU
    the most that fit."""
    parallel: Literal["auto"] | Parallel = Parallel()
    """`"auto"` picks a layout for the ranks that are there and their memory, and says why; so does
    `tst-study train` on GPUs where no file or `--set` names one."""
    recompute: Recompute = "none"
    """`layer`: keep only the inputs of each layer, which the backward pass computes again."""
    attention: Literal["auto", "flash", "efficient", "cudnn", "math"] = "auto"
    """Kernel of attention; by default torch chooses among the others than cuDNN's at the start, and
    `segments.jsonl` names it."""
    device: DeviceName = "auto"
    """`auto` takes a GPU where there is one."""
    threads: Annotated[int, Field(ge=1, le=4096), COUNT] | None = None
    """CPU threads per rank; by default torch's own choice."""
    compile: Literal["auto"] | bool = "auto"
    """torch.compile for the layers: by default on GPUs. On a CPU it needs a C++ compiler, and
    minutes to pay off."""
    log_every: Positive = 10
    """Steps between rows of `metrics.jsonl`."""
    log_seconds: NotNegativeFloat = 30.0
    """Seconds without a row after which one is logged all the same; 0: none."""
    evaluate_every: Positive | None = None
    """Steps between evaluations; by default only after the last step."""
    checkpoint_every: Positive | None = None
    """Steps between checkpoints; by default only after the last step, by the clock and at
    `keep_steps`."""
    checkpoint_minutes: NotNegativeFloat = 30.0
    """Minutes without a checkpoint after which one is written all the same; 0: none."""
    keep_checkpoints: Positive = 2
    """Number of the last checkpoints that stay on disk, besides those of `keep_steps`."""
    keep_steps: tuple[Positive, ...] = ()
    """Steps after which a checkpoint is written and never removed, for other runs to fork from."""
    fork_from: ForkPoint | None = None
    """The checkpoint from which a run begins if it has no checkpoint of its own."""
    track: tuple[TrackerName, ...] = ()
    """Trackers that get a copy of every logged row; each is an extra of the package. The run folder
    stays the truth, and a tracker that fails does not stop a run."""
    timeout_seconds: Annotated[int, Field(ge=1, le=10**7), COUNT] = 1800
    """How long ranks wait for each other before they give up. The first step reads a checkpoint and
    compiles, on some ranks longer than on others."""

    def compiles(self, *, on_gpu: bool) -> bool:
        """Return whether layers are compiled, on a GPU or on a CPU."""
        return on_gpu if self.compile == "auto" else self.compile


class Config(Strict):
    """The complete configuration of one training run."""

    study: FolderName = "single"
    """Name of the folder in `runs/` that holds the run folder."""
    name: FolderName = "run"
    """Beginning of the name of the run's own folder."""
    role: Literal["baseline", "superposition", "ablation", "pilot", "trunk"] = "superposition"
    """The run's purpose, for tables and figures. `trunk`: a shared prefix run, set by the
    planner."""
    seed: Seed = 0
    """Seed of the initial weights and, unless `data_seed` is set, of the order of the text."""
    data_seed: Annotated[Seed | None, AddedLater(None)] = None
    """Seed of the order in which text is read; by default `seed`."""
    fork_from: Annotated[HuggingFacePlace | None, AddedLater(None)] = None
    """`hf:FOLDER`: begin with the weights of a Hugging Face model and a new optimizer state.
    `model` may then be left out. The weights count in the run's identity, their place does not."""
    model: Model
    superposition: SuperposedPhase = SuperposedPhase()
    label_smoothing: Annotated[LabelSmoothing | None, AddedLater(None)] = None
    """Soft targets in some next-token steps; by default none."""
    batch_warmup: Annotated[BatchWarmup | None, AddedLater(None)] = None
    """The first steps read fewer sequences; by default none do."""
    sequence_warmup: Annotated[SequenceWarmup | None, AddedLater(None)] = None
    """The first steps read shorter sequences; by default none do."""
    data: Data
    batch: Batch
    optimizer: Optimizer
    schedule: Schedule
    numerics: Numerics = Numerics()
    execution: Execution = Execution()

    @property
    def weights_folder(self) -> Path | None:
        """The folder of the Hugging Face model whose weights the run begins with; None if the run
        draws its initial weights by its seed."""
        return Path(self.fork_from.removeprefix(HUGGING_FACE)) if self.fork_from else None

    @property
    def order_seed(self) -> int:
        """The seed of the order in which text is read."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def rivals(self) -> dict[str, Rival]:
        """The rivals of superposition that the config sets, by their key."""
        return {key: given for key in RIVALS if (given := getattr(self, key)) is not None}

    def executed(self, **changes: object) -> Self:
        """Return a copy of the config with changed values in `execution`, which are not
        validated."""
        execution = self.execution.model_copy(update=changes)
        return self.model_copy(update={"execution": execution})

    @model_validator(mode="after")
    def _check(self) -> Self:
        superposed, steps = self.superposition.steps or 0, self.schedule.steps
        if superposed > steps:
            raise ValueError(f"superposition.steps = {superposed} exceeds schedule.steps = {steps}")
        self._check_rivals()
        unit, experts = EXPERT_UNIT[self.numerics.dtype], self.model.experts
        if experts and (self.model.hidden_size % unit or experts.feed_forward_size % unit):
            raise ValueError(
                f"experts: hidden_size and feed_forward_size must be multiples of {unit}"
            )
        return self

    def _check_rivals(self) -> None:
        chosen, steps = self.superposition, self.schedule.steps
        superposed = superposed_steps(steps, chosen.bag_size, chosen.step_ratio, chosen.steps)
        set_up = [*self.rivals, *["superposition"] * bool(superposed)]
        for key, rival in self.rivals.items():
            if len(set_up) > 1:
                raise ValueError(f"{' and '.join(set_up)} are both set: keep one")
            whole = getattr(self.batch, rival.divided)
            if odd := [parts for _, parts in rival.group if whole % parts]:
                raise ValueError(
                    f"{key}: {odd[0]} parts do not divide batch.{rival.divided} = {whole}"
                )
            if not rival.stages(steps)[0][0]:
                raise ValueError(
                    f"{key}.step_ratio = {rival.step_ratio:g} of {steps} steps is less than one "
                    f"group of {rival.group_size} small steps: raise it, or leave {key} out"
                )


def from_dict(values: Mapping[str, Any], source: str = "config", *, imports: bool = True) -> Config:
    """Validate plain values, such as those of a TOML file, and return them as a `Config`.

    imports: whether the code of a loss of one's own is run, as for a run that is to be trained.

    A `preset` in `model` is expanded (`presets.py`). With `fork_from = "hf:FOLDER"`, a missing
    `model` is read from that folder.

    Raises `UserError`, a line that names the key and what is wrong with it. The line begins with
    `source`, unless the model in the folder of `fork_from` cannot be used.
    """
    values = {**values}
    fork = values.get("fork_from")
    if isinstance(fork, str) and fork.startswith(HUGGING_FACE) and "model" not in values:
        values["model"] = from_huggingface(Path(fork.removeprefix(HUGGING_FACE)))
    if isinstance(values.get("model"), Mapping):
        values["model"] = expand_preset(values["model"], source)
    try:
        # Validated as JSON, because pydantic's strict mode takes a JSON array for a tuple, but not
        # a Python list.
        return Config.model_validate_json(json.dumps(values, default=str), context=imports)
    except ValidationError as error:
        raise UserError(f"{source}: {problem_of(Config, error)}") from None


@cache
def added_later(kind: type[BaseModel]) -> dict[str, AddedLater]:
    """Return the marks of a section's keys that were added later, by key."""
    marks = ((key, mark) for key, field in kind.model_fields.items() for mark in field.metadata)
    return {key: mark for key, mark in marks if isinstance(mark, AddedLater)}


def of_record(config: Mapping[str, Any], kind: type[BaseModel] = Config) -> dict[str, Any]:
    """Return a recorded config, or a section of it, with the keys that a config has today.

    Keys that were added after the run was recorded get the value of their `AddedLater` mark, which
    may differ from the key's default. Keys that have been removed since are left out.
    """
    keys = kind.model_fields
    kept = {key: value for key, value in config.items() if key in keys}
    for key, mark in added_later(kind).items():
        kept.setdefault(key, mark.default)
    for key, section in sections_of(kind).items():
        if isinstance(kept.get(key), Mapping):
            kept[key] = of_record(kept[key], section)
    return kept


def from_record(config: Mapping[str, Any], source: str = "config") -> Config:
    """Return the config of a record (`of_record`). No code that it names is run. Raises as
    `from_dict`."""
    return from_dict(of_record(config), source, imports=False)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the values of a TOML file. Raises `UserError` if it cannot be read or parsed."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a TOML file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None


def _read_recorded(path: Path) -> dict[str, Any]:
    recorded = read_json(path, TypeAdapter(dict[str, Any]), "name a run.json")
    if not isinstance(config := (recorded or {}).get("config"), dict):
        raise UserError(f"{path}: is no run.json, or is missing; name a run.json")
    return of_record(config)


def load(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read the config from a TOML file or a run's `run.json`, and apply overrides such as `seed=3`,
    in order.

    Without a path, the config consists of the overrides. An override's value is TOML (`true`, `3`,
    `2e-3`, `"text"`, `[1, 2]`); a value that is not valid TOML is taken as a string.

    Raises `UserError` if the file cannot be read or parsed, an override cannot be applied, or the
    result is not a valid config.
    """
    values = {}
    if path is not None:
        values = _read_recorded(Path(path)) if Path(path).suffix == ".json" else read_toml(path)
    if {"arms", "base"} & values.keys():
        raise UserError(f"{path}: a grid of runs; train them by: tst-study submit {path}")
    for override in overrides:
        apply_override(values, override)
    source = str(path) if path is not None else "--set"
    config = from_dict(values, source)
    # Not checked in `from_dict`, since configs are recorded in which it was not.
    last = config.schedule.last_step
    if (beyond := max(config.execution.keep_steps, default=0)) > last:
        raise UserError(
            f"{source}: execution.keep_steps: {beyond} is beyond the last step, {last}; leave it "
            "out, or raise schedule.steps"
        )
    return config


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set one dotted key in `values`, in place, as `set_key` does. Raises `UserError` if `override`
    has no `=` or no key."""
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise UserError(f"--set {override}: write it as section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    set_key(values, key.strip(), value)


def set_key(values: dict[str, Any], key: str, value: Any) -> None:
    """Set one dotted key in `values`, in place.

    Each section on the key's path is replaced by a changed copy; if there is none, or a value that
    is not a section, a new section takes its place.
    """
    *sections, last = key.split(".")
    for section in sections:
        inner = values.get(section)
        # A copy, since the caller may share its nested dictionaries between configs.
        values[section] = dict(inner) if isinstance(inner, Mapping) else {}
        values = values[section]
    values[last] = value


def to_dict(config: Config) -> dict[str, Any]:
    """Return the config as plain JSON values with every key, defaults included. `run.json` stores
    it in this form."""
    return config.model_dump(mode="json")


def to_toml(config: Config) -> str:
    """Return TOML from which `load` reads the same config. It has every key, defaults included,
    except keys whose value is None, which TOML cannot express."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
