"""Unpacked files are those that were packed; nothing is overwritten."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from pack_tools import packed
from torchvision import datasets

from fastload import PackError, cli, native
from fastload.images import PackedImages
from fastload.native.jpeg import is_record
from fastload.pack import unpack as module
from fastload.pack.encoding import encode
from fastload.pack.options import PackOptions
from fastload.pack.run import pack
from fastload.pack.unpack import unpack

needs_library = pytest.mark.skipif(not native.available(), reason="the native library is not built")
KINDS = [PackOptions(), pytest.param(PackOptions(coefficients=True), marks=needs_library)]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", KINDS, ids=["files", "coefficients"])
def test_the_files_are_those_that_were_packed(source, tmp_path, options):
    packed(source, tmp_path / "pack", options)
    done = unpack(tmp_path / "pack", tmp_path / "files")
    expected = {
        os.path.relpath(path, source): Path(path).read_bytes() for path, _ in datasets.ImageFolder(source).samples
    }
    assert files(tmp_path / "files") == expected
    assert (done.num_images, done.num_before) == (13, 0)
    assert done.num_bytes == sum(map(len, expected.values()))
    assert datasets.ImageFolder(tmp_path / "files").class_to_idx == datasets.ImageFolder(source).class_to_idx


def test_a_name_may_be_any_that_the_file_system_allows(source, tmp_path):
    names = ["n" * (os.pathconf(source, "PC_NAME_MAX") - 4) + ".jpg", os.fsdecode(b"\xff\n.jpg")]
    for old, name in zip(("10.jpg", "9.JPEG"), names, strict=True):
        (source / "cat" / old).rename(source / "cat" / name)
    images = packed(source, tmp_path / "pack")
    unpack(tmp_path / "pack", tmp_path / "files")
    for name in names:
        assert (f"cat/{name}", 1) in images.samples
        assert files(tmp_path / "files")[f"cat/{name}"] == (source / "cat" / name).read_bytes()


def test_classes_whose_files_were_left_out_have_their_folder(source, tmp_path):
    (source / "fox").mkdir()
    (source / "fox" / "1.jpg").write_bytes(b"no image")
    packed(source, tmp_path / "pack", on_error="skip")
    unpack(tmp_path / "pack", tmp_path / "files")
    assert sorted(os.listdir(tmp_path / "files")) == ["Dog", "cat", "eel", "fox"]


@pytest.mark.parametrize("options", KINDS, ids=["files", "coefficients"])
def test_a_run_that_was_stopped_is_continued(source, tmp_path, options, monkeypatch):
    packed(source, tmp_path / "pack", options)
    replace, calls = os.replace, []

    def stop(*paths):
        calls.append(paths)
        if len(calls) == 7:
            raise KeyboardInterrupt
        replace(*paths)

    monkeypatch.setattr(module.os, "replace", stop)
    arguments = ["unpack", str(tmp_path / "pack"), str(tmp_path / "files")]
    assert cli.main(arguments) == 130
    assert len(datasets.ImageFolder(tmp_path / "files", allow_empty=True)) == 6, "what is not complete is no image"
    monkeypatch.setattr(module.os, "replace", replace)
    assert unpack(*arguments[1:]).num_before == 6
    assert len(files(tmp_path / "files")) == 13
    assert unpack(*arguments[1:]).num_before == 13


def test_a_file_of_other_contents_is_not_overwritten(source, tmp_path):
    packed(source, tmp_path / "pack")
    path = tmp_path / "files" / "cat" / "10.jpg"
    path.parent.mkdir(parents=True)
    right = (source / "cat" / "10.jpg").read_bytes()
    for wrong in (b"mine", bytes(len(right))):
        path.write_bytes(wrong)
        with pytest.raises(PackError, match=r"cat/10.jpg exists and is another file; unpack to another folder"):
            unpack(tmp_path / "pack", tmp_path / "files")
        assert path.read_bytes() == wrong
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(PackError, match=r"cat/10.jpg exists and is another file"):
        unpack(tmp_path / "pack", tmp_path / "files")


def test_pixels_become_ppm_files(source, tmp_path):
    images = packed(source, tmp_path / "pack", PackOptions(raw=True))
    unpack(tmp_path / "pack", tmp_path / "files")
    found = datasets.ImageFolder(tmp_path / "files")
    assert [image.tobytes() for image, _ in found] == [image.tobytes() for image, _ in images]
    assert found.targets == images.targets
    assert (tmp_path / "files" / "cat" / "10.jpg.ppm").exists()


NAMES = ["../1.jpg", "cat/../../1.jpg", "/1.jpg", "", "cat/.."]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_out_of_the_folder_is_refused(source, tmp_path, name, monkeypatch):
    packed(source, tmp_path / "pack")
    monkeypatch.setattr(PackedImages, "samples", [(name, 0)])
    with pytest.raises(PackError, match=f"the name {name!r} in .* leads out of the folder"):
        unpack(tmp_path / "pack", tmp_path / "a" / "files")
    assert files(tmp_path / "a") == {}


# -- packs of the old format -------------------------------------------------------------------------------------------


def old_pack(source: Path, folder: Path, options: PackOptions, name: str | None = None) -> Path:
    """Write a pack as it was written before there was the present format."""
    pa = pytest.importorskip("pyarrow")
    ipc = pytest.importorskip("pyarrow.ipc")
    folder.mkdir()
    found, parts, num_records = datasets.ImageFolder(source), [], 0
    kind = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])
    for number in range(3):
        rows = []
        for path, label in found.samples[5 * number : 5 * number + 5]:
            data = encode(Path(path).read_bytes(), options)
            num_records += is_record(data)
            own = os.path.relpath(path, source) if name is None else name
            rows.append({"image": {"bytes": data, "path": own}, "label": label})
        path = folder / f"part-{number:05d}-of-00003.arrow"
        with pa.OSFile(str(path), "wb") as file, ipc.new_stream(file, kind) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=kind))
        parts.append({"images": len(rows), "bytes": path.stat().st_size})
    description = {
        "format": "fastload pack 1",
        "options": asdict(options),
        "source": {"images": 13, "bytes": 1, "digest": "0" * 64},
        "made_by": {"Pillow": "1", "pyarrow": "1"},
        "classes": found.classes,
        "images_per_part": 5,
        "num_parts": 3,
        "parts": parts,
        "images_per_class": [5, 4, 4],
        "skipped": [],
        "num_records": num_records,
    }
    (folder / "pack.json").write_text(json.dumps(description))
    return folder


@pytest.mark.parametrize("options", KINDS, ids=["files", "coefficients"])
def test_a_pack_of_the_old_format_becomes_files_and_is_else_an_error_that_says_so(source, tmp_path, options):
    folder = old_pack(source, tmp_path / "old", options)
    done = unpack(folder, tmp_path / "files")
    assert done.num_images == 13
    assert files(tmp_path / "files") == {
        os.path.relpath(path, source): Path(path).read_bytes() for path, _ in datasets.ImageFolder(source).samples
    }
    for use in (PackedImages, lambda folder: packed(source, folder)):
        with pytest.raises(
            PackError, match=r"of the old format, in Arrow files: fastload unpack .* FILES makes files of"
        ):
            use(folder)


def test_pixels_of_the_old_format_become_ppm_files(source, tmp_path):
    unpack(old_pack(source, tmp_path / "old", PackOptions(raw=True)), tmp_path / "files")
    packed(source, tmp_path / "new", PackOptions(raw=True))
    unpack(tmp_path / "new", tmp_path / "expected")
    assert files(tmp_path / "files") == files(tmp_path / "expected")


@pytest.mark.parametrize("damage", ["cut", "noise", "missing", "not finished", "other columns", "no pyarrow", "a name"])
def test_a_pack_of_the_old_format_that_cannot_be_read_is_an_error(source, tmp_path, damage, monkeypatch):
    folder = old_pack(source, tmp_path / "old", PackOptions(), "../out" if damage == "a name" else None)
    path, said = folder / "part-00001-of-00003.arrow", "part-00001-of-00003.arrow cannot be read as a part of a pack"
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "noise":
        path.write_bytes(os.urandom(len(data)))
    elif damage == "missing":
        path.unlink()
    elif damage == "other columns":
        path.write_bytes(data.replace(b"image", b"imagf"))
    elif damage == "not finished":
        found = json.loads((folder / "pack.json").read_text())
        (folder / "pack.json").write_text(json.dumps({**found, "parts": None}))
        said = "of the old format is not finished"
    elif damage == "no pyarrow":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        said = "in Arrow files, and pyarrow is not installed: pip install pyarrow"
    else:
        said = r"the name '\.\./out' in .* leads out of the folder"
    with pytest.raises(PackError, match=said):
        unpack(folder, tmp_path / "files")


@pytest.mark.parametrize("work", [lambda at: pack(at / "images", at / "to"), lambda at: unpack(at / "pack", at / "to")])
def test_two_at_once_do_not_write_to_one_folder(source, tmp_path, work):
    packed(source, tmp_path / "pack")
    (tmp_path / "to").mkdir()
    descriptor = os.open(tmp_path / "to", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(PackError, match="another process writes to"):
            work(tmp_path)
    finally:
        os.close(descriptor)
    assert work(tmp_path).num_images == 13
