"""The store: entries are found by their keys, whoever kept them, and whatever becomes of other writers."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading

import hypothesis.strategies as st
import pytest
from entries import found, keep, named, put_lines
from hypothesis import given
from kit.stores import store_in_memory, ticked

from fastload.cache import record_file
from fastload.cache import store as store_module
from fastload.cache.store import key_of, key_of_file, reserve_of_host, same

SIZE = 8 << 20


@given(st.lists(st.tuples(st.integers(0, 50), st.binary(max_size=300)), max_size=80))
def test_what_was_kept_last_under_a_key_is_found_and_nothing_else(entries):
    store, last = store_in_memory(SIZE), {}
    for number, data in entries:
        assert store.keep(named(number), data)
        last[number] = data
    for number in range(51):
        found = store.find(named(number))
        assert (None if found is None else bytes(found)) == last.get(number)
    assert store.contents().entries == len(last)


def test_the_table_takes_at_most_80_bytes_a_record():
    store = store_in_memory(64 << 20)
    assert put_lines(store, 200_000)
    assert os.fstat(store.table).st_blocks * 512 <= (8 << 20) + 80 * 200_000  # it is allocated in steps


def test_a_full_store_says_so_and_keeps_what_it_has():
    store, kept = store_in_memory(1 << 20), 0
    assert store.has_room(1000)
    assert not store.has_room(2 << 20)
    assert not store.keep(named(-1), bytes(2 << 20))
    assert store.has_room(1000)
    while store.keep(named(kept), bytes(1000)):
        kept += 1
    assert kept > 900
    assert store.contents().is_full
    assert not store.has_room(1000)
    assert all(store.find(named(number)) is not None for number in range(kept))
    assert store.find(named(kept)) is None


@pytest.mark.parametrize("what", ["table", "records"])
def test_a_store_for_which_the_system_has_no_memory_is_full_and_asks_again_later(what, monkeypatch):
    kept = store_in_memory(64 << 20)
    keep(kept, range(10))
    taken = kept.files.size()
    with monkeypatch.context() as patch:
        if what == "records":
            patch.setattr(record_file.os, "pwrite", refused)
        else:
            kept.where[2] = os.open(os.devnull, os.O_RDONLY)
            assert not put_lines(kept, 1_000_000)  # what the system has given is used
        with pytest.raises(OSError, match=r"No space left on device|no memory for a table"):
            keep(kept, range(10, 1000))
        assert kept.contents().is_full
        assert kept.contents().is_short
        assert what == "table" or kept.files.size() == taken
        assert all(found(kept, one) for one in range(10))
    if what == "table":
        os.close(kept.where[2])
        kept.where[2] = kept.table
    while not kept.has_room(1 << 20):
        pass
    keep(kept, range(10, 20))
    assert all(found(kept, one) for one in range(20))


def refused(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_nothing_is_kept_where_the_host_or_the_disk_has_little_room_left(new_store, monkeypatch):
    free = [2 * reserve_of_host()]
    monkeypatch.setattr(store_module, "free_on_host", lambda: free[0])
    monkeypatch.setattr(store_module, "room_on_disk", lambda _: (free[0], reserve_of_host()))
    store = new_store(SIZE)
    assert store.has_room(1)
    free[0] = reserve_of_host() - 1
    asked = [store.has_room(1) for _ in range(100)]
    assert asked[0]
    assert not asked[-1]
    free[0] = 2 * reserve_of_host()
    assert any(store.has_room(1) for _ in range(100))


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_threads_and_processes_keep_side_by_side(new_store, method):
    kept, context = new_store(64 << 20), multiprocessing.get_context(method)
    writers = [context.Process(target=keep, args=(kept, range(1_000 * one, 1_000 * one + 2_000))) for one in range(2)]
    # A store in a folder may be opened several times.
    other = kept if kept.files.in_memory else new_store(64 << 20)
    writers += [threading.Thread(target=keep, args=(other, range(1_000 * one, 1_000 * one + 2_000))) for one in (2, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all(found(kept, number) for number in range(5_000))
    assert not found(kept, 5_000)
    assert 5_000 <= kept.contents().entries <= 4 * 2_000


@pytest.mark.parametrize("times", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_a_writer_that_is_killed_loses_its_own_entry_alone(new_store, times):
    size = 2 << 30
    kept = new_store(size)
    fork = multiprocessing.get_context("fork")
    for turn in range(times):
        first = 1_000_000 * turn
        writer = fork.Process(target=keep, args=(kept, range(first, first + 1_000_000)))
        writer.start()
        while not found(kept, first + 200):
            assert writer.is_alive()
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        writer.close()
        if not kept.files.in_memory:
            del kept  # as when the whole run is killed
            kept = new_store(size)
        number = first
        while found(kept, number):
            number += 1
        assert number > first + 200
        keep(kept, range(number, number + 100))
        assert all(found(kept, one) for one in range(number, number + 100))


def test_the_memory_is_given_back_when_the_last_view_is_gone():
    store = store_in_memory(64 << 20)
    store.keep(named(0), bytes(1000))
    view = store.find(named(0))
    before = len(os.listdir("/proc/self/fd"))
    del store
    assert len(os.listdir("/proc/self/fd")) < before
    assert bytes(view) == bytes(1000)


@pytest.mark.usefixtures("files_settle_at_once")
def test_files_have_keys_by_what_they_are_and_another_one_when_they_change(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"first")
        os.utime(tmp_path / name, ns=(1, 1))
    (tmp_path / "link").symlink_to("a")

    def key(name: str) -> object:
        with ticked(tmp_path / name).open("rb") as file:
            found = key_of(file)
            assert same(found, key_of_file(file.fileno()))
            return found

    first = key("a")
    assert same(key("link"), first)
    assert not same(key("b"), first)
    (tmp_path / "a").write_bytes(b"other")
    os.utime(tmp_path / "a", ns=(1, 1))  # the same size and time, as some tools preserve it
    second = key("a")
    assert not same(first, second)
    (tmp_path / "a").rename(tmp_path / "new")
    (tmp_path / "new").rename(tmp_path / "a")
    assert not same(key("a"), second)
    assert same(key("a"), key("a"))


def test_what_has_changed_lately_and_what_is_no_file_has_no_key(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"now")
    with path.open("rb") as file:
        assert key_of(file) is None
    with open(os.devnull, "rb") as device:
        assert key_of(device) is None
    assert key_of(object()) is None
    assert not same(None, None)


def test_a_store_that_outlives_its_modules_names_closes_its_table(monkeypatch):
    kept = store_in_memory(SIZE)
    file = kept.table
    monkeypatch.setattr(store_module, "os", None)  # as when an interpreter ends
    del kept
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
