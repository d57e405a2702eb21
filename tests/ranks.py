"""Ranks of a gloo group, forked from the test or from a server, and what each of them says at the end.

A rank stays until all have reported, so that one which does nothing is not one which has gone.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

StoreName = Literal["file", "tcp"]
StartMethod = Literal["fork", "forkserver"]

# Long, for a machine that does more.
_SOON_S = 60.0


class Said(Exception):
    """What a rank raised, as text, since not every exception can be pickled."""


def run_ranks(
    body: Callable[[int], Any],
    folder: Path,
    num_ranks: int = 2,
    *,
    store: StoreName | None = "file",
    limit_s: float = 30.0,
    start: StartMethod = "fork",
) -> list[Any]:
    """Call ``body(rank)`` in each rank and return what it returned: by rank.

    Args:
        body: may be a closure; with ``"forkserver"`` it is pickled.
        folder: where the group's store is, if it is a file.
        num_ranks: of the group.
        store: what the ranks meet by (``"tcp"`` only with ``"fork"``); None: there is no group, ``body`` makes it.
        limit_s: the group's time limit.
        start: ``"forkserver"``: from a process that has imported torch and has computed nothing, as it is for a user's
            ranks: a test process that has used a GPU cannot be forked.
    """
    context = multiprocessing.get_context(start)
    default = multiprocessing.get_start_method()
    meeting = None if store is None else _File(folder) if store == "file" else _Tcp()
    ends, processes = [], []
    for rank in range(num_ranks):
        ours, theirs = context.Pipe()
        inherited = [*ends, ours] if start == "fork" else []
        process = context.Process(
            target=_rank, args=(body, rank, num_ranks, meeting, limit_s, default, theirs, inherited)
        )
        process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)
    if meeting is not None:
        meeting.close()
    try:
        answers = _answers(ends)
        for end in ends:
            end.send("all have reported")
        for process in processes:
            process.join(_SOON_S)
    finally:
        for process in processes:
            if process.exitcode is None:
                process.kill()
            process.join()
        codes = [process.exitcode for process in processes]
        for end in ends:
            end.close()
        for process in processes:
            process.close()
    for rank, (answer, failed) in enumerate(answers):
        if failed:
            raise Said(f"rank {rank}: {answer}")
    assert codes == [0] * num_ranks, f"ranks ended with {codes}"
    return [answer for answer, _ in answers]


def _answers(ends: list[Connection]) -> list[Any]:
    found: dict[int, Any] = {}
    deadline = time.monotonic() + _SOON_S
    while len(found) < len(ends):
        silent = [end for rank, end in enumerate(ends) if rank not in found]
        ready = wait(silent, max(0.0, deadline - time.monotonic()))
        assert ready, f"ranks {[rank for rank in range(len(ends)) if rank not in found]} say nothing"
        for end in ready:
            rank = next(rank for rank, known in enumerate(ends) if known is end)
            try:
                found[rank] = end.recv()
            except EOFError:
                found[rank] = ("it has gone without a word", True)
    return [found[rank] for rank in range(len(ends))]


class _File:
    def __init__(self, folder: Path) -> None:
        self._path = str(folder / f"store-{len(list(folder.iterdir()))}")

    def make(self, rank: int, num_ranks: int) -> Any:
        return dist.FileStore(self._path, num_ranks)

    def close(self) -> None:
        """There is nothing to close."""


class _Tcp:
    """The port is the system's choice, and open from here on, so that nobody else can take it."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self._port, self._listener = listener.getsockname()[1], listener.detach()

    def make(self, rank: int, num_ranks: int) -> Any:
        if rank:
            self.close()
            return dist.TCPStore("127.0.0.1", self._port, num_ranks, is_master=False, use_libuv=False)
        return dist.TCPStore(
            "127.0.0.1", self._port, num_ranks, is_master=True, master_listen_fd=self._listener, use_libuv=False
        )

    def close(self) -> None:
        os.close(self._listener)


def _rank(
    body: Callable[[int], Any],
    rank: int,
    num_ranks: int,
    meeting: _File | _Tcp | None,
    limit_s: float,
    default: str,
    answer: Connection,
    others: list[Connection],
) -> None:
    for end in others:
        end.close()
    # A rank that a forkserver has forked would start its loaders' workers by servers of its own, each of which imports
    # torch and the script: seconds, where a user's ranks fork them.
    multiprocessing.set_start_method(default, force=True)
    torch.set_num_threads(1)
    if meeting is not None:
        made = meeting.make(rank, num_ranks)
        made.set_timeout(datetime.timedelta(seconds=limit_s))
        dist.init_process_group("gloo", store=made, rank=rank, world_size=num_ranks)
    try:
        answer.send((body(rank), False))
    except BaseException:
        answer.send((traceback.format_exc(), True))
    answer.recv()
    if meeting is not None:
        dist.destroy_process_group()
