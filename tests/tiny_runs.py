"""Runs small enough to be trained inside a test, and what two of them must have in common."""

import gc
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from torch import Tensor

from tst_study.checkpoints.places import checkpoint_place, checkpoint_steps
from tst_study.checkpoints.reader import CheckpointReader
from tst_study.config import schema as config
from tst_study.config.presets import dense
from tst_study.config.schema import Config
from tst_study.data.token_stream import TokenStream
from tst_study.model.model import SuperposedGPT, build_model
from tst_study.parallel.process_groups import Ranks, process_groups
from tst_study.record import reader as run_record
from tst_study.record.reader import RunRecord
from tst_study.train import train

# Each run ends with a collection, which would else walk through all that torch and megatron.core
# brought along at import: as long as the run itself.
gc.collect()
gc.freeze()

VOCABULARY = 64
TINY: dict[str, Any] = {
    "model": dense(2, 16, 4, 2, 32, vocabulary_size=VOCABULARY) | {"head_size": 8},
    "superposition": {"bag_size": 4, "step_ratio": 0.5},
    "batch": {"sequences": 4, "sequence_length": 8},
    "optimizer": {"learning_rate": 1e-2},
    "schedule": {"steps": 20, "warmup_steps": 2},
    # One thread: a fork does not take OpenMP's threads along.
    # Nor rows by the clock, of which a slow machine has more.
    "execution": {"threads": 1, "log_every": 1, "log_seconds": 0},
}
MIXTURE = (
    'model.experts={"count"=4, "per_token"=2, "feed_forward_size"=16, "balance_loss"=0.01}',
    "model.qk_norm=true",
)
MUON = ("optimizer.kind=muon",)
# Seconds and memory differ between any two launches, and segments between one and several.
OF_THE_LAUNCH = {
    "segment",
    "seconds",
    "step_seconds",
    "training_seconds",
    "tokens_per_second",
    "peak_memory",
}


def tiny(corpus: Path, *overrides: str) -> Config:
    """`TINY` on a prepared folder, with overrides such as `superposition.bag_size=1`."""
    values = {key: dict(section) for key, section in TINY.items()}
    values["data"] = {"corpora": [{"path": str(corpus)}]}
    for override in overrides:
        config.apply_override(values, override)
    return config.from_dict(values)


def run(corpus: Path, folder: Path, *overrides: str) -> RunRecord:
    """Train `tiny(corpus, *overrides)` in this process, to its end or on to it; its record."""
    train(tiny(corpus, *overrides), folder, progress=False)
    return run_record.read(folder)


def rows(record: RunRecord) -> list[dict[str, Any]]:
    """All metrics and evaluations, without what belongs to a launch."""
    return [
        {key: value for key, value in row.items() if key not in OF_THE_LAUNCH}
        for row in [*record.metrics, *record.evals]
    ]


def last_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a run's last checkpoint by its name: weights and optimizer state."""
    return tensors_of(checkpoint_folders(folder)[-1])


def tensors_of(place: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its name."""
    reader = CheckpointReader(place)
    common = dist_checkpointing.load_common_state_dict(str(place))
    names = dict.fromkeys(name for name, *_ in reader.common["pieces"])
    return {name: reader.read(name) for name in names} | _flat(common)


def _flat(state: Any, name: str = "") -> dict[str, Tensor]:
    if isinstance(state, Tensor):
        return {name.removeprefix("."): state}
    if not isinstance(state, dict | list):
        return {}
    items = state.items() if isinstance(state, dict) else enumerate(state)
    return {key: x for inner, value in items for key, x in _flat(value, f"{name}.{inner}").items()}


def checkpoint_folders(folder: Path) -> list[Path]:
    """In the order of their steps."""
    return [checkpoint_place(folder, step) for step in checkpoint_steps(folder)]


def assert_same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, different


def assert_same_run(one: Path, other: Path) -> None:
    """Records and last checkpoints agree bit for bit, however many launches each run took."""
    assert rows(run_record.read(one)) == rows(run_record.read(other))
    assert_same_tensors(last_tensors(one), last_tensors(other))


@contextmanager
def built(config: Config) -> Iterator[tuple[SuperposedGPT, Ranks]]:
    """The model of a run on one rank, as it stands before the first step."""
    with process_groups(config) as ranks:
        yield build_model(config), ranks


def randomize_norms(model: torch.nn.Module) -> None:
    """Norm weights of one would hide a norm that is left out or applied twice."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1.0 + 0.3 * torch.randn(parameter.shape, generator=generator))


def fork(function: Callable[[], Any]) -> multiprocessing.process.BaseProcess:
    """Start `function` in a process of its own, without the seconds that an import takes."""

    def work() -> None:
        torch.set_num_threads(1)
        gc.freeze()
        function()

    # A process group that is freed after the fork waits for threads that are not there.
    gc.collect()
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def launched(corpus: Path, folder: Path, prepare: Callable[[], None], *overrides: str) -> int:
    """Exit status of a launch of `tiny(corpus, *overrides)` in a process of its own, in which
    `prepare` has arranged what happens to it: 7 where it was preempted."""
    run_config = tiny(corpus, *overrides)

    def work() -> None:
        prepare()
        os._exit(7 if train(run_config, folder, progress=False) == "preempted" else 0)

    process = fork(work)
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def logged_step(folder: Path) -> int:
    """The last step of a run that another process is training; 0 before the first."""
    path = folder / "metrics.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return int(json.loads(whole.rpartition(b"\n")[2])["step"]) if whole else 0


def when_step_begins(step: int, act: Callable[[], None]) -> None:
    """Call `act` as soon as this process reads step `step`; for processes that end with a test."""
    batch = TokenStream.batch

    def watched_batch(self: TokenStream, now: int, *rest: Any) -> Any:
        if now == step:
            act()
        return batch(self, now, *rest)

    TokenStream.batch = watched_batch  # type: ignore[method-assign]
