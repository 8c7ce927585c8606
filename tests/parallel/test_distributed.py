import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed import WorkerError, run_ranks


def test_every_rank_returns_its_result():
    def ranks_summed(offset):
        total = torch.tensor([offset + dist.get_rank()])
        dist.all_reduce(total)
        return dist.get_rank(), total

    assert run_ranks(2, ranks_summed, 10) == [(0, torch.tensor([21])), (1, torch.tensor([21]))]


def test_the_traceback_of_a_failed_rank_is_reported_and_the_others_end():
    def fail_on_rank_one():
        if dist.get_rank() == 1:
            raise KeyError("lost")
        dist.barrier()

    start = time.monotonic()
    with pytest.raises(WorkerError, match=r"(?s)rank 1 failed.*fail_on_rank_one.*lost"):
        run_ranks(2, fail_on_rank_one)
    assert time.monotonic() - start < 20.0


def test_a_rank_that_hangs_is_named():
    def hang_on_rank_zero():
        if dist.get_rank() == 0:
            time.sleep(60)

    with pytest.raises(WorkerError, match=r"no answer in time from ranks \[0"):
        run_ranks(2, hang_on_rank_zero, timeout=1.0)
