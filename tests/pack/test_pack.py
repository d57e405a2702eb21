"""What is written: the images of ImageFolder in its order, the same bytes however it is run."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pack_tools import contents, file, images_of, needs_library, packed, picture
from torchvision import datasets

from fastload import ConfigError, PackError, cli
from fastload.cache import record_file
from fastload.cache.kinds import pixels_of
from fastload.images import PackedImages
from fastload.pack.encoding import encode
from fastload.pack.listing import list_images
from fastload.pack.options import PackOptions
from fastload.pack.run import pack


def test_links_are_followed_as_image_folder_follows_them(source, tmp_path):
    other = tmp_path / "elsewhere"
    shutil.move(source / "cat", other)
    (source / "cat").symlink_to(other)
    (source / "eel" / "more").symlink_to(other / "a")
    assert list_images(source).names == list(images_of(source))


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (3, PackOptions(raw=True)),
        pytest.param(
            2, PackOptions(max_side=40, quality=85, coefficients=True), marks=[needs_library, pytest.mark.slow]
        ),
    ],
)
def test_the_same_is_written_by_any_number_of_workers(source, tmp_path, workers, options):
    packed(source, tmp_path / "one", options)
    packed(source, tmp_path / "more", options, workers=workers)
    found = contents(tmp_path / "more")
    assert found == contents(tmp_path / "one")
    assert sorted(found) == ["index", "pack.json", "records"]


def damage(source):
    (source / "cat" / "10.jpg").write_bytes(file(picture(80, 60))[:-500])
    (source / "eel" / "poor.jpg").write_bytes(b"\xff\xd8 no image")


@pytest.mark.parametrize("workers", [1, 2])
def test_files_that_cannot_be_packed_are_refused_all_by_name(source, tmp_path, workers):
    damage(source)
    (source / "cat" / "lost.jpg").symlink_to(source / "nowhere")
    os.mkfifo(source / "cat" / "pipe.jpg")  # that nobody waits for
    with pytest.raises(PackError) as caught:
        pack(source, tmp_path / "pack", workers=workers)
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 files cannot be packed:"
    assert [line.split(": ")[:2] for line in lines[1:5]] == [
        ["  cat/10.jpg", "OSError"],
        ["  cat/lost.jpg", "FileNotFoundError"],
        ["  cat/pipe.jpg", "OSError"],
        ["  eel/poor.jpg", "UnidentifiedImageError"],
    ]
    assert "a named pipe" in lines[3]
    assert "--on-error skip" in lines[5]
    with pytest.raises(PackError, match="is not finished"):
        PackedImages(tmp_path / "pack")
    for place in range(30):
        (source / "cat" / f"x{place:02d}.png").write_bytes(b"")
    with pytest.raises(PackError, match=r"34 files cannot be packed(.|\n)*and 14 more"):
        pack(source, tmp_path / "many", workers=workers)


def test_files_that_cannot_be_decoded_are_left_out_where_that_is_asked_for(source, tmp_path):
    damage(source)
    with pytest.raises(PackError):
        pack(source, tmp_path / "pack", workers=1)
    done = pack(source, tmp_path / "pack", workers=1, on_error="skip")
    assert (done.num_before, done.num_images) == (11, 11)
    assert [name for name, _ in done.skipped] == ["cat/10.jpg", "eel/poor.jpg"]
    assert done.description.skipped == {"cat/10.jpg": 5, "eel/poor.jpg": 10}
    images = PackedImages(tmp_path / "pack")
    left = {name: data for name, data in images_of(source).items() if name not in done.description.skipped}
    assert {name: bytes(images.encoded(index)) for index, (name, _) in enumerate(images.samples)} == left
    assert images.targets == [0] * 5 + [1] * 3 + [2] * 3
    with pytest.raises(PackError, match=r"cat/10.jpg: OSError(.|\n)*eel/poor.jpg: Unidentified"):
        pack(source, tmp_path / "pack", workers=1)
    for path in (source / "cat").rglob("*.*"):
        path.write_bytes(b"nothing")
    without_cats = packed(source, tmp_path / "without cats", on_error="skip")
    assert (without_cats.classes, without_cats.targets) == (["Dog", "cat", "eel"], [0] * 5 + [2] * 3)


def test_a_finished_pack_is_left_as_it_is_but_for_records_that_were_lost_or_changed(source, tmp_path):
    images, records = packed(source, tmp_path / "pack"), tmp_path / "pack" / "records"
    before = contents(tmp_path / "pack")
    assert pack(source, tmp_path / "pack", workers=1).num_before == 13
    assert contents(tmp_path / "pack") == before
    data = bytearray(records.read_bytes())
    data[data.index(bytes(images.encoded(7))) + 5] ^= 1
    records.write_bytes(data[:-5000])
    assert 3 < pack(source, tmp_path / "pack", workers=1).num_before < 13
    found, expected = PackedImages(tmp_path / "pack"), datasets.ImageFolder(source)
    assert [image.tobytes() for image, _ in found] == [image.tobytes() for image, _ in expected]


def test_another_pack_in_the_same_place_is_refused(source, tmp_path, monkeypatch):
    def refused(said, options=None):
        with pytest.raises(PackError, match=said):
            packed(source, tmp_path / "pack", options)

    packed(source, tmp_path / "pack")
    before = contents(tmp_path / "pack")
    refused(r"a pack with max_side=None, but this command has max_side=40; pack to another", PackOptions(max_side=40))
    with monkeypatch.context() as patch:
        patch.setattr("PIL.__version__", "1.1.7")
        refused(r"Pillow='[\d.]+', but .* Pillow='1.1.7'")
    os.utime(source / "cat" / "10.jpg", ns=(1, 1))
    refused(r"a pack with digest=")
    (source / "cat" / "11.jpg").write_bytes(file(picture(8, 8)))
    refused(r"with images=13, but this command has images=14")
    assert contents(tmp_path / "pack") == before


def test_what_is_no_folder_of_images_or_no_place_for_a_pack_is_refused(source, tmp_path):
    new = tmp_path / "pack"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("all of it")
    for images, place, said in (
        (source, tmp_path / "full", r"is not empty, and not a pack: it has 'thesis.tex'"),
        (source, source, r"is inside of .* one of the classes"),
        (source, source / "cat", r"is inside of .* one of the classes"),
        (source, source / "new", r"is inside of .* one of the classes"),
        (tmp_path / "nowhere", new, "is not a folder"),
        (source / "eel", new, r"find any class folder in .*eel; it needs a folder of images for each class"),
    ):
        with pytest.raises(PackError, match=said):
            packed(images, place)
    (source / "fox").mkdir()
    with pytest.raises(PackError, match=r"no valid file for the classes fox.*, and none without images"):
        packed(source, new)
    assert os.listdir(tmp_path / "full") == ["thesis.tex"]
    assert not new.exists()


def test_what_cannot_be_written_is_the_systems_error_and_the_next_run_goes_on(source, tmp_path, monkeypatch, capsys):
    def full(file, data, place):
        if place > 20_000:
            raise OSError(28, "No space left on device")
        write(file, data, place)

    write, place = record_file._write, tmp_path / "pack"
    packed(source, tmp_path / "expected")
    with monkeypatch.context() as patch:
        patch.setattr(record_file, "_write", full)
        assert cli.main(["pack", str(source), str(place), "--workers=1"]) == 1
    expected = f"fastload pack: [Errno 28] No space left on device, while {place} was written; once that is mended, the"
    assert capsys.readouterr().err == f"{expected} same command continues\n"
    assert pack(source, place, workers=1).num_before > 3
    assert contents(place) == contents(tmp_path / "expected")


@pytest.mark.interpreter
def test_the_command_says_in_a_line_what_it_did_and_nothing_else(source, tmp_path):
    """Also of a folder whose name cannot be printed."""
    destination = os.fsencode(tmp_path / "pack") + b"\xff"
    options = ["--max-side", "40", "--workers=1", "--quality", "90"]
    command = [sys.executable, "-m", "fastload.cli", "pack", source, destination, *options]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(rf"13 images of 3 classes in {tmp_path / 'pack'}\udcff, ")
    assert done.stdout.count("\n") == 1


def test_the_command_ends_with_1_where_something_cannot_be_packed_and_2_where_it_is_not_understood(
    source, tmp_path, capsys
):
    damage(source)
    arguments = ["pack", str(source), str(tmp_path / "pack"), "--workers=1"]
    for more, status, said in (
        ([], 1, "fastload pack: 2 files cannot be packed:\n  cat/10.jpg: "),
        (["--workers=0"], 2, "workers must be at least 1"),
        (["--on-error", "skip"], 0, "left out eel/poor.jpg: UnidentifiedImageError"),
    ):
        assert cli.main([*arguments, *more]) == status
        told = capsys.readouterr()
        assert said in told.err
    assert told.out.startswith("11 images of 3 classes")
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments[:2])


SIDES = st.integers(1, 5000)


@given(SIDES, SIDES, st.none() | SIDES, st.none() | SIDES)
def test_a_size_keeps_within_both_bounds_and_near_its_ratio_and_is_never_enlarged(width, height, most, least):
    new = PackOptions(max_side=most, min_side=least).size_of(width, height)
    bounds = [(most, max), (least, min)]
    scale = min(1.0, *(bound / side(width, height) for bound, side in bounds if bound is not None), 1.0)
    for side, was in zip(new, (width, height), strict=True):
        assert side <= was
        assert abs(side - scale * was) <= 0.5 + 1e-9 or side == 1
    assert all(bound is None or side(new) <= bound for bound, side in bounds)
    assert scale == 1 or any(side(new) == bound for bound, side in bounds)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PackOptions(max_side=0), "max_side must be a number of pixels, at least 1, got 0"),
        (lambda: PackOptions(min_side=-3), "min_side .* got -3"),
        (lambda: PackOptions(quality=96), "from 1 to 95.* got 96"),
        (lambda: PackOptions(raw=True, quality=80), "raw stores pixels.*give one of raw and quality"),
        (lambda: pack("images", "pack", on_error="ignore"), "on_error must be 'raise' or 'skip', got 'ignore'"),
    ],
)
def test_arguments_out_of_range_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def again(data: bytes, quality: int = 90, size: tuple[int, int] | None = None) -> bytes:
    """Return the JPEG file that Pillow makes of the pixels of an image file, of nothing else of it."""
    image = PIL.Image.open(io.BytesIO(data))
    plain = PIL.Image.fromarray(np.asarray(image.convert("L" if image.mode == "L" else "RGB")))
    return file(plain if size is None else plain.resize(size, PIL.Image.Resampling.LANCZOS), quality=quality)


ENCODED: dict[str, tuple[bytes, dict[str, int], Callable[[bytes], bytes]]] = {
    "as it is": (file(picture(40, 30, mode="RGBA"), "png"), {}, bytes),
    "not too large": (file(picture(50, 20), "png"), {"max_side": 50}, bytes),
    "too large, with metadata": (
        file(picture(100, 60), comment=b"by me", dpi=(300, 300)),
        {"max_side": 50},
        lambda data: again(data, size=(50, 30)),
    ),
    "of a quality": (file(picture(64, 48), "png"), {"quality": 70}, lambda data: again(data, 70)),
    "grey": (file(picture(64, 48, mode="L"), "png"), {"quality": 70}, lambda data: again(data, 70)),
    "CMYK": (file(picture(64, 48, mode="CMYK")), {"quality": 70}, lambda data: again(data, 70)),
    "no larger than it would become": (file(picture(64, 48), quality=30), {"quality": 90}, bytes),
    "slow to decode": (file(picture(64, 48), quality=30, progressive=True), {"quality": 90}, again),
}


@pytest.mark.parametrize("name", ENCODED)
def test_a_file_is_stored_as_it_is_or_as_pillow_encodes_its_pixels(name):
    data, options, expected = ENCODED[name]
    assert encode(data, PackOptions(**options)) == expected(data)


def test_what_is_no_ppm_of_ours_or_not_all_of_one_has_no_pixels_here():
    assert pixels_of(b"P6\n2 2\n255\n" + bytes(12)) is not None
    for head in ("P6\n# by hand\n2 2\n255", "P6\n2 2\n65535", "P6\n0 2\n255", "P5\n2 2\n255", "P6\n2 3\n255"):
        assert pixels_of(head.encode() + b"\n" + bytes(12)) is None, head
    assert pixels_of(b"") is None
