"""Ranks of a run on one machine keep files in the same memory, whichever of them ends, and however."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from kit.forks import is_true_in_a_child

from fastload import ConfigError
from fastload.cache import ranks, shared
from fastload.cache.store import key_of_bytes

SIZE = 16 << 20


@pytest.fixture(autouse=True)
def a_run_of_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", uuid.uuid4().hex),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "WAIT_S", 60.0)  # the machine may be busy


class Rank:
    """A rank in a process of its own, which does one thing after the other as it is told."""

    def __init__(self, rank: int) -> None:
        fork = multiprocessing.get_context("fork")
        self.end, theirs = fork.Pipe()
        self.process = fork.Process(target=_live, args=(rank, theirs))
        self.process.start()
        theirs.close()

    def begin(self, work: Callable[..., Any], *arguments: Any) -> Rank:
        self.end.send((work, arguments))
        return self

    def done(self) -> Any:
        made = self.end.recv()
        if isinstance(made, Exception):
            raise made
        return made

    def do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return self.begin(work, *arguments).done()

    def kill(self) -> None:
        os.kill(self.process.pid or 0, signal.SIGKILL)
        self.process.join()

    def close(self) -> None:
        if self.process.is_alive():
            self.end.send(None)
        self.process.join()
        self.process.close()
        self.end.close()


def name_of_run() -> str:
    return ranks.name_by(ranks.words_of_run() or ())


def _live(rank: int, end: Connection) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    while (told := end.recv()) is not None:
        work, arguments = told
        try:
            end.send(work(*arguments))
        except Exception as error:
            end.send(error)
    shared.forget()


def _records(folder: str | None = None) -> Any:
    return shared.records_of(SIZE) if folder is None else shared.records_of(folder, SIZE)


def keep(number: int, folder: str | None = None) -> bool:
    """Keep an entry in the memory that ranks share."""
    return _records(folder).store.table.keep(key_of_bytes(b"%d" % number), b"%d" % number) is not None


def find(number: int, folder: str | None = None) -> bytes:
    return bytes(_records(folder).store.table.find(key_of_bytes(b"%d" % number)) or b"none")


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "fastload-cache"]


def opened(asked: Any, size: Any = None) -> tuple[int, list[str]]:
    """Return the size of the store, and the warnings of having it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = shared.records_of(asked, size).store.size
    return found, [str(one.message) for one in said]


@pytest.fixture
def started() -> Iterator[Callable[[int], Rank]]:
    begun: list[Rank] = []

    def start(rank: int) -> Rank:
        begun.append(Rank(rank))
        return begun[-1]

    yield start
    for one in begun:
        one.close()


def test_what_one_rank_keeps_the_others_find(started):
    first, second, third = (started(rank) for rank in (0, 1, 2))
    second.begin(opened, SIZE)  # waits for the first
    assert first.do(opened, SIZE) == (SIZE, [])
    assert second.done() == (SIZE, [])
    assert third.do(opened, SIZE) == (SIZE, [])
    assert second.do(keep, 1)
    assert first.do(keep, 2)
    assert [rank.do(find, 1) for rank in (first, second, third)] == [b"1"] * 3
    assert [rank.do(find, 2) for rank in (first, second, third)] == [b"2"] * 3
    assert first.do(threads) == ["fastload-cache"]
    assert second.do(threads) == []


def test_the_others_go_on_with_the_memory_of_a_rank_that_was_killed(started):
    first, second = started(0), started(1)
    first.do(opened, SIZE)
    second.do(opened, SIZE)
    first.do(keep, 1)
    first.kill()
    assert second.do(find, 1) == b"1"
    assert second.do(keep, 2)
    # Nothing is left of its name: the next one has it, and memory of its own.
    again = started(0)
    again.do(opened, SIZE)
    assert again.do(threads) == ["fastload-cache"]
    assert again.do(find, 1) == b"none"


def test_processes_that_the_first_rank_has_forked_do_not_keep_its_name(started, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    shared.records_of(SIZE)

    def works_alone() -> bool:
        shared.forget()
        return shared._process.server is None

    assert is_true_in_a_child(works_alone)
    name = name_of_run()
    reading, writing = os.pipe()
    begun, begins = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.write(begins, b".")
        os.read(reading, 1)  # until the other end is closed
        os._exit(0)
    os.close(reading)
    os.read(begun, 1)
    os.close(begun)
    os.close(begins)
    shared.forget()
    listener = ranks.listening(name)
    os.close(writing)
    os.waitpid(pid, 0)
    assert listener is not None
    listener.close()


def test_auto_is_not_divided_where_ranks_share_it(started, monkeypatch):
    monkeypatch.setattr(shared, "free_on_host", lambda: shared.reserve_of_host() + (64 << 20))
    first, second = started(0), started(1)
    assert first.do(opened, "auto") == (32 << 20, [])
    assert second.do(opened, "auto") == (32 << 20, [])


def test_ranks_with_other_sizes_are_an_error(started):
    started(0).do(opened, SIZE)
    for asked in (2 * SIZE, "auto"):
        with pytest.raises(
            ConfigError, match=f"all ranks of a machine share one cache, and another has cache={SIZE}, got"
        ):
            started(1).do(opened, asked)


def test_ranks_share_a_folder_and_what_they_know_of_files_whose_inodes_do_not_last(started, tmp_path):
    folder = str(tmp_path / "cache")
    first, second = started(0), started(1)
    assert second.do(opened, folder, SIZE) == (SIZE, [])  # the first has none yet, and is not waited for
    assert first.do(opened, folder, SIZE) == (SIZE, [])
    assert second.do(keep, 1, folder)
    assert first.do(find, 1, folder) == b"1"
    assert second.do(threads) == ["fastload-cache"]
    assert first.do(threads) == []


def test_ranks_with_other_folders_or_sizes_are_an_error(started, tmp_path):
    folder = str(tmp_path / "cache")
    started(0).do(opened, folder, SIZE)
    for asked in ((folder, 2 * SIZE), (f"{folder}2", SIZE)):
        with pytest.raises(ConfigError, match=f"another has cache='{folder}' with {SIZE} bytes, got cache='"):
            started(1).do(opened, *asked)


def test_a_rank_that_nobody_answers_says_so_and_has_a_share_of_its_own(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(ranks, "WAIT_S", 0.1)
    monkeypatch.setattr(shared, "free_on_host", lambda: shared.reserve_of_host() + (64 << 20))
    with pytest.warns(UserWarning, match=r"this rank shares no memory with the others, since local rank 0 has handed"):
        assert shared.records_of("auto").store.size == 16 << 20


def test_a_restarted_run_and_another_run_have_other_names(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    names = {name_of_run()}
    for variable in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "MASTER_PORT", "MASTER_ADDR"):
        monkeypatch.setenv(variable, "7")
        names.add(name_of_run())
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    names.add(name_of_run())
    assert len(names) == 6
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert ranks.words_of_run() is None


def test_another_users_process_is_handed_nothing(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    shared.records_of(SIZE)
    name = name_of_run()
    assert isinstance(ranks.take(name, 60.0), tuple)
    asking = threading.current_thread()
    original = ranks.user_of

    def seen_by_the_server(connection: socket.socket) -> int:
        return original(connection) + (threading.current_thread() is not asking)

    monkeypatch.setattr(ranks, "user_of", seen_by_the_server)
    assert "has handed over none" in ranks.take(name, 0.0)


def test_nothing_is_taken_of_another_users_process(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    name = name_of_run()
    stranger = ranks.listening(name)
    assert stranger is not None
    stranger.listen()
    original = ranks.user_of
    monkeypatch.setattr(ranks, "user_of", lambda connection: original(connection) + 1)
    with stranger, pytest.warns(UserWarning, match="another user's process has the name of this run's socket"):
        assert shared.records_of(SIZE).store.size == SIZE
