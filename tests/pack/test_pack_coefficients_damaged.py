"""Coefficients that went bad: an error that names the image and its pack, whoever reads them; never a crash."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from pack_tools import file, packed, picture
from torchvision import transforms as v1

import fastload
from fastload import PackError, native
from fastload.cache.record_file import checksum_of
from fastload.images import PackedImages, decoder
from fastload.pack.options import PackOptions
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
    return packed(tmp_path / "images", tmp_path / "pack", PackOptions(coefficients=True))


def at(where: str, record: bytes) -> int:
    """Return an offset in a record."""
    header, index = (int.from_bytes(record[place : place + 4], "little") for place in (4, 8))
    places = {"magic": 0, "sizes": 4, "header": 16, "index": 16 + header + 4, "segments": 16 + header + index}
    return places[where]


WHERE = ["magic", "sizes", "header", "index", "segments"]


def spoilt(images: PackedImages, where: str, is_forged: bool = False) -> PackedImages:
    """Return the pack with noise in one of its records; ``is_forged``: its checksum is right."""
    record = bytes(images.encoded(INDEX))
    wrong = bytearray(record)
    wrong[at(where, record) : at(where, record) + 4] = b"\xf3\x9a\xff\xfe"
    path = Path(images.root) / "records"
    path.write_bytes(path.read_bytes().replace(record, wrong))
    if is_forged:
        index = Path(images.root) / "index"
        sums = (checksum_of(bytes(one)).to_bytes(4, "little") for one in (record, wrong))
        index.write_bytes(index.read_bytes().replace(*sums))
    return PackedImages(images.root, USUAL)


def check(error: BaseException, images: PackedImages, said: str = "its record is damaged; run the same") -> None:
    assert isinstance(error, PackError)
    assert re.search(rf"cat/2\.jpg in {re.escape(images.root)}/records: {said}", str(error))


@pytest.mark.parametrize("where", ["magic", "segments"])
def test_an_image_is_named(images, where):
    images = spoilt(images, where)
    for read in (images.image, images.encoded, images.__getitem__):
        with pytest.raises(PackError) as caught:
            read(INDEX)
        check(caught.value, images)
    assert images[1][0].shape == (3, 24, 24)
    with pytest.raises(PackError) as caught:
        unpack(images.root, Path(images.root).parent / "files")
    check(caught.value, images)


def test_a_pack_that_is_damaged_in_use_gives_its_samples_or_names_what_is_damaged(images, tmp_path):
    expected = [images.image(index).tobytes() for index in range(4)]
    rng = np.random.default_rng(0)
    whole = {name: (tmp_path / "pack" / name).read_bytes() for name in ("records", "index")}
    told = 0
    for turn in range(60):
        used = PackedImages(images.root)
        if turn % 2:
            used.name(0)  # it has the files open
        name = ("records", "index")[turn // 2 % 2]
        data = bytearray(whole[name])
        place = int(rng.integers(len(data)))
        data[place : place + 8] = rng.bytes(8)[: len(data) - place]
        with (tmp_path / "pack" / name).open("r+b") as file:
            file.truncate(place if turn % 3 == 0 else len(data))
            file.write(data if turn % 3 else data[:place])
        for index in range(4):
            try:
                assert used.image(index).tobytes() == expected[index]
            except PackError as error:
                told += 1
                assert str(tmp_path / "pack") in str(error)
        for one in whole:
            with (tmp_path / "pack" / one).open("r+b") as file:
                file.write(whole[one])
                file.truncate()
    assert told > 30


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_loaders_error_names_it(images, where, options, workers):
    forged = spoilt(images, where, is_forged=where != "magic")
    loader = fastload.DataLoader(forged, 4, num_workers=workers, **options)
    with closing(loader), pytest.raises(PackError) as caught:
        list(loader)
    assert "damaged; run the same fastload pack" in str(caught.value)
    assert "at index 2 of the dataset: cat/2.jpg" in "".join(getattr(caught.value, "__notes__", []))


def test_a_size_that_pillow_refuses_is_refused_with_its_error(images, monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 900)
    record = bytes(images.encoded(INDEX))
    with pytest.raises(PIL.Image.DecompressionBombError):
        images.image(INDEX)
    for reason in (None, "it was not built"):
        monkeypatch.setattr(decoder, "why_not_native", lambda reason=reason: reason)
        with pytest.raises(PIL.Image.DecompressionBombError):
            decoder.size_of(record)
