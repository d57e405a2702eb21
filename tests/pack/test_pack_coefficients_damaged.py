"""Coefficients that went bad: an error that names the image and its pack, whoever reads them; never a crash."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from pack_tools import file, needs_library, packed, picture, written
from torchvision import transforms as v1

import fastload
from fastload import PackError
from fastload.cache.record_file import checksum_of
from fastload.images import PackedImages, decoder
from fastload.pack.options import PackOptions
from fastload.pack.unpack import unpack

pytestmark = needs_library
USUAL = v1.Compose([v1.RandomResizedCrop(24, (0.9, 1.0)), v1.RandomHorizontalFlip(), v1.ToTensor()])
INDEX = 2


@pytest.fixture
def images(tmp_path: Path) -> PackedImages:
    """Return a pack of four images of 50 x 40."""
    files = {f"cat/{number}.jpg": file(picture(50, 40, number), comment=b"by me") for number in range(4)}
    return packed(written(tmp_path / "images", files), tmp_path / "pack", PackOptions(coefficients=True))


def spoilt(images: PackedImages, where: str, is_forged: bool = False) -> PackedImages:
    """Return the pack with noise in one of its records; ``is_forged``: its checksum is right."""
    record = bytes(images.encoded(INDEX))
    header, index = (int.from_bytes(record[place : place + 4], "little") for place in (4, 8))
    places = {"magic": 0, "sizes": 4, "header": 16, "index": 16 + header + 4, "segments": 16 + header + index}
    wrong = bytearray(record)
    wrong[places[where] : places[where] + 4] = b"\xf3\x9a\xff\xfe"
    path = Path(images.root) / "records"
    path.write_bytes(path.read_bytes().replace(record, wrong))
    if is_forged:
        sums = (checksum_of(bytes(one)).to_bytes(4, "little") for one in (record, wrong))
        path = Path(images.root) / "index"
        path.write_bytes(path.read_bytes().replace(*sums))
    return PackedImages(images.root, USUAL)


def test_a_pack_that_is_damaged_in_use_gives_its_samples_or_names_what_is_damaged(images):
    expected = [images.image(index).tobytes() for index in range(4)]
    rng, told = np.random.default_rng(0), 0
    whole = {path: path.read_bytes() for path in (Path(images.root) / "records", Path(images.root) / "index")}

    def write_over(path: Path, data: bytes) -> None:
        with path.open("r+b") as file:
            file.truncate(len(data))
            file.write(data)

    for turn in range(60):
        used = PackedImages(images.root)
        if turn % 2:
            used.name(0)  # it has the files open
        path, data = list(whole.items())[turn // 2 % 2]
        place = int(rng.integers(len(data)))
        noise = rng.bytes(8)[: len(data) - place]
        write_over(path, data[:place] if turn % 3 == 0 else data[:place] + noise + data[place + len(noise) :])
        for index in range(4):
            try:
                assert used.image(index).tobytes() == expected[index]
            except PackError as error:
                told += 1
                assert images.root in str(error)
        write_over(path, data)
    assert told > 30


@pytest.mark.parametrize("where", ["magic", "sizes", "header", "index", "segments"])
@pytest.mark.parametrize("fuse", ["auto", False, True])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_errors_name_the_image_also_those_of_a_loader(images, where, fuse, workers):
    forged = spoilt(images, where, is_forged=where != "magic")
    to_files = lambda _: unpack(images.root, Path(images.root).parent / "files")  # noqa: E731
    for read in (forged.image, forged.__getitem__, to_files):
        with pytest.raises(PackError, match=r"cat/2\.jpg in .* is damaged; run|is damaged; run .*\n.*: cat/2\.jpg in "):
            read(INDEX)
    assert forged[1][0].shape == (3, 24, 24)
    loader = fastload.DataLoader(forged, 4, num_workers=workers, fuse=fuse)
    with closing(loader), pytest.raises(PackError, match="damaged; run the same fastload pack") as caught:
        list(loader)
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
