"""The store: entries are found by their keys, whoever kept them, and whatever becomes of other writers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from entries import found, in_another_process, keep, named
from hypothesis import given

from fastload.cache import store as store_module
from fastload.cache.disk import FileStore
from fastload.cache.store import Contents, Store, key_of, key_of_file, reserve_of_host, same

SIZE = 8 << 20


@given(st.lists(st.tuples(st.integers(0, 50), st.binary(max_size=300)), max_size=80))
def test_what_was_kept_first_under_a_key_is_found_and_nothing_else(entries):
    store, first = Store(SIZE), {}
    for number, data in entries:
        kept = store.keep(named(number), data)
        assert kept is not None
        assert bytes(kept) == data
        first.setdefault(number, set()).add(data)
    for number in range(51):
        found = store.find(named(number))
        assert (found is None) == (number not in first)
        assert found is None or bytes(found) in first[number]
    assert store.contents().entries == len(entries)


def test_the_index_takes_at_most_64_bytes_an_entry():
    store, least = Store(64 << 20), []
    for number in range(40_000):
        store.keep(named(number), b"8 bytes.")
        contents = store.contents()
        if number > 5_000:
            least.append((contents.taken_bytes - contents.entry_bytes) / contents.entries)
    # 24 bytes before each entry, up to 8 behind it, and the tables, which have most room after one was begun.
    assert max(least) < 24 + 8 + 2 * 16 / 0.75
    assert least[-1] <= 64


def test_a_full_store_says_so_and_keeps_what_it_has():
    store, kept = Store(1 << 20), 0
    assert store.has_room(1000)
    assert not store.has_room(2 << 20)
    assert store.keep(named(-1), bytes(2 << 20)) is None
    assert store.has_room(1000)
    while store.keep(named(kept), bytes(1000)) is not None:
        kept += 1
    assert kept > 900
    assert store.contents().is_full
    assert not store.has_room(1000)
    assert all(store.find(named(number)) is not None for number in range(kept))
    assert store.find(named(kept)) is None


def test_memory_is_allocated_in_steps_before_it_is_given_out():
    kept, steps = Store(100 << 20), set()
    for number in range(40):
        kept.keep(named(number), bytes(1 << 20))
        allocated = os.fstat(kept.file).st_blocks * 512
        assert allocated >= kept.contents().taken_bytes
        steps.add(allocated >> 20)
    assert len(steps) <= 7


def without_memory(kept: Store) -> Callable[[], None]:
    """Have the system refuse memory; return what undoes that."""
    refusing = os.open(os.devnull, os.O_RDONLY)
    kept.where[2] = refusing

    def undo() -> None:
        kept.where[2] = kept.file
        os.close(refusing)

    return undo


def test_a_store_for_which_the_system_has_no_memory_is_full_and_asks_again_later():
    kept, number = Store(64 << 20), 0
    kept.keep(named(-1), b"")
    undo = without_memory(kept)
    while kept.contents().taken_bytes < 7 << 20:
        kept.where[2] = kept.file
        assert kept.keep(named(number), bytes(1 << 20)) is not None
        number += 1
    undo()
    undo = without_memory(kept)
    assert kept.keep(named(number), bytes(2 << 20)) is None
    assert not kept.has_room(1)
    contents = kept.contents()
    assert contents.is_full
    assert contents.is_short
    assert all(bytes(kept.find(named(one))) == bytes(1 << 20) for one in range(number))
    undo()
    while not kept.has_room(1 << 20):
        pass
    assert kept.keep(named(number), bytes(1 << 20)) is not None


def test_a_store_without_room_for_its_table_is_an_error():
    with pytest.raises(ValueError, match="no room for its table"):
        Store(4096)


def test_nothing_is_kept_where_the_host_has_little_memory_left(monkeypatch):
    free = [2 * reserve_of_host()]
    monkeypatch.setattr(store_module, "free_on_host", lambda: free[0])
    store = Store(SIZE)
    assert store.has_room(1)
    free[0] = reserve_of_host() - 1
    asked = [store.has_room(1) for _ in range(100)]
    assert asked[0]
    assert not asked[-1]
    free[0] = 2 * reserve_of_host()
    assert any(store.has_room(1) for _ in range(100))


def test_threads_and_processes_keep_side_by_side(new_store):
    kept = new_store(64 << 20)
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=keep, args=(kept, range(3_000 * one, 3_000 * one + 6_000))) for one in range(2)]
    # A store in a folder may be opened several times.
    other = new_store(64 << 20) if isinstance(kept, FileStore) else kept
    writers += [threading.Thread(target=keep, args=(other, range(3_000 * one, 3_000 * one + 6_000))) for one in (2, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all(found(kept, number) for number in range(15_000))
    assert not found(kept, 15_000)
    entries = kept.contents().entries
    assert entries == 4 * 6_000 if isinstance(kept, Store) else 15_000 <= entries <= 4 * 6_000


@pytest.mark.slow
def test_a_process_that_is_not_forked_gets_the_same_store(new_store):
    kept = new_store(SIZE)
    keep(kept, range(1))
    in_another_process(keep, kept, range(1, 2), method="forkserver")
    assert found(kept, 0)
    assert found(kept, 1)


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
        if isinstance(kept, FileStore):
            del kept  # as when the whole run is killed
            kept = new_store(size)
        number = first
        while found(kept, number):
            number += 1
        assert number > first + 200
        keep(kept, range(number, number + 100))
        assert all(found(kept, one) for one in range(number, number + 100))


def test_the_memory_is_given_back_when_the_last_view_is_gone():
    store = Store(64 << 20)
    view = store.keep(named(0), bytes(1000))
    before = len(os.listdir("/proc/self/fd"))
    del store
    assert len(os.listdir("/proc/self/fd")) < before
    assert bytes(view) == bytes(1000)


@pytest.fixture
def files_settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SETTLED_NS", 0)


def ticked(path: Path) -> Path:
    """Wait until a change of the file would have another time."""
    begun = path.stat().st_ctime_ns
    while time.time_ns() - begun < 50_000_000:
        time.sleep(0.01)
    return path


@pytest.mark.usefixtures("files_settle_at_once")
def test_files_have_keys_by_what_they_are_and_not_by_their_names(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(b"the same")
    (tmp_path / "link").symlink_to("a")
    keys = {}
    for path in (tmp_path / "a", tmp_path / "b", tmp_path / "link"):
        with path.open("rb") as file:
            keys[path.name] = key_of(file)
            assert same(keys[path.name], key_of_file(file.fileno()))
    assert same(keys["a"], keys["link"])
    assert not same(keys["a"], keys["b"])


@pytest.mark.usefixtures("files_settle_at_once")
def test_a_file_that_is_written_replaced_or_renamed_has_another_key(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"first")
    os.utime(path, ns=(1, 1))

    def key() -> object:
        with ticked(path).open("rb") as file:
            return key_of(file)

    first = key()
    path.write_bytes(b"other")
    os.utime(path, ns=(1, 1))  # the same size and time, as some tools preserve it
    second = key()
    path.rename(tmp_path / "new")
    (tmp_path / "new").rename(path)
    third = key()
    assert not same(first, second)
    assert not same(second, third)
    assert same(third, key())


def test_what_has_changed_lately_and_what_is_no_file_has_no_key(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"now")
    with path.open("rb") as file:
        assert key_of(file) is None
    with open(os.devnull, "rb") as device:
        assert key_of(device) is None
    assert key_of(object()) is None
    assert not same(None, None)


def test_contents_are_those_of_an_empty_store():
    contents = Store(SIZE).contents()
    assert contents == Contents(0, 0, contents.taken_bytes, False, False)
    assert contents.taken_bytes < 1 << 16


@pytest.mark.parametrize("new_store", ["memory"], indirect=True)
def test_a_store_that_outlives_its_modules_names_closes_its_file(new_store, monkeypatch):
    kept = new_store(1 << 20)
    file = kept.file
    monkeypatch.setattr(store_module, "os", None)  # as when an interpreter ends
    del kept
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
