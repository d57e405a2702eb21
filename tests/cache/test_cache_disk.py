"""A store in a folder: found again by later runs, whatever became of those before, and never believed unchecked."""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged_files import mutants
from entries import data_of, found, keep, named, opened
from kit.forks import is_true_in_a_child

from fastload import ConfigError, native
from fastload.base import file_systems
from fastload.cache import disk, record_file, request
from fastload.cache.disk import OLD_NAME, check
from fastload.cache.record_file import HEADER, INDEX, LINE, RECORDS

SIZE = 64 << 20


def test_folder_and_files_are_their_owners_alone(folder):
    opened(folder, SIZE)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {RECORDS: 0o600, INDEX: 0o600}


def test_what_processors_of_all_kinds_keep_is_found_by_all(folder, monkeypatch):
    kept = opened(folder, SIZE)
    for number, level in enumerate(("plain", native.processor_level())):
        monkeypatch.setattr(native, "processor_level", lambda level=level: level)
        record_file._crc32.cache_clear()
        keep(kept, range(number, number + 1))
        assert all(found(kept, one) for one in range(number + 1))
    record_file._crc32.cache_clear()


def test_processes_that_begin_at_once_have_one_store_and_find_what_others_keep(folder):
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(4)

    def work(number: int) -> None:
        together.wait()
        kept = opened(folder, SIZE)
        keep(kept, range(300 * number, 300 * number + 300))
        together.wait()
        assert all(found(kept, one) for one in range(1200))

    processes = [fork.Process(target=work, args=(number,)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    assert opened(folder, SIZE).contents().entries == 1200


def test_threads_that_look_for_what_others_have_kept_at_once_hide_nothing_that_comes_later(folder):
    ours, others = opened(folder, SIZE), opened(folder, SIZE)
    put, together = ours._put, threading.Barrier(2, timeout=10)

    def put_by_both(lines, all_count):
        together.wait()
        return put(lines, all_count)

    ours._put = put_by_both
    keep(others, range(10))
    threads = [threading.Thread(target=ours.find, args=(named(number),)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ours._put = put
    keep(others, range(10, 15))
    assert all(found(ours, number) for number in range(15))


def test_a_key_may_find_what_another_has_for_later_runs_or_for_this_one(folder):
    kept = opened(folder, SIZE)
    keep(kept, range(1))
    for number, lasts in ((100, True), (101, False)):
        kept.name(_words(number), named(0), lasts)
        assert bytes(kept.find(_words(number)) or b"") == data_of(0)
    later = opened(folder, SIZE)
    assert [later.find(_words(number)) is None for number in (100, 101)] == [False, True]
    assert later.contents().entries == 1


def _words(number: int) -> Any:
    key = named(0)
    key[:] = [2 * number] * 3
    return key


def flip(path: Path, place: int, mask: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes((byte ^ mask,)))


def attack(folder: Path, rng: np.random.Generator) -> None:
    """Damage a store as other programs or a machine that ends may."""
    path = folder / str(rng.choice([RECORDS, INDEX]))
    data = path.read_bytes()
    first = LINE.itemsize if path.name == INDEX else 0  # a damaged header is an error: see below
    place = int(rng.integers(first, len(data)))
    begin, word = data[:place], [0, 1, 1 << 31, 1 << 44, 1 << 63, (1 << 64) - 1][int(rng.integers(6))]
    damaged = [
        data[:first] + next(mutants(rng, [data[first:]])),
        begin + bytes(len(data) - place),
        begin + rng.bytes(500)[: len(data) - place] + data[place + 500 :],
        begin + bytes(4096)[: len(data) - place] + data[place + 4096 :],
        data[: place & -8] + word.to_bytes(8, "little") + data[(place & -8) + 8 :],
    ]
    data = damaged[int(rng.integers(len(damaged)))]
    with path.open("r+b") as file:  # the same file, which others have open
        file.truncate(len(data))
        file.write(data)


@pytest.mark.parametrize(
    ("in_use", "times"),
    [
        (False, 30),
        (True, 15),
        pytest.param(False, 600, marks=pytest.mark.thorough),
        pytest.param(True, 100, marks=pytest.mark.slow),
    ],
)
def test_of_a_damaged_store_nothing_false_is_found_and_it_is_gone_on_with(folder, in_use, times):
    rng = np.random.default_rng(times)
    numbers = range(40)

    def attempt() -> bool:
        keep(opened(folder, SIZE), numbers)
        for _ in range(times):
            kept = opened(folder, SIZE)
            attack(folder, rng)
            kept = kept if in_use else opened(folder, SIZE)
            for number in numbers:
                kept.ask_for(named(number))
                if not found(kept, number):
                    keep(kept, range(number, number + 1))
            assert all(found(kept, number) for number in numbers)
            later = opened(folder, SIZE)  # has lost what was found in the memory of that run
            assert all(found(later, number) or in_use for number in numbers)
        return True

    assert is_true_in_a_child(attempt)


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))  # a socket's path is 107 bytes at most


def in_place_of(path: Path, make: Callable[[Path], object]) -> None:
    path.rename(path.with_name("other"))
    make(path)


def no_disk(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / RECORDS).unlink()  # who has some uses them
    patch.setattr(disk, "room_on_disk", lambda _: (100 << 20, 50 << 20))


KIND = file_systems, "kind_of"
OTHER_FORMAT = r"was made by another version of fastload, or is damaged: delete that folder"
NO_FILES = [lambda path: path.symlink_to("other"), os.mkfifo, os.mkdir, listen]
FAULTS: list[tuple[str, Callable[[Path, int], object], Callable[[Path, pytest.MonkeyPatch], object]]] = [
    (OTHER_FORMAT, opened, lambda folder, _: (folder / OLD_NAME).write_bytes(bytes(1000))),
    (OTHER_FORMAT, opened, lambda folder, _: flip(folder / INDEX, HEADER.index(b"1"), 3)),
    (OTHER_FORMAT, opened, lambda folder, _: flip(folder / INDEX, 3)),
    (r"by others \(mode 770\); chmod 700 it", opened, lambda folder, _: folder.chmod(0o770)),
    (r"by others \(mode 702\); chmod 700 it", check, lambda folder, _: folder.chmod(0o702)),
    (r"belongs to user", check, lambda folder, patch: patch.setattr(os, "getuid", lambda: os.stat(folder).st_uid + 1)),
    (r"is no folder", check, lambda folder, _: (folder.rename(f"{folder}2"), folder.write_bytes(b""))),
    (r"cannot be read: No .*; is the disk mounted", check, lambda folder, _: folder.parent.rename(f"{folder.parent}2")),
    (r"cache_size is 64.0 MiB, but cache='.*' has room for 50.0 MiB: 100.0 MiB are", check, no_disk),
    *(
        (f"is on {kind}, whose files", check, lambda _, patch, kind=kind: patch.setattr(*KIND, lambda _: kind))
        for kind in ("nfs4", "cifs", "lustre", "fuse.sshfs", "fuse", "9p")
    ),
    *(
        (r"records and index cannot be opened there: .*; mend that, or give", opened,
         lambda folder, _, name=name, make=make: in_place_of(folder / name, make))
        for make in NO_FILES for name in (RECORDS, INDEX)
    ),
]  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("words", "call", "make"), FAULTS)
def test_what_cannot_be_a_caches_folder_is_an_error_that_says_why_and_is_left(folder, words, call, make, monkeypatch):
    keep(opened(folder, SIZE), range(10))
    monkeypatch.chdir(folder)
    make(folder, monkeypatch)
    before = contents(folder.parent)
    with pytest.raises(ConfigError, match=words):
        call(folder, SIZE)
    assert before.items() <= contents(folder.parent).items()


def test_a_folder_that_others_may_read_and_one_on_a_full_disk_that_has_records_can_be_a_caches(folder, monkeypatch):
    opened(folder, SIZE)
    folder.chmod(0o755)
    monkeypatch.setattr(disk, "room_on_disk", lambda _: (100 << 20, 50 << 20))
    check(folder, SIZE)


def test_a_store_whose_making_was_interrupted_is_gone_on_with(folder):
    folder.mkdir(0o700)
    for index in (None, b"", HEADER[:10]):
        for path in folder.iterdir():
            path.unlink()
        (folder / RECORDS).write_bytes(b"")
        if index is not None:
            (folder / INDEX).write_bytes(index)
        keep(opened(folder, SIZE), range(10))
        assert found(opened(folder, SIZE), 1)


def test_another_size_keeps_what_there_is_and_less_than_that_is_an_error(folder):
    keep(opened(folder, SIZE), range(100))
    assert opened(folder, 2 * SIZE).has_room(SIZE + SIZE // 2)
    small = opened(folder, 1 << 20)
    assert found(small, 7)
    assert not small.has_room(1 << 20)
    number = 1000
    while small.has_room(1000) and small.keep(named(number), bytes(1000)):
        number += 1
    assert small.contents().is_full
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 1 << 20
    with pytest.raises(
        ConfigError, match=r"already, which is more than cache_size=512.0 KiB; give at least as much, or"
    ):
        opened(folder, 512 << 10)


def test_a_disk_that_is_full_is_no_error_of_the_store_and_is_asked_again_later(folder):
    def attempt() -> bool:
        kept = opened(folder, SIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        with pytest.raises(OSError, match="File too large"):
            kept.keep(named(1), bytes(2 << 20))
        assert (folder / RECORDS).stat().st_size == 0
        assert not kept.has_room(1)
        assert kept.contents().is_short
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        while not kept.has_room(1):
            pass
        return kept.keep(named(1), bytes(2 << 20)) and kept.find(named(1)) is not None

    assert is_true_in_a_child(attempt)


def test_a_process_that_holds_the_lock_for_long_is_not_waited_for(folder, monkeypatch):
    ours, others = opened(folder, SIZE), opened(folder, SIZE)

    def is_refused() -> bool:
        monkeypatch.setattr(record_file, "_WAIT_S", 0.05)
        with pytest.raises(TimeoutError, match="another process has locked index"):
            others.keep(named(1), b"1")
        return True

    with ours.files._locked():
        assert is_true_in_a_child(is_refused)
    keep(others, range(1, 2))
    assert found(ours, 1)


class InBytes(os.PathLike[bytes]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> bytes:
        return os.fsencode(self.path)


@pytest.mark.parametrize("kind", [str, InBytes, lambda path: path])
@pytest.mark.parametrize("name", ["cache", os.fsdecode(b"\xff cache")])
def test_a_folder_may_be_given_as_text_or_as_a_path_of_text_or_bytes_and_be_in_the_users_home(
    tmp_path, kind, name, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (tmp_path / name, Path("~", name)):
        assert request.read(kind(given), "2MiB") == request.CacheRequest(2 << 20, tmp_path / name)


def test_what_was_read_stays_as_long_as_anybody_has_a_view_of_it(folder):
    kept, rng = opened(folder, SIZE), np.random.default_rng(0)
    data = {number: rng.bytes(int(rng.integers(1, 200_000))) for number in range(150)}
    data[150] = rng.bytes(5 << 20)
    for number, one in data.items():
        kept.keep(named(number), one)
    views = {number: kept.find(named(number)) for number in data}
    assert all(bytes(views[number] or b"") == one for number, one in data.items())
    for number in rng.permutation(150)[:75]:
        del views[int(number)]
    parts = [np.frombuffer(view[5:] or b"", np.uint8) for view in views.values() if view is not None]
    again = [kept.find(named(int(number))) for number in rng.permutation(150)]
    assert len(again) == 150
    assert [part.tobytes() for part in parts] == [data[number][5:] for number in views]
