"""Files of images of many kinds, made here."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import PIL.Image


def pixels(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def files() -> dict[str, bytes]:
    """Return images of many kinds, as files."""
    found = {}

    def save(name: str, image: PIL.Image.Image, **options: Any) -> None:
        buffer = io.BytesIO()
        image.save(buffer, name.rsplit(".", 1)[-1].replace("jpg", "jpeg"), **options)
        found[name] = buffer.getvalue()

    for place, (height, width) in enumerate(
        [(1, 1), (1, 40), (40, 1), (3, 5), (17, 31), (64, 48), (33, 90), (100, 101)]
    ):
        image = PIL.Image.fromarray(pixels(height, width, 3, seed=place))
        save(f"size{place}.jpg", image, quality=85, subsampling=place % 3)
        save(f"size{place}.png", image)
    smooth = PIL.Image.fromarray(pixels(6, 9, 3)).resize((71, 53), PIL.Image.Resampling.BICUBIC)
    save("progressive.jpg", smooth, progressive=True)
    save("gray.jpg", smooth.convert("L"))
    save("cmyk.jpg", smooth.convert("CMYK"))
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # to be turned, which torchvision's loader does not do
    save("exif.jpg", smooth, exif=exif, dpi=(72, 72))
    save("palette.png", smooth.convert("P", palette=PIL.Image.Palette.ADAPTIVE, colors=17))
    save("gray.png", smooth.convert("L"))
    save("alpha.png", smooth.convert("RGBA"))
    save("one_bit.png", smooth.convert("1"))
    save("sixteen.png", PIL.Image.fromarray(pixels(20, 30).astype(np.uint16) * 257))
    return found
