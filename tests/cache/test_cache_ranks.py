"""Ranks of a run on one machine keep files in the same memory, whichever of them ends, and however."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

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
    return ranks._name(ranks.words_of_run() or ())


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
    kept: bool = _records(folder).store.keep(key_of_bytes(b"%d" % number), b"%d" % number)
    return kept


def find(number: int, folder: str | None = None) -> bytes:
    return bytes(_records(folder).store.find(key_of_bytes(b"%d" % number)) or b"none")


def name(number: int, other: int, folder: str) -> None:
    """Have another key find an entry for this run."""
    _records(folder).store.name(key_of_bytes(b"%d" % other), key_of_bytes(b"%d" % number), lasts=False)


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


@pytest.mark.parametrize("asked", [SIZE, "auto"])
def test_what_one_rank_keeps_the_others_find_in_all_that_there_is(started, asked, monkeypatch):
    monkeypatch.setattr(shared, "free_on_host", lambda: shared.reserve_of_host() + 2 * SIZE)
    first, second, third = (started(rank) for rank in (0, 1, 2))
    second.begin(opened, asked)  # at once: one of them makes it
    assert first.do(opened, asked) == (SIZE, [])
    assert second.done() == (SIZE, [])
    assert third.do(opened, asked) == (SIZE, [])
    if asked == SIZE:
        assert second.do(keep, 1)
        assert first.do(keep, 2)
        assert [rank.do(find, 1) for rank in (first, second, third)] == [b"1"] * 3
        assert [rank.do(find, 2) for rank in (first, second, third)] == [b"2"] * 3


def test_the_others_go_on_with_the_memory_of_a_rank_that_was_killed(started):
    first, second = started(0), started(1)
    first.do(opened, SIZE)
    second.do(opened, SIZE)
    first.do(keep, 1)
    first.kill()
    assert second.do(find, 1) == b"1"
    assert second.do(keep, 2)
    # Who comes now has the memory of those that live; and memory of its own when none does.
    again = started(0)
    assert again.do(find, 1) == b"1"
    for one in (second, again):
        one.kill()
    assert started(1).do(find, 1) == b"none"


@pytest.mark.parametrize("in_folder", [False, True])
def test_ranks_with_other_sizes_or_folders_are_an_error_of_which_nothing_stays_open(
    started, tmp_path, in_folder, monkeypatch
):
    folder = str(tmp_path / "cache")
    has, others = (SIZE,), [(2 * SIZE,), ("auto",)]
    if in_folder:
        has, others = (folder, SIZE), [(folder, 2 * SIZE), (f"{folder}2", SIZE)]
    started(0).do(opened, *has)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for asked in others:
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(ConfigError, match=rf"share one cache, and another has .*{SIZE}.*, got cache="):
            shared.records_of(*asked)
        assert set(os.listdir("/proc/self/fd")) == before
        shared.forget()


def test_ranks_share_a_folder_and_what_they_know_of_files_whose_inodes_do_not_last(started, tmp_path):
    folder = str(tmp_path / "cache")
    first, second = started(0), started(1)
    assert second.do(opened, folder, SIZE) == (SIZE, [])
    assert first.do(opened, folder, SIZE) == (SIZE, [])
    assert second.do(keep, 1, folder)
    second.do(name, 1, 2, folder)
    assert [first.do(find, one, folder) for one in (1, 2)] == [b"1"] * 2


def test_a_rank_that_sees_nothing_of_the_others_says_so_and_has_a_share_of_its_own(started, monkeypatch):
    started(0).do(opened, SIZE)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(ranks, "WAIT_S", 0.1)
    monkeypatch.setattr(ranks, "_found", lambda *_: None)  # as without /proc
    monkeypatch.setattr(shared, "free_on_host", lambda: shared.reserve_of_host() + (64 << 20))
    with pytest.warns(
        UserWarning, match=r"this rank cannot share memory with the others, since the rank that created it"
    ):
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


def test_memory_of_another_user_or_a_part_of_it_alone_is_not_taken_and_nothing_of_it_stays_open(started, monkeypatch):
    started(0).do(opened, SIZE)
    monkeypatch.setenv("LOCAL_RANK", "1")
    name, parts = name_of_run(), ["table", "records"]
    before = os.listdir("/proc/self/fd")
    found = ranks._found(name, parts, f"cache={SIZE}")
    assert found is not None
    for file in found.files:
        os.close(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        assert ranks._found(name, parts, f"cache={SIZE}") is None
    assert os.listdir("/proc/self/fd") == before
    monkeypatch.setenv("MASTER_PORT", "1")  # another run, of which there is a part
    ours = ranks.make(ranks.words_of_run() or (), ["table"], SIZE, "something")
    assert ranks._found(name_of_run(), parts, "something") is None
    os.close(ours.files[0])
    assert os.listdir("/proc/self/fd") == before
