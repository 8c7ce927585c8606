"""A copy of the log for TensorBoard. The run folder stays the truth; nothing reads this back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tst_study.errors import UserError


class TensorBoardMirror:
    """Writes the numbers of metrics and evaluation rows to `<run folder>/tensorboard/`."""

    def __init__(self, folder: Path, resumed_from: int | None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "execution.tensorboard = true: tensorboard is not installed; "
                "pip install 'tst-study[tensorboard]' or set it to false"
            ) from None
        # Steps after the resume point are dropped from the curves, as the reader of runs does.
        purge = None if resumed_from is None else resumed_from + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def row(self, row: Mapping[str, Any], prefix: str) -> None:
        """Loss is filed by its name: a bag loss and a next-token loss are two curves."""
        for key, value in row.items():
            if isinstance(value, float | int) and key not in ("segment", "step"):
                name = f"{row['loss_name']}_loss" if key == "loss" else key
                self._writer.add_scalar(f"{prefix}/{name}", value, row["step"])

    def close(self) -> None:
        self._writer.close()
