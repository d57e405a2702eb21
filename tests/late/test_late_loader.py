"""Loaders that decode late deliver what they deliver with ``fuse=False``, and what torch delivers."""

from __future__ import annotations

import contextlib
import functools
import io
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from comparing import Dispatch, Function, jpeg, opened
from kit.comparison import difference
from kit.datasets import Made, Sized, Stream
from kit.outcomes import outcomes
from kit.ways import WAYS
from PIL import Image, JpegImagePlugin
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import DataLoader
from fastload.cache import shared, store

VERSION_1 = v1.Compose(
    [v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)]
)
VERSION_2 = v2.Compose(
    [v2.RandomResizedCrop(16), v2.ColorJitter(0.3), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
)


def files() -> list[bytes]:
    """Return files that are decoded late, and some that are not."""
    return [
        *(jpeg(40 + 5 * place, 50, "L" if place == 2 else "RGB", seed=place) for place in range(7)),
        jpeg(50, 40, progressive=True),
        jpeg(50, 40, "CMYK"),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for place, data in enumerate(files()):
        (folder / f"{place}.jpg").write_bytes(data)
    return folder


Make = Callable[[Path, Any], Any]


def rgb(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


def one_view(path: Path, transform: Any) -> Any:
    return transform(rgb(path))


def two_views(path: Path, transform: Any) -> Any:
    with Image.open(path) as image:
        image = image.convert("RGB")
    return transform(image), transform(image), np.array(image)[:9, :9]


def cached() -> Make:
    kept = functools.cache(rgb)
    return lambda path, transform: transform(kept(path))


def by_threads(path: Path, transform: Any) -> Any:
    image = rgb(path)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(lambda: np.array(rgb(path))[:9, :9])
        here = pool.submit(lambda: np.array(image.crop((0, 0, 9, 9))))
        return transform(image), other.result(), here.result()


def with_a_loader_of_its_own(path: Path, transform: Any) -> Any:
    image = rgb(path)
    inner = DataLoader(Made(2, lambda index: [np.array(rgb(path))[:9, :9], np.array(image.crop((0, 0, 9, 9)))]), None)
    return transform(image), *inner, np.array(image.crop((5, 5, 20, 20)))


def failing(path: Path, transform: Any) -> Any:
    image = rgb(path)
    if int(path.stem) % 4 == 1:
        data = path.read_bytes()
        image = Image.open(io.BytesIO(data[: len(data) // 2])).convert("RGB")
    return transform(image)


def shuffled(folder: Path) -> Iterator[Any]:
    """With a shuffle buffer of images that are not decoded yet."""
    buffer: list[Any] = []
    rng = random.Random(0)
    for path in sorted(folder.iterdir()) * 2:
        buffer.append(rgb(path))
        if len(buffer) == 4:
            yield VERSION_1(buffer.pop(rng.randrange(4)))
    yield from map(VERSION_1, buffer)


class Photos(Sized):
    """Sample i is what a function makes of file i and a transform, and i."""

    def __init__(self, folder: Path, transform: Any = VERSION_1, make: Make = one_view) -> None:
        self.paths = sorted(folder.iterdir())
        super().__init__(len(self.paths))
        self.transform, self.make = transform, make

    def __getitem__(self, index: int) -> Any:
        return self.make(self.paths[index], self.transform), index


class InBatches(Photos):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


DATASETS: dict[str, Callable[[Path], Any]] = {
    "one view": Photos,
    "in batches": lambda folder: InBatches(folder, VERSION_2),
    "two views": lambda folder: Photos(folder, make=two_views),
    "cached": lambda folder: Photos(folder, make=cached()),
    "by threads": lambda folder: Photos(folder, make=by_threads),
    "with a loader of its own": lambda folder: Photos(folder, make=with_a_loader_of_its_own),
    "truncated files": lambda folder: Photos(folder, make=failing),
    "a stream": lambda folder: Stream(functools.partial(shuffled, folder)),
}
each_way = pytest.mark.parametrize("way", ["inline", "threads", "processes"])


def epochs(dataset: Any, count: int = 2, **options: Any) -> list[Any]:
    """Return the batches of epochs, and the last lines of errors in their places."""
    torch.manual_seed(3)
    random.seed(3)
    with closing(DataLoader(dataset, **{"batch_size": 4, "seed": 1, **options})) as loader:
        found = [outcomes(iter(loader)) for _ in range(count)]
    return [[last_line(one) if isinstance(one, Exception) else one for one in batches] for batches in found]


def last_line(error: Exception) -> tuple[type, str]:
    return type(error), str(error).splitlines()[-1].removeprefix("OSError: ")


@functools.cache
def without_late_decoding(name: str, folder: Path, way: str) -> list[Any]:
    return epochs(DATASETS[name](folder), fuse=False, **WAYS[way])


@each_way
@pytest.mark.parametrize("name", DATASETS)
def test_samples_are_those_of_fuse_false(name, way, folder):
    # Workers change no sample, but those of a stream.
    expected = without_late_decoding(name, folder, way if name == "a stream" else "inline")
    assert difference(epochs(DATASETS[name](folder), **WAYS[way]), expected) is None


@pytest.mark.parametrize("name", ["one view", "cached", "a stream"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_torchs_seeding_samples_are_torchs_own_and_with_a_cache_too(name, num_workers, folder, monkeypatch):
    monkeypatch.setattr(store, "SETTLED_NS", 0)
    shuffle = {} if name == "a stream" else {"shuffle": True}
    cache = "32MiB" if num_workers else None

    def of(loader_class: Any, **options: Any) -> list[Any]:
        torch.manual_seed(5)
        loader = loader_class(DATASETS[name](folder), 4, num_workers=num_workers, **shuffle, **options)
        return [list(loader) for _ in range(2)]

    ours = of(DataLoader, seeding="torch", cache=cache)
    shared.forget()
    assert difference(ours, of(torch.utils.data.DataLoader)) is None


@each_way
def test_collate_fn_gets_pillows_own_images(way, folder):
    def pixels(samples: list[Any]) -> list[Any]:
        images = [sample["a"][0] for sample, _ in samples]
        assert all(type(image) in (Image.Image, JpegImagePlugin.JpegImageFile) for image in images)
        return [torch.from_numpy(np.array(image.convert("RGB"))) for image in images]

    dataset = Photos(folder, lambda image: {"a": [image]}, lambda path, transform: transform(Image.open(path)))
    late, plain = (epochs(dataset, 1, fuse=fuse, collate_fn=pixels, **WAYS[way]) for fuse in ("auto", False))
    assert difference(late, plain) is None


def test_a_cached_image_is_decoded_once_and_not_in_each_epoch(folder):
    with closing(DataLoader(Photos(folder, make=cached()), 4, seed=1)) as loader:
        counts = []
        for _ in range(5):
            list(loader)
            counts.append(sum(loader.statistics().decoded.values()))
    assert counts[1:] == counts[1:2] * 4
    assert counts[1] <= 2 * len(files())


def test_images_are_late_within_the_samples_of_a_loader_without_fuse_false_alone(folder):
    def is_plain(image: Any) -> bool:
        return type(image) is Image.Image

    loaders = [DataLoader(Photos(folder, is_plain), 9, fuse=fuse) for fuse in (False, "auto")]
    assert [next(iter(loader))[0].all() for loader in loaders] == [True, False]
    assert "are decoded when their pixels are needed" in " ".join(str(loaders[1].explain()).split())
    with Image.open(folder / "0.jpg") as image:
        assert type(image) is JpegImagePlugin.JpegImageFile


@pytest.mark.parametrize(
    "options", [{"num_workers": 2, "worker_threads": 3}, {"num_workers": 2, "worker_method": "thread"}], ids=str
)
@pytest.mark.parametrize("mode", [contextlib.nullcontext, Function, Dispatch])
def test_worker_threads_cut_first_unless_a_users_mode_may_see_the_calls(options, mode):
    to_float = v2.ToDtype(torch.float32, scale=True)
    crop = v2.Compose([v2.ToImage(), v2.RandomCrop(16), to_float, v2.Normalize([0.5] * 3, [0.25] * 3)])

    def sample(index: int) -> Any:
        with mode():
            return crop(opened(jpeg(40, 31, "RGB", seed=index)))

    with closing(DataLoader(Made(12, sample), 4, seed=1, **options)) as loader:
        late = list(loader)
        decoded = loader.statistics().decoded
    assert difference(late, epochs(Made(12, sample), 1, fuse=False)[0]) is None
    assert decoded == {"only what crops keep" if mode is contextlib.nullcontext else "whole": 12}
