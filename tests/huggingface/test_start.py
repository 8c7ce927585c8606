"""A run may begin with the weights of a Hugging Face model: the export's inverse, bit for bit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.damage import flip
from tests.distributed import run_ranks
from tests.huggingface.trained import KINDS, train_and_export
from tests.parallel.test_parallel_layouts import EXPERT, TENSOR
from tests.tiny_runs import TINY, assert_same_tensors, last_tensors
from tst_study.config.identity import fingerprint
from tst_study.config.schema import Config, apply_override, from_dict
from tst_study.data.run_data import fingerprints
from tst_study.errors import UserError
from tst_study.train import train

REASON = "exports need tst-study[export]"
safetensors = pytest.importorskip("safetensors.torch", reason=REASON)
load_file, save_file = safetensors.load_file, safetensors.save_file
transformers = pytest.importorskip("transformers", reason=REASON)

# An update of 1e-30 is lost in every weight: after training, the weights are those of the start.
FROZEN = ("optimizer.learning_rate=1e-30", "optimizer.weight_decay=0.0", "schedule.steps=3")


def forked(corpus: Path, exported: Path, *overrides: str) -> Config:
    """A run that takes weights and shape from a folder."""
    values: dict[str, Any] = {**TINY, "data": {"corpora": [{"path": str(corpus)}]}}
    del values["model"]
    for override in (f"fork_from=hf:{exported}", *FROZEN, *overrides):
        apply_override(values, override)
    return from_dict(values)


def weights(folder: Path) -> dict[str, Tensor]:
    unlike = ("optimizer.", "common.")
    return {name: x for name, x in last_tensors(folder).items() if not name.startswith(unlike)}


@pytest.fixture(scope="module", params=KINDS)
def trained(
    request: pytest.FixtureRequest, documents: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A run and its export."""
    folder = tmp_path_factory.mktemp("start")
    return train_and_export(documents, folder, *KINDS[request.param])


@pytest.mark.parametrize("saved_by", ["us", "transformers"])
def test_a_run_begins_with_the_weights_of_an_export(trained, documents, tmp_path, saved_by):
    before, exported = trained
    if saved_by == "transformers":
        model = transformers.AutoModelForCausalLM.from_pretrained(exported)
        exported = tmp_path / "theirs"
        model.save_pretrained(exported, max_shard_size="20KB")
    config = forked(documents, exported)
    assert train(config, tmp_path / "run", progress=False) == "done"
    found = weights(tmp_path / "run")
    assert len(found) >= 8
    assert_same_tensors(found, weights(before))


LAYOUTS = {
    "LlamaForCausalLM full heads": TENSOR,
    "LlamaForCausalLM tied": TENSOR,
    "Qwen3MoeForCausalLM": EXPERT,
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_rank_takes_its_slices(documents, tmp_path, kind):
    wide = "model.vocabulary_size=258"  # tensor ranks share it evenly
    before, exported = train_and_export(documents, tmp_path, *KINDS[kind], wide)
    config = forked(documents, exported, *LAYOUTS[kind])
    assert run_ranks(2, train, config, tmp_path / "forked") == ["done"] * 2
    assert_same_tensors(weights(tmp_path / "forked"), weights(before))


@pytest.fixture(scope="module")
def llama(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_and_export(documents, tmp_path_factory.mktemp("llama"))[1]


def test_the_weights_and_not_their_place_are_part_of_the_run(llama, documents, tmp_path):
    def identity(folder: Path, *overrides: str) -> str:
        config = forked(documents, folder, *overrides)
        return fingerprint(config, fingerprints(config))

    copy = shutil.copytree(llama, tmp_path / "copy")
    assert identity(copy) == identity(llama)
    drawn = forked(documents, llama).model_copy(update={"fork_from": None})
    assert fingerprint(drawn, fingerprints(drawn)) != identity(llama)
    flip(copy / "model.safetensors", -1)
    assert identity(copy) != identity(llama)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"model_type": "gpt2"}, "model_type 'gpt2' is not known"),
    "scaled rotary positions": (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        "rope_type is 'linear'; only 'default' is supported",
    ),
    "biases": ({"attention_bias": True}, "attention_bias is True; only False is supported"),
    "no width": ({"hidden_size": None}, "no config.json that transformers reads"),
    "another shape": ({"intermediate_size": 48}, r"mlp.gate_proj.weight is \(32, 16\), not"),
    "more layers": ({"num_hidden_layers": 3}, "has no tensor model.layers.2.input_layernorm"),
    "fewer layers": ({"num_hidden_layers": 1}, "has the tensor 'model.layers.1.input_layernorm.we"),
    "quantised weights": (
        {"quantization_config": {"quant_method": "fp8"}},
        "quantization_config is .*fp8.*; only None is supported",
    ),
    "tied, with a head of its own": ({"tie_word_embeddings": True}, "lm_head.weight differs from"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_model_that_our_layers_are_not_is_refused(llama, documents, tmp_path, reason):
    changes, said = REFUSED[reason]
    other = shutil.copytree(llama, tmp_path / "other")
    known = json.loads((other / "config.json").read_bytes())
    (other / "config.json").write_text(json.dumps(known | changes))
    with pytest.raises(UserError, match=said):
        train(forked(documents, other), tmp_path / "run", progress=False)


def test_a_place_without_a_model_and_a_shape_that_is_not_its_are_refused(
    llama, documents, tmp_path
):
    with pytest.raises(UserError, match=r"nowhere: has no config\.json that transformers"):
        forked(documents, tmp_path / "nowhere")
    with pytest.raises(UserError, match="fork_from: 'exported': write hf:FOLDER"):
        forked(documents, llama, "fork_from=exported")
    config = forked(documents, llama)
    shape = config.model.model_copy(update={"rope_theta": 5.0})
    with pytest.raises(UserError, match=r"rope_theta = 10000\.0, but model\.rope_theta = 5\.0"):
        fingerprints(config.model_copy(update={"model": shape}))
    empty = shutil.copytree(llama, tmp_path / "empty", ignore=shutil.ignore_patterns("*.safe*"))
    with pytest.raises(UserError, match=r"has neither model\.safetensors nor"):
        fingerprints(forked(documents, empty))


def rewritten(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def sharded(folder: Path, of_index: Callable[[dict[str, str]], object] = dict) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for number, name in enumerate(sorted(tensors)):
        file = f"model-{number % 2 + 1}.safetensors"
        weight_map[name] = file
        place = folder / file
        save_file({name: tensors[name], **(load_file(place) if place.exists() else {})}, place)
    of_index(weight_map)
    content = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(content)


NORM = "model.norm.weight"
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "bytes with scales": (
        lambda folder: rewritten(folder, lambda all: all.update({NORM: all[NORM].char()})),
        "model.norm.weight holds I8, numbers that need scales",
    ),
    "biases": (
        lambda folder: rewritten(
            folder, lambda all: all.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(16)})
        ),
        "has the tensor 'model.layers.0.self_attn.q_proj.bias', which this model lacks",
    ),
    "no file of the index": (
        lambda folder: (sharded(folder), (folder / "model-2.safetensors").unlink()),
        "model-2.safetensors: cannot be read",
    ),
    "an index beside the file of all": (
        lambda folder: (
            sharded(folder),
            shutil.copy(folder / "model-1.safetensors", folder / "model.safetensors"),
        ),
        "has both model.safetensors and model.safetensors.index.json",
    ),
    "an index that leaves a tensor out": (
        lambda folder: sharded(folder, lambda index: index.update({"more": "model-1.safetensors"})),
        "has the tensor 'more', which this model lacks",
    ),
    "an index that names files elsewhere": (
        lambda folder: sharded(folder, lambda index: index.update({NORM: "../../model"})),
        "names '../../model', which is not in this folder",
    ),
    "an index that names the wrong file": (
        lambda folder: sharded(
            folder,
            lambda index: index.update({NORM: f"model-{3 - int(index[NORM][6])}.safetensors"}),
        ),
        "holds model.norm.weight, which model.safetensors.index.json has elsewhere",
    ),
    "another vocabulary": (
        lambda folder: (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}'),
        "other: has another vocabulary than .*prepare the text with --tokenizer .*other",
    ),
    "an index that is none": (
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": 3}'),
        "index.json: is damaged",
    ),
}


@pytest.mark.parametrize("reason", WRONG)
def test_weights_that_are_not_exactly_the_models_are_refused(llama, documents, tmp_path, reason):
    change, said = WRONG[reason]
    other = shutil.copytree(llama, tmp_path / "other")
    change(other)
    with pytest.raises(UserError, match=said):
        train(forked(documents, other), tmp_path / "run", progress=False)


def test_only_the_files_of_the_index_are_read(llama, documents, tmp_path):
    """Not an optimizer's state or averaged weights, which have the same names, nor old shards."""
    alone = fingerprints(forked(documents, llama))["initial_weights"]
    other = shutil.copytree(llama, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    for name in ("optimizer", "pytorch_ema", "model-00003-of-00003"):
        zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        save_file(zeros, other / f"{name}.safetensors")
    assert fingerprints(forked(documents, other))["initial_weights"] == alone
    started = run_weights(documents, other, tmp_path / "one")
    sharded(other)
    assert_same_tensors(run_weights(documents, other, tmp_path / "two"), started)
    assert_same_tensors(run_weights(documents, llama, tmp_path / "three"), started)


def run_weights(corpus: Path, start: Path, folder: Path) -> dict[str, Tensor]:
    assert train(forked(corpus, start), folder, progress=False) == "done"
    return weights(folder)
