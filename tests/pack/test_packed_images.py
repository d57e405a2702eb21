"""PackedImages is the ImageFolder that was packed."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch.utils.data
from pack_tools import packed
from torchvision import datasets
from torchvision.transforms import functional

import fastload
from fastload import PackError, native
from fastload.images import PackedImages
from fastload.pack.description import PackOptions
from fastload.pack.parts import Part, load_pyarrow, write_part
from fastload.pack.unpack import unpack


def same(one, other):
    return one.mode == other.mode and one.size == other.size and one.tobytes() == other.tobytes()


KINDS = {"files": PackOptions(), "pixels": PackOptions(raw=True), "coefficients": PackOptions(coefficients=True)}


@pytest.fixture(params=[*KINDS] if native.available() else ["files", "pixels"])
def pair(request, source, tmp_path):
    """Return an ImageFolder and the pack of it."""
    options = KINDS[request.param]
    return datasets.ImageFolder(source), packed(source, tmp_path / "pack", options)


def pixels_alone(images):
    return images.encoded(0)[:2] == b"P6"


def test_the_samples_are_image_folders(pair):
    folder, images = pair
    assert len(images) == len(folder) == 13
    for index in [*range(-13, 13), np.int64(3)]:
        (image, target), (expected, expected_target) = images[index], folder[index]
        assert same(image, expected)
        assert type(image) is type(expected)
        assert image.info == ({} if pixels_alone(images) else expected.info)
        assert pixels_alone(images) or dict(image.getexif()) == dict(expected.getexif())
        assert target == expected_target
        assert type(target) is int
    assert len(list(images)) == 13


def test_what_is_known_of_the_samples_is_what_image_folder_knows(pair, source):
    folder, images = pair
    assert (images.classes, images.class_to_idx, images.targets) == (
        folder.classes,
        folder.class_to_idx,
        folder.targets,
    )
    below = [(os.path.relpath(path, source), label) for path, label in folder.samples]
    assert list(images.samples) == list(images.imgs) == below
    assert images.samples[2:9:3] == below[2:9:3]
    assert images.samples[-1] == below[-1]


def test_the_transforms_are_called(source, tmp_path):
    packed(source, tmp_path / "pack")
    images = PackedImages(tmp_path / "pack", functional.hflip, lambda label: label + 10)
    plain = PackedImages(str(tmp_path / "pack"))
    assert same(images[7][0], functional.hflip(plain[7][0]))
    assert images[7][1] == plain[7][1] + 10
    plain.targets = [label + 20 for label in plain.targets]  # which are the user's
    assert [plain[index][1] for index in (0, 6, 12)] == [20, 21, 22]


@pytest.mark.parametrize("index", [13, -14, 10**20])
def test_an_index_beyond_the_end_is_an_index_error(pair, index):
    with pytest.raises(IndexError, match=f"has 13 images, got index {index}"):
        pair[1][index]


def test_bytes_are_where_the_file_is_mapped_and_cannot_be_written(pair):
    images = pair[1]
    views = [np.frombuffer(images.encoded(index), np.uint8) for index in range(5)]
    starts = [view.ctypes.data for view in views]
    part = images._parts[0]
    first = np.frombuffer(part._map, np.uint8).ctypes.data
    assert all(first < start < first + len(part._map) for start in starts), "of the first part, in its map"
    assert starts == sorted(starts)
    assert images.encoded(0).readonly


def test_nothing_is_opened_before_it_is_needed_and_no_descriptor_stays(source, tmp_path):
    def open_parts():
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return {os.path.basename(os.path.realpath(link)) for link in links if ".arrow" in os.path.realpath(link)}

    images = packed(source, tmp_path / "pack")
    gc.collect()
    assert open_parts() == set()
    images[6]
    assert open_parts() == {"part-00001-of-00003.arrow"}
    del images
    gc.collect()
    assert open_parts() == set()


def test_a_copy_by_pickle_maps_the_files_itself(pair, tmp_path, monkeypatch):
    folder, images = pair
    images[0]
    data = pickle.dumps(images)
    assert len(data) < 5000
    monkeypatch.chdir("/")
    copy = pickle.loads(data)
    assert not copy._parts
    assert all(same(copy[index][0], folder[index][0]) for index in range(13))
    view, expected = copy.encoded(3), bytes(images.encoded(3))
    del copy
    gc.collect()
    assert bytes(view) == expected


def test_a_relative_folder_is_found_from_elsewhere(source, tmp_path, monkeypatch):
    packed(source, tmp_path / "pack")
    monkeypatch.chdir(tmp_path)
    images = PackedImages("pack")
    monkeypatch.chdir("/")
    assert len([image for image, _ in images]) == 13
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(PackedImages("~/pack")) == 13


def pixels_and_sizes(batch):
    return [(image.size, image.tobytes(), label) for image, label in batch]


@pytest.mark.parametrize(
    ("loader", "method"),
    [
        *((fastload.DataLoader, "fork"), (torch.utils.data.DataLoader, "fork"), (fastload.DataLoader, "thread")),
        pytest.param(fastload.DataLoader, "forkserver", marks=pytest.mark.slow),
    ],
)
def test_workers_load_what_this_one_does(pair, loader, method):
    folder, images = pair
    images[0]  # the parent has maps that a fork inherits
    options = {"worker_method": "thread"} if method == "thread" else {"multiprocessing_context": method}
    workers = {"fork": 2, "forkserver": 1, "thread": 8}[method]
    loader = loader(images, 4, num_workers=workers, collate_fn=pixels_and_sizes, **options)
    found = [one for batch in loader for one in batch]
    assert found == pixels_and_sizes(folder)


def test_a_part_that_is_missing_or_cut_off_is_told_at_once(source, tmp_path):
    packed(source, tmp_path / "pack")
    path = tmp_path / "pack" / "part-00001-of-00003.arrow"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(PackError, match=rf"part-00001-of-00003.arrow has {size - 1:,} bytes instead of {size:,}"):
        PackedImages(tmp_path / "pack")
    path.unlink()
    with pytest.raises(PackError, match=r"a part of the pack is missing: .*part-00001-of-00003.arrow"):
        PackedImages(tmp_path / "pack")


@pytest.mark.parametrize("damage", ["nothing", "noise", "beginning", "other columns", "another part"])
def test_a_part_that_is_damaged_or_foreign_is_told_when_it_is_opened(source, tmp_path, damage):
    packed(source, tmp_path / "pack")
    path = tmp_path / "pack" / "part-00001-of-00003.arrow"
    data = path.read_bytes()
    wrong = {
        "nothing": bytes(len(data)),
        "noise": np.random.default_rng(0).bytes(len(data)),
        "beginning": data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
        "other columns": data.replace(b"image", b"imagf").replace(b"label", b"labem"),
        "another part": path.with_name("part-00000-of-00003.arrow").read_bytes(),
    }
    path.write_bytes(wrong[damage])
    description = json.loads((tmp_path / "pack" / "pack.json").read_text())
    description["parts"][1]["bytes"] = len(wrong[damage])
    (tmp_path / "pack" / "pack.json").write_text(json.dumps(description))
    images = PackedImages(tmp_path / "pack")
    images[0]
    said = {"beginning": "has other classes than this pack", "another part": "has other classes than this pack"}
    said = said.get(damage, "cannot be read as a part of a pack")
    with pytest.raises(PackError, match=f"part-00001-of-00003.arrow {said}"):
        images[5]


def test_an_image_that_went_bad_is_named(source, tmp_path):
    images = packed(source, tmp_path / "pack")
    stored, path = bytes(images.encoded(7)), tmp_path / "pack" / "part-00001-of-00003.arrow"
    path.write_bytes(path.read_bytes().replace(stored, bytes(len(stored))))
    images = PackedImages(tmp_path / "pack")
    with pytest.raises(Exception, match="cannot identify") as caught:
        images[7]
    assert caught.value.__notes__ == [f"at index 7: {images.samples[7][0]} in {tmp_path / 'pack'}"]


def test_advice_that_the_system_does_not_take_is_no_error(source, tmp_path):
    class Map:
        def madvise(self, *_):
            raise OSError(11, "Resource temporarily unavailable")

    images = packed(source, tmp_path / "pack")
    images[0]
    images._parts[0]._map = Map()
    assert images[1][0].size == datasets.ImageFolder(source)[1][0].size


UNREADABLE, INCONSISTENT = "cannot be read as the description of a pack: ", "values are inconsistent"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        *((text, UNREADABLE) for text in ("", "[]", "{}")),
        *(({name: value}, UNREADABLE) for name, value in (("format", "2"), ("more", 1), ("options", {}))),
        *(({"classes": value}, INCONSISTENT) for value in (None, "cat", ["cat"])),
        *(({"images_per_class": value}, INCONSISTENT) for value in ([13.0], [14, -1, 0], [5, 4, 5])),
        ({"parts": [1, 2, 3]}, UNREADABLE),
        ({"parts": [{"images": 5}] * 3}, UNREADABLE),
        ({"parts": [{"images": 13, "bytes": 1}]}, INCONSISTENT),
        ({"parts": []}, INCONSISTENT),
        ({"options": {"max_side": "4"}}, UNREADABLE),
        ({"source": 5}, INCONSISTENT),
        ({"num_parts": "3"}, INCONSISTENT),
        ({"skipped": 5}, INCONSISTENT),
    ],
    ids=str,
)
def test_a_description_that_somebody_changed_is_refused(source, tmp_path, wrong, said):
    packed(source, tmp_path / "pack")
    description = tmp_path / "pack" / "pack.json"
    right = json.loads(description.read_text())
    description.write_text(wrong if isinstance(wrong, str) else json.dumps({**right, **wrong}))
    for function in (
        PackedImages,
        lambda folder: packed(source, folder),
        lambda folder: unpack(folder, tmp_path / "to"),
    ):
        with pytest.raises(PackError, match=rf"pack.json {UNREADABLE}.*{said if said == INCONSISTENT else ''}"):
            function(tmp_path / "pack")


def test_what_is_no_pack_or_not_finished_is_refused(source, tmp_path):
    packed(source, tmp_path / "pack")
    description = tmp_path / "pack" / "pack.json"
    right = description.read_text()
    for function in (PackedImages, lambda folder: unpack(folder, tmp_path / "files")):
        with pytest.raises(PackError, match=r"is not a pack: it has no pack.json; fastload pack SRC DST makes one"):
            function(source)
        description.write_text(json.dumps({**json.loads(right), "parts": None}))
        with pytest.raises(PackError, match="is not finished; run the same fastload pack again"):
            function(tmp_path / "pack")
        description.write_text(right)
    (tmp_path / "pack" / "part-00001-of-00003.arrow").unlink()
    with pytest.raises(PackError, match=r"part-00001-of-00003.arrow cannot be read as a part of a pack"):
        unpack(tmp_path / "pack", tmp_path / "files")


# -- damaged parts -----------------------------------------------------------------------------------------------------


# Makes lengths negative, and offsets and lengths huge: unchecked, eight of these bytes end the process.
VALUE = 195

READ_EACH = """
import sys
from fastload import PackError
from fastload.pack.parts import Part

path, value = sys.argv[1], bytes([int(sys.argv[2])])
with open(path, "rb") as file:
    good = file.read()
begins = good.index(b"x" * 100)
refused = 0
for place in [*range(begins), *range(begins + 300, len(good))]:
    with open(path, "wb") as file:
        file.write(good[:place] + value + good[place + 1 :])
    try:
        part = Part(path)
    except PackError:
        refused += 1
        continue
    images = [bytes(part.encoded(number)) for number in range(len(part))]
    names = [part.name(number) for number in range(len(part))]
    assert sum(map(len, images)) <= len(good) and part.names() == names and len(part.labels) == len(part)
print(refused)
"""


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "part.arrow")
    write_part(path, [(b"x" * 100, "a/1.jpg", 0), (b"x" * 200, "b/2.jpg", 1)], ["a", "b"])
    return path


@pytest.mark.slow
def test_no_byte_of_the_metadata_can_end_the_process(path):
    command = [sys.executable, "-c", READ_EACH, path, str(VALUE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 300


def read(path):
    return load_pyarrow().ipc.open_stream(Path(path).read_bytes()).read_all()


def write(path, table, **options):
    pa = load_pyarrow()
    options = pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("label", [0, None]),
        ("image", [{"bytes": b"1", "path": "a"}, {"bytes": None, "path": "b"}]),
        ("image", [{"bytes": b"1", "path": None}, {"bytes": b"2", "path": "b"}]),
        ("image", [None, {"bytes": b"2", "path": "b"}]),
    ],
)
def test_values_that_are_missing_are_refused(path, column, values):
    table = read(path)
    place, field = table.schema.get_field_index(column), table.schema.field(column)
    write(path, table.set_column(place, field, load_pyarrow().array(values, field.type)))
    with pytest.raises(PackError, match="it has missing values"):
        Part(path)


def test_images_outside_of_the_file_and_other_columns_are_refused(path):
    write(path, read(path), compression="zstd")  # which is read into memory of Arrow's
    with pytest.raises(PackError, match="offsets point outside of the file"):
        Part(path)
    write(path, load_pyarrow().table({"image": [1, 2], "label": [0, 1]}))
    with pytest.raises(PackError, match="its columns are not those of a pack"):
        Part(path)


def test_images_without_a_byte_are_read(path):
    os.unlink(path)
    write_part(path, [(b"", "a/1.jpg", 0), (b"", "b/2.jpg", 1)], ["a", "b"])
    assert [bytes(Part(path).encoded(place)) for place in range(2)] == [b"", b""]
