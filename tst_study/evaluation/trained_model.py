"""The live model of a trained run, on one process, whatever layout trained it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tst_study.checkpoints.reader import CheckpointReader
from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.config import DeviceName, Execution
from tst_study.errors import UserError, one_of
from tst_study.evaluation.evaluate import POSITIONS_AT_ONCE
from tst_study.megatron.initialization import load_weights
from tst_study.megatron.model import SuperposedGPT, empty_model
from tst_study.megatron.process_groups import process_groups
from tst_study.superposition.method import NEXT_TOKEN

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TrainedModel:
    run: TrainedRun
    model: SuperposedGPT
    device: torch.device

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        """(b, l) token ids -> (b, l, V) in float32, where the model is."""
        logits: Tensor = self.model(NEXT_TOKEN.fold(ids.to(self.device)))
        return logits.float()

    @torch.no_grad()
    def losses(self, ids: Ids, labels: Ids) -> NDArray[np.float32]:
        """(n, l) token ids and labels -> (n, l) nats, 0 where a label is negative.

        Raises `UserError` for ids of another vocabulary.
        """
        highest = int(max(ids.max(), labels.max()))
        if highest >= self.run.model.vocabulary_size:
            raise UserError(
                f"token id {highest} is beyond the model's vocabulary of "
                f"{self.run.model.vocabulary_size}; name held-out text of the model's tokenizer"
            )
        at_once = max(1, POSITIONS_AT_ONCE // ids.shape[1])
        parts = []
        for start in range(0, len(ids), at_once):
            rows = slice(start, start + at_once)
            some = (torch.tensor(array[rows], device=self.device) for array in (ids, labels))
            losses = self.model.next_token_losses(*some)
            parts.append(losses.float().cpu().numpy())
        return np.concatenate(parts)


@contextmanager
def trained_model(run: TrainedRun, device: str = "auto") -> Iterator[TrainedModel]:
    """The model with the weights of the run's checkpoint, for evaluation.

    `device`: `auto`, `cpu` or `cuda`. Raises `UserError` where the checkpoint cannot be read.
    """
    one_of(device, get_args(DeviceName), "--device")
    execution = Execution.model_validate({"device": device})
    config = run.config.model_copy(update={"execution": execution})
    with process_groups(config) as ranks:
        model = empty_model(config)
        load_weights(model, CheckpointReader(run.checkpoint))
        model.eval()
        yield TrainedModel(run, model, ranks.device)
