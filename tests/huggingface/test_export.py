"""A trained model is an ordinary one: stock transformers loads it and says what Megatron says."""

import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import tokenizers
import torch

from tests.huggingface.trained import BYTES, KINDS, train_and_export
from tests.input.answers import answer, refusal
from tests.tiny_runs import run
from tst_study import file_lock
from tst_study.checkpoints.trained_run import open_run
from tst_study.data.preparation.text_tokenizers import Tokenizer, train_byte_pair_tokenizer
from tst_study.errors import UserError
from tst_study.evaluation.run import trained_model
from tst_study.huggingface import export as export_module
from tst_study.huggingface.export import export
from tst_study.huggingface.model_card import model_card
from tst_study.huggingface.tokenizer_files import plain, tokenizer_files, tokenizer_of_run
from tst_study.record import reader as run_record
from tst_study.superposition.steps import NEXT_TOKEN

pytest.importorskip("safetensors", reason="exports need tst-study[export]")
transformers = pytest.importorskip("transformers", reason="exports need tst-study[export]")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def exported(
    kind: str, documents: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    return train_and_export(documents, tmp_path_factory.mktemp("exports"), *KINDS[kind])


def stock_model(folder: Path) -> Any:
    """Loaded without remote code, and with every tensor in its place."""
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, trust_remote_code=False
    )
    assert not any(found[key] for key in found), found
    return model.eval()


def test_its_logits_are_those_of_the_megatron_model(kind, exported):
    folder, model = exported[0], stock_model(exported[1])
    assert type(model).__name__ == kind.split()[0]
    ids = torch.randint(0, 257, (3, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), trained_model(open_run(folder)) as (trained, _):
        expected = trained(NEXT_TOKEN.fold(ids)).float()
        found = model(ids).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_generate_works_with_its_own_tokenizer(exported):
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported[1])
    prompt = tokenizer("abc de", return_tensors="pt")
    made = stock_model(exported[1]).generate(**prompt, max_new_tokens=5, do_sample=False)
    assert tokenizer.decode(made[0]).startswith("abc de")


def test_superposition_leaves_no_trace_in_files_names_or_settings(
    exported, kind, documents, tmp_path
):
    baseline = train_and_export(documents, tmp_path, *KINDS[kind], "superposition.bag_size=1")[1]
    assert files(baseline) == files(exported[1])
    for name in files(baseline) - {"README.md", "model.safetensors"}:
        assert (baseline / name).read_bytes() == (exported[1] / name).read_bytes()
    assert header(baseline) == header(exported[1])


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def header(folder: Path) -> dict[str, Any]:
    """Names, shapes, types and places of all tensors, and what else the file says."""
    content = (folder / "model.safetensors").read_bytes()
    described: dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return described


@pytest.fixture(scope="module")
def llama(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("llama")
    return train_and_export(documents, folder, "execution.checkpoint_every=2", KEEP_ALL)


KEEP_ALL = "execution.keep_checkpoints=9"


def test_a_large_model_is_split_over_files_and_is_the_same_model(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "FILE_BYTES", 10_000)
    opened = open_run(llama[0])
    split = export(opened, tmp_path / "split", tokenizer_of_run(opened))
    assert len(list(split.glob("model-*-of-*.safetensors"))) > 3
    whole, parts = stock_model(llama[1]).state_dict(), stock_model(split).state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_users_umask_says_who_may_read_an_export(llama, tmp_path):
    before = os.umask(0o022)
    try:
        export(open_run(llama[0]), tmp_path / "to", None)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "to").iterdir()} == {0o644}


def test_bfloat16_stays_bfloat16(documents, tmp_path):
    _, folder = train_and_export(documents, tmp_path, "numerics.dtype=bfloat16")
    assert {entry.get("dtype") for entry in header(folder).values()} == {None, "BF16"}
    assert stock_model(folder).dtype == torch.bfloat16


def test_a_superposition_checkpoint_is_refused(llama, tmp_path):
    """Steps 0, 1 and 2 are superposed: after step 2 no next token was ever predicted."""
    opened = open_run(llama[0], step=2)
    with pytest.raises(UserError, match="step 2 of 3 superposed ones"):
        export(opened, tmp_path / "no", None)
    assert not (tmp_path / "no").exists()
    after = export(open_run(llama[0], step=4), tmp_path / "after", None)
    card = (after / "README.md").read_text()
    assert "**Unfinished.** Step 4 of 6" in card


def test_the_card_says_what_made_the_model(llama, documents):
    card = (llama[1] / "README.md").read_text()
    record = run_record.read(llama[0])
    final = record.evals[-1]
    low = final["nats_per_token"] - 1.96 * final["standard_error"]
    for part in (
        f"{record.run_id} (seed 0)",
        record.header["fingerprint"],
        "6 of 6, of which superposed 3 (s = 4, r = 0.5)",
        f"{record.header['raw_tokens']:,} raw, {record.header['latent_tokens']:,} latent",
        f"{final['nats_per_token']:.4f} | {low:.4f} to ",
        f"| {documents.name} |",
        "[superposition]\nbag_size = 4",
        "\n\n|  |  |\n| --- | --- |\n| study, run | ",
    ):
        assert part in card


def test_what_is_no_baseline_is_not_called_one(words, tmp_path):
    run(words, tmp_path / "run", "superposition={}", "batch_warmup={parts = 2, step_ratio = 0.5}")
    card = (export(open_run(tmp_path / "run"), tmp_path / "to", None) / "README.md").read_text()
    assert "tags:\n- ablation\n" in card
    assert "from the first step on (batch warmup from 1/2 over 0.5 of the steps)." in card


def test_the_hub_reads_the_card(llama):
    from huggingface_hub import ModelCard

    data = ModelCard.load(llama[1] / "README.md").data
    final = run_record.read(llama[0]).evals[-1]
    assert {one.metric_type: (one.dataset_name, one.metric_value) for one in data.eval_results} == {
        name: (final["eval_set"], final[name]) for name in ("nats_per_token", "bits_per_byte")
    }
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")


EVIL = "<img src=x onerror=alert(1)> `x` | [y](javascript:z)\n```\n---\n# {{ 7 * 191 }} \x1b[31m"


def test_no_text_of_a_record_is_more_than_text_in_the_card(llama):
    """A run folder may come from anyone, and any page may show its card."""
    opened, record = open_run(llama[0]), run_record.read(llama[0])
    clean = model_card(opened, record, "float32", None).partition("```toml")[0]
    header = cast(Any, {**opened.header, "study": EVIL, "run_id": EVIL, "fingerprint": EVIL})
    record.evals = [cast(Any, {**row, "eval_set": EVIL}) for row in record.evals]
    config = opened.config.model_copy(update={"name": EVIL})
    opened = replace(opened, header=header, config=config)
    card = model_card(opened, record, "float32", None)
    shown, _, block = card.partition("```toml")
    for pattern in ("`", "\n#", "\n---\n", "|"):
        assert shown.count(pattern) == clean.count(pattern), pattern
    for pattern in ("<img", "](", "\x1b", "1337"):
        assert pattern not in shown
    assert tomllib.loads(block.partition("\n```\n")[0])["name"] == EVIL


def test_what_is_there_is_not_overwritten(llama, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path, "."):
        with pytest.raises(UserError, match=r": already exists; name a new folder"):
            export(open_run(llama[0]), place, None)
    assert files(tmp_path) == set()


def test_missing_steps_and_tokenizers_are_named(llama, words, tmp_path):
    with pytest.raises(UserError, match=r"step 5; .*2, 4, 6"):
        open_run(llama[0], step=5)
    other = train_byte_pair_tokenizer(["some other text"], 258)
    (tmp_path / "tokenizer.json").write_bytes(other.json)
    with pytest.raises(UserError, match="tokenizer"):
        tokenizer_of_run(open_run(llama[0]), tmp_path)


def test_words_without_a_text_have_no_tokenizer(words, tmp_path):
    run(words, tmp_path / "run", "schedule.steps=4")
    opened = open_run(tmp_path / "run")
    assert tokenizer_of_run(opened) is None
    made = export(opened, tmp_path / "exported", None)
    assert not (made / "tokenizer.json").exists()
    assert "There is no tokenizer" in (made / "README.md").read_text()
    assert stock_model(made).config.eos_token_id is None


def test_what_a_tokenizer_does_beside_splitting_is_left_out(tmp_path):
    """Llama 3's puts a token in front of every text, some cut texts; token files know neither."""
    as_it_was = train_byte_pair_tokenizer(["to be or not"], 258)
    assert plain(as_it_was).json == as_it_was.json
    library = tokenizers.Tokenizer.from_str(as_it_was.json.decode())
    library.enable_truncation(3)
    library.enable_padding(length=5)
    end = "<|endoftext|>"
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{end} $A", special_tokens=[(end, 0)]
    )
    stripped = plain(Tokenizer(library.to_str().encode()))
    for name, content in tokenizer_files(stripped, 128).items():
        (tmp_path / name).write_bytes(content)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    (expected,) = as_it_was.encode_batch(["or not to be"])
    assert loaded("or not to be").input_ids == expected.tolist()
    assert loaded.eos_token_id == loaded.pad_token_id == as_it_was.end_of_document
    assert loaded.model_max_length == 128


def test_an_export_tells_what_was_evaluated_before(documents, tmp_path):
    run(documents, tmp_path / "run", *BYTES)
    (line,) = answer(["evaluate", "run"], tmp_path).out.splitlines()
    assert line.startswith("held_out (")
    shown = answer(["export", "run", "--to", "made/model"], tmp_path)
    assert shown.out == "step 6 of run: made/model\n"
    (row,) = run_record.read(tmp_path / "run").tasks
    card = (tmp_path / "made" / "model" / "README.md").read_text()
    assert f"| held_out | {row['data']} | nats_per_token | " in card


def test_a_run_that_trains_is_not_written_to(documents, tmp_path):
    run(documents, tmp_path / "run", *BYTES)
    before = (tmp_path / "run" / "evals.jsonl").read_bytes()
    with file_lock.hold(tmp_path / "run"):
        assert "measures this run" in refusal(["evaluate", "run"], tmp_path)
    assert (tmp_path / "run" / "evals.jsonl").read_bytes() == before
