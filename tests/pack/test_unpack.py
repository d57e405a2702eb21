"""Unpacked files are those that were packed; nothing is overwritten."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from pack_tools import contents, images_of, needs_library, packed
from torchvision import datasets

from fastload import PackError, cli
from fastload.images import PackedImages
from fastload.pack import unpack as module
from fastload.pack.encoding import encode
from fastload.pack.options import PackOptions
from fastload.pack.run import pack
from fastload.pack.unpack import unpack

KINDS = [PackOptions(), pytest.param(PackOptions(coefficients=True), marks=needs_library)]


@pytest.mark.parametrize("options", KINDS, ids=["files", "coefficients"])
def test_the_files_are_those_that_were_packed_under_any_names_that_the_file_system_allows(source, tmp_path, options):
    (source / "cat" / "9.JPEG").rename(source / "cat" / os.fsdecode(b"\xff\n.jpg"))
    (source / "cat" / "10.jpg").rename(source / "cat" / f"{'n' * (os.pathconf(source, 'PC_NAME_MAX') - 4)}.jpg")
    (source / "fox").mkdir()
    (source / "fox" / "1.jpg").write_bytes(b"no image")  # the class has its folder even so
    packed(source, tmp_path / "pack", options, on_error="skip")
    done = unpack(tmp_path / "pack", tmp_path / "files")
    expected = {name: data for name, data in images_of(source).items() if name != "fox/1.jpg"}
    assert contents(tmp_path / "files") == expected
    assert (done.num_images, done.num_before, done.num_bytes) == (13, 0, sum(map(len, expected.values())))
    assert sorted(os.listdir(tmp_path / "files")) == ["Dog", "cat", "eel", "fox"]


def test_a_run_that_was_stopped_is_continued(source, tmp_path, monkeypatch):
    packed(source, tmp_path / "pack")
    replace, calls = os.replace, []

    def stop(*paths):
        calls.append(paths)
        if len(calls) == 7:
            raise KeyboardInterrupt
        replace(*paths)

    arguments = ["unpack", str(tmp_path / "pack"), str(tmp_path / "files")]
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "replace", stop)
        assert cli.main(arguments) == 130
    assert len(datasets.ImageFolder(tmp_path / "files", allow_empty=True)) == 6, "what is not complete is no image"
    for num_before in (6, 13):
        assert unpack(*arguments[1:]).num_before == num_before
        assert contents(tmp_path / "files") == images_of(source)


def test_a_file_of_other_contents_is_not_overwritten(source, tmp_path):
    packed(source, tmp_path / "pack")
    path = tmp_path / "files" / "cat" / "10.jpg"
    path.parent.mkdir(parents=True)
    right = (source / "cat" / "10.jpg").read_bytes()
    for wrong in (b"mine", bytes(len(right)), None):
        path.unlink(missing_ok=True)
        if wrong is None:
            path.symlink_to(tmp_path / "nowhere")
        else:
            path.write_bytes(wrong)
        with pytest.raises(PackError, match=r"cat/10.jpg exists and is another file; unpack to another folder"):
            unpack(tmp_path / "pack", tmp_path / "files")
        assert path.is_symlink() if wrong is None else path.read_bytes() == wrong


def test_pixels_become_ppm_files(source, tmp_path):
    images = packed(source, tmp_path / "pack", PackOptions(raw=True))
    unpack(tmp_path / "pack", tmp_path / "files")
    found = datasets.ImageFolder(tmp_path / "files")
    assert [(image.tobytes(), label) for image, label in found] == [(image.tobytes(), label) for image, label in images]
    assert (tmp_path / "files" / "cat" / "10.jpg.ppm").exists()


def test_a_name_that_leads_out_of_the_folder_is_refused(source, tmp_path, monkeypatch):
    packed(source, tmp_path / "pack")
    for name in ("../1.jpg", "cat/../../1.jpg", "/1.jpg", "", "cat/.."):
        monkeypatch.setattr(PackedImages, "samples", [(name, 0)])
        with pytest.raises(PackError, match=f"the name {name!r} in .* leads out of the folder"):
            unpack(tmp_path / "pack", tmp_path / "a" / "files")
        assert contents(tmp_path / "a") == {}


# -- packs of the old format -------------------------------------------------------------------------------------------


def old_pack(source: Path, folder: Path, options: PackOptions) -> Path:
    """Write a pack as it was written before there was the present format."""
    pa = pytest.importorskip("pyarrow")
    ipc = pytest.importorskip("pyarrow.ipc")
    folder.mkdir()
    found, parts = datasets.ImageFolder(source), []
    kind = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])
    for number in range(3):
        rows = []
        for path, label in found.samples[5 * number : 5 * number + 5]:
            image = {"bytes": encode(Path(path).read_bytes(), options), "path": os.path.relpath(path, source)}
            rows.append({"image": image, "label": label})
        path = folder / f"part-{number:05d}-of-00003.arrow"
        with pa.OSFile(str(path), "wb") as file, ipc.new_stream(file, kind) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=kind))
        parts.append({"images": len(rows), "bytes": path.stat().st_size})
    description = {"format": "fastload pack 1", "options": asdict(options), "classes": found.classes, "parts": parts}
    (folder / "pack.json").write_text(json.dumps(description))
    return folder


@pytest.mark.parametrize("options", [*KINDS, PackOptions(raw=True)], ids=["files", "coefficients", "pixels"])
def test_a_pack_of_the_old_format_becomes_files_and_is_else_an_error_that_says_so(source, tmp_path, options):
    folder = old_pack(source, tmp_path / "old", options)
    assert unpack(folder, tmp_path / "files").num_images == 13
    packed(source, tmp_path / "new", options)
    unpack(tmp_path / "new", tmp_path / "expected")
    assert contents(tmp_path / "files") == contents(tmp_path / "expected")
    for use in (PackedImages, lambda folder: packed(source, folder)):
        with pytest.raises(PackError, match=r"of the old format, in Arrow files: fastload unpack .* FILES makes files"):
            use(folder)


@pytest.mark.parametrize("damage", ["cut", "other columns", "not finished", "no pyarrow"])
def test_a_pack_of_the_old_format_that_cannot_be_read_is_an_error(source, tmp_path, damage, monkeypatch):
    folder = old_pack(source, tmp_path / "old", PackOptions())
    path, said = folder / "part-00001-of-00003.arrow", "part-00001-of-00003.arrow cannot be read as a part of a pack"
    data = path.read_bytes()
    if damage == "not finished":
        found = json.loads((folder / "pack.json").read_text())
        (folder / "pack.json").write_text(json.dumps({**found, "parts": None}))
        said = "of the old format is not finished"
    elif damage == "no pyarrow":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        said = "in Arrow files, and pyarrow is not installed: pip install pyarrow"
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data.replace(b"image", b"imagf"))
    with pytest.raises(PackError, match=said):
        unpack(folder, tmp_path / "files")


@pytest.mark.parametrize("work", [lambda at: pack(at / "images", at / "to"), lambda at: unpack(at / "pack", at / "to")])
def test_two_at_once_do_not_write_to_one_folder(source, tmp_path, work):
    packed(source, tmp_path / "pack")
    (tmp_path / "to").mkdir()
    descriptor = os.open(tmp_path / "to", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(PackError, match="another process writes to"):
        work(tmp_path)
    os.close(descriptor)
    assert work(tmp_path).num_images == 13
