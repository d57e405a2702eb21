"""A small tree of images of many kinds, packs of it, and what is in them."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from torchvision import datasets

from fastload import native
from fastload.images import PackedImages
from fastload.pack.run import pack

needs_library = pytest.mark.skipif(not native.available(), reason="the native library is not built")


def picture(width: int, height: int, seed: int = 0, mode: str = "RGB") -> PIL.Image.Image:
    """Return a picture: smooth, with some noise, as photographs are."""
    noise = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    smooth = np.asarray(PIL.Image.fromarray(noise).resize((width, height), PIL.Image.Resampling.BICUBIC))
    grain = np.random.default_rng(seed + 1).integers(0, 16, (height, width, 3), dtype=np.uint8)
    return PIL.Image.fromarray(np.minimum(smooth, 239) + grain).convert(mode)


def file(image: PIL.Image.Image, kind: str = "jpeg", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@functools.cache
def made() -> dict[str, bytes]:
    """Return images of three classes, 13 of them, and files that are none."""
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    return {
        "cat/10.jpg": file(picture(80, 60, 1)),
        "cat/9.JPEG": file(picture(60, 80, 2), quality=95, subsampling=0),
        "cat/b/1.png": file(picture(50, 40, 3), "png"),
        "cat/a/2.jpg": file(picture(41, 57, 4)),
        "cat/notes.txt": b"no image",
        "Dog/gray.jpg": file(picture(100, 30, 5, "L")),
        "Dog/gray.png": file(picture(30, 31, 6, "L"), "png"),
        "Dog/palette.png": file(picture(64, 64, 7, "P"), "png"),
        "Dog/alpha.png": file(picture(64, 48, 8, "RGBA"), "png"),
        "Dog/cmyk.jpg": file(picture(64, 48, 9, "CMYK")),
        "eel/poor.jpg": file(picture(40, 40, 10), quality=20),
        "eel/progressive.jpg": file(picture(40, 40, 11), progressive=True),
        "eel/turned.jpg": file(picture(90, 45, 12), exif=exif),
        "eel/bitmap.bmp": file(picture(33, 21, 13), "bmp"),
        "not_a_class.jpg": file(picture(8, 8)),
    }


def written(root: Path, files: Mapping[str, bytes]) -> Path:
    """Return a folder with files of these names."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def packed(source: Path, destination: Path, options: Any = None, **more: Any) -> PackedImages:
    """Return a pack, made by one process if nothing else is said."""
    pack(source, destination, options, **{"workers": 1, **more})
    return PackedImages(destination)


def contents(folder: str | Path) -> dict[str, bytes]:
    """Return all files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def images_of(source: Path) -> dict[str, bytes]:
    """Return the files that are images to ImageFolder."""
    return {os.path.relpath(path, source): Path(path).read_bytes() for path, _ in datasets.ImageFolder(source).samples}
