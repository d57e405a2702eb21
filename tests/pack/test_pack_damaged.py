"""A damaged part is a PackError or is read; it never ends the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fastload import PackError
from fastload.pack.parts import Part, load_pyarrow, write_part

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


def test_images_that_lie_outside_of_the_file_are_refused(path):
    # What is compressed is read into memory of Arrow's.
    write(path, read(path), compression="zstd")
    with pytest.raises(PackError, match="offsets point outside of the file"):
        Part(path)


def test_other_columns_are_refused(path):
    write(path, load_pyarrow().table({"image": [1, 2], "label": [0, 1]}))
    with pytest.raises(PackError, match="its columns are not those of a pack"):
        Part(path)


def test_images_without_a_byte_are_read(tmp_path):
    empty = str(tmp_path / "empty.arrow")
    write_part(empty, [(b"", "a/1.jpg", 0), (b"", "b/2.jpg", 1)], ["a", "b"])
    part = Part(empty)
    assert [bytes(part.encoded(place)) for place in range(2)] == [b"", b""]
