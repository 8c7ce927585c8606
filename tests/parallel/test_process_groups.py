"""No rank goes on before all are connected; an error of a collective is another rank's; what one
rank reads, all have."""

import time
from typing import Any

import pytest
import torch.distributed as dist
from megatron.core import parallel_state

from tests.distributed import run_ranks
from tests.tiny_runs import tiny
from tst_study.errors import OtherRankError, UserError
from tst_study.parallel.process_groups import other_ranks_failing, process_groups


def test_a_file_whose_name_says_gloo_is_no_collective():
    missing = FileNotFoundError(2, "No such file or directory", "prepared/gloo")
    with pytest.raises(UserError) as raised, other_ranks_failing(0):
        raise UserError("prepared/gloo: cannot be read; name a TOML file") from missing
    assert not isinstance(raised.value, OtherRankError)
    assert str(raised.value) == "prepared/gloo: cannot be read; name a TOML file"


def test_what_a_library_of_collectives_says_is_told_of_the_other_rank():
    def wait() -> None:
        raise RuntimeError("[pair.cc:534] gloo: Connection closed by peer [127.0.0.1]:1234")

    with pytest.raises(OtherRankError, match="rank 1: waited in vain"), other_ranks_failing(1):
        wait()


def test_files_are_read_by_the_first_rank_alone_and_its_error_is_everyones(words):
    def work() -> tuple[list[str], int]:
        read: list[str] = []

        def reading(name: str) -> str:
            read.append(name)
            if name == "missing":
                raise UserError(f"{name}: not there")
            return name

        with process_groups(tiny(words)) as ranks:
            assert ranks.from_first(lambda: reading("text")) == "text"
            with pytest.raises(UserError, match="missing: not there"):
                ranks.from_first(lambda: reading("missing"))
        return read, ranks.rank

    assert run_ranks(2, work) == [(["text", "missing"], 0), ([], 1)]


def test_no_rank_goes_on_before_the_slowest_has_made_its_groups(words, tmp_path):
    def work() -> bool:
        make_groups = parallel_state.initialize_model_parallel

        def slowly(**settings: Any) -> None:
            make_groups(**settings)
            if dist.get_rank() == 1:
                time.sleep(0.5)
                (tmp_path / "connected").touch()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parallel_state, "initialize_model_parallel", slowly)
            with process_groups(tiny(words)):
                return (tmp_path / "connected").exists()

    assert run_ranks(2, work) == [True, True]
