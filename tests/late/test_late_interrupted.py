"""Errors that come from outside, such as a signal's handler, are raised where they are; images stay as they should."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from comparing import as_sample, assert_equal, description, jpeg, opened, picture
from interrupting import Interrupted, Interrupting, arrive, handler, interrupted_at
from PIL import Image
from torchvision import transforms as v1

from fastload.late import containers, image, scope
from fastload.native.jpeg import record_of_jpeg
from fastload.pack.dataset import image_of

FILE = jpeg(120, 90)


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    with handler():
        yield


def _fail(error: Exception) -> None:
    raise error


ARRIVALS: dict[str, Callable[[], Any]] = {
    "signal": arrive,
    "OSError": lambda: _fail(OSError("the network is gone")),
    "TimeoutError": lambda: _fail(TimeoutError("no answer")),
    "ValueError": lambda: _fail(ValueError("no such block")),
    "MemoryError": lambda: _fail(MemoryError()),
}


@pytest.mark.parametrize("arrival", ARRIVALS)
def test_an_error_that_passes_while_a_file_is_read_is_raised_and_the_image_can_be_read_again(arrival):
    def make() -> list[Any]:
        with Image.open(io.BytesIO(FILE)) as found:
            num_reads = _reads_of_header()
            assert found.size == (120, 90)
        image = Image.open(Interrupting(FILE, num_reads + 1, ARRIVALS[arrival]))
        made: list[Any] = []
        for _ in range(2):
            try:
                made.append(image.convert("RGB").crop((2, 1, 30, 31)))
            except Exception as error:
                made.append(error)
        assert isinstance(made[0], Exception)
        return [*made, image]

    assert_equal(make)


def _reads_of_header() -> int:
    file = Interrupting(FILE, -1, lambda: None)
    Image.open(file)
    return -1 - file.left


def _loaded_and_cut(image: Any) -> list[Any]:
    image.load()
    return [image.crop((3, 4, 50, 60)).resize((20, 20), 2).transpose(1), image.convert("L"), image]


def test_a_signal_at_any_line_leaves_images_that_give_what_pillows_give():
    def seen(found: Any) -> list[Any]:
        return [description(one) for one in _loaded_and_cut(found)]

    expected = seen(opened(FILE))
    line = 0
    while True:
        line += 1
        image = None

        def sample() -> bool:
            nonlocal image
            image = opened(FILE)
            return interrupted_at(line, lambda: _loaded_and_cut(image))  # noqa: B023

        arrived = as_sample(sample)
        assert seen(image) == expected, line
        if not arrived:
            break
    assert line > 50


def test_an_error_that_passes_while_transforms_are_tried_is_raised(monkeypatch):
    monkeypatch.setattr(containers, "_tables", {})
    monkeypatch.setattr(containers, "_signature", lambda transform, image: id(transform))
    left = [1]

    def interrupted(image: Any) -> Any:
        if left:
            left.clear()
            arrive()
        return v1.functional.to_tensor(image)

    with pytest.raises(Interrupted):
        containers._table_of(interrupted)
    assert containers._table_of(lambda _: left[5]) is None


def _of_files() -> tuple[Callable[[], Any], int]:
    file = io.BytesIO()
    picture(400, 300).save(file, "JPEG", quality=100)
    data = file.getvalue()
    return lambda: opened(data).resize((20, 20)), len(data)


def _of_records() -> tuple[Callable[[], Any], int]:
    record = memoryview(record_of_jpeg(jpeg(400, 300)))

    def make() -> Any:
        found = image_of(record)
        for _ in range(2):  # the second time all of it is decoded, and kept
            np.asarray(found.resize((300, 200)))
        return found.resize((20, 20))

    return make, 400 * 300 * 3


@pytest.mark.parametrize("made_of", [_of_files, _of_records])
def test_a_sample_that_keeps_many_images_decodes_the_next_ones_at_once(made_of, monkeypatch):
    make, num_bytes = made_of()
    monkeypatch.setattr(scope, "MOST_BYTES", 2 * num_bytes)
    held: list[int] = []
    expected = make().tobytes()

    def sample() -> None:
        small = []
        for _ in range(12):
            small.append(make())
            held.append(sum(map(image.is_late, small)))
        assert small[0].tobytes() == expected

    as_sample(sample)
    assert held[:2] == [1, 2]
    assert max(held) <= 4
