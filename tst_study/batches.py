"""The token ids and labels that each rank trains on in a step, on its device. The training loop
asks for them step by step."""

import numpy as np
import torch
from torch import Tensor

from tst_study.config.phase_plan import PhasePlan
from tst_study.config.schema import Config
from tst_study.data.permutation import permutation_key, permuted
from tst_study.data.run_data import open_stream
from tst_study.parallel.process_groups import Ranks
from tst_study.superposition.bags import shuffle_bags


class StepBatches:
    """A callable that takes a step, counted from 0, and returns this rank's token ids and
    next-token labels.

    Both have the shape (sequences of a rank, raw tokens per sequence). The first data-parallel rank
    reads the first sequences of a step, the second rank as many of the next, and so on.
    """

    def __init__(self, config: Config, plan: PhasePlan, ranks: Ranks) -> None:
        self.config, self.plan, self.ranks = config, plan, ranks
        self.device = ranks.device
        self.stream = open_stream(config)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        share = self.plan.reads(step).sequences // self.ranks.data_size
        start, stop = self.ranks.data_rank * share, (self.ranks.data_rank + 1) * share
        if self.config.superposition.shuffle_targets and step < self.plan.superposed_steps:
            ids, labels = (rows[start:stop] for rows in self._shuffled(step))
        else:
            arrays = self.stream.batch(step, start, stop)
            ids, labels = (torch.from_numpy(array) for array in arrays)
        if self.device.type == "cuda":  # a GPU copies pinned memory while it computes
            ids, labels = ids.pin_memory(), labels.pin_memory()
        return ids.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def _shuffled(self, step: int) -> list[Tensor]:
        """Return the ids and labels of all sequences of a step, with the target bags of all these
        sequences permuted: the control experiment `superposition.shuffle_targets`.

        The permutation depends only on the step and on the seed of the order of the text, so it is
        the same on all ranks.
        """
        arrays = self.stream.batch(step, 0, self.config.batch.sequences)
        ids, labels = (torch.from_numpy(array) for array in arrays)
        size = self.plan.bag_size
        bags = labels.shape[0] * (labels.shape[1] // size - 1)
        key = permutation_key(self.config.order_seed, step)
        order = torch.from_numpy(permuted(np.arange(bags), bags, key))
        return [ids, shuffle_bags(labels, size, order)]
