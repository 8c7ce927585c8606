"""Bad arguments and paths are named in one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.input.answers import UNKNOWN, answer, refusal

LONG = "x" * 300
PLACES = {
    "{}: no such folder": (
        ["status"], ["logs"], ["cancel"], ["collect"], ["clean"],
        ["figures", "--to", "x", "--runs"], ["analyse", "--runs"],
    ),
    "{}/run.json: ": (["export", "--to", "x"], ["evaluate"]),
}  # fmt: skip
"""The errors of verbs that take a folder and get something else."""
ARGUMENTS = [
    (["nosuch"], "No such command 'nosuch'"),
    (["train"], "model, data, batch, optimizer, schedule: missing; give them in the file or by"),
    (["train", "--nosuch"], "No such option: --nosuch"),
    (["train", "folder"], "folder: cannot be read (Is a directory); name a TOML file"),
    (["train", "file"], "file: not valid TOML: "),
    (["train", "run.toml", "--folder", "file"], "file/status.json: cannot be read (Not a dir"),
    (["train", "run.toml", "--folder", LONG], "cannot be read (File name too long); "),
    (["train", "run.toml", "--folder", "/proc/x"], "/proc/x: No such file or directory"),
    (["plan", "folder"], "folder: a folder without run configs; name a study or its file, or see"),
    (["figures", "file"], "argument(s) (file); name runs by --runs, after `tst-study import` if"),
    (["plan", "labtop"], "study 'labtop' is not known; did you mean 'laptop'?"),
    (["plan", "laptop", "--scale", "big"], "scale 'big' of study 'laptop' is not known"),
    (["plan", "laptop", "--device", "x"], "--device 'x' is not known; there are: GB300"),
    (["plan", "laptop", "--mfu", "nan"], "--mfu"),
    (["plan", "laptop", "--price", "2"], "--mfu and --price: name the --device, too"),
    (["train", "run.toml", "--dry-run", "--mfu", "0.4"], "--mfu and --price: name the --device"),
    (["plan", "laptop", "--launcher", "cloud"], "launcher 'cloud' is not known"),
    (["plan", "laptop", "--profile", "folder"], "folder: cannot be read (Is a directory)"),
    (["plan", "laptop", "--profile", "file"], "file: not valid TOML: "),
    (["plan", "laptop", "--runs", "file"], "'--runs': dir"),
    (["plan", "laptop", "--runs", "file/x"], "Not a directory"),
    (["studies", "nosuch"], "study 'nosuch' is not known"),
    (["submit", "nosuch"], "study 'nosuch' is not known"),
    (["retry", "nosuch"], "study 'nosuch' is not known"),
    (["retry", "laptop"], "runs/laptop-quick: no such folder; submit the study first"),
    (["status", "folder"], "folder: no run folder there; name the folder that holds the runs"),
    (["clean", "folder"], "folder: no run folder there; name the folder that holds the runs"),
    (["figures", "--only", "nosuch"], "nosuch"),
    (["figures", "--only", "table4", "--to", "file/x"], "file/x: cannot be written (Not a"),
    (["import", "file", "--template", "x", "--set", "seed=1"], "--template: goes with --column"),
    (["analyse"], "comparison: name --runs DIR"),
    (["data", "prepare", "file"], "Missing option '--source'; such as: tst-study data prepare --"),
    (["advise", "1B"], "such as: tst-study advise --params 1B --tokens 100B"),
    (["train", "--config", "file"], "No such option: --config; such as: tst-study train run.toml"),
    (["analyse", "--runs", "folder"], "folder: no run folder there; name the folder that holds"),
    (["analyse", "mutual-information", "--tokens", "nowhere"], "nowhere.idx: cannot be read"),
    (["data", "verify", "file"], "file/manifest.json: no such file; `tst-study data"),
    (["data", "verify", "folder"], "folder/manifest.json: no such file; `tst-study data prepare`"),
    (["export", "folder", "--to", "x"], "folder/run.json: missing; folder is not a run folder"),
    *(
        (
            [*verb, path],
            "File name too long" if path == LONG
            else "file: a file; make an archive of it" if (verb[-1], path) == ("--runs", "file")
            else said.format(path),
        )
        for said, verbs in PLACES.items()
        for verb in verbs
        for path in ("file", "loop", "file/x", "nowhere", LONG)
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"), ARGUMENTS, ids=[" ".join(case[0])[:60] for case in ARGUMENTS]
)
def test_a_bad_argument_is_named(place, arguments, expected):
    before = sorted(path.name for path in place.iterdir())
    assert expected in refusal(arguments, place)
    assert sorted(path.name for path in place.iterdir()) == before


def test_a_command_without_words_shows_its_help(place):
    for arguments in ([], ["data"]):
        shown = answer(arguments, place)
        assert "Usage: tst-study" in shown.out + shown.err


VERBS = ("plan", "status", "logs", "clean", "data", "analyse", "export", "train", "retry", "x")


@UNKNOWN
@given(st.sampled_from(VERBS), st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=3))
def test_no_words_make_a_command_fall_over(place, verb, words):
    given = answer([verb, *(word.replace("\0", "") for word in words)], place)
    assert given.status in (0, 2), given
    assert "--debug shows where" not in given.err
    assert "Traceback" not in given.err
