"""The live model of a trained run, on one process, whatever layout trained it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from tst_study.checkpoints.reader import CheckpointReader
from tst_study.config import Execution
from tst_study.evaluation.trained_run import TrainedRun
from tst_study.megatron.initialization import load_weights
from tst_study.megatron.model import NEXT_TOKEN, SuperposedGPT, empty_model
from tst_study.megatron.process_groups import process_groups


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
    def next_token_losses(self, ids: Tensor, labels: Tensor) -> Tensor:
        """(b, l) token ids and labels -> (b, l) nats on the CPU, 0 where a label is negative."""
        losses = self.model.next_token_losses(ids.to(self.device), labels.to(self.device))
        return losses.float().cpu()


@contextmanager
def trained_model(run: TrainedRun, device: str = "auto") -> Iterator[TrainedModel]:
    """The model with the weights of the run's checkpoint, for evaluation.

    `device`: `auto`, `cpu` or `cuda`. Raises `UserError` where the checkpoint cannot be read.
    """
    execution = Execution.model_validate({"device": device})
    config = run.config.model_copy(update={"execution": execution})
    with process_groups(config) as ranks:
        model = empty_model(config)
        load_weights(model, CheckpointReader(run.checkpoint))
        model.eval()
        yield TrainedModel(run, model, ranks.device)
