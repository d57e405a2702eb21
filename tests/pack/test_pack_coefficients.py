"""Coefficient packs: the images of ImageFolder, bit for bit, and files with the same coefficients again."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
from pack_tools import contents, file, needs_library, packed, picture, written

from fastload import cli
from fastload.native import jpeg
from fastload.native.rows import pixels_of_image
from fastload.pack import encoding
from fastload.pack.options import PackOptions
from fastload.pack.run import pack
from fastload.pack.unpack import unpack

pytestmark = needs_library
OPTIONS = PackOptions(coefficients=True)
# Of the 13 files of pack_tools.made.
BASELINE = ["Dog/gray.jpg", "cat/10.jpg", "cat/9.JPEG", "cat/a/2.jpg", "eel/poor.jpg", "eel/turned.jpg"]


@pytest.fixture
def images(source, tmp_path):
    return packed(source, tmp_path / "pack", OPTIONS)


def names_of_records(images):
    return [name for index, (name, _) in enumerate(images.samples) if jpeg.is_record(images.encoded(index))]


def test_baseline_files_become_records_and_all_else_stays_as_it_is(source, images):
    assert names_of_records(images) == BASELINE
    for index, (name, _) in enumerate(images.samples):
        if name not in BASELINE:
            assert images.encoded(index) == (source / name).read_bytes()
    description = json.loads((source.parent / "pack" / "pack.json").read_text())
    assert description["num_records"] == len(BASELINE)
    assert description["options"]["coefficients"] is True


def test_profiles_comments_and_resolutions_are_kept(tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a cat"
    profile = np.random.default_rng(0).bytes(70_000)
    data = file(picture(47, 31), exif=exif, comment=b"by me", dpi=(300, 200), icc_profile=profile)
    source = written(tmp_path / "images", {"cat/1.jpg": data})
    images = packed(source, tmp_path / "pack", OPTIONS)
    found = images.image(0)
    assert names_of_records(images) == ["cat/1.jpg"]
    assert {"exif", "comment", "dpi", "icc_profile"} < set(found.info)
    assert found.info == PIL.Image.open(source / "cat" / "1.jpg").convert("RGB").info
    assert found.getexif()[0x0112] == 6
    unpack(tmp_path / "pack", tmp_path / "files")
    assert contents(tmp_path / "files") == {"cat/1.jpg": data}


def test_what_was_shrunk_or_encoded_again_is_stored_as_coefficients(source, tmp_path):
    smaller = {"max_side": 40, "quality": 80}
    images = packed(source, tmp_path / "pack", PackOptions(**smaller, coefficients=True))
    expected = packed(source, tmp_path / "files", PackOptions(**smaller))
    assert len(names_of_records(images)) == 13
    for index in range(13):
        assert jpeg.jpeg_of_record(images.encoded(index)) == expected.encoded(index)
        assert images.image(index).tobytes() == expected.image(index).tobytes()
        assert images.image(index).info == expected.image(index).info


def test_files_of_several_images_and_damaged_ones_that_pillow_accepts_are_stored_as_they_are(tmp_path):
    first, *others = (picture(64, 48, seed) for seed in range(3))
    good = file(first, quality=95)
    several = file(first, "mpo", save_all=True, append_images=others)
    # Within the last rows: libjpeg fills them, and Pillow is content with the end of image.
    cut_off = good[:-60] + b"\xff\xd9"
    stuffed = good[:-200] + bytes(10) + good[-190:]
    files = {"cat/1.jpg": several, "cat/2.jpg": cut_off, "cat/3.jpg": stuffed, "cat/4.jpg": good + b"what lies behind"}
    images = packed(written(tmp_path / "images", files), tmp_path / "pack", OPTIONS)
    assert names_of_records(images) == ["cat/4.jpg"]
    assert [bytes(images.encoded(index)) for index in range(3)] == list(files.values())[:3]
    assert jpeg.jpeg_of_record(images.encoded(3)) == good, "what is behind the image is left out"


def wrong_pixels(*args, **options):
    pixels = pixels_of_image(*args, **options)
    pixels[0, 0] += 1
    return pixels


@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [(encoding, "pixels_of_image", wrong_pixels), (jpeg, "jpeg_of_record", lambda _: file(picture(20, 20)))],
)
def test_a_record_of_other_pixels_or_whose_file_has_other_coefficients_is_not_stored(
    source, tmp_path, monkeypatch, place, name, wrong
):
    monkeypatch.setattr(place, name, wrong)
    done = pack(source, tmp_path / "pack", OPTIONS, workers=1)
    assert (done.description.num_records, done.num_images) == (0, 13)


def test_the_command_packs_and_unpacks_and_says_what_has_no_coefficients(source, tmp_path, capsys):
    pack, files = str(tmp_path / "pack"), str(tmp_path / "files")
    for before in (", ", " (13 were stored before), "):
        assert cli.main(["pack", "--coefficients", "--workers", "1", str(source), pack]) == 0
        said = capsys.readouterr().out
        others = "7 of 13 images are no baseline JPEG files of one scan: they are stored as they are"
        assert said.startswith(f"{others}\n13 images of 3 classes in {pack}{before}")
    assert cli.main(["unpack", pack, files]) == 0
    assert capsys.readouterr().out.startswith(f"13 files in {files}, ")


@pytest.mark.thorough
def test_without_the_library_the_error_says_so(source, images, tmp_path):
    code = """
import sys, fastload
from fastload.images import PackedImages, decode
from fastload.pack import options, run, unpack
from torchvision import transforms

packed, source, new = sys.argv[1:]
images = PackedImages(packed, transforms.Compose([transforms.CenterCrop(16), transforms.ToTensor()]))
assert images[0][0].shape == (3, 16, 16), "a file that has no coefficients"
for one in (
    lambda: images[2],
    lambda: decode(images.encoded(2)),
    lambda: list(fastload.DataLoader(images, 2, fuse=True)),
    lambda: list(fastload.DataLoader(images, 2)),
    lambda: unpack.unpack(packed, new),
    lambda: run.pack(source, new, options.PackOptions(coefficients=True)),
):
    try:
        one()
    except fastload.PackError as error:
        print(error, *getattr(error, "__notes__", ()))
"""
    command = [sys.executable, "-c", code, tmp_path / "pack", source, tmp_path / "new"]
    done = subprocess.run(command, env={**os.environ, "FASTLOAD_NATIVE": "0"}, capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert len(said) == 6, done.stdout + done.stderr
    assert all("FASTLOAD_NATIVE=0 switches it off; install a C compiler" in line for line in said)
    assert all("Dog/alpha.png" in line or "Dog/gray.jpg" in line for line in (said[0], said[2], said[3]))
