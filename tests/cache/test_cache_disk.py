"""A store in a folder: found again by later runs, whatever became of those before, and never believed unchecked."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import signal
import socket
import warnings
from pathlib import Path

import numpy as np
import pytest
from entries import data_of, found, in_another_process, keep, named
from kit.forks import is_true_in_a_child

from fastload import ConfigError
from fastload.base import file_systems
from fastload.cache import asked, disk, store
from fastload.cache.disk import NAME, check, open_store
from fastload.native import processor_level

SIZE = 64 << 20


def test_a_later_run_finds_what_was_kept_and_keeps_more(folder):
    in_another_process(lambda: keep(open_store(folder, SIZE), range(5_000)))
    kept = open_store(folder, SIZE)
    assert all(found(kept, number) for number in range(5_000))
    assert not found(kept, 5_000)
    assert kept.contents().entries == 5_000
    keep(kept, range(5_000, 5_010))
    assert found(kept, 5_005)


def test_folder_and_file_are_their_owners_alone(folder):
    open_store(folder, SIZE)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600
    (folder / NAME).chmod(0o644)
    open_store(folder, SIZE)
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600
    assert os.listdir(folder) == [NAME]


def test_what_processors_of_all_kinds_keep_is_found_by_all(folder, monkeypatch):
    kept = open_store(folder, SIZE)
    for level in ("plain", processor_level()):
        monkeypatch.setattr(disk, "processor_level", lambda level=level: level)
        keep(kept, range(len(level), len(level) + 1))
        monkeypatch.setattr(disk, "processor_level", lambda: "plain")
        assert found(kept, len(level))
        monkeypatch.undo()
        assert found(kept, len(level))


def test_processes_that_begin_at_once_have_one_file(folder):
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(4)

    def work(number: int) -> None:
        together.wait()
        kept = open_store(folder, SIZE)
        keep(kept, range(1000 * number, 1000 * number + 1000))
        together.wait()
        assert all(found(kept, one) for one in range(4000))

    processes = [fork.Process(target=work, args=(number,)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    assert open_store(folder, SIZE).contents().entries == 4000


def places(folder: Path, number: int) -> list[int]:
    raw, places, at = (folder / NAME).read_bytes(), [], 0
    while (at := raw.find(data_of(number) + b"behind", at)) >= 0:
        places.append(at)
        at += 1
    return places


def flip(folder: Path, place: int) -> None:
    with (folder / NAME).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes((byte ^ 1,)))


@pytest.mark.parametrize("offset", [-24, -20, -16, -1, 0, 100])
def test_an_entry_of_which_a_bit_has_changed_is_not_used_and_kept_anew(folder, offset):
    kept = open_store(folder, SIZE)
    keep(kept, range(1000, 1010))
    (place,) = places(folder, 1005)
    flip(folder, place + offset)
    assert not found(kept, 1005)
    assert all(found(kept, number) for number in range(1000, 1010) if number != 1005)
    keep(kept, range(1005, 1006))
    assert found(kept, 1005)
    assert found(open_store(folder, SIZE), 1005)


def test_a_file_of_which_anything_was_lost_is_never_believed(folder):
    """A machine that ends may have written any of the pages, and not the others."""
    keep(open_store(folder, SIZE), range(500))
    whole = (folder / NAME).read_bytes()[: 8 << 20]
    end = whole.rindex(b"behind") + 6
    found_at_all = 0
    for lost in range(0, end, 4096):
        with (folder / NAME).open("r+b") as file:
            file.write(whole)
            file.seek(lost)
            file.write(bytes(4096))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # begun anew, it may say
            kept = open_store(folder, SIZE)
        found_at_all += sum(found(kept, number) for number in range(500))
        keep(kept, range(500, 520))
        assert all(found(kept, number) for number in range(500, 520))
        del kept
    assert found_at_all


@pytest.mark.parametrize("number", range(16))
def test_a_beginning_with_any_number_in_it_is_begun_anew_or_goes_on(folder, number):
    keep(open_store(folder, SIZE), range(100))
    with (folder / NAME).open("r+b") as file:
        file.seek(8 * number)
        file.write(b"\xff" * 8)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kept = open_store(folder, SIZE)
    keep(kept, range(100, 200))
    assert all(found(kept, one) for one in range(100, 200))
    assert found(kept, 5) or any("is begun anew" in str(one.message) for one in said)


def numbers_of(folder: Path) -> list[int]:
    """Return where numbers are in the file: of its beginning, its first table, and its entries."""
    raw = (folder / NAME).read_bytes()
    words = np.frombuffer(raw[: raw.rindex(b"behind") & -8], np.uint64)
    return [*range(72), *(np.flatnonzero(words[72:]) + 72)]


def test_numbers_that_are_overwritten_in_use_end_no_process_and_give_nothing_false(folder):
    keep(open_store(folder, SIZE), range(8))
    path, numbers = folder / NAME, numbers_of(folder)
    whole = path.read_bytes()[: 64 << 10]

    def attempt() -> bool:
        with path.open("r+b", buffering=0) as file:
            for word in numbers:
                for value in (0, 16, 24, SIZE - 1, SIZE - 16, (1 << 44) + 16, 1 << 63, (1 << 64) - 1):
                    kept = open_store(folder, SIZE)
                    file.seek(8 * word)
                    file.write(value.to_bytes(8, "little"))
                    for number in range(8):
                        found(kept, number)
                        kept.ask_for(named(number))
                    kept.contents()
                    if kept.has_room(1000):
                        keep(kept, range(8, 12))
                    assert all(found(kept, number) in (True, False) for number in range(12))
                    del kept
                    file.seek(0)
                    file.write(whole)
        return True

    assert is_true_in_a_child(attempt)


@pytest.mark.parametrize("length", [8, 4096, 8 << 20, SIZE - 1])
def test_a_file_that_is_shortened_in_use_ends_no_process_and_holds_nothing(folder, length):
    def attempt() -> bool:
        kept = open_store(folder, SIZE)
        keep(kept, range(10))
        assert not kept.contents().is_damaged
        os.truncate(folder / NAME, length)
        keep(kept, range(10, 20))
        has_any = any(found(kept, number) or kept.ask_for(named(number)) for number in range(20))
        return kept.contents().is_damaged and not kept.has_room(1) and not has_any

    assert is_true_in_a_child(attempt)
    with pytest.warns(UserWarning, match="is begun anew: it is damaged"):
        open_store(folder, SIZE)


def test_a_file_of_another_version_is_begun_anew_with_a_word(folder):
    keep(open_store(folder, SIZE), range(10))
    flip(folder, 0)
    with pytest.warns(UserWarning, match=r"cache' is begun anew: it was made by another version of fastload"):
        kept = open_store(folder, SIZE)
    assert not found(kept, 1)
    keep(kept, range(10))
    assert found(open_store(folder, SIZE), 1)


def test_a_file_whose_making_was_interrupted_is_made_again(folder):
    folder.mkdir(0o700)
    for made in (b"", bytes(1 << 20)):
        (folder / NAME).write_bytes(made)
        keep(open_store(folder, SIZE), range(10))
        assert found(open_store(folder, SIZE), 1)


def test_another_size_keeps_what_there_is_if_nobody_has_the_file(folder):
    keep(open_store(folder, SIZE), range(100))
    grown = open_store(folder, 2 * SIZE)
    assert grown.contents().entries == 100
    assert grown.has_room(SIZE + SIZE // 2)
    with pytest.raises(ConfigError, match=f"is in use with {2 * SIZE} bytes, got cache_size={SIZE}; give the same"):
        open_store(folder, SIZE)
    del grown
    shrunk = open_store(folder, SIZE // 2)
    assert found(shrunk, 7)
    assert not shrunk.has_room(SIZE)
    for number in range(20):
        shrunk.keep(named(-number), (bytes(1 << 20),))
    del shrunk
    with pytest.warns(UserWarning, match="is more than cache_size=16.0 MiB"):
        assert not found(open_store(folder, 16 << 20), 7)


def test_the_file_is_in_use_for_as_long_as_any_process_has_it(folder):
    kept = open_store(folder, SIZE)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)  # until the other end is closed
        os._exit(0)
    os.close(reading)
    del kept
    with pytest.raises(ConfigError, match="is in use with"):
        open_store(folder, 2 * SIZE)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(writing)
    assert open_store(folder, 2 * SIZE).size == 2 * SIZE


def test_a_process_waits_for_another_that_makes_the_file_and_not_for_ever(folder, monkeypatch):
    folder.mkdir(0o700)
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    monkeypatch.setattr(disk, "_WAIT_S", 0.05)
    with pytest.raises(ConfigError, match=r"another process has locked the folder for more than 0\.05 s"):
        open_store(folder, SIZE)
    os.close(other)
    assert open_store(folder, SIZE).size == SIZE


def test_on_a_disk_that_is_really_full_nothing_ends_by_a_signal(tmp_path):
    """On a disk of its own, where the system lets users have one."""
    libc = pytest.importorskip("ctypes").CDLL(None, use_errno=True)
    mounted = tmp_path / "disk"
    mounted.mkdir()
    user, group = os.getuid(), os.getgid()

    def mount() -> bool:
        if libc.unshare(0x10000000 | 0x00020000):  # CLONE_NEWUSER, CLONE_NEWNS
            return False
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        return libc.mount(b"t", str(mounted).encode(), b"tmpfs", 0, b"size=20m") == 0

    def fill() -> bool:
        assert mount()
        disk._room = lambda _: (1 << 40, 0)  # others write meanwhile
        kept, number = open_store(mounted / "cache", SIZE), 0
        while kept.has_room(1 << 20) and kept.keep(named(number), (bytes(1 << 20),)) is not None:
            number += 1
        return 10 < number < 20 and all(kept.find(named(one)) is not None for one in range(number))

    if not is_true_in_a_child(mount):
        pytest.skip("the system lets this user mount nothing")
    assert is_true_in_a_child(fill)


def test_a_file_that_may_not_become_so_large_is_an_error(folder):
    def attempt() -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, SIZE // 2))
        with pytest.raises(ConfigError, match=r"the system makes no file of 64.0 MiB there: File too large"):
            open_store(folder, SIZE)
        return os.listdir(folder) == [] and open_store(folder, SIZE // 2).size == SIZE // 2

    assert is_true_in_a_child(attempt)


def test_nothing_is_kept_below_the_reserve_of_the_disk(folder, monkeypatch):
    kept, room = open_store(folder, SIZE), [2, 1]
    monkeypatch.setattr(disk, "_room", lambda _: tuple(room))
    assert kept.has_room(1)
    room[0] = 0
    assert not all(kept.has_room(1) for _ in range(100))
    room[0] = 2
    assert any(kept.has_room(1) for _ in range(100))


def test_a_size_beyond_the_room_on_the_disk_is_an_error_but_not_for_those_who_have_it(folder, monkeypatch):
    monkeypatch.setattr(disk, "_room", lambda _: (100 << 20, 50 << 20))
    check(folder, 50 << 20, has_begun=False)
    with pytest.raises(
        ConfigError, match=r"cache_size is 64.0 MiB, and at cache='.*' 50.0 MiB can be had: 100.0 MiB are"
    ):
        check(folder, SIZE, has_begun=False)
    check(folder, SIZE, has_begun=True)


@pytest.mark.parametrize("size", [SIZE, 2 * SIZE, SIZE // 2])
def test_a_run_that_is_started_again_on_a_full_disk_goes_on_with_what_was_kept(folder, monkeypatch, size):
    keep(open_store(folder, SIZE), range(10))
    monkeypatch.setattr(disk, "_room", lambda _: (0, 50 << 20))
    check(folder, size, has_begun=False)
    kept = open_store(folder, size)
    assert all(found(kept, number) for number in range(10))
    assert not kept.has_room(1)
    assert kept.contents().is_short


def test_a_folder_of_another_user_or_open_to_others_is_an_error(folder, monkeypatch):
    folder.mkdir()
    for mode in (0o770, 0o702):
        folder.chmod(mode)
        for attempt in (lambda: check(folder, SIZE, has_begun=False), lambda: open_store(folder, SIZE)):
            with pytest.raises(ConfigError, match=rf"may be written to by others \(mode {mode:o}\); chmod 700 it"):
                attempt()
    folder.chmod(0o755)
    check(folder, SIZE, has_begun=False)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(folder).st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to user"):
        check(folder, SIZE, has_begun=False)


def test_what_is_no_folder_not_there_or_on_a_network_is_an_error(tmp_path, folder, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="is no folder"):
        check(tmp_path / "file", SIZE, has_begun=False)
    with pytest.raises(ConfigError, match=r"cannot be read: No such file or directory; is its disk mounted"):
        check(tmp_path / "no" / "folder", SIZE, has_begun=False)
    for kind in ("nfs4", "cifs", "lustre", "fuse.sshfs", "fuse", "9p"):
        monkeypatch.setattr(file_systems, "kind_of", lambda _, kind=kind: kind)
        with pytest.raises(ConfigError, match=f"is on {kind}, whose files"):
            check(folder, SIZE, has_begun=False)


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))  # a socket's path is 107 bytes at most


@pytest.mark.parametrize(
    "make",
    [lambda path: path.symlink_to(path.with_name("other")), os.mkfifo, os.mkdir, listen],
    ids=["symbolic link", "FIFO", "folder", "socket"],
)
def test_what_is_no_file_in_place_of_the_file_is_named_and_left(folder, make, monkeypatch):
    folder.mkdir(0o700)
    monkeypatch.chdir(folder)
    (folder / "other").write_bytes(b"mine")
    make(folder / NAME)
    with pytest.raises(ConfigError, match=f"cache='.*': {NAME} in it is no plain file; remove it, or give"):
        open_store(folder, SIZE)
    assert sorted(os.listdir(folder)) == [NAME, "other"]
    assert (folder / "other").read_bytes() == b"mine"


class InBytes(os.PathLike[bytes]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> bytes:
        return os.fsencode(self.path)


@pytest.mark.parametrize("kind", [str, InBytes, lambda path: path])
@pytest.mark.parametrize("name", ["cache", os.fsdecode(b"\xff cache")])
def test_a_folder_may_be_given_as_text_or_as_a_path_of_text_or_bytes(tmp_path, kind, name):
    assert asked.read(kind(tmp_path / name), "2MiB") == asked.Asked(2 << 20, tmp_path / name)


def test_a_file_system_that_allocates_nothing_in_advance_is_an_error(folder, monkeypatch):
    def unable(file: int, begin: int, length: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(store, "allocate", unable)
    with pytest.raises(ConfigError, match=r"cannot allocate a file in advance \(fallocate\)"):
        open_store(folder, SIZE)
    assert os.listdir(folder) == []
