"""Errors that come from outside, such as a signal's handler, are raised where they are; images stay as they should."""

from __future__ import annotations

import io
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from comparing import as_sample, assert_equal, description, jpeg, opened
from PIL import Image
from torchvision import transforms as v1

from fastload.late import containers, draws, geometry, image, opener, patch_guard, scope, source
from fastload.native import jpeg as native_jpeg
from fastload.native import rows
from fastload.native.jpeg import record_of_jpeg
from fastload.pack.dataset import image_of

FILE = jpeg(120, 90)
OURS = {
    module.__file__
    for module in (containers, draws, image, native_jpeg, opener, patch_guard, rows, scope, source, geometry)
}


class Interrupted(Exception):
    """What the handler raises, as a time limit would."""


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        raise Interrupted("it took too long")

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def arrive() -> None:
    signal.raise_signal(signal.SIGUSR1)


def interrupted_at(line: int, make: Callable[[], Any]) -> bool:
    """Call a function; the signal arrives at the n-th line of fastload's that it runs. Return whether it did."""
    left = line

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in OURS:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                arrive()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        make()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return left <= 0


class Interrupting(io.BytesIO):
    """A file during whose next read something arrives, once it is set."""

    arrival: Callable[[], object] | None = None

    def read(self, size: int | None = -1) -> bytes:
        arrival, self.arrival = self.arrival, None
        if arrival is not None:
            arrival()
        return super().read(size)


@pytest.mark.parametrize("error", [None, OSError, TimeoutError, ValueError, MemoryError])
def test_an_error_that_passes_while_a_file_is_read_is_raised_and_the_image_can_be_read_again(error):
    def fail() -> None:
        raise error("the network is gone")

    def make() -> list[Any]:
        file = Interrupting(FILE)
        image = Image.open(file)
        file.arrival = fail if error else arrive
        made: list[Any] = []
        for _ in range(2):
            try:
                made.append(image.convert("RGB").crop((2, 1, 30, 31)))
            except Exception as raised:
                made.append(raised)
        assert isinstance(made[0], Exception)
        return [*made, image]

    assert_equal(make)


def _loaded_and_cut(image: Any) -> list[Any]:
    image.load()
    return [image.crop((3, 4, 50, 60)).resize((20, 20), 2).transpose(1), image.convert("L"), image]


USES: dict[str, Callable[[Any], Any]] = {
    "loaded and cut": _loaded_and_cut,
    "copied": lambda image: image.copy(),
    "small": lambda image: image.resize((9, 8), 2).transpose(2),
    "an array": np.asarray,
    "bytes": lambda image: image.tobytes(),
    "attributes": vars,
    "pickled": pickle.dumps,
}


@pytest.mark.parametrize("use", USES)
def test_a_signal_at_any_line_leaves_images_that_give_what_pillows_give(use):
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
            return interrupted_at(line, lambda: USES[use](image))  # noqa: B023

        arrived = as_sample(sample)
        assert seen(image) == expected, line
        if not arrived:
            break
    assert line > 1


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


LARGE = jpeg(400, 300)


def of_a_file() -> Any:
    return opened(LARGE).resize((20, 20))


def of_a_record() -> Any:
    found = image_of(memoryview(record_of_jpeg(LARGE)))
    for _ in range(2):  # the second time all of it is decoded, and kept
        np.asarray(found.resize((300, 200)))
    return found.resize((20, 20))


@pytest.mark.parametrize(("make", "num_bytes"), [(of_a_file, len(LARGE)), (of_a_record, 400 * 300 * 3)])
def test_a_sample_that_keeps_many_images_decodes_the_next_ones_at_once(make, num_bytes, monkeypatch):
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
