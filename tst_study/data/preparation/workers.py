"""Worker processes that tokenise shards, and end when the main process does."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from tst_study.data.preparation.shards import Work, make_shard
from tst_study.data.preparation.text_tokenizers import Tokenizer
from tst_study.errors import UserError

Submit = Callable[[Work], None]

_tokenizer: Tokenizer | None = None


@contextmanager
def shard_workers(count: int, tokenizer: Tokenizer) -> Iterator[Submit]:
    """Give a function that has a shard made; leaving the block waits for all of them.

    It blocks while twice as many shards as workers are under way, so that a fast reader does not
    fill the memory.

    Raises the `UserError` of a worker, or one that says that it was killed (out of memory, mostly).
    """
    if count == 1:
        yield lambda work: make_shard(work, tokenizer)
        return
    # Started afresh rather than forked: the parent may hold the threads of tokenizers or torch.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_start, initargs=(tokenizer,))
    under_way: set[Future[None]] = set()

    def submit(work: Work) -> None:
        # Ctrl-C reaches all processes of a terminal. Workers are born deaf to it, so that this one
        # alone has something to say, and what they are at is finished.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            under_way.add(pool.submit(_make, work))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        collect(2 * count)

    def collect(most: int) -> None:
        while len(under_way) > most:
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                under_way.remove(future)
                future.result()

    try:
        yield submit
        collect(0)
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, probably because memory ran out; run the same command"
            " again with fewer --workers, finished shards are kept"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(tokenizer: Tokenizer) -> None:
    global _tokenizer
    _tokenizer = tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process is one thread here
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A killed parent leaves its pool waiting for work for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(work: Work) -> None:
    assert _tokenizer is not None
    make_shard(work, _tokenizer)
