"""A build for 64-bit ARM computes the bits that the library computes here; an emulator runs it."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from damaged_files import mutants
from emulator import Buffer, Emulated, Here, Machine
from jpeg_files import SAMPLINGS, picture, real_files, saved
from kit.cuts import some_cut

from fastload.native import rows
from fastload.native.arrays import StepKind
from fastload.native.rows import LAYOUTS, Cut, Order, Status, whole

pytestmark = pytest.mark.slow
# Of struct target, in a request.
DATA_AT, TABLE_AT = 0, 32


@pytest.fixture(scope="module", params=["NEON", "plain C"])
def arm(request, tmp_path_factory) -> Iterator[Emulated]:
    found = Emulated(tmp_path_factory.mktemp("arm"), () if request.param == "NEON" else ("-DFASTLOAD_PORTABLE",))
    yield found
    found.close()


def assert_equal(arm: Machine, result: Callable[[Machine], object]) -> None:
    here = result(Here())
    assert result(arm) == here


def requested(cut: Cut, layout: str = "RGB", table: npt.NDArray[np.generic] | None = None) -> tuple[Buffer, Buffer]:
    """Return a request and where its result goes: pixels, or values of a table in planes."""
    height, width = cut.window[2:]
    channels = LAYOUTS[layout]
    if table is None:
        target = 0, channels * width, channels, 1, 0, 1, channels
        out = Buffer(height * width * channels)
        pointers = {DATA_AT: out}
    else:
        size = table.itemsize
        target = 0, width * size, size, height * width * size, 0, size, 3
        out = Buffer(3 * height * width * size)
        pointers = {DATA_AT: out, TABLE_AT: Buffer(table.tobytes())}
    packed = rows.request(target, cut, Order.TALL_ROWS_FIRST)
    return Buffer(packed, pointers), out


def decoded(machine: Machine, scratch: int, data: bytes, cut: Cut, **kind: object) -> tuple[int, bytes | None]:
    request, out = requested(cut, **kind)  # type: ignore[arg-type]
    status = machine.call("fastload_jpeg_row", scratch, Buffer(data), len(data), request) & 0xFFFFFFFF
    return status, out.data if status == 0 else None


def written(machine: Machine, scratch: int, name: str, data: bytes) -> tuple[int, bytes | None]:
    out, size = Buffer(4 * len(data) + 4096), Buffer(8)
    status = machine.call(name, scratch, Buffer(data), len(data), out, len(out.data), size) & 0xFFFFFFFF
    return status, out.data[: struct.unpack("q", size.data)[0]] if status == 0 else None


def all_of_a_file(data: bytes, cuts: list[Cut], is_grey: bool = False) -> Callable[[Machine], object]:
    """Return what decodes a file and its record: all of it, parts of it, in every layout, and by tables."""
    tables = [np.random.default_rng(1).normal(size=(3, 256)).astype(dtype) for dtype in (np.float32, np.float16)]

    def run(machine: Machine) -> object:
        scratch = machine.call("fastload_scratch_new")
        size = Buffer(20)
        found: list[object] = [
            machine.call("fastload_jpeg_size", Buffer(data), len(data), size) & 0xFFFFFFFF,
            size.data,
        ]
        found += [machine.call("fastload_jpeg_can_wait", Buffer(data), len(data), Buffer(32)) & 0xFFFFFFFF]
        record = written(machine, scratch, "fastload_record_of_jpeg", data)
        found.append(record)
        files = [data] if record[1] is None else [data, record[1]]
        if record[1] is not None:
            found.append(written(machine, scratch, "fastload_jpeg_of_record", record[1]))
        for file in files:
            found += [decoded(machine, scratch, file, cut) for cut in cuts]
            found += [decoded(machine, scratch, file, cuts[0], layout=layout) for layout in ("RGBX", "L")]
            found += [decoded(machine, scratch, file, cuts[-1], table=table) for table in tables]
        machine.call("fastload_scratch_free", scratch)
        return found

    return run


def cuts_of(height: int, width: int, seed: int, num: int = 10) -> list[Cut]:
    rng = np.random.default_rng(seed)
    return [whole(height, width), *(some_cut(rng, height, width) for _ in range(num))]


KINDS = [
    *((sampling, kind) for sampling in SAMPLINGS for kind in ("-", "p", "m", "n")),
    *(((1, 1), kind) for kind in ("g", "r", "gp", "rp")),
]


@pytest.mark.parametrize(("sampling", "kind"), KINDS, ids=str)
def test_files_of_each_sampling_and_kind_of_scan(arm, maker, sampling, kind):
    made = (203, 149, 60), (33, 8, 79), (1, 2, 98), (90, 70, 1), (90, 70, 100)
    for seed, (width, height, quality) in enumerate(made):
        data = maker.make(width, height, quality=quality, kind=kind, sampling=sampling, restart=seed * 3)
        assert_equal(arm, all_of_a_file(data, cuts_of(height, width, seed)))


def test_damaged_files_have_the_same_status_or_the_same_pixels(arm):
    rng = np.random.default_rng(0)
    image = picture(rng, 70, 90)
    files = [saved(image, quality=q, subsampling=s, progressive=p) for q, s, p in ((80, 2, False), (98, 0, True))]
    damaged = mutants(rng, files)
    some = [next(damaged) for _ in range(400)]

    def run(machine: Machine) -> list[tuple[int, bytes | None]]:
        scratch = machine.call("fastload_scratch_new")
        return [decoded(machine, scratch, data, whole(70, 90)) for data in some]

    here = run(Here())
    assert {status for status, _ in here} > {Status.DONE, Status.DAMAGED}
    assert run(arm) == here


@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_memory(arm, channels):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        height, width = (int(side) for side in rng.integers(1, 260, 2))
        image = picture(rng, height, width)[..., :channels]
        stride = width * channels

        def run(machine: Machine, image=image, stride=stride, height=height, width=width, seed=seed) -> list[bytes]:
            scratch, found = machine.call("fastload_scratch_new"), []
            for cut in cuts_of(height, width, seed):
                request, out = requested(cut)
                pixels = Buffer(image.tobytes())
                arguments = scratch, pixels, stride, channels, height, width, request
                assert machine.call("fastload_image_row", *arguments) & 0xFFFFFFFF == 0
                found.append(out.data)
            return found

        assert_equal(arm, run)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("strides", [(93, 3, 1), (31, 1, 31 * 67)], ids=["side by side", "planes"])
def test_colors_of_tensors(arm, strides, fused):
    height, width = 67, 31
    image = Buffer(np.random.default_rng(0).bytes(3 * height * width))
    places = Buffer(struct.pack("3q", *strides))

    def run(machine: Machine) -> list[bytes]:
        found = []
        for change, *numbers in (
            (0, 0.1, 0.9, 0),
            (0, 1.7, -0.7, 0),
            (1, 0, 0, 0.07),
            (1, 0, 0, -0.5),
            (2, 0, 0, 0.1),
        ):
            out, given = Buffer(3 * height * width), Buffer(struct.pack("3f", *numbers))
            sides = height, width, given, fused
            machine.call("fastload_distort", change, image, places, out, places, *sides)
            found.append(out.data)
        greys = Buffer(4 * height * width)
        machine.call("fastload_distort_greys", image, places, height, width, greys, fused)
        return [*found, greys.data]

    assert_equal(arm, run)


@pytest.mark.parametrize("is_unit", [False, True])
@pytest.mark.parametrize("num", [1, 8, 37])
def test_random_words(arm, num, is_unit):
    ids = np.random.default_rng(num).integers(-(2**63), 2**63, num, dtype=np.int64)
    repeats = np.arange(num, dtype=np.int64) * 1009

    def run(machine: Machine) -> list[bytes]:
        found = []
        for of_words in (2, 6, 14):
            for turns in (0, Buffer(repeats.tobytes())):
                out = Buffer(num * of_words * 4)
                places: tuple[int | Buffer, int | Buffer] = (0, out) if is_unit else (out, 0)
                key = 0x9E3779B9, 0x1234567
                machine.call("fastload_philox", Buffer(ids.tobytes()), turns, num, *key, 5, 77, of_words, *places)
                found.append(out.data)
        return found

    assert_equal(arm, run)


@pytest.mark.parametrize(("length", "bits"), [(1, (1, 1)), (1000, (5, 5)), (2**40 + 17, (21, 20))])
def test_the_order_of_an_epoch(arm, length, bits):
    values = np.random.default_rng(0).integers(0, length, 500)
    keys = np.random.default_rng(1).integers(0, 2**64, 8, dtype=np.uint64)

    def run(machine: Machine) -> list[bytes]:
        there, back = Buffer(values.tobytes()), Buffer(values.tobytes())
        for is_back, buffer in enumerate((there, back)):
            rounds = Buffer(keys.tobytes()), len(keys)
            machine.call("fastload_permute", buffer, len(values), length, *bits, *rounds, is_back)
        return [there.data, back.data]

    assert_equal(arm, run)


@pytest.mark.parametrize("dtype", [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32"])
@pytest.mark.parametrize("offsets", [None, np.int32, np.int64])
def test_rows_of_tables(arm, dtype, offsets):
    values = np.random.default_rng(2).integers(0, 255, 120).astype(np.uint8).tobytes()
    item = np.dtype(dtype).itemsize
    bounds = {} if offsets is None else {16: Buffer(np.array([0, 3, 3, 8, 9], dtype=offsets).tobytes())}
    chunk = struct.pack("4q", 0, len(values) // item, 0, 1)
    chunks = Buffer(chunk + bytes(32), {0: Buffer(values), **bounds})  # nobody has looked at the second one
    kind = {"i": 1, "u": 2, "f": 0}[np.dtype(dtype).kind]
    numbers = struct.pack("7q", 0, 0, 2, 2, 4 if offsets is None else np.dtype(offsets).itemsize, item, kind)
    column = Buffer(numbers, {0: Buffer(struct.pack("2q", 4, 6)), 8: chunks})

    def run(machine: Machine) -> list[object]:
        found: list[object] = []
        for wanted in ([0, 3, 2, 2], [1], [0, 4], [6], [-1]):
            count, places, found_of = len(wanted), Buffer(16 * len(wanted)), Buffer(24)
            asked = Buffer(struct.pack(f"{count}q", *wanted))
            found.append(machine.call("fastload_table_find", column, asked, count, places, found_of))
            found += [found_of.data, places.data[8::16]]  # the lengths; the others are addresses
        places = Buffer(struct.pack("4q", 0, 5, 0, 2), {0: Buffer(values[item:]), 16: Buffer(values)})
        target = Buffer(56)
        machine.call("fastload_table_copy", column, places, 2, target)
        return [*found, target.data]

    assert_equal(arm, run)


@pytest.mark.parametrize("item", [0, 1, 2, 4])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_batches_of_arrays(arm, channels, item):
    """Each kind of step along both axes, from planes and from pixels and to both; item 0: without a table."""
    rng, side, num = np.random.default_rng(item), 33, 5
    images, table = (Buffer(rng.bytes(num_bytes)) for num_bytes in (6 * channels * side**2, channels * 256 * item))
    indices, shifts = rng.integers(0, 6, num), rng.integers(-12, 12, num)

    def run(machine: Machine) -> list[tuple[int, bytes]]:
        found = []
        for kind, of_pixels, in_pixels in itertools.product(StepKind, (False, True), (False, True)):
            planes, pixels = (side**2, side, 1), (1, side * channels, channels)
            source = channels * side**2, *(pixels if of_pixels else planes)
            target = (max(item, 1) * step for step in (channels * side**2, *(pixels if in_pixels else planes)))
            step = Buffer(struct.pack("2i3q", kind, 8, 0, -2, side), {8: Buffer(shifts.tobytes())})
            out = Buffer(num * max(item, 1) * channels * side**2)
            pointers = {0: images, 40: Buffer(indices.tobytes()), 48: out, 136: Buffer(bytes(range(50, 50 + channels)))}
            pointers |= {152: step, 160: step} | ({144: table} if item else {})
            numbers = (0, *source, 0, 0, *target, max(item, 1), channels, side, side, side, side, 0, 0, 0, 0, 1, 1)
            result = machine.call("fastload_arrays", Buffer(struct.pack("23q", *numbers), pointers), num)
            found.append((result, out.data))
        assert {result for result, _ in found} == {-1}
        return found

    assert_equal(arm, run)


@pytest.mark.parametrize("is_range", [False, True])
def test_the_states_of_generators(arm, is_range):
    ids = np.random.default_rng(0).integers(-(2**63), 2**63, 40, dtype=np.int64)

    def run(machine: Machine) -> list[bytes]:
        places = [Buffer(2500), Buffer(2500), Buffer(16), Buffer(2544)]
        states = Buffer(56, {8 * i: place for i, place in enumerate(places)})
        room = Buffer(machine.call("fastload_generators_room"))
        pointers = {0: states, 8: room} if is_range else {0: states, 8: room, 16: Buffer(ids.tobytes())}
        run = Buffer(struct.pack("7q32s", 0, 0, 0, -(2**40), 7, len(ids), 0, bytes(range(100, 132))), pointers)
        machine.call("fastload_generators_prepare", run)
        found = []
        for _ in ids:
            assert machine.call("fastload_generators_next_locked", run) & 0xFFFFFFFF == 0
            found.append(b"".join(place.data for place in places))
        assert machine.call("fastload_generators_next_locked", run) & 0xFFFFFFFF == 0xFFFFFFFF
        memory = Buffer(machine.call("fastload_generators_bytes"))
        machine.call("fastload_generators_read", states, memory)
        assert memory.data == found[-1]
        return found

    assert_equal(arm, run)


def test_real_files(arm):
    for seed, path in enumerate(real_files(250)):
        data = Path(path).read_bytes()
        size = Buffer(20)
        Here().call("fastload_jpeg_size", Buffer(data), len(data), size)
        width, height, *_ = struct.unpack("5i", size.data)
        assert_equal(arm, all_of_a_file(data, cuts_of(height, width, seed)))
