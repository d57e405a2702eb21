"""PackedImages is the ImageFolder that was packed."""

from __future__ import annotations

import gc
import json
import os
import pickle

import numpy as np
import pytest
import torch.utils.data
from pack_tools import packed
from torchvision import datasets
from torchvision.transforms import functional

import fastload
from fastload import PackError, native
from fastload.images import PackedImages
from fastload.pack.options import PackOptions
from fastload.pack.unpack import unpack


def same(one, other):
    return one.mode == other.mode and one.size == other.size and one.tobytes() == other.tobytes()


KINDS = {"files": PackOptions(), "pixels": PackOptions(raw=True), "coefficients": PackOptions(coefficients=True)}


@pytest.fixture(params=[*KINDS] if native.available() else ["files", "pixels"])
def pair(request, source, tmp_path):
    """Return an ImageFolder and the pack of it."""
    return datasets.ImageFolder(source), packed(source, tmp_path / "pack", KINDS[request.param])


def pixels_alone(images):
    return images.encoded(0)[:2] == b"P6"


def test_the_samples_and_what_is_known_of_them_are_image_folders(pair, source):
    folder, images = pair
    assert len(images) == len(folder) == len(list(images)) == 13
    for index in [*range(-13, 13), np.int64(3)]:
        (image, target), (expected, expected_target) = images[index], folder[index]
        assert same(image, expected)
        assert type(image) is type(expected)
        assert image.info == ({} if pixels_alone(images) else expected.info)
        assert pixels_alone(images) or dict(image.getexif()) == dict(expected.getexif())
        assert target == expected_target
        assert type(target) is int
    for name in ("classes", "class_to_idx", "targets"):
        assert getattr(images, name) == getattr(folder, name)
    below = [(os.path.relpath(path, source), label) for path, label in folder.samples]
    assert list(images.samples) == list(images.imgs) == below
    assert (images.samples[2:9:3], images.samples[-1]) == (below[2:9:3], below[-1])
    for index in (13, -14, 10**20):
        with pytest.raises(IndexError, match=f"has 13 images, got index {index}"):
            images[index]


def test_the_transforms_are_called(source, tmp_path):
    packed(source, tmp_path / "pack")
    images = PackedImages(tmp_path / "pack", functional.hflip, lambda label: label + 10)
    plain = PackedImages(str(tmp_path / "pack"))
    assert same(images[7][0], functional.hflip(plain[7][0]))
    assert images[7][1] == plain[7][1] + 10
    plain.targets = [label + 20 for label in plain.targets]  # which are the user's
    assert [plain[index][1] for index in (0, 6, 12)] == [20, 21, 22]


def open_files():
    links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return {os.path.basename(link) for link in links} & {"records", "index"}


def test_files_are_opened_to_read_when_they_are_needed_and_no_descriptor_stays(source, tmp_path, monkeypatch):
    def open_to_read(path, flags, *more):
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return opens(path, flags, *more)

    opens = os.open
    images = packed(source, tmp_path / "pack")
    gc.collect()
    assert not open_files()
    monkeypatch.setattr(os, "open", open_to_read)
    images[6]
    assert open_files() == {"index", "records"}
    del images
    gc.collect()
    assert not open_files()


def test_a_copy_by_pickle_opens_the_files_itself_from_any_folder(pair, tmp_path, monkeypatch):
    folder, images = pair
    monkeypatch.chdir(tmp_path)
    images = PackedImages("pack")
    images[0], images.samples
    data = pickle.dumps(images)
    assert len(data) < 5000
    monkeypatch.chdir("/")
    copy = pickle.loads(data)
    assert all(same(copy[index][0], folder[index][0]) for index in range(13))
    view, expected = copy.encoded(3), bytes(images.encoded(3))
    del copy
    gc.collect()
    assert view.readonly
    assert bytes(view) == expected
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(PackedImages("~/pack")) == 13


def test_workers_load_what_this_one_does(pair):
    folder, images = pair
    images[0]  # the parent has maps that a fork inherits
    for loader in (
        torch.utils.data.DataLoader(images, 4, collate_fn=list, num_workers=2),
        fastload.DataLoader(images, 4, collate_fn=list, num_workers=8, worker_method="thread"),
    ):
        found = [one for batch in loader for one in batch]
        assert [label for _, label in found] == folder.targets
        assert all(same(image, expected) for (image, _), (expected, _) in zip(found, folder, strict=True))


@pytest.mark.parametrize("name", ["records", "index"])
def test_a_file_of_another_pack_or_format_cut_off_or_missing_is_told(source, tmp_path, name):
    packed(source, tmp_path / "pack")
    (source / "cat" / "10.jpg").write_bytes((source / "cat" / "10.jpg").read_bytes()[::-1])
    packed(source, tmp_path / "other", on_error="skip")
    path, index = (tmp_path / "pack" / one for one in (name, "index"))
    size, other = path.stat().st_size, (tmp_path / "other" / name).read_bytes()
    path.write_bytes(other.ljust(size, b"\0")[:size])
    with pytest.raises(PackError, match="damaged; run the same fastload pack again"):
        PackedImages(tmp_path / "pack")[9]
    index.write_bytes(index.read_bytes().replace(b"format 1", b"format 7"))
    with pytest.raises(PackError, match=r"the files of the pack .* cannot be read"):
        PackedImages(tmp_path / "pack")[0]
    os.truncate(path, size - 1)
    with pytest.raises(PackError, match=rf"{name} has {size - 1:,} bytes instead of {size:,}.*run the same fastload"):
        PackedImages(tmp_path / "pack")
    path.unlink()
    with pytest.raises(PackError, match=rf"a file of the pack is missing: .*{name}; run the same"):
        PackedImages(tmp_path / "pack")


def test_a_description_that_somebody_changed_is_refused(source, tmp_path):
    packed(source, tmp_path / "pack")
    description = tmp_path / "pack" / "pack.json"
    right = json.loads(description.read_text())
    wrongs = [(text, "cannot be read as the description of a pack") for text in ("", "[]", "{}", '{"format": []')]
    changes = [{name: 5} for name in ("classes", "images_per_class", "checksum", "more")]
    wrongs += [(json.dumps({**right, **change}), "was changed since it was written") for change in changes]
    another = {**right, "format": "fastload pack 7"}
    for wrong, said in (*wrongs, (json.dumps(another), "has the format 'fastload pack 7', which another version")):
        description.write_text(wrong)
        for use in (PackedImages, lambda to: packed(source, to), lambda to: unpack(to, tmp_path / "to")):
            with pytest.raises(PackError, match=said):
                use(tmp_path / "pack")


def test_what_is_no_pack_or_not_finished_is_refused(source, tmp_path):
    damaged = source / "eel" / "poor.jpg"
    damaged.write_bytes(b"none")
    with pytest.raises(PackError, match="1 file cannot be packed"):
        packed(source, tmp_path / "pack")
    for function in (PackedImages, lambda folder: unpack(folder, tmp_path / "files")):
        with pytest.raises(PackError, match=r"is not a pack: it has no pack.json; fastload pack SRC DST makes one"):
            function(source)
        with pytest.raises(PackError, match="is not finished; run the same fastload pack again"):
            function(tmp_path / "pack")
