"""Coefficients that went bad: an error that names the image and its pack, whoever reads them; never a crash."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from pack_tools import file, packed, picture
from torchvision import transforms as v1

import fastload
from fastload import PackError, native
from fastload.images import PackedImages
from fastload.images.decoder import Decoder
from fastload.native.rows import whole
from fastload.pack.description import PackOptions
from fastload.pack.records import image_of
from fastload.pack.unpack import unpack

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")
USUAL = v1.Compose([v1.RandomResizedCrop(24, (0.9, 1.0)), v1.RandomHorizontalFlip(), v1.ToTensor()])
INDEX = 2
OPTIONS = [{"fuse": "auto"}, {"fuse": False}, {"fuse": True}]


@pytest.fixture
def images(tmp_path: Path) -> PackedImages:
    """Return a pack of four images of 50 x 40."""
    folder = tmp_path / "images" / "cat"
    folder.mkdir(parents=True)
    for number in range(4):
        (folder / f"{number}.jpg").write_bytes(file(picture(50, 40, number), comment=b"by me"))
    return packed(tmp_path / "images", tmp_path / "pack", PackOptions(coefficients=True), images_per_part=4)


def at(where: str, record: bytes) -> int:
    """Return an offset in a record."""
    header, index = (int.from_bytes(record[place : place + 4], "little") for place in (4, 8))
    places = {"magic": 0, "sizes": 4, "header": 16, "index": 16 + header + 4, "segments": 16 + header + index}
    return places[where]


WHERE = ["magic", "sizes", "header", "index", "segments"]


def spoilt(images: PackedImages, where: str) -> PackedImages:
    """Return the pack with noise in one of its records."""
    record = bytes(images.encoded(INDEX))
    wrong = bytearray(record)
    wrong[at(where, record) : at(where, record) + 4] = b"\xf3\x9a\xff\xfe"
    (path,) = Path(images.root).glob("*.arrow")
    path.write_bytes(path.read_bytes().replace(record, wrong))
    return PackedImages(images.root, USUAL)


def check(error: BaseException, images: PackedImages) -> None:
    assert isinstance(error, PackError)
    part = f"{images.root}/part-00000-of-00001.arrow"
    assert re.search(rf"cat/2\.jpg in {re.escape(part)}: the record of its coefficients is damaged; remove", str(error))


@pytest.mark.parametrize("where", WHERE)
def test_an_image_is_named(images, where):
    images = spoilt(images, where)
    for read in (images.image, images.__getitem__):
        with pytest.raises(PackError) as caught:
            read(INDEX)
        check(caught.value, images)
    assert images[1][0].shape == (3, 24, 24)
    with pytest.raises(PackError) as caught:
        unpack(images.root, Path(images.root).parent / "files")
    if where == "magic":
        assert "pack has 3 images with coefficients instead of 4" in str(caught.value)
    else:
        check(caught.value, images)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_loaders_error_names_it(images, where, options, workers):
    images = spoilt(images, where)
    loader = fastload.DataLoader(images, 4, num_workers=workers, **options)
    with closing(loader), pytest.raises(PackError) as caught:
        list(loader)
    check(caught.value, images)
    assert "at index 2 of the dataset: cat/2.jpg" in "".join(getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("fuse", ["auto", False])
def test_a_loader_may_leave_it_out(images, where, fuse):
    images = spoilt(images, where)
    loader = fastload.DataLoader(images, 4, fuse=fuse, on_error="skip")
    ((batch, _),) = loader
    assert batch.shape == (3, 3, 24, 24)
    assert loader.statistics().failed_samples == 1


@pytest.mark.parametrize("library", [True, False])
def test_every_decoder_tells_damage_or_gives_an_image_of_the_size_that_it_says(images, library):
    decoder = Decoder(library)
    record = bytes(images.encoded(INDEX))
    rng = np.random.default_rng(0)
    found: list[str] = []
    for place in range(4, at("segments", record) + 300, 3):
        wrong = bytearray(record)
        wrong[place] = int(rng.integers(256))
        found += outcomes(decoder, bytes(wrong))
    assert min(found.count("told"), found.count("made")) > 100


def row_of(decoder: Decoder, record: bytes, height: int, width: int) -> tuple[int, ...]:
    row = torch.empty(3, height, width, dtype=torch.uint8)
    decoder.row(record, whole(height, width), None, row)
    return tuple(row.shape[1:])


def outcomes(decoder: Decoder, record: bytes) -> Iterator[str]:
    """Read a damaged record in all ways."""
    try:
        height, width = decoder.size(record)
    except PackError:
        height = width = 0
    reads: list[Callable[[], tuple[int, ...]]] = [
        lambda: row_of(decoder, record, height, width),
        lambda: image_of(memoryview(record), lambda: "an image").size[::-1],
    ]
    for read in reads if height else reads[1:]:
        try:
            size = read()
        except PackError:
            yield "told"
        else:
            assert size == (height, width)
            yield "made"


def test_a_size_that_pillow_refuses_is_refused_with_its_error(images, monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 900)
    record = bytes(images.encoded(INDEX))
    with pytest.raises(PIL.Image.DecompressionBombError):
        images.image(INDEX)
    for library in (True, False):
        with pytest.raises(PIL.Image.DecompressionBombError):
            Decoder(library).size(record)


@pytest.mark.parametrize("where", WHERE)
def test_damage_is_told_when_the_image_is_asked_for_where_it_would_be_decoded_late(images, where):
    from fastload.late import LateSamples

    images = spoilt(images, where)
    with LateSamples():
        assert images.image(1).info["comment"] == b"by me"
        with pytest.raises(PackError) as caught:
            images.image(INDEX)
    check(caught.value, images)


def test_damage_is_told_where_no_pixel_of_a_crop_needs_what_is_damaged(images):
    class Cut(PackedImages):
        def __getitem__(self, index: int) -> Any:
            return np.asarray(self.image(index).crop((0, 0, 4, 4))), 0

    record = bytes(images.encoded(INDEX))
    wrong = bytearray(record)
    index = int.from_bytes(record[8:12], "little")
    wrong[at("index", record) - 4 + index - 4 : at("index", record) - 4 + index] = b"\xff\xff\xff\x7f"
    (path,) = Path(images.root).glob("*.arrow")
    path.write_bytes(path.read_bytes().replace(record, wrong))
    for fuse in ("auto", False):
        with closing(fastload.DataLoader(Cut(images.root), 4, fuse=fuse)) as loader, pytest.raises(PackError) as caught:
            list(loader)
        check(caught.value, images)
