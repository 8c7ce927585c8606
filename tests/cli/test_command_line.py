"""The commands: what they print, and that bad input is one line and a status."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w

from tests.damage import flip
from tests.examples import example
from tests.input.answers import answer, refusal
from tst_study.atomic_files import write_json
from tst_study.cli import train
from tst_study.command_line import USAGE_ERROR, count_option
from tst_study.config.schema import from_dict, to_toml
from tst_study.dry_run import describe
from tst_study.errors import UserError

ROOT = Path(__file__).parents[2]


def tst_study(
    *arguments: str | Path, cwd: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own; `torch` cannot be imported there."""
    blocked = cwd / "blocked" / "torch"
    blocked.mkdir(parents=True, exist_ok=True)
    (blocked / "__init__.py").write_text("raise ImportError('torch is blocked')")
    path = [str(blocked.parent), str(ROOT)]
    return subprocess.run(
        [sys.executable, "-m", "tst_study", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "200", **variables},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def config_file(tmp_path: Path, words: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(to_toml(example(f"data.corpora=[{{path='{words}'}}]")))
    return path


def test_dry_run_prints_the_whole_config_and_its_cost_without_torch(tmp_path, config_file):
    shown = tst_study(
        "train", config_file, "--dry-run", "--set", "schedule.steps=1000", cwd=tmp_path
    )
    assert shown.returncode == 0, shown.stderr
    # What is printed is itself a configuration: costs are comments.
    resolved = from_dict(tomllib.loads(shown.stdout))
    assert resolved.schedule.steps == 1000
    assert resolved.optimizer.weight_decay == 0.1
    words = " ".join(shown.stdout.split())
    for part in (
        "# run run-",
        "# total 231,744 ",
        "# superposition 200 2.24e+11 819,200 ",
        "# recovery 800 8.959e+11 819,200 ",
        "# FLOPs per step 1.12e+09, the same in both phases",
        "# latent tokens 1,024,000 ",
        "# raw tokens 1,638,400 ",
        "# data multiplier 1.6, raw tokens over latent tokens",
        f"# text is read {1_638_400 / 20_000:.3g} times (20,000 tokens)",
        "# memory of one rank",
    ):
        assert part in words


def test_on_a_gpu_what_a_config_leaves_open_is_a_gpu_s(config_file, monkeypatch, capsys):
    monkeypatch.setattr("tst_study.cli.has_gpu", lambda: True)
    named = tomllib.loads(config_file.read_text())
    config_file.write_text(tomli_w.dumps({**named, "numerics": {}, "execution": {}}))
    shown = {}
    for device in ("auto", "cpu"):
        train(config_file, [f"execution.device={device}"], dry_run=True)
        shown[device] = tomllib.loads(capsys.readouterr().out)
    assert shown["auto"]["numerics"]["dtype"] == "bfloat16"
    assert shown["auto"]["execution"]["parallel"] == "auto"
    assert shown["cpu"]["numerics"]["dtype"] == "float32"
    train(config_file, ["numerics.dtype=float32", "execution.parallel={tensor=1}"], dry_run=True)
    found = tomllib.loads(capsys.readouterr().out)
    assert found["numerics"]["dtype"] == "float32"
    assert found["execution"]["parallel"]["tensor"] == 1


@pytest.mark.parametrize(
    ("options", "cost"),
    [
        (
            "--device H100 --price 2",
            "9.5–15 GPU-hours of H100 in bfloat16, costing 19–29 (2 per GPU-hour), at 31%–48% MFU",
        ),
        ("--device B200 --mfu 0.4", "5 GPU-hours of B200 in bfloat16, at 40% MFU, as given"),
        ("--device L4", "hours not known: no MFU on L4 is published; give --mfu"),
    ],
)
def test_dry_run_says_what_a_run_costs_on_a_gpu(tmp_path, config_file, options, cost):
    shape = "--set model={preset='270m'} --set schedule.steps=5k --set batch.sequences=1k"
    shape += " --set batch.sequence_length=2048 --set data.corpora=[{path='none'}]"
    shown = answer(["train", config_file, "--dry-run", *shape.split(), *options.split()], tmp_path)
    assert f"#   cost                  {cost}" in shown.out


def test_dry_run_of_a_trunk_counts_what_it_trains():
    words = " ".join(describe(example("schedule.stop_after=15"), "no id").split())
    assert "# superposition 15 1.68e+10 61,440 # recovery 0 0 0 # total 15 1.68e+10 61," in words
    assert "# latent tokens 15,360 # raw tokens 61,440 # data multiplier 4, raw" in words


def test_dry_run_gives_the_memory_of_one_of_several_processes():
    one, four = (describe(example(), "no id", processes=count) for count in (1, 4))
    assert "# memory of one rank" in one
    assert "# memory of one of 4 ranks" in four
    assert one.splitlines()[-1] != four.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--set", "data.corpora=[{path='x'}]", "--set", "model={preset='moe-10b-a1b'}"],
            "x: holds no token files",
        ),
        (["--set", "model.vocabulary_size=32"], "token ids up to 63, but model.vocabulary_size"),
        (["--folder", "other"], "other: holds run 01230123, not "),
        (["--processes", "3"], "batch.sequences = 16"),
    ],
)
def test_dry_run_makes_every_check_that_training_makes(tmp_path, config_file, arguments, complaint):
    from tests.record.test_record import open_run

    header = open_run(tmp_path / "other").header
    header["fingerprint"] = "0123" * 16
    write_json(tmp_path / "other" / "run.json", header)
    shown = answer(["train", config_file, "--dry-run", *arguments], tmp_path)
    assert shown.status == 2
    (line,) = shown.err.splitlines()
    assert complaint in line
    if "no token files" in complaint:  # on which the cost of even the largest preset does not hang
        assert f"no id yet: {complaint}" in shown.out
        assert "#   total                 10,489,144,832" in shown.out
    else:
        assert shown.out == ""


def test_two_tokenizers_are_told_apart(tmp_path, config_file):
    (tmp_path / "held.txt").write_text("held out")
    for name in ("one", "other"):  # of one size
        text = "".join(f"{name} has no {k} of its own.\n\n" for k in range(200))
        (tmp_path / f"{name}.txt").write_text(text)
        source = ["--source", f"{name}.txt", "--to", name, "--validation", "held.txt"]
        made = answer(["data", "prepare", *source, "--tokenizer", "bpe:300"], tmp_path)
        assert made.status == 0, made.err
    corpora = "data.corpora=[{path='one'}, {path='other'}]"
    said = refusal(["train", config_file, "--dry-run", "--set", corpora], tmp_path)
    assert re.search(r"other/\w+ were prepared with different tokenizers \(bpe of 3", said)
    assert "such as --tokenizer one/tokenizer.json" in said


def test_every_verb_stands_in_a_group_and_its_help_ends_with_examples():
    groups: dict[str, list[str]] = {}
    for line in answer(["--help"], ROOT).out.splitlines():
        if line in ("One run:", "Studies:", "Results:"):
            groups[line] = []
        elif groups and re.match(r"  \w", line):
            groups[list(groups)[-1]].append(line.split()[0])
    assert {"data", "train", "evaluate", "export"} <= set(groups["One run:"])
    assert {"plan", "submit", "status", "logs", "retry"} <= set(groups["Studies:"])
    assert {"analyse", "figures"} <= set(groups["Results:"])
    for group in ("--help", "data --help"):  # whole, however narrow the terminal is
        assert "...\n" not in answer(group.split(), ROOT).out.partition("[ARGS]...\n")[2]
    texts = [f"data {verb}" for verb in ("prepare", "adopt", "verify")]
    for verb in [*(verb for verbs in groups.values() for verb in verbs if verb != "data"), *texts]:
        shown = answer([*verb.split(), "--help"], ROOT).out
        examples = shown[shown.index("Examples:\n") :].splitlines()[1:]
        assert examples
        assert all(f"{line} ".startswith(f"  tst-study {verb} ") for line in examples)


def test_verbs_are_found_where_the_package_is_not_installed(tmp_path):
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    found = (
        "import importlib.metadata as metadata; metadata.entry_points = None\n"
        "from tst_study.command_line import _installed_verbs\n"
        "print(*(one.name for one in _installed_verbs() if one.load()))"
    )
    shown = subprocess.run(
        [sys.executable, "-S", "-P", "-c", found],
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *libraries])},
        capture_output=True,
        text=True,
    )
    assert shown.stdout.split() == ["tst_study", "experiments", "analysis", "paper_figures"]


def test_a_file_that_lacks_a_character_gets_its_number(tmp_path):
    shown = tst_study("analyse", "matched", "--published", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (shown.returncode, "\\u2013" in shown.stdout) == (0, True), shown


@pytest.mark.parametrize("names", [["analysis"], ["experiments", "paper_figures", "datasets"]])
def test_files_of_the_working_directory_are_not_imported(tmp_path, names):
    for name in names:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from here')")
    shown = tst_study("figures", "--runs", "nowhere", "--to", "out", cwd=tmp_path)
    assert (shown.returncode, "error: nowhere: " in shown.stderr) == (2, True), shown


def test_a_missing_package_is_named_with_the_extra_that_brings_it(tmp_path, monkeypatch):
    """A wheel without extras has `tst_study.superposition` alone."""

    def without_it(*arguments: object) -> None:
        raise ModuleNotFoundError(name="transformers.inner")

    monkeypatch.setattr("tst_study.config.schema.load", without_it)
    said = refusal(["train", "run.toml"], tmp_path)
    assert said == "transformers is not installed; pip install 'tst-study[export]'"


COUNTS = {"2.3M": "at most 20,000", "0": "'0': give", "1.5": "a whole", "1,5k": "such as 270M"}


@pytest.mark.parametrize("text", COUNTS)
def test_what_is_no_count_is_refused_with_what_would_be_one(text):
    with pytest.raises(USAGE_ERROR, match=COUNTS[text]):
        count_option("Runs.", most=20_000).parser(text)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["train", "run.toml", "--set", "model.depth=3"], "run.toml: model.depth: unknown key"),
        (["train", "run.toml", "--device", "cuda"], "--price: only with --dry-run"),
        (
            ["train", "run.toml", "--set", "seed=1", "name=b"],
            "name=b: give a value to each --set: --set seed=1 --set name=b",
        ),
        (["submti", "laptop"], "No such command 'submti'. Did you mean 'submit'?"),
        (["submit", "headline", "--scale", "paper", "--launcher", "slurm"], "sbatch: not on PATH"),
    ],
)
def test_bad_input_is_one_line_and_status_two(tmp_path, config_file, arguments, complaint):
    assert complaint in refusal(arguments, tmp_path)
    with pytest.raises(UserError):
        answer([*arguments, "--debug"], tmp_path)


def test_prepare_and_verify_name_what_they_wrote_and_what_is_not_whole(documents, tmp_path):
    (tmp_path / "text.jsonl").symlink_to(documents.with_name("texts.jsonl"))
    for line in (
        "prepare --source text.jsonl --to prose --tokenizer bytes --validation-share 0.1",
        "prepare --source text.jsonl --to words --tokenizer bpe:300 --validation-share 0.1",
        "verify prose words",
    ):
        shown = answer(["data", *line.split()], tmp_path)
        assert shown.status == 0, shown.err
        splits = [said.split(": ")[1] for said in shown.out.splitlines()]
        assert splits[:2] == ["train", "validation"]
    assert shown.out.count("every token id as it was prepared") == 4
    flip(tmp_path / "words" / "train.bin")
    said = refusal(["data", "verify", "prose", "words"], tmp_path)
    assert said.startswith("words/train.bin: what lies at bytes 0 to 4,194,304 is not what")


def test_one_run_trains_and_another_is_refused_its_folder(tmp_path, config_file):
    small = ["--set", "schedule.steps=8", "--set", "schedule.warmup_steps=1", "--folder", "run"]
    small += ["--set", "execution.checkpoint_every=4"]
    shown = answer(["train", config_file, *small], tmp_path)
    assert shown.status == 0, shown.err
    *_, done, reached, following = shown.out.splitlines()
    assert done == "done: run"
    assert re.match(r"held-out loss \d\.\d{4} nats per token after step 8, over 499 t", reached)
    assert following == "next: tst-study analyse --runs ."
    again = tst_study("train", config_file, *small, cwd=tmp_path)  # and without torch
    assert again.returncode == 0, again.stderr
    (line,) = again.stdout.splitlines()
    assert line.startswith(f"done before: run, {reached}; delete the folder to train it anew")
    shutil.rmtree(max((tmp_path / "run" / "checkpoints").iterdir()))  # as where it is damaged
    shown = answer(["train", config_file, *small], tmp_path)
    assert shown.out.splitlines()[-3:-1] == ["done: run", reached]
    assert "8/8" in answer(["status", "."], tmp_path).out
    assert refusal(["train", config_file, "--folder", "run"], tmp_path).startswith("run: holds run")
