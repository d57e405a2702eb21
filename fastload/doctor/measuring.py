"""What decoding and resizing costs on this machine, by each way that is there; about a third of a second each.

In: a JPEG file that is made here, always the same. Out: processor time an image, which other work disturbs less than
the clock.
"""

from __future__ import annotations

import functools
import io
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

# As of ImageNet's files on average: their sides, and the box that RandomResizedCrop draws.
SIDES = 375, 500
BOX = 54, 116, 267, 267
SIZE = 224
_SECONDS = 0.3


@functools.cache
def made_jpeg() -> bytes:
    """Return a file of 500 x 375 and about 110 kB: smooth shapes with some noise."""
    from PIL import Image

    random = np.random.Generator(np.random.PCG64(0))
    coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(SIDES[::-1], Image.Resampling.BICUBIC)).astype(np.int64)
    noisy = np.clip(smooth + random.integers(-16, 17, smooth.shape), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(noisy).save(out, "JPEG", quality=94)
    return out.getvalue()


def by_pillow(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the file's box, decoded, cropped and resized by Pillow as torchvision has it done: [224, 224, 3]."""
    from PIL import Image

    top, left, height, width = BOX
    with Image.open(io.BytesIO(data)) as image:
        cut = image.convert("RGB").crop((left, top, left + width, top + height))
    return np.asarray(cut.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def native_way(data: bytes) -> Callable[[], npt.NDArray[np.uint8]]:
    """Return what makes the same by the native library.

    Raises:
        RuntimeError: the library, or its JPEG part, cannot be used.
    """
    from ..native.jpeg import pixels_of_jpeg
    from ..native.rows import Cut, Order, Status, pillow_order

    found = pillow_order()
    order = Order.COLUMNS_FIRST if found is None else found
    cut = Cut(BOX, (SIZE, SIZE), "bilinear", (0, 0, SIZE, SIZE), (False, False))

    def make() -> npt.NDArray[np.uint8]:
        pixels = pixels_of_jpeg(data, cut, order=order)
        if isinstance(pixels, Status):
            raise RuntimeError(f"the native library did not decode a plain JPEG file: {pixels.name}")
        return pixels

    return make


def milliseconds(make: Callable[[], object], seconds: float = _SECONDS) -> float:
    """Return the median processor time of a call; by the clock it takes at most so many seconds, and one call more."""
    make()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        start = time.process_time()
        make()
        taken.append(time.process_time() - start)
    return statistics.median(taken) * 1e3


__all__ = ["BOX", "SIDES", "SIZE", "by_pillow", "made_jpeg", "milliseconds", "native_way"]
