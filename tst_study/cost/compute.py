"""Counts the parameters of a model by kind and the FLOPs of a run from the config alone, and
converts FLOPs to GPU-hours.

FLOPs follow the usual convention (PaLM, appendix B): six for each position and each parameter of
the matrices that the position uses, and in addition the attention scores over the whole sequence
rather than its causal half. The input embedding is a look-up and counts nothing.
"""

from dataclasses import dataclass

from tst_study.config.phase_plan import PhasePlan, plan_phases
from tst_study.config.schema import Config, Model
from tst_study.errors import UserError

EQUAL_WITHIN = 0.005
"""FLOPs or raw tokens of runs that differ by at most this share count as equal, since steps are
whole numbers."""


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights in the whole model, by kind, and in total."""

    input_embedding: int
    output_head: int
    """0 if it is tied to the input embedding."""
    attention: int
    feed_forward: int
    """In a mixture of experts, the weights of all experts."""
    router: int
    norms: int
    total: int
    active: int
    """The weights that one position uses: all except the experts to which it is not routed."""


def count_parameters(model: Model) -> Parameters:
    """Count the weights of a model, by kind."""
    query = model.attention_heads * model.head_size
    key_value = model.key_value_heads * model.head_size
    attention = model.layers * model.hidden_size * (2 * query + 2 * key_value)
    embedding = model.vocabulary_size * model.hidden_size
    head = 0 if model.tied_embeddings else embedding
    norms = (2 * model.layers + 1) * model.hidden_size
    if model.qk_norm:
        norms += model.layers * 2 * model.head_size
    experts, matrices, router = model.experts, 3 * model.layers * model.hidden_size, 0
    if experts is None:
        feed_forward = active_feed_forward = matrices * model.feed_forward_size
    else:
        feed_forward = matrices * experts.feed_forward_size * experts.count
        active_feed_forward = matrices * experts.feed_forward_size * experts.per_token
        router = model.layers * model.hidden_size * experts.count
    rest = embedding + head + attention + router + norms
    return Parameters(
        input_embedding=embedding,
        output_head=head,
        attention=attention,
        feed_forward=feed_forward,
        router=router,
        norms=norms,
        total=rest + feed_forward,
        active=rest + active_feed_forward,
    )


def flops_per_position(model: Model, sequence_length: int) -> int:
    """Return the FLOPs of the model's forward and backward pass for one latent position."""
    parameters = count_parameters(model)
    matrices = parameters.active - parameters.norms - parameters.input_embedding
    if model.tied_embeddings:
        matrices += parameters.input_embedding  # free as a look-up, but not as the output head
    scores = 2 * model.layers * model.attention_heads * model.head_size * sequence_length
    return 6 * (matrices + scores)


def flops_until(model: Model, plan: PhasePlan, done: int) -> int:
    """Return the model FLOPs of the first `done` steps of a run, over all ranks."""

    def of_step(step: int) -> int:
        reads = plan.reads(step)
        return reads.positions * flops_per_position(model, reads.length)

    return plan.total(done, of_step)


@dataclass(frozen=True)
class Flops:
    """FLOPs of a run, over all ranks."""

    per_step: int
    """Model FLOPs of a whole step, the same for superposed and ordinary steps."""
    bag_sum_per_step: int
    """FLOPs that a superposed step adds for summing the embeddings of its bags and scattering
    their gradients. No other field includes them. At s = 16 they are about 0.2% of `per_step` in
    the smallest presets, and about 0.001% or less in the paper's models."""
    superposition: int
    """FLOPs of all superposed steps together."""
    recovery: int
    """FLOPs of all ordinary steps together."""
    total: int


def count_flops(config: Config) -> Flops:
    """Count the FLOPs of a run up to its last step. With `schedule.stop_after`, this step lies
    before the end of the schedule."""
    plan = plan_phases(config)
    positions = config.batch.positions
    extra = plan.tokens_per_position("superposition") - 1
    end = config.schedule.last_step
    superposition, total = (
        flops_until(config.model, plan, steps) for steps in (min(plan.superposed_steps, end), end)
    )
    return Flops(
        per_step=positions * flops_per_position(config.model, config.batch.sequence_length),
        bag_sum_per_step=2 * positions * extra * config.model.hidden_size,
        superposition=superposition,
        recovery=total - superposition,
        total=total,
    )


def steps_at_equal_flops(config: Config) -> int:
    """Return the number of steps with which a run costs, as nearly as possible, the FLOPs of
    `schedule.steps` whole steps. They are more if its first steps are smaller. Raises `UserError`
    if the nearest number differs by more than `EQUAL_WITHIN`, as it may in a short run."""
    steps, whole = config.schedule.steps, count_flops(config).per_step

    def flops(other: int) -> int:
        schedule = config.schedule.model_copy(update={"steps": other})
        plan = plan_phases(config.model_copy(update={"schedule": schedule}))
        return flops_until(config.model, plan, other)

    def away(other: int) -> int:
        return abs(flops(other) - steps * whole)

    # Small steps come in groups. Their rounding hardly changes the mean cost of a step in a long
    # run, and does in this one.
    long = 10_000 * steps
    near = round(steps * long * whole / flops(long))
    around = 2 * max((rival.group_size for rival in config.rivals.values()), default=0)
    found = min(range(max(steps, near - around), near + around + 1), key=away)
    if (off := away(found) / (steps * whole)) > EQUAL_WITHIN:
        raise UserError(
            f"{found:,} steps come nearest to the FLOPs of {steps:,} whole ones, and are {off:.1%} "
            f"off: too much for a comparison at equal FLOPs ({EQUAL_WITHIN:.1%}); train longer"
        )
    return found


def gpu_hours(flops: float, peak_flops: float, mfu: float) -> float:
    """Return the hours that one device needs if it works at the share `mfu` of its peak FLOP/s."""
    return flops / (peak_flops * mfu) / 3600.0
