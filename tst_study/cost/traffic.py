"""Bytes that a layout makes each rank move in a step, by the link over which they move.

`auto_layout` uses the time of these transfers to choose among layouts that fit. Matrix products are
left out, because a rank computes the same amount in all layouts with the same recomputation. The
estimate also ignores that a GPU can compute while a message is on its way.

A test counts the bytes within a node in real steps. The seconds were never measured. They decide
only where several layouts fit that differ in expert ranks and micro-batch alone, and where no other
rule was measured either; they never refuse a layout, and never replace one that the config names.
"""

from dataclasses import dataclass

from tst_study.config.schema import Config
from tst_study.cost.devices import NETWORK, Device
from tst_study.cost.memory import held_parameters
from tst_study.cost.parallel_layout import data_ranks, layout_of
from tst_study.text import memory_size


@dataclass(frozen=True)
class Traffic:
    """Bytes of one rank in one step."""

    memory: float
    """Bytes of weights and gradients that are read and written in the device's own memory, over all
    micro-batches of the step."""
    node: float
    """Bytes sent to other ranks of the same node."""
    network: float
    """Bytes sent to other nodes through this rank's port."""

    def seconds(self, device: Device) -> float:
        """Return the seconds that all transfers take one after another, at the rates of the data
        sheets."""
        return self.memory / device.bandwidth + self.node / device.link + self.network / NETWORK

    def __str__(self) -> str:
        return (
            f"each rank and step sends {memory_size(self.node)} within its node and "
            f"{memory_size(self.network)} to others, and reads and writes "
            f"{memory_size(self.memory)} of weights and gradients"
        )


def count_traffic(config: Config, ranks: int, per_node: int) -> Traffic:
    """Count the bytes of a config's layout on `ranks` ranks, `per_node` of them on each node.

    Ranks are numbered as in Megatron. For the dense weights, ranks with consecutive numbers are the
    tensor ranks of one data-parallel rank; for the experts, they are the ranks that divide the
    experts among them. Collective operations send their messages around a ring of ranks. If a ring
    spans several nodes, the bytes that leave a node are divided evenly over the network ports of
    those ranks of the node that are in the ring.

    Raises `ValueError` if the layout is still `"auto"`.
    """
    model, parallel = config.model, layout_of(config)
    width = 2 if config.numerics.dtype == "bfloat16" else 4
    held = held_parameters(model, parallel)
    tensor, expert = parallel.tensor, parallel.expert
    share = config.batch.sequences // data_ranks(parallel, ranks)
    layers, recomputes = model.layers, config.execution.recompute == "layer"

    # Bytes per weight. Gradients are summed in float32 by a reduce-scatter. Then a gather brings
    # every rank the new weights (distributed optimizer) or the summed gradients (replicated one).
    update = 4 + (width if parallel.optimizer == "distributed" else 4)
    expert_ranks = expert * parallel.expert_tensor_ranks
    # The bytes of one vector for each latent position of this rank's sequences.
    vectors = width * share * config.batch.sequence_length * model.hidden_size
    # Tensor ranks exchange these vectors around the matrices of attention, around those of a
    # feed-forward layer if it is split over them, and around embedding and head together. Each of
    # the three takes four gathers or reductions. Sequence parallelism adds one, because in the
    # backward pass the inputs are gathered again. Recomputing a layer repeats two for each of its
    # parts.
    around = 5 if parallel.sequence_parallel else 4
    halves = 2 if model.experts is None or parallel.expert_tensor_ranks > 1 else 1
    again = 2 * halves if recomputes else 0
    # Of each ring: its bytes, its ranks, and the difference between the numbers of two ranks that
    # are next to each other in it.
    rings = [
        (update * held.dense, ranks // tensor, tensor),
        (update * held.experts, ranks // expert_ranks, expert_ranks),
        (vectors * (around + layers * (around * halves + again)), tensor, 1),
    ]
    node = network = 0.0
    for size, members, stride in rings:
        near = max(1, min(members, per_node // stride))
        sent = size * (members - 1) / members
        node += sent if near > 1 else 0
        network += sent / near if members > near else 0
    if model.experts is not None:
        # Each position sends a copy to each of its experts and gets one back. This happens in the
        # forward and in the backward pass, and once more if the layer is computed again.
        sent = layers * (6 if recomputes else 4) * model.experts.per_token * vectors
        near = min(expert, per_node)
        node += sent / tensor * (near - 1) / expert
        network += sent / tensor * (expert - near) / expert
    # The forward and the backward pass each read the weights. The backward pass also writes a
    # gradient. Adding it to the sum in float32 reads the gradient, and reads and writes the sum.
    per_weight = (5 if recomputes else 4) * width + 8
    passes = share // (config.execution.micro_batch or share)
    return Traffic(passes * per_weight * (held.dense + held.experts), node, network)
