"""Batches out of arrays equal what torchvision makes of each sample, bit for bit, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import each_level, use_level
from sanitizers import sanitized
from torch import Tensor

from fastload import native
from fastload.native import arrays
from fastload.native.arrays import AxisStep, StepKind
from fastload.transforms import (
    CenterCrop,
    Compose,
    Draws,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    ToDtype,
    ToNormalized,
)
from fastload.transforms.base import BatchShape

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
EXAMPLES = 40 if sanitized() else 150
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def bits(tensor: Tensor) -> Tensor:
    """Return the numbers' bits: NaNs of tables are compared as well."""
    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def transformed(
    images: Tensor,
    rows: list[AxisStep],
    cols: list[AxisStep],
    out: Tensor,
    indices: Tensor | None = None,
    fill: list[int] | None = None,
    table: Tensor | None = None,
) -> Tensor:
    arrays.write_batch(out, images, rows, cols, indices, fill, table)
    return out


def lain_out(images: Tensor, layout: str) -> Tensor:
    """Return the same images in another layout."""
    if layout == "NHWC":
        return images.contiguous(memory_format=torch.channels_last)
    if layout == "gaps":
        wide = torch.zeros(*(2 * side + 1 for side in images.shape), dtype=images.dtype)
        view = wide[1::2, 1::2, 1::2, 1::2]
        view.copy_(images)
        return view
    if layout == "backwards in memory":  # columns and rows change places
        return images.transpose(2, 3).contiguous().transpose(2, 3)
    return images.contiguous()


def room(shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> tuple[Tensor, Tensor]:
    """Return memory full of a pattern, and a part of it as room for a batch."""
    num, channels, height, width = shape
    if layout == "NHWC":
        memory = torch.zeros(num, height, width, channels, dtype=dtype)
        return memory, memory.permute(0, 3, 1, 2)
    if layout == "NHWC with gaps":
        memory = torch.zeros(num + 2, height + 3, width + 2, channels, dtype=dtype)
        bits(memory).fill_(0x5B)
        return memory, memory[1:-1, 2:-1, 1:-1].permute(0, 3, 1, 2)
    if layout == "NCHW with gaps":
        memory = torch.zeros(num + 2, channels + 1, height + 3, width + 5, dtype=dtype)
        bits(memory).fill_(0x5B)
        return memory, memory[1:-1, 1:, 2:-1, 3:-2]
    memory = torch.zeros(shape, dtype=dtype)
    return memory, memory


@st.composite
def cases(draw) -> dict[str, Any]:
    """Return images, the transforms of each sample and their parameters, and where the result is to lie."""
    channels = draw(st.sampled_from([3, 3, 3, 1, 2, 4, 5]))
    height, width = draw(st.integers(1, 40)), draw(st.integers(1, 70))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    count, num = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    images = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)
    mode = draw(st.sampled_from(["constant", "edge", "reflect", "symmetric"]))
    least = {"reflect": 1, "symmetric": 0}.get(mode)
    most = 9 if least is None else max(min(9, height - least, width - least), 0)
    padding = [draw(st.integers(0, most)) for _ in range(4)]
    size = (
        draw(st.integers(1, height + padding[1] + padding[3])),
        draw(st.integers(1, width + padding[0] + padding[2])),
    )
    fill = [draw(st.integers(0, 255)) for _ in range(channels if draw(st.booleans()) else 1)]
    if mode != "constant":
        fill = [0]
    return {
        "images": images,
        "source": draw(st.sampled_from(["NCHW", "NHWC", "gaps", "backwards in memory"])),
        "crop": RandomCrop(size, padding, fill=fill if len(fill) > 1 else fill[0], padding_mode=mode),
        "indices": torch.randint(0, count, (num,), generator=generator) if draw(st.booleans()) else None,
        "num": num,
        "flips": draw(st.lists(st.sampled_from([RandomHorizontalFlip, RandomVerticalFlip]), max_size=3)),
        "seed": seed,
        "dtype": draw(st.sampled_from(DTYPES)),
        "table": draw(st.booleans()),
        "target": draw(st.sampled_from(["NCHW", "NHWC", "NCHW with gaps", "NHWC with gaps"])),
    }


def parts(case: dict[str, Any]) -> tuple[Tensor, list[Any], list[Any], tuple[int, int], Tensor]:
    """Return the images, the steps of rows and columns, the result's size, and what torchvision makes of them."""
    images, crop, indices = case["images"], case["crop"], case["indices"]
    num = len(images) if indices is None else case["num"]
    shape = BatchShape(num, *images.shape[1:])
    draws = Draws(case["seed"].to_bytes(8, "little"), np.arange(num))
    expected = images if indices is None else images[indices]
    rows, cols, made = [], [], []
    flips = [flip() for flip in case["flips"]]
    params = [member.draw(draws.stream(str(i)), shape) for i, member in enumerate([crop, *flips])]
    for member, its_params in zip([crop, *flips], params, strict=True):
        its_rows, its_cols = member.steps(its_params, shape, torch.device("cpu"))
        rows, cols, shape = rows + its_rows, cols + its_cols, member.shape_after(shape)
    for sample in range(num):
        image = F.pad(expected[sample], list(crop.padding), list(crop.fill), crop.padding_mode)
        image = F.crop(image, int(params[0]["top"][sample]), int(params[0]["left"][sample]), *crop.size)
        for flip, its_params in zip(flips, params[1:], strict=True):
            if its_params["flip"][sample]:
                image = image.flip(flip.dim - 2)
        made.append(image)
    return lain_out(images, case["source"]), rows, cols, crop.size, torch.stack(made)


def table_of(channels: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Return a table of any bits at all."""
    size = channels * 256 * torch.empty(0, dtype=dtype).element_size()
    made = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return torch.from_numpy(made).view(dtype).view(channels, 256)


@settings(max_examples=EXAMPLES)
@given(case=cases())
def test_each_sample_is_what_torchvision_makes_of_it_and_gaps_stay_as_they_were(case):
    images, rows, cols, size, expected = parts(case)
    channels, dtype = images.shape[1], case["dtype"]
    table = table_of(channels, dtype, case["seed"]) if case["table"] or dtype != torch.uint8 else None
    if table is not None:
        expected = torch.stack([table[c][expected[:, c].long()] for c in range(channels)], dim=1)
    fill = [int(number) for number in case["crop"].fill] if case["crop"].map_fill is not None else None
    for _ in each_level():
        memory, out = room((len(expected), channels, *size), dtype, case["target"])
        around = memory.clone()
        indices = case["indices"]
        transformed(images, rows, cols, out, indices=indices, fill=fill, table=table)
        assert torch.equal(bits(out), bits(expected))
        out.zero_()
        view = around.as_strided(out.shape, out.stride(), out.storage_offset())
        view.zero_()
        assert torch.equal(bits(memory), bits(around))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("source", ["NCHW", "NHWC"])
@pytest.mark.parametrize("target", ["NCHW", "NHWC"])
def test_rows_of_any_length_end_where_they_should(channels, source, target):
    table = table_of(channels, torch.float32, 4)
    flip = torch.tensor([True, False])
    for width in range(1, 140):
        images = torch.randint(0, 256, (2, channels, 2, width), dtype=torch.uint8)
        expected = torch.stack([images[0].flip(2), images[1]])
        images = lain_out(images, source)
        for dtype, its_table in ((torch.uint8, None), (torch.float32, table)):
            # All memory that there is: a byte too far is another's.
            _, out = room(tuple(images.shape), dtype, target)
            transformed(images, [], [AxisStep(StepKind.FLIP, flip, 0, width)], out, table=its_table)
            if its_table is not None:
                expected = torch.stack([its_table[c][expected[:, c].long()] for c in range(channels)], dim=1)
            assert torch.equal(bits(out), bits(expected))


MEMBERS: dict[str, Any] = {
    "crop": lambda: RandomCrop(11, padding=3, fill=7),
    "reflected": lambda: RandomCrop((9, 12), padding=(2, 1), padding_mode="reflect"),
    "centre": lambda: CenterCrop(15),
    "flip": RandomHorizontalFlip,
    "up": RandomVerticalFlip,
}
VALUES: dict[str, Any] = {
    "none": list,
    "scaled": lambda: [ToDtype(torch.float32, scale=True)],
    "cast": lambda: [ToDtype(torch.float16)],
    "both": lambda: [ToDtype(torch.bfloat16, scale=True), Normalize(MEAN, STD)],
    "both float32": lambda: [ToDtype(torch.float32, scale=True), Normalize(MEAN, STD)],
    "at once": lambda: [ToNormalized((0.5,), (0.25,), torch.float16)],
    "double": lambda: [ToNormalized(MEAN, STD, torch.float64)],
}


@settings(max_examples=EXAMPLES)
@given(
    names=st.lists(st.sampled_from(list(MEMBERS)), max_size=4),
    values=st.sampled_from(list(VALUES)),
    layout=st.sampled_from(["NCHW", "NHWC", "gaps"]),
    num=st.integers(1, 5),
)
def test_compose_gives_the_same_bits_with_and_without_the_library(names, values, layout, num):
    members = [MEMBERS[name]() for name in names] + VALUES[values]()
    if not members:
        return
    composed = Compose(members)
    generator = torch.Generator().manual_seed(num)
    images = torch.randint(0, 256, (num, 3, 16, 19), dtype=torch.uint8, generator=generator)
    images = lain_out(images, layout)
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        write = arrays.write_batch
        patch.setattr(arrays, "write_batch", lambda *args, **named: calls.append(1) or write(*args, **named))
        found, params = composed(images, draws=Draws(b"key of 8", np.arange(num)), return_params=True)
        assert calls or values == "double"
        patch.setattr(arrays, "takes", lambda images: False)
        calls.clear()
        expected = composed(images, params=params)
        assert not calls
    assert found.dtype == expected.dtype
    assert found.is_contiguous(memory_format=torch.channels_last) == expected.is_contiguous(
        memory_format=torch.channels_last
    )
    assert torch.equal(found, expected)


def test_large_images_are_made_in_strips():
    images = torch.randint(0, 256, (2, 3, 301, 257), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    table = table_of(3, torch.bfloat16, 1)
    expected = torch.stack([table[c][images[:, c].long()] for c in range(3)], dim=1)
    for layout in ("NCHW", "NHWC"):
        _, out = room(tuple(images.shape), torch.bfloat16, layout)
        assert torch.equal(bits(transformed(images, [], [], out, table=table)), bits(expected))


@pytest.mark.parametrize("first", [0, 1])  # of the result's memory: streamed where it is aligned
@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_too_large_for_the_cache_are_the_same(dtype, first):
    num = (9 << 19) // (3 * 32 * 32 * dtype.itemsize)
    images = torch.randint(256, (50, 32, 32, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    table = table_of(3, dtype, 1)
    places, starts, flips = torch.randint(50, (num,)), torch.randint(9, (2, num)), torch.rand(2, num) < 0.5
    sides = [
        [AxisStep(StepKind.SHIFT, start, -4, 32), AxisStep(StepKind.FLIP, flip, 0, 32)]
        for start, flip in zip(starts, flips, strict=True)
    ]
    results = [torch.zeros(num * 3072 + 1, dtype=dtype)[first : first + num * 3072].view(num, 3, 32, 32) for _ in "abc"]
    for level, out in zip(("plain", native.LEVELS[-1]), results, strict=False):
        use_level(level)
        transformed(images, *sides, out, indices=places, fill=[7], table=table)
    arrays.write_batch(results[2], images, *sides, places, [7], table)
    assert torch.equal(bits(results[0]), bits(results[1]))
    assert torch.equal(bits(results[0]), bits(results[2]))
    with pytest.raises(IndexError, match="indices must be in"):
        arrays.write_batch(results[2], images, *sides, places - 50, [7], table)
    with pytest.raises(TypeError, match=r"indices must be torch\.int64"):
        arrays.write_batch(results[2], images, *sides, places[::2], [7], table)
    with pytest.raises(TypeError, match="out must be"):
        arrays.write_batch(results[2].double(), images, *sides, places, [7], table)


def call(**changes: Any) -> Tensor:
    given = {
        "images": torch.zeros(4, 3, 8, 9, dtype=torch.uint8),
        "rows": [],
        "cols": [],
        "out": torch.zeros(4, 3, 8, 9, dtype=torch.uint8),
    } | changes
    return transformed(**given)


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def along(axis: str, *step: Any) -> dict[str, Any]:
    """Return what is changed where an axis has one step."""
    return {axis: [AxisStep(*step)]}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"indices": ints(0, 1, 4, 0)}, IndexError, r"indices must be in \[0, 4\), got 0 to 4"),
        ({"indices": ints(0, -1, 3, 0)}, IndexError, r"indices must be in \[0, 4\), got -1 to 3"),
        ({"indices": ints(0, 1)}, TypeError, r"indices must be torch.int64 of shape \(4,\)"),
        ({"indices": ints(0, 1, 2, 3).int()}, TypeError, "indices must be torch.int64"),
        ({"images": torch.zeros(5, 3, 8, 9, dtype=torch.uint8)}, ValueError, "as many samples as images, got 4 and 5"),
        ({"images": torch.zeros(4, 3, 8, 9)}, TypeError, "images must be torch.uint8 of .*, got torch.float32"),
        (
            {"out": torch.zeros(4, 2, 8, 9, dtype=torch.uint8)},
            TypeError,
            r"out must be torch.uint8 of shape \(4, 3, 8, 9\)",
        ),
        ({"out": torch.zeros(4, 3, 8, 9)}, TypeError, "out must be torch.uint8 of shape"),
        ({"out": torch.zeros(4, 3, 8, 18, dtype=torch.uint8)[..., ::2]}, TypeError, "out must be .* lie in memory"),
        ({"table": torch.zeros(3, 256)}, TypeError, "out must be torch.float32"),
        ({"table": torch.zeros(3, 255)}, TypeError, "table must be torch.float32"),
        ({"fill": [1, 2]}, ValueError, r"fill must be one number in \[0, 255\], or one for each of 3"),
        ({"fill": [256]}, ValueError, "fill must be one number"),
        (
            along("rows", StepKind.SHIFT, ints(0, 1, 0, 0), 0, 8),
            ValueError,
            "of sample 1 from outside .* no fill value",
        ),
        (
            along("rows", StepKind.SHIFT, ints(0, 0), 0, 8),
            ValueError,
            r"a step of rows must be of shape \(4,\)",
        ),
        (along("rows", StepKind.SHIFT, None, 0, 8), TypeError, "of rows of the kind SHIFT must have values"),
        (along("rows", StepKind.OFFSET, None, 0, 0), ValueError, "the side of a step of rows must be in"),
        (
            along("rows", StepKind.OFFSET, None, 0, 9) | {"out": torch.zeros(4, 3, 9, 9).byte()},
            ValueError,
            "of sample 0",
        ),
        (along("cols", StepKind.FLIP, ints(1, 0, 0, 0), 0, 8), ValueError, "of sample 0 from outside"),
        (along("cols", StepKind.REFLECT, ints(0, 0, 17, 0), 0, 9), ValueError, "of sample 2 from outside"),
        (along("cols", StepKind.SYMMETRIC, ints(0, -10, 0, 0), 0, 9), ValueError, "of sample 1 from outside"),
    ],
)
def test_what_would_lead_out_of_the_memory_is_an_error(changes, error, message):
    with pytest.raises(error, match=message):
        call(**changes)


@given(
    kind=st.sampled_from([StepKind.SHIFT, StepKind.EDGE, StepKind.REFLECT, StepKind.SYMMETRIC, StepKind.FLIP]),
    value=st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-30, 30)),
    first=st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-30, 30)),
    second=st.one_of(st.integers(1, 2**30 - 1), st.integers(1, 30)),
    fill=st.sampled_from([None, [3]]),
)
def test_numbers_that_nobody_drew_give_an_error_or_places_of_the_image(kind, value, first, second, fill):
    images = torch.arange(1, 4 * 9 + 1, dtype=torch.uint8).view(1, 1, 4, 9)
    values = torch.tensor([value])
    out = torch.zeros(1, 1, 4, 9, dtype=torch.uint8)
    try:
        transformed(images, [], [AxisStep(kind, values, first, second)], out, fill=fill)
    except ValueError:
        return
    assert set(out.flatten().tolist()) <= set(range(1, 37)) | set(fill or [])


def test_room_for_large_batches_is_like_any_other():
    for memory_format in (torch.contiguous_format, torch.channels_last):
        out = arrays.empty((3, 3, 1024, 1024), torch.float32, memory_format)
        assert out.nbytes > arrays._LARGE
        assert out.is_contiguous(memory_format=memory_format)
        assert out.fill_(2).sum() == 2 * out.numel()
