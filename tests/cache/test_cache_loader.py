"""Loaders with a cache deliver what they deliver without, in every epoch; and share one cache in a process."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torch.utils.data
from kit.forks import is_true_in_a_child
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fastload import ConfigError, DataLoader
from fastload.base.memory import limit_of_host
from fastload.cache import shared, store
from fastload.cache.asked import read

KINDS = {
    "inline": {},
    "forked": {"num_workers": 2, "multiprocessing_context": "fork"},
    "not forked": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}
FUSED = [False, True]


@pytest.fixture(autouse=True)
def files_settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SETTLED_NS", 0)


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
    return DataLoader(photos(folder), 4, shuffle=True, seed=0, **KINDS[kind], **more, **options)


@pytest.mark.parametrize("fuse", FUSED)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_without_a_cache_in_every_epoch(folder, kind, fuse):
    expected = epochs(loader_of(folder, "inline", fuse))
    loader = loader_of(folder, kind, fuse, cache="32MiB")
    found = epochs(loader)
    for epoch, other in zip(found, expected, strict=True):
        for batch, other_batch in zip(epoch, other, strict=True):
            assert all(map(torch.equal, batch, other_batch))
    statistics = loader.statistics()
    if kind != "not forked":  # files just written are not kept there
        assert statistics.cached_files > 0
        assert not statistics.cache_is_full
        assert statistics.cached_bytes > 0
        assert any("from" in how for how in statistics.decoded)
        assert f"of {statistics.cached_files} files so far" in loader.explain()


def test_batches_are_torchs_with_torchs_seeding(folder):
    ours = DataLoader(photos(folder), 4, num_workers=2, seeding="torch", cache="32MiB")
    theirs = torch.utils.data.DataLoader(photos(folder), 4, num_workers=2)
    for _ in range(3):
        torch.manual_seed(7)
        expected = [[part.clone() for part in batch] for batch in theirs]
        torch.manual_seed(7)
        found = [[part.clone() for part in batch] for batch in ours]
        assert all(all(map(torch.equal, *pair)) for pair in zip(found, expected, strict=True))


def test_loaders_of_a_process_share_one_cache_which_outlives_them(folder):
    first = loader_of(folder, "forked", False, cache="32MiB")
    epochs(first, 1)
    kept = first.statistics().cached_files
    del first
    second = loader_of(folder, "inline", False, cache="32MiB")
    epochs(second, 1)
    assert second.statistics().cached_files == kept
    assert sum(number for how, number in second.statistics().decoded.items() if "from the cache" in how) >= kept - 2


def test_a_loader_that_is_pickled_goes_on_without_what_is_kept(folder):
    loader = loader_of(folder, "inline", False, cache="32MiB")
    epochs(loader, 1)
    assert pickle.loads(pickle.dumps(loader)).cache == "32MiB"


def test_a_forked_process_uses_the_cache_of_its_parent(folder):
    loader = loader_of(folder, "inline", False, cache="32MiB")
    epochs(loader, 1)
    kept = loader.statistics().cached_files

    def work() -> bool:
        epochs(loader, 1)
        return bool(loader.statistics().cached_files == kept)

    with shared._process.lock:  # by another thread at that moment, say
        assert is_true_in_a_child(work)


def test_auto_takes_half_of_what_is_free(folder, monkeypatch):
    monkeypatch.setattr(shared, "free_on_host", lambda: shared.reserve_of_host() + (64 << 20))
    loader = loader_of(folder, "inline", False, cache="auto")
    epochs(loader, 1)
    assert shared.records_of("auto").store.size == 32 << 20


def test_without_free_memory_auto_is_an_error_and_not_a_tiny_cache(folder, monkeypatch):
    monkeypatch.setattr(shared, "free_on_host", lambda: 0)
    with pytest.raises(ConfigError, match="finds no free memory"):
        next(iter(loader_of(folder, "inline", False, cache="auto")))


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("64KiB", None),
        ("1MiB", 1 << 20),
        (1 << 20, 1 << 20),
        ("1.5 GiB", 3 << 29),
        ("2097152B", 2 << 20),
        (np.int64(1 << 20), 1 << 20),
    ],
)
def test_sizes_are_read_with_their_units(value, size):
    if size is None:
        with pytest.raises(ConfigError, match="at least 1MiB"):
            read(value, None)
    else:
        assert read(value, None).size == size
        assert read("./folder", value).size == size


@pytest.mark.parametrize("value", ["64", "GiB", "64GB", "-1GiB", "", True, 1.5, b"1GiB", ["1GiB"]])
def test_what_is_no_size_is_an_error_that_names_the_units(value):
    with pytest.raises(ConfigError, match=r"cache must be .*got cache="):
        DataLoader([0], cache=value)


def test_more_than_the_machine_has_is_an_error():
    limit = limit_of_host()
    assert limit is not None
    for size in (limit + 1, "9" * 500 + "TiB"):
        with pytest.raises(ConfigError, match=r"is more than the .* of memory that this machine"):
            DataLoader([0], cache=size)


def test_two_sizes_in_a_process_are_an_error(folder):
    loader_of(folder, "inline", False, cache="32MiB")
    DataLoader([0], cache=32 << 20)
    with pytest.raises(
        ConfigError, match="share one cache, and the first of them has cache=33554432, got cache=67108864"
    ):
        DataLoader([0], cache="64MiB")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fuse": False}, "fuse=False decodes files by their own libraries"),
        ({"fuse": True, "decoder": "pillow"}, "decoder='pillow' knows files alone"),
        ({"worker_method": "ray", "num_workers": 1}, "Ray's workers do not share"),
    ],
)
def test_where_nothing_could_be_kept_is_an_error(options, why):
    with pytest.raises(ConfigError, match=why):
        DataLoader([0], cache="1MiB", **options)
