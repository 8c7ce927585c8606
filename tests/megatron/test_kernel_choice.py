"""`execution.kernels`: TransformerEngine serves where it can, and says in one line where not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from megatron.core.extensions import transformer_engine
from megatron.core.fusions import fused_softmax
from megatron.core.models.gpt import gpt_layer_specs

from tests.layouts import assert_close_tensors
from tests.tiny_runs import MIXTURE, VOCABULARY, built, randomize_norms, run, tiny
from tst_study.dry_run import check_start, describe
from tst_study.errors import UserError
from tst_study.megatron.cpu_backend import cuda_means_cpu
from tst_study.megatron.engine_layers import with_kernels
from tst_study.run.identity import fingerprint
from tst_study.superposition.method import NEXT_TOKEN

ENGINE, EITHER = 'execution.kernels="te"', 'execution.kernels="auto"'
CPU, GPU = torch.device("cpu"), torch.device("cuda")
REFUSED = {
    "on a processor": (CPU, True, (), "TransformerEngine computes on GPUs alone"),
    "where it is not": (GPU, False, (), "TransformerEngine is not installed here"),
    "to be compiled": (
        GPU,
        True,
        ("execution.compile=true",),
        "torch.compile makes no graph of its layers (execution.compile = true)",
    ),
    "experts over tensor ranks": (
        GPU,
        True,
        (*MIXTURE, "execution.parallel.tensor=2", "execution.parallel.sequence_parallel=true"),
        "experts on several tensor ranks need execution.parallel.expert > 1 with it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_do_is_refused_or_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    device, installed, settings, reason = REFUSED[case]
    monkeypatch.setattr(transformer_engine, "HAVE_TE", installed)
    with pytest.raises(UserError) as raised:
        with_kernels(tiny(Path(), ENGINE, *settings), device)
    assert str(raised.value) == (
        f"execution.kernels = 'te': {reason}; set it to 'torch', or to 'auto'"
    )
    assert with_kernels(tiny(Path(), EITHER, *settings), device).execution.kernels == "torch"


@pytest.mark.parametrize("asked", [ENGINE, EITHER])
def test_it_serves_on_a_gpu_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(transformer_engine, "HAVE_TE", True)
    for settings in ((), MIXTURE, (*MIXTURE, "execution.parallel.expert=2")):
        assert with_kernels(tiny(Path(), asked, *settings), GPU).execution.kernels == "te"


def test_training_and_its_dry_run_refuse_it_on_a_processor(words: Path, tmp_path: Path) -> None:
    settings = (ENGINE, "execution.device=cpu")
    with pytest.raises(UserError, match="on GPUs alone"):
        run(words, tmp_path, *settings)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="on GPUs alone"):
        check_start(tiny(words, *settings), None, 1)


def test_a_dry_run_says_that_it_is_experimental(words: Path) -> None:
    said = "kernels               experimental: layers on TransformerEngine were never run"
    assert said in describe(tiny(words, EITHER), "no id")
    assert "experimental" not in describe(tiny(words), "no id")


def test_it_does_not_change_which_run_a_run_is(words: Path) -> None:
    assert fingerprint(tiny(words, EITHER), {}) == fingerprint(tiny(words), {})


SHAPES = {
    "dense": (),
    "full heads, normed": ("model.key_value_heads=4", "model.qk_norm=true"),
    "theta": ("model.rope_theta=500.0", "model.norm_epsilon=1e-3"),
    "experts": (*MIXTURE, 'execution.expert_products="sequential"'),
    "feed-forward again": ("execution.recompute=feed_forward",),
    "layer again": ("execution.recompute=layer",),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_its_layers_take_from_megatron_computes_what_ours_do(
    words: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Rotation, order of heads, SwiGLU, recomputation: with products, norms and attention for
    processors in the place of TransformerEngine's."""
    monkeypatch.setattr(
        gpt_layer_specs,
        "get_gpt_layer_with_transformer_engine_spec",
        lambda **asked: gpt_layer_specs.get_gpt_layer_local_spec(**asked, normalization="RMSNorm"),
    )
    # It names its device outright, also in a backward pass, where `cuda_means_cpu` does not reach.
    monkeypatch.setattr(
        fused_softmax,
        "get_default_causal_mask",
        lambda length: torch.ones(length, length).triu(diagonal=1).bool(),
    )
    config = tiny(words, *SHAPES[shape], "model.initial_deviation=0.3")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (3, 8), generator=generator)
    wanted = torch.randn(3, 8, VOCABULARY, generator=generator)
    classes, seen = set(), []
    for kernels in ("torch", "te"):
        with built(config.executed(kernels=kernels)) as (model, _), cuda_means_cpu():
            randomize_norms(model)
            logits = model(NEXT_TOKEN.fold(ids))
            (logits * wanted).sum().backward()
            gradients = {name: p.grad for name, p in model.named_parameters()}
            classes.add(type(model.decoder.layers[0].self_attention))
        seen.append({"logits": logits.detach(), **gradients})
    assert len(classes) == 2
    assert_close_tensors(*seen, 1e-4)
