"""Checkpoints are whole or not there, and what cannot be written or read is said in one line."""

import contextlib
import errno
import io
import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.damage import flip
from tests.distributed import run_ranks
from tests.tiny_runs import (
    assert_same_run,
    checkpoint_folders,
    launched,
    run,
    stop_this_process,
    tiny,
    when_step_begins,
)
from tst_study.checkpoints.checkpoint import Checkpoints
from tst_study.checkpoints.places import DIGESTS
from tst_study.checkpoints.reader import CheckpointReader
from tst_study.checkpoints.trained_run import open_run
from tst_study.errors import UserError
from tst_study.parallel.process_groups import process_groups
from tst_study.record import reader as run_record
from tst_study.train import train

EVERY_FIVE = "execution.checkpoint_every=5"


@pytest.fixture(scope="module")
def finished(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its last two checkpoints; tests take copies."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    run(words, folder, EVERY_FIVE)
    return folder


FILES = [".metadata", "metadata.json", "common.pt", "__0_0.distcp", DIGESTS]


@pytest.mark.parametrize("damage", [flip, Path.unlink])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_takes_its_place(
    words, finished, tmp_path, capsys, file, damage
):
    """One bit, of a tensor for example, where torch itself would not notice."""
    folder = shutil.copytree(finished, tmp_path / "damaged")
    before, newest = checkpoint_folders(folder)
    damage(newest / file)
    record = run(words, folder, EVERY_FIVE)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if str(newest) in line]
    what = "missing" if damage is Path.unlink else "not what was written"
    # A flipped digest seems to be another file's fault.
    name = r"\S+" if (file, damage) == (DIGESTS, flip) else re.escape(file)
    pattern = rf"{newest}: cannot be read \({name} is {what}\); going on from step 15"
    assert re.fullmatch(pattern, said)
    assert record.segments[-1]["resumed_from"] == 15
    assert checkpoint_folders(folder) == [before, newest]  # which was written again
    assert_same_run(folder, finished)


def test_a_checkpoint_of_another_run_or_step_is_not_used(words, finished, tmp_path, capsys):
    """Wherever one is opened: to resume, to fork, to evaluate and to export."""
    folder = shutil.copytree(finished, tmp_path / "own")
    before, newest = checkpoint_folders(folder)
    run(words, tmp_path / "other", EVERY_FIVE, "seed=7", "execution.keep_checkpoints=4")
    shutil.rmtree(newest)
    first, *_, last = checkpoint_folders(tmp_path / "other")
    shutil.copytree(last, newest)
    shutil.copytree(first, newest.with_name(first.name))
    with pytest.raises(UserError, match=r"step-00000020: cannot be used \(it is of run .*--step"):
        open_run(folder)
    forked = f'execution.fork_from={{"folder"="{folder}","step"=5}}'
    with pytest.raises(UserError, match=r"step-00000005: cannot be read \(it is of run "):
        run(words, tmp_path / "fork", "optimizer.weight_decay=0.1", forked)
    shutil.rmtree(newest.with_name(first.name))
    record = run(words, folder, EVERY_FIVE)
    assert record.segments[-1]["resumed_from"] == 15
    assert_same_run(folder, finished)
    assert "step-00000020: cannot be read (it is of run " in capsys.readouterr().err

    shutil.rmtree(newest)
    before.rename(newest)
    with pytest.raises(UserError, match=r"step-00000020: cannot be used \(it is of step 15\)"):
        open_run(folder)
    with pytest.raises(UserError, match=r"step-00000020: is of step 15; give the folder its name"):
        CheckpointReader(newest)


def test_a_checkpoint_of_an_earlier_version_is_taken_with_a_line(words, finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "old")
    for place in checkpoint_folders(folder):
        content = json.loads((place / DIGESTS).read_bytes())
        (place / DIGESTS).write_text(json.dumps({"sha256": content["sha256"]}))
    assert open_run(folder).step == 20
    shutil.rmtree(checkpoint_folders(folder)[-1])
    assert run(words, folder, EVERY_FIVE).segments[-1]["resumed_from"] == 15
    assert_same_run(folder, finished)
    said = capsys.readouterr().err
    for step in (15, 20):
        assert f"step-{step:08d}: does not name its run" in said


def test_where_no_checkpoint_is_whole_none_is_used(words, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "damaged")
    for place in checkpoint_folders(folder):
        flip(place / "__0_0.distcp")
    with pytest.raises(UserError) as raised:
        run(words, folder, EVERY_FIVE)
    said = str(raised.value)
    assert said.startswith(f"{folder}/checkpoints/step-00000020: cannot be read (__0_0.distcp is ")
    assert f"delete {folder}/checkpoints" in said
    record = run_record.read(folder)
    assert record.state == "failed"
    assert [segment["ended"] for segment in record.segments] == ["done"]


def test_a_damaged_checkpoint_is_not_counted_among_those_that_are_kept(words, finished, tmp_path):
    """Otherwise the only whole checkpoint would be deleted for it."""
    folder = shutil.copytree(finished, tmp_path / "damaged")
    newest = checkpoint_folders(folder)[-1]
    flip(newest / "__0_0.distcp")

    prepare = partial(when_step_begins, 16, stop_this_process)
    assert launched(words, folder, prepare, EVERY_FIVE, "execution.keep_checkpoints=1") == 7
    assert [place.name for place in checkpoint_folders(folder)] == ["step-00000017"]
    run(words, folder, EVERY_FIVE)
    assert_same_run(folder, finished)


@pytest.mark.parametrize(
    ("call", "number", "remedy"),
    [("fsync", errno.ENOSPC, "free some space"), ("rename", errno.EACCES, "mend it")],
)
def test_what_a_disk_refuses_of_a_save_costs_nothing_that_was_saved(
    words, finished, tmp_path, call, number, remedy
):
    honest = getattr(os, call)

    def refused_at_step_ten(file: int | Path, *more: Path) -> None:
        path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else str(file)
        if "partial-step-00000010" in path:
            raise OSError(number, os.strerror(number))
        honest(file, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, refused_at_step_ten)
        with pytest.raises(UserError) as raised:
            run(words, tmp_path, EVERY_FIVE)
    said = rf"\S+/step-00000010: cannot be written \(.*{os.strerror(number)}\); {remedy} and .*"
    assert re.fullmatch(said, str(raised.value))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]
    record = run_record.read(tmp_path)
    assert (record.state, record.segments[0]["ended"]) == ("failed", str(raised.value))
    run(words, tmp_path, EVERY_FIVE)
    assert_same_run(tmp_path, finished)


def test_what_the_disk_of_one_rank_refuses_all_of_them_say(words, tmp_path):
    config = tiny(words, EVERY_FIVE, 'execution.parallel.optimizer="distributed"')

    def refused() -> str:
        def refuse(file: int) -> None:
            if "partial-step-00000010/__1_" in os.readlink(f"/proc/self/fd/{file}"):
                raise OSError(28, os.strerror(28))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(UserError) as raised:
                train(config, tmp_path, progress=False)
        return str(raised.value)

    first, other = run_ranks(2, refused)
    assert "step-00000010: " in first
    assert "[Errno 28]" in first
    assert "step-00000010: cannot be written" in other
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]
    assert run_record.read(tmp_path).segments[0]["ended"] == first
    assert run_ranks(2, train, config, tmp_path) == ["done"] * 2


def test_ranks_resume_from_one_step_and_agree_on_the_layout(words, finished, tmp_path):
    """Though a node may list an older state of the folder, or have other memory."""

    def resumed() -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoints, "_restore", lambda self, step, *unused: {"step": step})
            if dist.get_rank() == 1:
                patch.setattr("tst_study.checkpoints.checkpoint.checkpoint_steps", lambda run: [])
            with contextlib.redirect_stderr(io.StringIO()) as said:
                step = Checkpoints(folder, keep=2).load_last(None, None)  # type: ignore[arg-type]
            return step, said.getvalue().count("going on from step 15")

    folder = shutil.copytree(finished, tmp_path / "run")
    flip(checkpoint_folders(folder)[-1] / "__0_0.distcp")
    # The first rank says for all which checkpoint is passed over.
    assert run_ranks(2, resumed) == [({"step": 15}, 1), ({"step": 15}, 0)]

    def refused() -> None:
        recompute = "layer" if dist.get_rank() else "none"
        config = tiny(words, f"execution.recompute={recompute}")
        with pytest.raises(UserError, match="ranks chose different layouts"):
            process_groups(config).__enter__()

    run_ranks(2, refused)
