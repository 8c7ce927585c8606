"""Where a measurement was made: device, driver, versions, code, and what sways timings."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tst_study.run.launch_facts import launch_facts

TIMING_VARIABLES = (
    "OMP_NUM_THREADS",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)


def machine_facts(device: str = "cpu") -> dict[str, Any]:
    """For a record. `device`: "cpu" or "cuda"."""
    facts = launch_facts()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "driver": _driver() if device == "cuda" else None,
        "device_memory": _device_memory() if device == "cuda" else None,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "code": facts["code"],
        "python": facts["python"],
        "versions": {**facts["versions"], "cuda": torch.version.cuda},
        "environment": {name: os.environ[name] for name in TIMING_VARIABLES if name in os.environ},
    }


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def _device_memory() -> int:
    return torch.cuda.get_device_properties(0).total_memory


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.splitlines()[0].strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
