"""Where late decoding is on, and that nothing late leaves a sample."""

from __future__ import annotations

import collections
import functools
import gc
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from chains import HOLDERS
from comparing import as_sample, assert_equal, jpeg, opened
from kit.forks import is_true_in_a_child
from PIL import Image, JpegImagePlugin

from fastload.late import LateSamples
from fastload.late.image import is_late

FILE = jpeg()


@pytest.fixture(autouse=True)
def _nothing_has_outlived_its_sample():
    LateSamples.outlived.clear()


def large() -> Image.Image:
    """Return an image whose pixels take more memory than its file."""
    image = opened(FILE)
    image.load()
    return image.convert("RGB")


class Slotted:
    __slots__ = ("__hidden", "unset")

    def __init__(self, image: Any) -> None:
        self.__hidden = image


class Named(Slotted):
    def __init__(self, image: Any) -> None:
        super().__init__(None)
        self.image = image


def objects(image: Any) -> np.ndarray:
    found = np.empty((1, 1), dtype=object)
    found[0, 0] = image
    return found


def ring(image: Any) -> list[Any]:
    found: list[Any] = [image]
    found.append(found)
    return found


def in_a_keyword(image: Any) -> Any:
    return lambda *, found=image: found


def in_an_attribute(image: Any) -> Any:
    def made() -> None:
        pass

    made.image = image  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    "hold",
    [
        *(hold for hold, _ in HOLDERS.values()),
        in_a_keyword,
        in_an_attribute,
        lambda image: functools.partial(np.asarray, dtype=None, object=image),
        lambda image: zip([1], [image], strict=True),
        lambda image: {1: image}.values(),
        lambda image: image.crop,
        lambda image: functools.lru_cache(lambda: image),
        lambda image: KeyError(image),
        lambda image: {frozenset([1]): (image,)},
        Slotted,
        Named,
        objects,
        ring,
        lambda image: collections.deque([image]),
        lambda image: types.SimpleNamespace(image=image),
    ],
    ids=lambda hold: getattr(hold, "__name__", None),
)
@pytest.mark.parametrize("make", [lambda: opened(FILE), large, lambda: large().crop((1, 2, 30, 31))])
def test_no_image_in_a_sample_is_late(hold, make):
    images = []

    def sample() -> Any:
        images.append(make())
        assert is_late(images[0])
        return hold(images[0])

    as_sample(sample)
    assert type(images[0]) in (Image.Image, JpegImagePlugin.JpegImageFile)


def test_an_image_of_another_threads_unfinished_sample_is_made_ordinary():
    kept: list[Any] = []
    is_made, is_taken = threading.Event(), threading.Event()

    def first() -> None:
        kept.append(large())
        is_made.set()
        is_taken.wait(10)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(as_sample, first)
        is_made.wait(10)
        try:
            assert is_late(kept[0])
            assert type(as_sample(lambda: [kept[0]])[0]) is Image.Image
        finally:
            is_taken.set()
        done.result()
    assert not LateSamples.making


def test_an_image_is_freed_with_its_sample_or_kept_as_pixels_that_are_smaller_than_its_file():
    kept = []
    as_sample(lambda: large().size)
    assert not LateSamples.outlived
    gc.collect()
    assert not [found for found in gc.get_objects() if isinstance(found, Image.Image) and is_late(found)]
    as_sample(lambda: kept.append(large().resize((2, 2))))
    assert not is_late(kept[0])


def test_outside_of_samples_nothing_is_late():
    for thread_has_sample in (False, True):
        found = []
        with ThreadPoolExecutor(1) as pool:
            if thread_has_sample:
                as_sample(lambda: found.append(pool.submit(opened, FILE).result()))  # noqa: B023
            else:
                as_sample(lambda: None)
                found.append(opened(FILE))
        assert type(found[0]) is JpegImagePlugin.JpegImageFile


def test_threads_share_an_image_within_a_sample():
    def make() -> list[Any]:
        image = large()
        derived = image.crop((1, 1, 60, 40))
        barrier = threading.Barrier(8)

        def use(number: int) -> Any:
            barrier.wait()
            return np.asarray((image, derived)[number % 2].resize((20, 20), 2)).tobytes()

        with ThreadPoolExecutor(8) as pool:
            return [*pool.map(use, range(8)), image, derived]

    for _ in range(10):
        assert_equal(make)


def test_a_process_that_is_forked_in_a_sample_uses_its_images():
    def make() -> bool:
        image = large()
        return is_true_in_a_child(lambda: not is_late(opened(FILE)) and image.tobytes() == expected)

    expected = opened(FILE).tobytes()
    assert as_sample(make)
