"""Runs of every kind of model, trained once and exported by several tests."""

from pathlib import Path

from tests.tiny_runs import run
from tst_study.checkpoints.trained_run import open_run
from tst_study.huggingface.export import export
from tst_study.huggingface.tokenizer_files import tokenizer_of_run

# Weights far from zero and few steps: what is wrong in a map of names must show.
BYTES = ("model.vocabulary_size=257", "model.initial_deviation=0.2", "schedule.steps=6")
FOUR_EXPERTS = 'model.experts={"count"=4, "per_token"=2, "feed_forward_size"=24}'
KINDS: dict[str, tuple[str, ...]] = {
    "LlamaForCausalLM": (),
    "LlamaForCausalLM tied": ("model.tied_embeddings=true", "model.rope_theta=500.0"),
    "LlamaForCausalLM full heads": ("model.key_value_heads=4",),
    "Qwen3ForCausalLM": ("model.qk_norm=true", "model.norm_epsilon=1e-3"),
    "Qwen3MoeForCausalLM": ("model.qk_norm=true", FOUR_EXPERTS),
    "MixtralForCausalLM": (FOUR_EXPERTS, "model.key_value_heads=1"),
}


def train_and_export(corpus: Path, folder: Path, *overrides: str) -> tuple[Path, Path]:
    """The run folder and its export."""
    run(corpus, folder / "run", *BYTES, *overrides)
    opened = open_run(folder / "run")
    return folder / "run", export(opened, folder / "exported", tokenizer_of_run(opened))
