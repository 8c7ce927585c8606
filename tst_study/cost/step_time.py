"""How long a step takes on GPUs: products at a stated efficiency, bytes at a stated bandwidth,
messages between ranks, and what Python takes to start it all. A model, held against published
figures in `docs/gpu.md`; nothing here was measured.

Arithmetic and bytes of one operation are added, not overlapped: a product of narrow matrices is
slower than its FLOPs say because it writes more than it computes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

from tst_study.config import Config, Model, Parallel
from tst_study.cost.compute import count_flops
from tst_study.cost.devices import Device
from tst_study.cost.memory import held_parameters
from tst_study.cost.parallel_layout import data_ranks, layout_of
from tst_study.superposition.row_chunks import GPU_CHUNK_ELEMENTS_WITH_HEAD

PRODUCTS = 0.7
"""Of the peak: what large products in bfloat16 reach, their reads and writes counted apart."""
GROUPED_PRODUCTS = 0.5
"""Of the peak, expert by expert in one kernel."""
FULLEST_EXPERT_RANK = 1.2
"""Of an even share of the positions: the others wait for it."""
BANDWIDTH = 0.85
"""Of a memory's bandwidth: what a long pass over it reaches."""
LINKS = 0.8
"""Of the links within and between nodes: what collectives of many megabytes reach."""
NETWORK = 5e10
"""Bytes per second, GPU and direction between nodes: one rail of 400 Gb/s each."""
MESSAGE = 3e-5
"""Seconds of a collective, however small."""
GPUS_PER_NODE = 8
LAYER_STARTS = {False: 1e-3, True: 4e-4}
"""Seconds of Python and launches per layer and micro-batch, forward and backward; compiled or not.
With experts half a millisecond more: the router, and sizes of messages that go to the host."""

# Bytes per element, read and written, forward and backward, in bfloat16; by reading the kernels.
NORMS_AND_RESIDUALS = {False: 48, True: 28}
ROTATION = {False: 80, True: 8}
"""Per element of queries and keys, values' copies included."""
ATTENTION_IO = 12
SWIGLU = {False: 32, True: 16}
PERMUTATION = 36
"""Per element of a position's copy on its way to an expert and back."""
LOGIT = 34
HEAD_GRADIENT = 16
"""Per weight of the head and chunk of rows: its products read it twice and write a gradient, which
is added to the one in float32."""
HEAD_ONCE = 12
"""Per weight of the head: that gradient zeroed, scaled and rounded, beside one chunk's products."""
GRADIENT = 10
"""Per weight and micro-batch: added to the float32 buffer."""
UPDATE = 46
"""Per weight that a rank updates: norm, clip, AdamW, the new weight in the model's type."""


class Load(NamedTuple):
    """What one rank does."""

    products: float = 0.0
    """FLOPs, as all below for forward and backward together."""
    attention: float = 0.0
    """FLOPs of the causal half, those that the backward pass computes again included."""
    memory: float = 0.0
    """Bytes."""
    messages: float = 0.0
    """Seconds in which ranks wait for each other's data."""
    starts: float = 0.0
    """Seconds that Python takes to start it, which pass beside the rest."""

    def plus(self, other: Load) -> Load:
        return Load(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Load:
        return Load(*(a * factor for a in self))


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, by what they go to."""

    products: float
    attention: float
    memory: float
    messages: float
    """Between ranks, where nothing is computed meanwhile."""
    bubble: float
    """In which pipeline stages wait for each other."""
    starts: float
    """In which the GPU waits for Python."""
    mfu: float

    @property
    def total(self) -> float:
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if name != "mfu"}

    def __str__(self) -> str:
        shares = (f"{name} {seconds / self.total:.0%}" for name, seconds in self.parts().items())
        return f"{self.total:.3g} s, {self.mfu:.0%} MFU ({', '.join(shares)})"


def assumptions(device: Device) -> str:
    """What the model takes for granted, in one line."""
    return (
        f"{device.name}: products at {PRODUCTS:.0%} of {device.peak / 1e12:g} TFLOP/s (experts' at "
        f"{GROUPED_PRODUCTS:.0%}), attention at {device.attention:.0%}, memory at {BANDWIDTH:.0%} "
        f"of {device.bandwidth / 1e12:g} TB/s, {LINKS:.0%} of {device.link / 1e9:g} GB/s between "
        f"{GPUS_PER_NODE} GPUs of a node and of {NETWORK / 1e9:g} GB/s a GPU between nodes"
    )


def step_time(config: Config, ranks: int, device: Device) -> StepTime:
    """Of a step of either phase under the config's layout, which must fit `ranks`.

    Raises `ValueError` for the layout `"auto"` (`auto_layout.resolve` comes first).
    """
    parallel = layout_of(config)
    share = config.batch.sequences // data_ranks(parallel, ranks)
    micro_batch = config.execution.micro_batch or share
    count = share // micro_batch
    stages = {0, parallel.pipeline - 1}
    loads = [_stage(config, parallel, micro_batch, stage, device) for stage in stages]
    slowest = max(loads, key=lambda load: _seconds(load, device))
    one = _seconds(slowest, device)
    update = _update(config, parallel, ranks, device, one)
    whole = slowest.times(count).plus(update)
    bubble = (parallel.pipeline - 1) * one
    total = (count + parallel.pipeline - 1) * one + _seconds(update, device)
    return StepTime(
        **_working_parts(whole, device),
        bubble=bubble,
        starts=count * max(0.0, slowest.starts - _working(slowest, device)),
        mfu=count_flops(config).per_step / (ranks * device.peak * total),
    )


def _seconds(load: Load, device: Device) -> float:
    return max(_working(load, device), load.starts)


def _working(load: Load, device: Device) -> float:
    return sum(_working_parts(load, device).values())


def _working_parts(load: Load, device: Device) -> dict[str, float]:
    """Seconds, by the fields of `StepTime`."""
    return {
        "products": load.products / (PRODUCTS * device.peak),
        "attention": load.attention / (device.attention * device.peak),
        "memory": load.memory / (BANDWIDTH * device.bandwidth),
        "messages": load.messages,
    }


def _stage(
    config: Config, parallel: Parallel, micro_batch: int, stage: int, device: Device
) -> Load:
    """One micro-batch through a pipeline stage."""
    model, compiled = config.model, config.execution.compiles(on_gpu=True)
    positions = micro_batch * config.batch.sequence_length
    attention = _attention(config, parallel, positions, compiled)
    feed_forward = (
        _feed_forward(model, parallel, positions, compiled)
        if model.experts is None
        else _experts(model, parallel, positions, device)
    )
    layer = attention.plus(feed_forward).plus(_tensor_messages(model, parallel, positions, device))
    layer = layer.plus(Load(starts=LAYER_STARTS[compiled]))
    again = {"none": Load(), "feed_forward": feed_forward, "layer": layer}
    layer = layer.plus(again[config.execution.recompute].times(1 / 3))
    load = layer.times(model.layers // parallel.pipeline)
    held = held_parameters(model, parallel, stage)
    load = load.plus(Load(memory=GRADIENT * (held.dense + held.experts)))
    if stage == parallel.pipeline - 1:
        load = load.plus(_head(model, parallel, positions))
    if parallel.pipeline > 1:
        handed_on = 2 * positions * model.hidden_size / _sequence_sharers(parallel)
        load = load.plus(Load(messages=2 * (handed_on / (LINKS * NETWORK) + MESSAGE)))
    return load


def _sequence_sharers(parallel: Parallel) -> int:
    return parallel.tensor if parallel.sequence_parallel else 1


def _product(positions: float, inputs: float, outputs: float) -> Load:
    """Forward, and the gradients of input and matrix: three products of the same size, each of
    which reads or writes positions × (inputs + outputs) numbers, and the matrix."""
    numbers = positions * (inputs + outputs) + inputs * outputs
    return Load(products=6 * positions * inputs * outputs, memory=3 * 2 * numbers)


def _attention(config: Config, parallel: Parallel, positions: int, compiled: bool) -> Load:
    """Norm, projections, rotation, attention, and the residual stream."""
    model, tensor = config.model, parallel.tensor
    query = model.attention_heads * model.head_size / tensor
    key_value = model.key_value_heads * model.head_size / tensor
    # Softmax costs the same for small heads as for large ones.
    small_heads = 0.5 + 0.5 * max(1.0, 128 / model.head_size)
    passes = NORMS_AND_RESIDUALS[compiled] * model.hidden_size / _sequence_sharers(parallel)
    passes += ROTATION[compiled] * (query + key_value) + ATTENTION_IO * (query + key_value)
    scores = 7 * positions * config.batch.sequence_length * query * small_heads
    return (
        _product(positions, model.hidden_size, query + 2 * key_value)
        .plus(_product(positions, query, model.hidden_size))
        .plus(Load(attention=scores, memory=positions * passes))
    )


def _feed_forward(model: Model, parallel: Parallel, positions: int, compiled: bool) -> Load:
    inner = model.feed_forward_size / parallel.tensor
    return (
        _product(positions, model.hidden_size, 2 * inner)
        .plus(_product(positions, inner, model.hidden_size))
        .plus(Load(memory=SWIGLU[compiled] * positions * inner))
    )


def _experts(model: Model, parallel: Parallel, positions: int, device: Device) -> Load:
    """Copies of positions are routed, exchanged, permuted, and multiplied expert by expert; what a
    router does is not compiled."""
    experts = model.experts
    assert experts is not None
    split = parallel.expert_tensor_ranks
    copies = positions * experts.per_token / _sequence_sharers(parallel)
    if parallel.expert > 1:
        copies *= FULLEST_EXPERT_RANK
    exchanged = 4 * 2 * copies * model.hidden_size
    seconds = _transfer(exchanged, parallel.expert, parallel.tensor, device, times=4)
    # Where experts are split, each of their ranks gets the copies of all.
    rows, inner = copies * split, experts.feed_forward_size / split
    matrices = 3 * model.hidden_size * inner * experts.count / parallel.expert
    passes = PERMUTATION * model.hidden_size + SWIGLU[False] * inner
    both = _product(rows, model.hidden_size, 2 * inner)
    both = both.plus(_product(rows, inner, model.hidden_size))
    return Load(
        products=both.products * PRODUCTS / GROUPED_PRODUCTS,
        memory=both.memory + 3 * 2 * matrices + rows * passes,
        messages=seconds,
        starts=5e-4,
    )


def _tensor_messages(model: Model, parallel: Parallel, positions: int, device: Device) -> Load:
    """Gathers and scatters of the positions between the matrices: four forward, and six backward
    (two inputs are gathered again), or as many bytes in sums."""
    size = 10 * 2 * positions * model.hidden_size
    return Load(messages=_transfer(size, parallel.tensor, 1, device, times=10))


def _head(model: Model, parallel: Parallel, positions: int) -> Load:
    vocabulary = model.vocabulary_size / parallel.tensor
    chunks = max(1.0, positions * vocabulary / GPU_CHUNK_ELEMENTS_WITH_HEAD)
    passes = LOGIT * positions * vocabulary
    passes += (HEAD_GRADIENT * chunks + HEAD_ONCE) * vocabulary * model.hidden_size
    return _product(positions, model.hidden_size, vocabulary).plus(Load(memory=passes))


def _update(
    config: Config, parallel: Parallel, ranks: int, device: Device, micro_batch: float
) -> Load:
    """Gradients summed in float32, the optimizer's step, weights given back in the model's type.

    `micro_batch`: seconds of one. Two thirds of the last one, its backward pass, hide the summing
    where the layout overlaps them; its forward pass hides the weights on their way.
    """
    held = held_parameters(config.model, parallel, stage=0)
    of_experts = parallel.expert * parallel.expert_tensor_ranks
    groups = (
        (held.dense, data_ranks(parallel, ranks), parallel.tensor),
        (held.experts, ranks // (parallel.pipeline * of_experts), of_experts),
    )
    updated = summed = given_back = 0.0
    for weights, members, stride in groups:
        shared = parallel.optimizer == "distributed"
        updated += weights / members if shared else weights
        summed += _transfer((4 if shared else 8) * weights, members, stride, device)
        given_back += _transfer(2 * weights, members, stride, device) if shared else 0.0
    if parallel.overlap_gradients:
        summed = max(0.1 * summed, summed - micro_batch * 2 / 3)
    if parallel.overlap_weights:
        given_back = max(0.1 * given_back, given_back - micro_batch / 3)
    return Load(memory=UPDATE * updated, messages=summed + given_back)


def _transfer(size: float, members: int, stride: int, device: Device, times: int = 1) -> float:
    """Seconds of `times` collectives that bring each of `members` ranks, `stride` apart, `size`
    bytes in all. Between nodes every member of the group on a node has its own rail, and no rail is
    faster than the links."""
    if members == 1:
        return 0.0
    speed = device.link
    if members * stride > GPUS_PER_NODE:
        on_a_node = max(1, GPUS_PER_NODE // stride)
        speed = min(device.link, on_a_node * NETWORK)
    return size * (members - 1) / members / (LINKS * speed) + times * MESSAGE
