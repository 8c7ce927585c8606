"""How long an export takes and how much memory; and held-out evaluation beside a step's forward.

    python -m benchmarks.export_speed                         # 600m in float32, 2.4 GB
    python -m benchmarks.export_speed --preset 600m --dtype bfloat16 --folder /tmp/export
    python -m benchmarks.export_speed --only forward

The export runs in a process of its own, whose peak memory is read from the kernel; the checkpoint
holds drawn weights (and no optimizer), since what they are does not matter.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import interleaved_seconds, machine_facts, median_ratio, medians
from benchmarks.steps import step_config
from tst_study.atomic_files import write_json
from tst_study.checkpoints.places import checkpoint_place
from tst_study.config import Config
from tst_study.cost.compute import count_parameters
from tst_study.run.identity import header_of

MOST_SECONDS, MOST_MEMORY = 60.0, 1.3
"""Of 600m on two cores; memory over the size of its weights."""


def write_checkpoint(config: Config, run: Path) -> None:
    """A run folder with one checkpoint after the last step."""
    from megatron.core import dist_checkpointing

    from tst_study.megatron import checkpoint as checkpoint  # writes in this process
    from tst_study.megatron.model import build_model
    from tst_study.megatron.process_groups import process_groups

    place = checkpoint_place(run, config.schedule.steps)
    place.mkdir(parents=True)
    corpus = {"fingerprint": "0" * 64, "weight": 1.0, "tokens": 1}
    data = {"corpora": [corpus], "tokenizer": None, "validation": {}}
    write_json(run / "run.json", header_of(config, data))
    with process_groups(config):
        state = {"model": build_model(config).sharded_state_dict()}
        dist_checkpointing.save(state, str(place), validate_access_integrity=False)


def export_once(run: Path, to: Path) -> dict[str, float]:
    """Seconds and peak bytes of this whole process."""
    from tst_study.checkpoints.trained_run import open_run
    from tst_study.huggingface.export import export

    before = _peak()
    began = time.perf_counter()
    export(open_run(run), to, None)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "peak": _peak(), "peak_before": before}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_export(config: Config, folder: Path) -> dict[str, Any]:
    run, to = folder / "run", folder / "exported"
    for function, arguments in (("write", [run]), ("export", [run, to])):
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, "--part", function, *map(str, arguments)],
            input=config.model_dump_json(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    width = 2 if config.numerics.dtype == "bfloat16" else 4
    size = count_parameters(config.model).total * width
    return {
        **found,
        "bytes": size,
        "files": len(list(to.glob("*.safetensors"))),
        "memory_over_size": found["peak"] / size,
    }


def measure_forward(repeats: int) -> dict[str, Any]:
    """Held-out evaluation of laptop-256 beside the forward pass of a step of as many tokens."""
    from tst_study.megatron.model import Targets, build_model
    from tst_study.megatron.process_groups import process_groups
    from tst_study.superposition.method import NEXT_TOKEN

    config = step_config({"preset": "laptop-256"}, 16, 256)
    ids = torch.randint(0, config.model.vocabulary_size, (16, 256))
    with process_groups(config):
        model = build_model(config)
        targets = Targets(ids, NEXT_TOKEN.count_targets(ids), NEXT_TOKEN)

        def evaluation() -> None:
            with torch.no_grad():
                model.eval()
                model.next_token_losses(ids, ids)

        def forward() -> None:
            model.train()
            model(NEXT_TOKEN.fold(ids), targets)

        seconds = interleaved_seconds({"evaluation": evaluation, "forward": forward}, repeats)
    return {
        "milliseconds": {name: 1000 * value for name, value in medians(seconds).items()},
        "evaluation_over_forward": median_ratio(seconds, "evaluation", "forward"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="600m")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--only", choices=["export", "forward"])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="for the checkpoint; a temporary one if unset")
    parser.add_argument("--json", type=Path, help="write a record")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        name, *paths = options.part
        if name == "write":
            write_checkpoint(Config.model_validate_json(sys.stdin.read()), Path(paths[0]))
        else:
            print(json.dumps(export_once(Path(paths[0]), Path(paths[1]))))
        return
    torch.set_num_threads(options.threads)
    record: dict[str, Any] = {"machine": machine_facts()}
    if options.only != "forward":
        config = step_config({"preset": options.preset}, 1, 2048, dtype=options.dtype)
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        try:
            found = record["export"] = measure_export(config, folder)
        finally:
            shutil.rmtree(folder)
        print(
            f"{options.preset} {options.dtype}: {found['seconds']:.1f} s (target {MOST_SECONDS:.0f}"
            f"), peak {found['peak'] / 1e9:.2f} GB = {found['memory_over_size']:.2f} of its "
            f"{found['bytes'] / 1e9:.2f} GB (target {MOST_MEMORY}), {found['files']} files"
        )
    if options.only != "export":
        found = record["forward"] = measure_forward(options.repeats)
        print(f"evaluation over a step's forward: {found['evaluation_over_forward']:.2f}", found)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
