"""The tables of `docs/gpu.md`: `python -m tests.gpu_guide` writes them anew from the code."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tst_study import config
from tst_study.config import Config
from tst_study.configuration.presets import PRESETS
from tst_study.cost.auto_layout import resolve
from tst_study.cost.devices import Device, device_named
from tst_study.cost.memory import estimate_memory
from tst_study.cost.parallel_layout import data_ranks, layout_of
from tst_study.cost.step_time import StepTime, step_time
from tst_study.errors import UserError

GUIDE = Path(__file__).parents[1] / "docs" / "gpu.md"


def gpu(name: str) -> Device:
    found = device_named(name)
    assert found is not None
    return found


def layout(
    model: dict[str, Any], sequences: int, length: int, micro_batch: int, **more: Any
) -> Config:
    """In bfloat16, optimizer shared, gradients overlapped."""
    names = ("compile", "recompute", "expert_products")
    execution = {"compile": False} | {name: more.pop(name) for name in names if name in more}
    parallel = {"optimizer": "distributed", "overlap_gradients": True, **more}
    return config.from_dict(
        {
            "model": model,
            "batch": {"sequences": sequences, "sequence_length": length},
            "data": {"corpora": [{"path": "x"}]},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"steps": 10},
            "numerics": {"dtype": "bfloat16"},
            "execution": {"micro_batch": micro_batch, "parallel": parallel, **execution},
        }
    )


def shape(
    layers: int, hidden: int, heads: int, groups: int, inner: int, words: int, **more: Any
) -> dict[str, Any]:
    return {
        "layers": layers,
        "hidden_size": hidden,
        "attention_heads": heads,
        "key_value_heads": groups,
        "head_size": hidden // heads,
        "feed_forward_size": inner,
        "vocabulary_size": words,
    } | more


LLAMA_8B = shape(32, 4096, 32, 8, 14336, 128_256)
QWEN_30B = shape(48, 2048, 32, 4, 768, 151_936, head_size=128, qk_norm=True) | {
    "experts": {"count": 128, "per_token": 8, "feed_forward_size": 768}
}
COMPILED = {"compile": True}
SLOW_H100 = replace(gpu("H100"), bandwidth=2.4e12)
"""With the older memory that torchtitan's table names; it ran at 500 in place of 700 watts, too."""


@dataclass(frozen=True)
class Published:
    name: str
    ranks: int
    device: Device
    config: Config
    speed: float
    """Tokens per second and GPU."""

    def expected(self) -> tuple[float, StepTime]:
        step = step_time(self.config, self.ranks, self.device)
        return self.config.batch.positions / step.total / self.ranks, step

    def row(self) -> str:
        """Of the guide's table."""
        speed, step = self.expected()
        seen = step.mfu * self.speed / speed
        return (
            f"| {self.name} | {self.ranks} {self.device.name} | {self.speed:,.0f} ({seen:.0%}) | "
            f"{speed:,.0f} ({step.mfu:.0%}) | {speed / self.speed:.2f} |"
        )


def of_the_paper(name: str, preset: str, ranks: int, steps: int, hours: float) -> Published:
    """A dense baseline or the mixture's, from its published GPU-hours."""
    mixture = preset == "moe-10b-a1b"
    micro_batch = {"270m": 16, "600m": 8, "3b": 4, "moe-10b-a1b": 2}[preset]
    more: dict[str, Any] = {"expert": 8} if mixture else {}
    asked = layout(
        PRESETS[preset], 1024, 8192 if mixture else 2048, micro_batch, **COMPILED, **more
    )
    return Published(
        name, ranks, gpu("B200"), asked, asked.batch.positions * steps / (hours * 3600)
    )


PUBLISHED = (
    Published("Llama 3 8B, torchtitan", 64, gpu("A100"), layout(LLAMA_8B, 64, 8192, 1), 2_973),
    Published("Llama 3.1 8B, torchtitan", 8, SLOW_H100, layout(LLAMA_8B, 16, 8192, 2), 5_762),
    Published(
        "Llama 3.1 8B, torchtitan, compiled",
        128,
        SLOW_H100,
        layout(LLAMA_8B, 256, 8192, 2, **COMPILED),
        6_514,
    ),
    Published(
        "OLMo 1B, OLMo-core",
        64,
        gpu("H100"),
        layout(shape(18, 2048, 16, 16, 5632, 100_352), 512, 4096, 4, **COMPILED),
        46_000,
    ),
    Published(
        "OLMo 7B, OLMo-core",
        64,
        gpu("H100"),
        layout(shape(32, 4096, 32, 32, 11008, 100_352), 512, 4096, 2, **COMPILED),
        9_850,
    ),
    Published(
        "OLMo 13B, OLMo-core",
        64,
        gpu("H100"),
        layout(shape(40, 5120, 40, 40, 13824, 100_352), 512, 4096, 1, **COMPILED),
        4_500,
    ),
    Published(
        "Llama 3.2 1B, nanotron",
        8,
        gpu("H100"),
        layout(shape(16, 2048, 32, 8, 8192, 128_256, tied_embeddings=True), 384, 4096, 3),
        42_000,
    ),
    Published(
        "SmolLM3 3B, nanotron, TP2",
        384,
        gpu("H100"),
        layout(
            shape(36, 2048, 16, 4, 11008, 128_256, tied_embeddings=True),
            576,
            4096,
            3,
            tensor=2,
            sequence_parallel=True,
        ),
        14_000,
    ),
    Published(
        "Qwen3 30B-A3B, NeMo AutoModel, EP8",
        8,
        gpu("H100"),
        layout(QWEN_30B, 512, 4096, 4, expert=8),
        12_040,
    ),
    of_the_paper("270M, the paper", "270m", 8, 20_000, 34.0),
    of_the_paper("600M, the paper", "600m", 8, 20_000, 61.0),
    of_the_paper("3B, the paper", "3b", 64, 20_000, 247.0),
    of_the_paper("10B-A1B, the paper", "moe-10b-a1b", 64, 125_000, 12_311.0),
)


GB = 10**9
LENGTHS = {"moe-10b-a1b": 8192, "moe-10b-a1b-twin": 256}
LESS_MEMORY = (141, 80, 48, 40, 32, 24, 16, 12)


def asked(preset: str, length: int, **execution: Any) -> Config:
    return config.from_dict(
        {
            "model": {"preset": preset},
            "batch": {"sequences": 1024, "sequence_length": length},
            "data": {"corpora": [{"path": "x"}]},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"steps": 10},
            "numerics": {"dtype": "bfloat16"},
            "execution": {"parallel": "auto", **execution},
        }
    )


def chosen(preset: str, gpus: int, memory: int) -> tuple[Config, int] | None:
    """With the memory that it needs; None where nothing fits."""
    length = LENGTHS.get(preset, 256 if preset.startswith("laptop") else 2048)
    try:
        choice = resolve(
            asked(preset, length, compile=True), gpus, memory * GB, on_gpu=True, device="H200"
        )
    except UserError:
        return None
    return choice.config, estimate_memory(choice.config, gpus, on_gpu=True).total


def cell(preset: str, gpus: int, memory: int = 141) -> str:
    """Of the guide's tables."""
    found = chosen(preset, gpus, memory)
    if found is None:
        return "does not fit"
    config, needed = found
    parallel, execution = layout_of(config), config.execution
    sizes = {"TP": parallel.tensor, "EP": parallel.expert, "PP": parallel.pipeline}
    words = [f"{name}{size}" for name, size in sizes.items() if size > 1]
    words += [f"DP{data_ranks(parallel, gpus)}, {execution.micro_batch} at a time"]
    again = {"none": "", "feed_forward": ", feed-forward again", "layer": ", layers again"}
    step = step_time(config, gpus, gpu("H200"))
    return f"{' '.join(words)}{again[execution.recompute]}; {needed / GB:.0f} GB, {step.mfu:.0%}"


def tables() -> dict[str, list[str]]:
    """Rows below a head that ends in the key."""
    models = ("600m", "3b", "moe-10b-a1b")
    return {
        "| model over published |": [one.row() for one in PUBLISHED],
        "| 512 GPUs |": [
            f"| {preset} | {' | '.join(cell(preset, gpus) for gpus in (1, 8, 64, 512))} |"
            for preset in PRESETS
        ],
        "| 10B-A1B, sequences of 8,192 |": [
            f"| {memory} | {' | '.join(cell(model, 8, memory) for model in models)} |"
            for memory in LESS_MEMORY
        ],
    }


def with_tables(text: str, tables: dict[str, list[str]]) -> str:
    """The guide with these rows below the heads that end in the keys."""
    for head, rows in tables.items():
        table = re.compile(rf"({re.escape(head)}\n\|[-| :]+\|\n)((?:\|.*\n)*)")
        text, found = table.subn(lambda match, rows=rows: match[1] + "\n".join(rows) + "\n", text)
        assert found == 1, f"{GUIDE}: no table whose head ends in {head}"
    return text


def written_anew(text: str) -> str:
    return with_tables(text, tables())


if __name__ == "__main__":
    GUIDE.write_text(written_anew(GUIDE.read_text(encoding="utf8")), encoding="utf8")
