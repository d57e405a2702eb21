"""Loaders that decode late deliver what they deliver with ``fuse=False``, and what torch delivers."""

from __future__ import annotations

import functools
import io
import operator
import random
import re
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from comparing import jpeg
from PIL import Image, JpegImagePlugin
from torch.utils.data import ConcatDataset, Dataset, IterableDataset
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastload import DataLoader, replay

PLAIN = (Image.Image, JpegImagePlugin.JpegImageFile)


def files() -> list[bytes]:
    """Return files that are decoded late, some that are not, and one that is damaged."""
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


def _v1() -> Any:
    steps = [v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)]
    return v1.Compose(steps)


def _v2() -> Any:
    steps = [v2.RandomResizedCrop(16), v2.ColorJitter(0.3), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return v2.Compose(steps)


class Photos(Dataset[Any]):
    def __init__(self, folder: Path, transform: Any) -> None:
        self.paths = sorted(folder.iterdir())
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index

    def __len__(self) -> int:
        return len(self.paths)


class InBatches(Photos):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class TwoViews(Photos):
    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            image = image.convert("RGB")
        return self.transform(image), self.transform(image), np.array(image)[:9, :9]


class Cached(Photos):
    def __init__(self, folder: Path, transform: Any) -> None:
        super().__init__(folder, transform)
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = Image.open(self.paths[index]).convert("RGB")
        return self.transform(self.cache[index]), index


class ByThreads(Photos):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(lambda: np.array(Image.open(self.paths[index]).convert("RGB"))[:9, :9])
            here = pool.submit(lambda: np.array(image.crop((0, 0, 9, 9))))
            return self.transform(image), other.result(), here.result()


class Failing(Photos):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        if index % 4 == 1:
            data = self.paths[index].read_bytes()
            image = Image.open(io.BytesIO(data[: len(data) // 2])).convert("RGB")
        return self.transform(image), index


class Streamed(IterableDataset[Any]):
    """With a shuffle buffer of images that are not decoded yet."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.paths = sorted(folder.iterdir())
        self.transform = transform

    def __iter__(self) -> Iterator[Any]:
        buffer: list[Any] = []
        rng = random.Random(0)
        for path in self.paths * 2:
            buffer.append(Image.open(path).convert("RGB"))
            if len(buffer) == 4:
                yield self.transform(buffer.pop(rng.randrange(4)))
        yield from map(self.transform, buffer)


class Nested(Photos):
    """With a loader of its own, which leaves everything alone."""

    def __getitem__(self, index: int) -> Any:
        inner = DataLoader(Photos(self.paths[0].parent, v1.PILToTensor()), None, fuse=False)
        return super().__getitem__(index)[0], next(iter(inner))[0]


def flat(batches: Any) -> list[Any]:
    """Return what can be compared of batches."""
    if isinstance(batches, torch.Tensor):
        return [type(batches), batches.dtype, batches.shape, batches.stride(), batches.numpy().tobytes()]
    if isinstance(batches, (list, tuple)):
        return [type(batches), *map(flat, batches)]
    if isinstance(batches, dict):
        return [*batches, *map(flat, batches.values())]
    if isinstance(batches, Image.Image):
        return [type(batches), batches.mode, batches.size, batches.tobytes()]
    return [batches]


KINDS: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "forked": {"num_workers": 2, "multiprocessing_context": "fork"},
}


def epochs(dataset: Any, count: int = 2, **options: Any) -> list[Any]:
    torch.manual_seed(3)
    random.seed(3)
    with closing(DataLoader(dataset, **{"batch_size": 4, "seed": 1, **options})) as loader:
        return [flat(list(loader)) for _ in range(count)]


def _transform(cls: type[Any]) -> Any:
    return _v2() if cls is InBatches else _v1()


@functools.cache
def plain_epochs(cls: type[Any], folder: Path, kind: str) -> list[Any]:
    """Without late decoding. Workers change no sample, but those of a stream."""
    return epochs(cls(folder, _transform(cls)), fuse=False, **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cls", [Photos, InBatches, TwoViews, Cached, ByThreads, Nested, Streamed])
def test_samples_are_those_of_fuse_false(cls, kind, folder):
    late = epochs(cls(folder, _transform(cls)), **KINDS[kind])
    assert late == plain_epochs(cls, folder, kind if cls is Streamed else "inline")


def test_workers_that_inherit_nothing_decode_late(folder):
    with closing(
        DataLoader(Photos(folder, _v1()), 3, num_workers=1, seed=1, multiprocessing_context="forkserver")
    ) as loader:
        made = flat(list(loader))
        assert loader.statistics().decoded["late, in part"] > 0
    assert made == epochs(Photos(folder, _v1()), 1, batch_size=3, fuse=False)[0]


@pytest.mark.parametrize("cls", [Photos, Cached, Streamed])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_torchs_seeding_samples_are_torchs_own(cls, num_workers, folder):
    shuffle = {} if cls is Streamed else {"shuffle": True}

    def of(loader_class: Any, **options: Any) -> list[Any]:
        torch.manual_seed(5)
        loader = loader_class(cls(folder, _v1()), 4, num_workers=num_workers, **shuffle, **options)
        return [flat(list(loader)) for _ in range(2)]

    assert of(DataLoader, seeding="torch") == of(torch.utils.data.DataLoader)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_samples_that_fail_are_left_out_or_replaced_as_without(on_error, kind, folder):
    def made(fuse: Any) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return epochs(Failing(folder, _v1()), 1, fuse=fuse, on_error=on_error, **KINDS[kind])

    assert made("auto") == made(False)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_that_of_fuse_false(kind, folder):
    def error(fuse: Any) -> Any:
        with pytest.raises(OSError, match="truncated") as caught:
            epochs(Failing(folder, _v1()), 1, fuse=fuse, **KINDS[kind])
        return type(caught.value), re.findall("image file is truncated .*", str(caught.value))

    assert error("auto") == error(False)


def test_a_sample_is_replayed(folder):
    with closing(DataLoader(Photos(folder, _v1()), 4, shuffle=True, seed=1, num_workers=1)) as loader:
        images, indices = next(iter(loader))
        for image, index in zip(images, indices.tolist(), strict=True):
            assert torch.equal(replay(loader, 0, index)[0], image)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "transform", [lambda image: image, lambda image: {"a": [image.crop((1, 2, 9, 9))]}, operator.methodcaller("copy")]
)
def test_collate_fn_gets_pillows_own_images(transform, kind, folder):
    class Unread(Photos):
        def __getitem__(self, index: int) -> Any:
            return self.transform(Image.open(self.paths[index]))

    def types(samples: list[Any]) -> list[Any]:
        images = [sample["a"][0] if isinstance(sample, dict) else sample for sample in samples]
        assert all(type(image) in PLAIN for image in images)
        return [torch.from_numpy(np.array(image.convert("RGB"))) for image in images]

    late, plain = (
        epochs(Unread(folder, transform), 1, fuse=fuse, collate_fn=types, **KINDS[kind]) for fuse in ("auto", False)
    )
    assert late == plain


def test_a_cached_image_is_decoded_once_and_not_in_each_epoch(folder):
    with closing(DataLoader(Cached(folder, _v1()), 4, seed=1)) as loader:
        counts = []
        for _ in range(5):
            list(loader)
            counts.append(sum(loader.statistics().decoded.values()))
    assert counts[1:] == counts[1:2] * 4
    assert counts[1] <= 2 * len(files())


def test_a_pipeline_that_nothing_is_known_of_is_decoded_late_and_says_so(folder):
    with closing(DataLoader(Photos(folder, _v1()), 4, fuse=True, seed=1)) as loader:
        with pytest.warns(UserWarning, match="decoded late"):
            made = flat(list(loader))
        assert loader.statistics().decoded["late, in part"] > 0
        assert "decoded late" in loader.explain()
    assert made == epochs(Photos(folder, _v1()), 1, fuse=False)[0]


def test_fuse_false_leaves_images_alone(folder):
    def own(image: Any) -> int:
        return int(type(image) is Image.Image)

    assert epochs(Photos(folder, own), 1, fuse=False) != epochs(Photos(folder, own), 1)
    with closing(DataLoader(Photos(folder, own), 9, fuse=False)) as loader:
        assert next(iter(loader))[0].tolist() == [1] * 9


def test_after_an_iteration_nothing_is_late(folder):
    iterator = iter(DataLoader(Photos(folder, _v1()), 2))
    next(iterator)
    with Image.open(folder / "0.jpg") as image:
        assert type(image) is JpegImagePlugin.JpegImageFile


def _policies(version: Any) -> dict[str, list[Any]]:
    jitter = version.ColorJitter(0.4, 0.4, 0.2, 0.1)
    return {
        "jitter": [jitter, version.RandomGrayscale(0.3)],
        "applied at random": [version.RandomApply([jitter], 0.8), version.RandomSolarize(100, 0.5)],
        "more": [version.RandomPosterize(3), version.RandomEqualize(), version.RandomAutocontrast(), jitter],
        "TrivialAugment": [version.TrivialAugmentWide()],
        "RandAugment": [version.RandAugment(3, fill=9)],
        "AutoAugment": [version.AutoAugment()],
        "AugMix": [version.AugMix()],
        "grey": [version.Grayscale(3)],
    }


def _detection(*, to_image_first: bool) -> Any:
    moves = [v2.RandomIoUCrop(), v2.RandomHorizontalFlip()]
    first = [v2.ToImage(), *moves] if to_image_first else [*moves, v2.ToImage()]
    last = [v2.SanitizeBoundingBoxes(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
    run = v2.Compose([*first, v2.RandomPhotometricDistort(p=0.7), *last])

    def with_target(image: Image.Image) -> Any:
        width, height = image.size
        boxes = [[0, 0, width // 2, height // 2], [width // 3, height // 3, width, height]]
        boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width))
        masks = tv_tensors.Mask(torch.arange(2 * width * height).reshape(2, height, width).to(torch.uint8))
        return run(image, {"boxes": boxes, "masks": masks, "labels": torch.tensor([1, 2])})

    return with_target


CHANGES = {
    **{
        f"{name}, version {number}": version.Compose([version.RandomResizedCrop(32), *steps, version.PILToTensor()])
        for number, version in ((1, v1), (2, v2))
        for name, steps in _policies(version).items()
    },
    **{f"boxes, to image first: {first}": _detection(to_image_first=first) for first in (False, True)},
}


@pytest.mark.parametrize("name", CHANGES)
def test_workers_that_change_colors_and_boxes_make_what_they_make_without_late_decoding(name, tmp_path):
    for place in range(6):
        (tmp_path / f"{place}.jpg").write_bytes(jpeg(70 + place, 50, "L" if place == 3 else "RGB", seed=place))
    dataset = ConcatDataset([Photos(tmp_path, CHANGES[name])] * 4)
    with closing(DataLoader(dataset, None, num_workers=1, seed=1)) as loader:
        found = flat(list(loader))
        decoded = loader.statistics().decoded
    assert found == epochs(dataset, 1, batch_size=None, num_workers=1, fuse=False)[0]
    # Each once; the first may be whole, by a guess of earlier tests.
    assert decoded.keys() <= {"late, in part", "late, whole"}
    assert sum(decoded.values()) == 24
    assert decoded["late, in part"] > 5 or "to image first: False" in name
