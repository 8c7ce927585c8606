"""A run can start from any model that this package can be, its own exports among them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from analysis.tables.run_folders import training_group
from tests.distributed import run_ranks
from tests.huggingface.trained import KINDS, train_and_export
from tests.tiny_runs import TINY, checkpoint_folders
from tst_study import run_record
from tst_study.checkpoints.trained_run import open_run
from tst_study.config import load, to_dict, to_toml
from tst_study.data.run_data import fingerprints
from tst_study.errors import UserError
from tst_study.evaluation.trained_model import trained_model
from tst_study.run.identity import canonical_form, fingerprint
from tst_study.run.trunk import prefix_form
from tst_study.train import train

pytest.importorskip("safetensors", reason="imports need tst-study[export]")

from tst_study.huggingface import weights
from tst_study.huggingface.architecture import from_huggingface, read_config
from tst_study.huggingface.import_model import config_from_model
from tst_study.huggingface.weights import files_of_tensors
from tst_study.huggingface.weights import fingerprint as fingerprint_of_weights


@pytest.fixture(scope="module", params=KINDS)
def exported(
    request: pytest.FixtureRequest, documents: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    return train_and_export(documents, tmp_path_factory.mktemp("e"), *KINDS[str(request.param)])


def rest(folder: Path, corpus: Path) -> Path:
    """All of a configuration but the model."""
    path = folder / "rest.toml"
    path.write_text(
        f'data.corpora = [{{path = "{corpus}"}}]\n'
        "[batch]\nsequences = 4\nsequence_length = 8\n"
        "[optimizer]\nlearning_rate = 1e-3\n"
        "[schedule]\nsteps = 4\n"
        "[execution]\nthreads = 1\n"
    )
    return path


def test_an_export_comes_back_as_the_same_weights(
    exported: tuple[Path, Path], documents: Path, tmp_path: Path
) -> None:
    config = config_from_model(exported[1], rest(tmp_path, documents))
    assert config.model == open_run(exported[0]).model.model_copy(
        update={"feed_forward_size": config.model.feed_forward_size}
    )
    (tmp_path / "run.toml").write_text(to_toml(config))
    config = load(
        tmp_path / "run.toml", ["execution.checkpoint_every=1", "optimizer.learning_rate=1e-12"]
    )
    train(config, tmp_path / "run", progress=False)
    with trained_model(open_run(exported[0])) as original:
        before = {name: p.detach().clone() for name, p in original.model.named_parameters()}
    with trained_model(open_run(tmp_path / "run")) as started:
        after = dict(started.model.named_parameters())
        assert before.keys() == after.keys()
        for name in before:
            torch.testing.assert_close(after[name], before[name], atol=1e-9, rtol=1e-5)


@pytest.fixture(scope="module")
def llama(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_and_export(documents, tmp_path_factory.mktemp("llama"))[1]


def test_its_first_step_is_at_the_loss_of_the_model(
    llama: Path, documents: Path, tmp_path: Path
) -> None:
    config = config_from_model(llama, rest(tmp_path, documents))
    train(config, tmp_path / "started", progress=False)
    first = run_record.read(tmp_path / "started").evals[-1]["nats_per_token"]
    drawn = config.model_copy(update={"initial_weights": None})
    train(drawn, tmp_path / "drawn", progress=False)
    assert first != run_record.read(tmp_path / "drawn").evals[-1]["nats_per_token"]


def test_a_resumed_launch_does_not_start_over(llama: Path, documents: Path, tmp_path: Path) -> None:
    config = config_from_model(
        llama, rest(tmp_path, documents), ["execution.checkpoint_every=2", "schedule.steps=6"]
    )
    train(config, tmp_path / "whole", progress=False)
    train(config, tmp_path / "cut", progress=False)
    shutil.rmtree(checkpoint_folders(tmp_path / "cut")[-1])
    train(config, tmp_path / "cut", progress=False)
    whole, cut = (run_record.read(tmp_path / name) for name in ("whole", "cut"))
    assert cut.segments[-1]["resumed_from"] == 4
    assert whole.evals[-1]["nats_per_token"] == cut.evals[-1]["nats_per_token"]


def test_the_weights_are_part_of_the_identity_their_place_is_not(
    llama: Path, documents: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(llama, tmp_path / "moved")
    config, same = (
        config_from_model(folder, rest(tmp_path, documents)) for folder in (llama, moved)
    )
    data = fingerprints(config)
    assert fingerprint(config, data) == fingerprint(same, data)
    drawn = config.model_copy(update={"initial_weights": None})
    assert fingerprint(config, data) != fingerprint(drawn, data)
    assert prefix_form(config, data) == prefix_form(same, data) != prefix_form(drawn, data)
    groups = [training_group(to_dict(each), data) for each in (config, same, drawn)]
    assert groups[0] == groups[1] != groups[2]
    # Runs without imported weights are the ones they were before there were any.
    assert "initial_weights" not in canonical_form(drawn, data)


def test_weights_that_changed_since_are_refused(
    llama: Path, documents: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(llama, tmp_path / "moved")
    config = config_from_model(moved, rest(tmp_path, documents))
    path = moved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="restore them or import again"):
        train(config, tmp_path / "run", progress=False)


def test_of_several_ranks_one_alone_reads_all_the_weights_to_check_them(
    llama: Path, documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_from_model(llama, rest(tmp_path, documents))
    read: list[str] = []

    def reading(folder: str) -> str:
        read.append(folder)
        return fingerprint_of_weights(folder)

    def work() -> int:
        assert train(config, tmp_path / "run", progress=False) == "done"
        return len(read)

    monkeypatch.setattr(weights, "fingerprint", reading)
    assert run_ranks(2, work) == [1, 0]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model_type": "gpt2"}, "model_type = 'gpt2' is not known; there are llama, qwen3"),
        ({"attention_bias": True}, "attention_bias = True is not supported"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_type = 'llama3' is not supported"),
        ({"rope_parameters": [1]}, "config.json: rope_parameters = [1] is not supported"),
        ({"rope_parameters": {"rope_theta": []}}, "config.json: float() argument must be"),
        ({"rms_norm_eps": {}}, "config.json: float() argument must be"),
        ({"head_dim": None, "num_attention_heads": 0}, "config.json: integer division"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 24}, "is (257, 16), its config.json asks for (257, 24)"),
        ({"num_hidden_layers": 3}, "has no tensor model.layers.2"),
    ],
)
def test_what_our_models_cannot_be_is_said_in_one_line(
    llama: Path, documents: Path, tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    folder = shutil.copytree(llama, tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError) as raised:
        config_from_model(folder, rest(tmp_path, documents))
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_pickled_weights_are_not_read(llama: Path, documents: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama, tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="since they can hold code"):
        config_from_model(folder, rest(tmp_path, documents))


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{"]
)
def test_an_index_that_is_none_is_named(
    llama: Path, documents: Path, tmp_path: Path, index: str
) -> None:
    folder = shutil.copytree(llama, tmp_path / "indexed")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match="its safetensors files cannot be read") as raised:
        config_from_model(folder, rest(tmp_path, documents))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kept", [None, 100])
def test_a_model_that_was_downloaded_by_half_is_named(
    llama: Path, documents: Path, tmp_path: Path, kept: int | None
) -> None:
    folder = shutil.copytree(llama, tmp_path / "half")
    whole, part = folder / "model.safetensors", folder / "model-00001-of-00001.safetensors"
    index = {"weight_map": dict.fromkeys(files_of_tensors(folder), part.name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    whole.rename(part)
    config_from_model(folder, rest(tmp_path, documents))
    if kept is None:
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:kept])
    with pytest.raises(UserError, match=rf"{part.name}: cannot be read .*; download") as raised:
        config_from_model(folder, rest(tmp_path, documents))
    assert "\n" not in str(raised.value)


def test_an_index_that_names_another_file_is_named(
    llama: Path, documents: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    folder = shutil.copytree(llama, tmp_path / "other")
    names = dict.fromkeys(files_of_tensors(folder), "model.safetensors")
    save_file({"other": torch.zeros(2)}, folder / "other.safetensors")
    index = {"weight_map": {**names, "model.norm.weight": "other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"other\.safetensors: has no tensor model\.norm\.weight"):
        config_from_model(folder, rest(tmp_path, documents))


def test_the_shape_is_the_models_but_the_router_may_be_trained_otherwise(
    documents: Path, tmp_path: Path
) -> None:
    _, folder = train_and_export(documents, tmp_path, *KINDS["Qwen3MoeForCausalLM"])
    changed = config_from_model(
        folder, rest(tmp_path, documents), ["model.experts.balance_loss=0.5"]
    )
    assert changed.model.experts is not None
    assert changed.model.experts.balance_loss == 0.5
    with pytest.raises(UserError, match=r"model.layers = 3: .* has 2; leave it out"):
        config_from_model(folder, rest(tmp_path, documents), ["model.layers=3"])


def test_a_model_that_is_no_table_is_refused(llama: Path, documents: Path, tmp_path: Path) -> None:
    path = rest(tmp_path, documents)
    path.write_text(f"model = 3\n{path.read_text()}")
    with pytest.raises(UserError, match=r"rest\.toml: model: 3: "):
        config_from_model(llama, path)


def test_configs_of_either_generation_of_transformers_are_read(llama: Path) -> None:
    config = read_config(llama)
    expected = from_huggingface(config, "config.json")
    for key in ("rope_theta", "rope_parameters"):
        older = {name: value for name, value in config.items() if name != key}
        assert from_huggingface(older, "config.json") == expected
    assert TINY["model"]["layers"] == expected.layers
