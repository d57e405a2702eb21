"""The exchange of real ranks: what rank 0 knows, and what happens when a rank has ended."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.data
from ranks import run_ranks
from torch.utils.data import TensorDataset

import fastload
from fastload.base import compat_features
from fastload.callbacks import Stall
from fastload.callbacks.ranks import Exchange, kind_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")


def window(share: float) -> dict[str, float]:
    return {"data/share": share}


def tell_the_others() -> None:
    """What this rank has set before is in the store: a set over TCP is not answered, and a check comes behind it."""
    compat_features.process_group_store().check(["anything"])
    dist.barrier()


@pytest.mark.parametrize("store", ["file", "tcp"])
def test_rank_0_knows_the_numbers_of_all_ranks_and_the_others_their_own(tmp_path: Path, store: Any) -> None:
    def body(rank: int) -> Any:
        exchange = Exchange()
        if rank == 0:
            dist.barrier()
        found = exchange.swap((window(0.1 * rank), window(0.2 * rank)))
        if rank:
            tell_the_others()
        return found

    first, second = run_ranks(body, tmp_path, store=store)
    assert first == {0: (window(0.0), window(0.0)), 1: (window(0.1), window(0.2))}
    assert second == {1: (window(0.1), window(0.2))}


def test_stall_gives_means_and_the_worst_rank(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        loader = fastload.DataLoader(TensorDataset(torch.arange(24)), batch_size=4)
        stall = Stall(loader)
        list(loader)
        if rank == 0:
            dist.barrier()
        found, line = stall.numbers(), stall.last_line()
        if rank:
            tell_the_others()
        stall.close()
        return found, line

    (first, line), (second, alone) = run_ranks(body, tmp_path)
    assert first["data/ranks"] == 2.0
    assert first["data/worst_rank"] in (0.0, 1.0)
    assert first["data/worst_share"] >= first["data/share"] > 0.0
    assert "on average of 2 ranks; the most on rank" in line
    assert not {"data/ranks", "data/worst_rank", "data/worst_share"} & set(second)
    assert "ranks" not in alone


def test_numbers_of_a_rank_that_has_ended_count_no_longer_and_nobody_waits_for_it(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        exchange = Exchange()
        if rank:
            exchange.swap((window(0.5), window(0.5)))
            tell_the_others()
            return None  # and never swaps again
        dist.barrier()
        return [sorted(exchange.swap((window(0.1), window(0.1)))) for _ in range(5)]

    first, _ = run_ranks(body, tmp_path)
    assert first == [[0, 1], [0, 1], [0, 1], [0], [0]]


def test_a_rank_without_a_group_swaps_with_nobody() -> None:
    exchange = Exchange()
    assert exchange.swap((window(0.3), window(0.3))) == {0: (window(0.3), window(0.3))}


def test_a_loader_that_one_rank_alone_measures_gets_no_numbers_of_another(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        never, short = (fastload.DataLoader(TensorDataset(torch.arange(length)), batch_size=4) for length in (24, 8))
        loader = fastload.DataLoader(TensorDataset(torch.arange(24)), batch_size=4)
        others = [Stall(one) for one in (short, never)] if rank == 0 else []
        stall = Stall(loader)
        list(loader)
        list(short)
        if rank == 0:
            dist.barrier()
        found = [one.numbers() for one in (stall, *others)]
        line = others[1].last_line() if others else ""
        if rank:
            tell_the_others()
        return found, line

    (first, line), _ = run_ranks(body, tmp_path)
    assert first[2] == {}
    assert "no step was measured" in line
    assert "data/ranks" not in first[1], "another length: another loader"
    assert "data/share" in first[1]


def test_shards_of_slightly_different_lengths_are_of_one_loader() -> None:
    loaders: list[Any] = [torch.utils.data.DataLoader(range(length), batch_size=4) for length in (999, 1000, 200)]  # type: ignore[arg-type]
    kinds = [kind_of(loader) for loader in loaders]
    assert kinds[0] == kinds[1] != kinds[2]


def test_a_rank_goes_on_alone_and_keeps_its_number_when_the_group_has_ended(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        loader = fastload.DataLoader(TensorDataset(torch.arange(24)), batch_size=4)
        stall = Stall(loader)
        list(loader)
        dist.barrier()
        with pytest.MonkeyPatch.context() as patch:  # run_ranks ends the group itself
            patch.setattr(dist, "is_initialized", lambda: False)
            return stall.last_line(), stall.rank

    for rank, (line, known) in enumerate(run_ranks(body, tmp_path)):
        assert known == rank
        assert line.endswith("(without the other ranks: their process group has ended)")


def _serve_and_leave(port: int, listener: int) -> None:
    """Rank 0, whose process has the store, ends while the other one trains."""
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=True, master_listen_fd=listener)
    dist.init_process_group("gloo", store=store, rank=0, world_size=2)
    Exchange().swap((window(0.1), window(0.1)))
    dist.barrier()
    os._exit(0)


def _go_on_alone(port: int, gone: Any, answer: Any) -> None:
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=False, timeout=datetime.timedelta(seconds=600))
    dist.init_process_group("gloo", store=store, rank=1, world_size=2)
    exchange = Exchange()
    found = [exchange.swap((window(0.5), window(0.5)))]
    dist.barrier()
    gone.wait()
    found += [exchange.swap((window(0.5), window(0.5))) for _ in range(5)]
    answer.send(found)
    os._exit(0)


def test_a_rank_goes_on_when_the_process_of_the_store_has_gone() -> None:
    context = multiprocessing.get_context("fork")
    listener = socket.create_server(("127.0.0.1", 0))
    port, descriptor = listener.getsockname()[1], listener.detach()
    gone = context.Event()
    ours, theirs = context.Pipe(duplex=False)
    first = context.Process(target=_serve_and_leave, args=(port, descriptor))
    second = context.Process(target=_go_on_alone, args=(port, gone, theirs))
    first.start()
    second.start()
    os.close(descriptor)
    theirs.close()
    try:
        first.join(60.0)
        assert first.exitcode == 0
        gone.set()
        assert ours.poll(60.0), "the rank hangs"
        assert ours.recv() == [{1: (window(0.5), window(0.5))}] * 6
        second.join(60.0)
        assert second.exitcode == 0
    finally:
        for process in (first, second):
            if process.exitcode is None:
                process.kill()
            process.join()
            process.close()
        ours.close()
