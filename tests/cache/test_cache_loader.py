"""Loaders with a cache deliver what they deliver without, in every epoch; and share one cache in a process."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import signal
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from kit.comparison import difference
from kit.datasets import Made
from kit.forks import is_true_in_a_child
from kit.ways import WAYS
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import fastload
from fastload import ConfigError, DataLoader, verify
from fastload.base.memory import limit_of_host
from fastload.cache import record_file, records, shared, store
from fastload.cache.request import read

FUSED = [False, True]
pytestmark = pytest.mark.usefixtures("files_settle_at_once")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are kept; some that are not; and one that is damaged, of which libjpeg warns."""
    root = tmp_path_factory.mktemp("photos")
    for kind in "ab":
        (root / kind).mkdir()
    rng = np.random.default_rng(0)
    for place in range(12):
        coarse = PIL.Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).resize((90 + place, 80))
        options: dict[str, Any] = {"progressive": place == 5}
        if place == 3:
            coarse = coarse.convert("L")
        data = io.BytesIO()
        coarse.save(data, "PNG" if place == 7 else "JPEG", **options)
        raw = data.getvalue()
        if place == 9:
            raw = raw[:-200] + b"\0" * 50 + raw[-150:]
        (root / "ab"[place % 2] / f"{place:02d}.jpg").write_bytes(raw)
    return root


def photos(folder: Path) -> ImageFolder:
    steps = [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)]
    return ImageFolder(folder, v1.Compose(steps))


def epochs(loader: Any, count: int = 3) -> list[Any]:
    return [[[part.clone() for part in batch] for batch in loader] for _ in range(count)]


def loader_of(folder: Path, kind: str, fuse: bool, **options: Any) -> Any:
    more = {"fuse": True} if fuse else {}
    return DataLoader(photos(folder), 4, shuffle=True, seed=0, **WAYS[kind], **more, **options)


@pytest.fixture
def on_disk(tmp_path: Path) -> dict[str, Any]:
    return {"cache": tmp_path / "cache", "cache_size": "32MiB"}


STORES = [(where, kind) for where in ("memory", "folder") for kind in ("inline", "processes", "threads")]
STORES += [("folder of other inodes", "inline"), ("folder of other inodes", "processes")]
# A fork server imports torch for seconds.
STORES += [pytest.param(where, "forkserver", marks=pytest.mark.slow) for where in ("memory", "folder")]


@pytest.mark.parametrize("fuse", FUSED)
@pytest.mark.parametrize(("where", "kind"), STORES)
def test_batches_are_those_without_a_cache_in_every_epoch_and_run(folder, monkeypatch, where, kind, fuse, on_disk):
    in_memory, lasting = where == "memory", where == "folder"
    monkeypatch.setattr(records, "has_lasting_inodes", lambda _: lasting)
    expected = epochs(loader_of(folder, "inline", fuse))
    options = {"cache": "32MiB"} if in_memory else on_disk

    def first_run() -> None:
        # A forkserver is its own process's. What fused loaders keep, others find, and the other way round.
        first = loader_of(folder, kind if kind != "forkserver" else "inline", fuse != lasting, **options)
        assert difference(epochs(first), epochs(loader_of(folder, "inline", fuse != lasting))) is None

    if not in_memory:
        in_a_run(first_run)
    loader = loader_of(folder, kind, fuse, **options)
    assert difference(epochs(loader), expected) is None
    statistics = loader.statistics()
    assert fuse or counts(loader, "only what crops keep") > 0  # also of workers that inherit nothing
    assert not statistics.cache_is_full
    assert statistics.cache_folder == (None if in_memory else str(on_disk["cache"]))
    assert ("on the disk, for later runs too" in loader.explain()) != in_memory
    if kind != "forkserver":  # where files just written have no key
        epochs_found = 3 if lasting else 2
        assert counts(loader, ", from") >= (epochs_found * 9 if not in_memory else 1)
        assert in_memory or counts(loader, ", kept in the cache") == (0 if lasting or fuse else 9)
    if in_memory and kind != "forkserver":
        # Of the files one is PNG, one is progressive, and one is damaged.
        assert statistics.not_kept == {records.OTHER_FORMAT: 3, records.NO_RECORD: 6}
        assert sum(statistics.decoded.values()) == 3 * 12
        assert f"files were read: 6 {records.NO_RECORD}, 3 {records.OTHER_FORMAT}" in loader.explain()
    if kind != "forkserver" or not in_memory:
        assert statistics.cached_files == 12 - 1  # of a PNG nothing is known
        assert statistics.cached_bytes > 0
        assert f"of {statistics.cached_files} files so far" in loader.explain()


def fails(*_: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("fuse", FUSED)
@pytest.mark.parametrize(
    ("what", "name", "instead", "reason"),
    [
        (store, "free_on_host", lambda: 0, records.FULL),
        (store, "SETTLED_NS", 1 << 60, records.CHANGED),
        (store.Store, "keep", fails, records.NOT_WRITTEN),
        (store.Store, "keep", lambda *_: False, records.FULL),
    ],
)
def test_it_is_said_why_files_that_might_be_kept_are_not(folder, fuse, monkeypatch, what, name, instead, reason):
    loader = loader_of(folder, "inline", fuse, cache="32MiB")
    shared.records_of("32MiB")
    monkeypatch.setattr(what, name, instead)
    assert difference(epochs(loader, 1), epochs(loader_of(folder, "inline", fuse), 1)) is None
    assert loader.statistics().not_kept[reason] >= 9


def test_the_profiler_records_what_the_cache_takes(folder):
    loader = loader_of(folder, "inline", False, cache="32MiB")
    with fastload.profile(loader, level=2) as recorded:
        epochs(loader, 2)
    steps = recorded.trace().ranks[0].steps
    stages = {stage.name for step in steps for task in step.batch.tasks for one in task.samples for stage in one.stages}
    assert {"cache.find", "cache.keep", "cache.decode", "late.decode"} <= stages


def test_a_cache_outlives_its_loader_and_is_that_of_all_loaders_copies_and_forked_processes(folder):
    first = loader_of(folder, "processes", False, cache="32MiB")
    epochs(first, 1)
    kept = first.statistics().cached_files
    copied = pickle.loads(pickle.dumps(first))
    del first
    for loader in (copied, loader_of(folder, "inline", False, cache="32MiB")):
        epochs(loader, 1)
        assert loader.statistics().cached_files == kept
        assert counts(loader, "from the cache") >= kept - 2

    def work() -> bool:
        epochs(loader, 1)
        return bool(loader.statistics().cached_files == kept)

    with shared._process.lock:  # by another thread at that moment, say
        assert is_true_in_a_child(work)


def test_auto_takes_half_of_what_is_free_and_is_an_error_where_that_is_nothing(folder, monkeypatch):
    monkeypatch.setattr(shared, "free_on_host", lambda: 0)
    loader = loader_of(folder, "inline", False, cache="auto")
    with pytest.raises(ConfigError, match="finds no free memory"):
        next(iter(loader))
    monkeypatch.setattr(shared, "free_on_host", lambda: shared.reserve_of_host() + (64 << 20))
    epochs(loader, 1)
    assert shared.records_of("auto").store.size == 32 << 20


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (1 << 20, 1 << 20),
        ("1.5 GiB", 3 << 29),
        ("2097152B", 2 << 20),
        (np.int64(1 << 20), 1 << 20),
        ("2000kB", 2_000_000),
        ("0.002GB", 2_000_000),
        (" 2 mib ", 2 << 20),
        ("500kB", None),
    ],
)
def test_sizes_are_read_with_their_units(value, size):
    if size is None:
        with pytest.raises(ConfigError, match="at least 1MiB"):
            read(value, None)
    else:
        assert read(value, None).size == size
        assert read("./folder", value).size == size


UNITS = r"cache must be .*got cache=.*units are [^;]*$"
BEYOND = r"is more than the .* of memory that this machine"
LEFT_OUT = [
    *((UNITS, {"cache": size}) for size in ("64", "GiB", "GB", "64G", "1e9", "5XB", "-1GiB", "-1GB", "\u0663GB", "")),
    *((r"cache must be None", {"cache": size}) for size in (True, 1.5, b"1GiB", ["1GiB"])),
    *((BEYOND, {"cache": size}) for size in ((limit_of_host() or 0) + 1, "9" * 500 + "TiB")),
    (r"ends with Ray's workers, after an epoch", {"cache": "1MiB", "worker_method": "ray", "num_workers": 1}),
    (r"is a folder, and needs cache_size", {"cache": "./here"}),
    (r"cache_size must be a size as '64GiB'.*are B, kB, MB, GB, ", {"cache": "./here", "cache_size": "200 giga"}),
    (r"cache_size must be a size as '64GiB'", {"cache": "./here", "cache_size": "auto"}),
    (r"cache_size must be at least 1MiB", {"cache": "./here", "cache_size": 1000}),
    (r"cache_size='1MiB' goes with a folder", {"cache_size": "1MiB"}),
    (r"cache must be a folder with a slash in it, as './here', 'auto', or a size", {"cache": "here"}),
    (r"which has a slash in it, as .* got cache='here'", {"cache": "here", "cache_size": "1MiB"}),
    (r"cache='/local/a\\x00b' has a null byte", {"cache": "/local/a\0b", "cache_size": "1MiB"}),
    (r"cache='/local/a\\x00b' has a null byte", {"cache": Path("/local/a\0b"), "cache_size": "1MiB"}),
]


@pytest.mark.parametrize(("why", "arguments"), LEFT_OUT)
def test_what_can_be_no_cache_is_an_error_that_says_why(why, arguments):
    if arguments.get("worker_method") == "ray":
        pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=why):
        DataLoader([0], **arguments)


def test_two_sizes_in_a_process_are_an_error(folder):
    loader_of(folder, "inline", False, cache="32MiB")
    DataLoader([0], cache=32 << 20)
    with pytest.raises(ConfigError, match="share one cache, and the first one has cache=33554432, got cache=67108864"):
        DataLoader([0], cache="64MiB")


def in_a_run(work: Callable[[], object]) -> None:
    """Do something in a process of its own, which begins without a cache, and ends by SIGKILL."""

    pid = os.fork()
    if pid == 0:
        try:
            shared.forget()
            work()
            os.kill(os.getpid(), signal.SIGKILL)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def counts(loader: Any, words: str) -> int:
    return sum(number for how, number in loader.statistics().decoded.items() if words in how)


@pytest.mark.parametrize("fuse", FUSED)
def test_between_two_runs_a_copied_file_is_known_by_what_is_in_it_and_a_changed_one_read_again(
    folder, tmp_path, fuse, on_disk
):
    in_a_run(lambda: epochs(loader_of(folder, "inline", fuse, **on_disk), 1))
    copied = tmp_path / "photos"
    shutil.copytree(folder, copied)
    loader = loader_of(copied, "inline", fuse, **on_disk)
    epochs(loader, 1)
    kept = loader.statistics()
    assert kept.cached_files == 11
    changed = copied / "a" / "00.jpg"
    before = changed.stat()
    PIL.Image.new("RGB", (90, 80), "red").save(changed, "JPEG")
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert difference(epochs(loader, 1), epochs(loader_of(copied, "inline", fuse), 2)[1:]) is None
    assert loader.statistics().cached_files == 12


@pytest.mark.parametrize("fuse", FUSED)
def test_files_that_stay_open_are_left_where_reading_would_have_left_them(folder, tmp_path, fuse, on_disk):
    """Whoever has kept them."""
    long = tmp_path / "photos" / "a"
    long.mkdir(parents=True)
    raw = (folder / "a" / "00.jpg").read_bytes()
    for name, behind in (("0", b""), ("1", bytes(40_000)), ("2", bytes(200_000))):
        (long / f"{name}.jpg").write_bytes(raw + behind)
    in_a_run(lambda: epochs(loader_of(tmp_path / "photos", "inline", fuse, **on_disk), 1))
    places = Made(3, partial(place_after, long))
    expected = list(DataLoader(places, None))
    loader = DataLoader(places, None, **on_disk)
    assert list(loader) == expected
    assert counts(loader, "from the cache") == 3
    assert len(set(expected)) == 3


def place_after(folder: Path, index: int) -> int:
    with open(folder / f"{index}.jpg", "rb") as file:
        PIL.Image.open(file).convert("RGB").getpixel((0, 0))
        return file.tell()


def test_a_full_disk_is_said_once_and_changes_no_batch(folder, on_disk, monkeypatch):
    def refusing(file: int, data: bytes, place: int) -> None:
        if place > 20_000:
            raise OSError(28, "No space left on device")
        write(file, data, place)

    write = record_file._write
    monkeypatch.setattr(record_file, "_write", refusing)
    expected = epochs(loader_of(folder, "inline", False))
    loader = loader_of(folder, "processes", False, **on_disk)
    with pytest.warns(UserWarning, match=r"the disk of cache='.*' is full: no more is kept there") as said:
        assert difference(epochs(loader), expected) is None
    assert len([one for one in said if "is full" in str(one.message)]) == 1
    assert 0 < loader.statistics().cached_files < 11
    assert "it is full" in loader.explain()


@pytest.mark.slow
@pytest.mark.parametrize("fuse", FUSED)
def test_verify_compares_a_cache_with_none(folder, tmp_path, fuse):
    loader = loader_of(folder, "inline", fuse, cache=tmp_path / "cache", cache_size="32MiB")
    report = verify(loader, methods=["fork"])
    having = [check for check in report.checks if check.name == "cache"]
    assert [(check.setting, check.verdict) for check in having] == [
        ("inline, with its cache, 2 epochs", "equal"),
        ("2 fork, with its cache, 2 epochs", "equal"),
    ]
    assert report.ok
    assert shared.records_of(loader.cache, loader.cache_size).store.contents().entries == 11


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what a process reads")
@pytest.mark.parametrize("fuse", FUSED)
def test_from_the_second_epoch_on_at_most_the_headers_of_files_are_read(tmp_path, fuse):
    rng = np.random.default_rng(0)
    (tmp_path / "a").mkdir()
    for place in range(4):
        path = tmp_path / "a" / f"{place}.jpg"
        PIL.Image.fromarray(rng.integers(0, 256, (600, 600, 3), dtype=np.uint8)).save(path, quality=95)
    num_bytes = sum(path.stat().st_size for path in (tmp_path / "a").iterdir())
    loader = loader_of(tmp_path, "inline", fuse, cache="32MiB")
    read = [num_bytes_read()]
    for _ in range(2):
        epochs(loader, 1)
        read.append(num_bytes_read())
    assert read[1] - read[0] >= num_bytes
    assert read[2] - read[1] < num_bytes // 16  # and what else is looked up


def num_bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])
