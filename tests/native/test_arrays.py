"""Batches out of arrays equal what torchvision makes of each sample, bit for bit, and nothing else is touched."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jpeg_files import each_level, use_level
from torch import Tensor

from fastload import native
from fastload import transforms as T
from fastload.native import arrays
from fastload.native.arrays import AxisStep, StepKind
from fastload.transforms.base import shape_of
from fastload.transforms.tensors import memory_format_of

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def bits(tensor: Tensor) -> Tensor:
    """Return the numbers' bits: NaNs of tables are compared as well."""
    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def looked_up(table: Tensor | None, images: Tensor) -> Tensor:
    """Return what a table says of each level; without one the images."""
    if table is None:
        return images
    return torch.stack([table[c][images[:, c].long()] for c in range(images.shape[1])], dim=1)


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
    """Return memory full of a pattern, and a part of it, or all of it, as room for a batch."""
    num, channels, height, width = shape
    gap = int("gaps" in layout)
    rows, cols = slice(2 * gap, 2 * gap + height), slice(gap, gap + width)
    if layout.startswith("NHWC"):
        memory = torch.zeros(num + 2 * gap, height + 3 * gap, width + 2 * gap, channels, dtype=dtype)
        part = memory[gap : gap + num, rows, cols].permute(0, 3, 1, 2)
    else:
        memory = torch.zeros(num + 2 * gap, channels + gap, height + 3 * gap, width + 2 * gap, dtype=dtype)
        part = memory[gap : gap + num, gap:, rows, cols]
    bits(memory).fill_(0x5B)
    return memory, part


def table_of(channels: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Return a table of any bits at all."""
    size = channels * 256 * torch.empty(0, dtype=dtype).element_size()
    made = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return torch.from_numpy(made).view(dtype).view(channels, 256)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("source", ["NCHW", "NHWC"])
@pytest.mark.parametrize("target", ["NCHW", "NHWC"])
def test_rows_of_any_length_end_where_they_should_and_large_images_are_made_in_strips(channels, source, target):
    flip = torch.tensor([True, False])
    for height, width in (*((2, width) for width in range(1, 140)), (301, 257)):
        images = torch.randint(0, 256, (2, channels, height, width), dtype=torch.uint8)
        flipped = torch.stack([images[0].flip(2), images[1]])
        for dtype, table in ((torch.uint8, None), (torch.float32, table_of(channels, torch.float32, 4))):
            # All memory that there is: a byte too far is another's.
            _, out = room(tuple(images.shape), dtype, target)
            step = AxisStep(StepKind.FLIP, flip, 0, width)
            arrays.write_batch(out, lain_out(images, source), [], [step], table=table)
            assert torch.equal(bits(out), bits(looked_up(table, flipped)))


MEMBERS: dict[str, Any] = {
    "crop": lambda: T.RandomCrop(11, padding=3, fill=7),
    "reflected": lambda: T.RandomCrop((9, 12), padding=(2, 1), padding_mode="reflect"),
    "edge": lambda: T.RandomCrop((9, 12), padding=(3, 2), padding_mode="edge"),
    "symmetric": lambda: T.RandomCrop((9, 12), padding=(5, 4), padding_mode="symmetric"),
    "centre": lambda: T.CenterCrop(15),
    "flip": T.RandomHorizontalFlip,
    "up": T.RandomVerticalFlip,
}
VALUES: dict[str, Any] = {
    "none": list,
    "scaled": lambda: [T.ToDtype(torch.float32, scale=True)],
    "cast": lambda: [T.ToDtype(torch.float16)],
    "both": lambda: [T.ToDtype(torch.bfloat16, scale=True), T.Normalize(MEAN, STD)],
    "both float32": lambda: [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)],
    "at once": lambda: [T.ToNormalized((0.5,), (0.25,), torch.float16)],
    "double": lambda: [T.ToNormalized(MEAN, STD, torch.float64)],
}


@settings(max_examples=100)
@given(
    names=st.lists(st.sampled_from(sorted(MEMBERS.keys() - {"centre"})), max_size=4),
    channels=st.integers(1, 5),
    source=st.sampled_from(["NCHW", "NHWC", "gaps", "backwards in memory"]),
    target=st.sampled_from(["NCHW", "NHWC", "NCHW with gaps", "NHWC with gaps"]),
    dtype=st.sampled_from([None, *DTYPES]),
    seed=st.integers(0, 2**31),
)
def test_samples_by_index_are_made_as_without_the_library_and_gaps_stay_as_they_were(
    names, channels, source, target, dtype, seed
):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (4, channels, 16, 19), dtype=torch.uint8, generator=generator)
    indices = torch.randint(0, 4, (5,), generator=generator) if seed % 3 else None
    table = None if dtype is None else table_of(channels, dtype, seed)
    expected = images if indices is None else images[indices]
    shape, rows, cols = shape_of(expected), [], []
    with mock.patch.object(arrays, "takes", return_value=False):
        for member in [MEMBERS[name]() for name in names]:
            expected, params = member(expected, generator=generator, return_params=True)
            its_rows, its_cols = member.steps(params, shape, torch.device("cpu"))
            rows, cols, shape = rows + its_rows, cols + its_cols, member.shape_after(shape)
    expected = looked_up(table, expected)
    for _ in each_level():
        memory, out = room(tuple(expected.shape), expected.dtype, target)
        around = memory.clone()
        fill = [7] if "crop" in names else None
        arrays.write_batch(out, lain_out(images, source), rows, cols, indices, fill, table)
        assert torch.equal(bits(out), bits(expected))
        out.zero_()
        around.as_strided(out.shape, out.stride(), out.storage_offset()).zero_()
        assert torch.equal(bits(memory), bits(around))


@settings(max_examples=100)
@given(
    names=st.lists(st.sampled_from(list(MEMBERS)), max_size=4),
    values=st.sampled_from(list(VALUES)),
    layout=st.sampled_from(["NCHW", "NHWC", "gaps"]),
    num=st.integers(1, 5),
)
def test_compose_gives_the_same_bits_with_and_without_the_library(names, values, layout, num):
    members = [MEMBERS[name]() for name in names] + VALUES[values]()
    assume(members)
    composed = T.Compose(members)
    generator = torch.Generator().manual_seed(num)
    images = lain_out(torch.randint(0, 256, (num, 3, 16, 19), dtype=torch.uint8, generator=generator), layout)
    with mock.patch.object(arrays, "write_batch", wraps=arrays.write_batch) as write:
        found, params = composed(images, draws=T.Draws(b"key of 8", np.arange(num)), return_params=True)
        assert write.called or values == "double"
        write.reset_mock()
        with mock.patch.object(arrays, "takes", return_value=False):
            expected = composed(images, params=params)
        assert not write.called
    assert found.dtype == expected.dtype
    assert memory_format_of(found) == memory_format_of(expected)
    assert torch.equal(found, expected)


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
    results = []
    for level in ("plain", native.LEVELS[-1]):
        use_level(level)
        out = torch.zeros(num * 3072 + 1, dtype=dtype)[first : first + num * 3072].view(num, 3, 32, 32)
        arrays.write_batch(out, images, *sides, places, [7], table)
        results.append(bits(out))
    assert torch.equal(*results)


BATCH = torch.zeros(4, 3, 8, 9, dtype=torch.uint8)
IMPOSSIBLE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"indices": torch.tensor([0, 1, 4, 0])}, IndexError, r"indices must be in \[0, 4\), got 0 to 4"),
    ({"indices": torch.tensor([0, -1, 3, 0])}, IndexError, r"indices must be in \[0, 4\), got -1 to 3"),
    ({"indices": torch.tensor([0, 1])}, TypeError, r"indices must be torch.int64 of shape \(4,\)"),
    ({"indices": torch.arange(8)[::2]}, TypeError, "indices must be torch.int64"),
    ({"indices": torch.arange(4).int()}, TypeError, "indices must be torch.int64"),
    ({"images": BATCH[[0] * 5]}, ValueError, "as many samples as images, got 4 and 5"),
    ({"images": BATCH.float()}, TypeError, "images must be torch.uint8 of .*, got torch.float32"),
    ({"out": BATCH[:, :2]}, TypeError, r"out must be torch.uint8 of shape \(4, 3, 8, 9\)"),
    ({"out": BATCH.float()}, TypeError, "out must be torch.uint8 of shape"),
    ({"out": torch.zeros(4, 3, 8, 18, dtype=torch.uint8)[..., ::2]}, TypeError, "out must be .* lie in memory"),
    ({"table": torch.zeros(3, 256)}, TypeError, "out must be torch.float32"),
    ({"table": torch.zeros(3, 255)}, TypeError, "table must be torch.float32"),
    ({"fill": [1, 2]}, ValueError, r"fill must be one number in \[0, 255\], or one for each of 3"),
    ({"fill": [256]}, ValueError, "fill must be one number"),
    *(
        ({axis: [AxisStep(kind, None if values is None else torch.tensor(values), *numbers)]}, error, message)
        for axis, kind, values, numbers, error, message in (
            ("rows", StepKind.SHIFT, [0, 1, 0, 0], (0, 8), ValueError, "of sample 1 from outside .* no fill value"),
            ("rows", StepKind.SHIFT, [0, 0], (0, 8), ValueError, r"a step of rows must be of shape \(4,\)"),
            ("rows", StepKind.SHIFT, None, (0, 8), TypeError, "of rows of the kind SHIFT must have values"),
            ("rows", StepKind.OFFSET, None, (0, 0), ValueError, "the side of a step of rows must be in"),
            ("cols", StepKind.FLIP, [1, 0, 0, 0], (0, 8), ValueError, "of sample 0 from outside"),
            ("cols", StepKind.REFLECT, [0, 0, 17, 0], (0, 9), ValueError, "of sample 2 from outside"),
            ("cols", StepKind.SYMMETRIC, [0, -10, 0, 0], (0, 9), ValueError, "of sample 1 from outside"),
        )
    ),
]


@pytest.mark.parametrize(("changes", "error", "message"), IMPOSSIBLE)
def test_what_would_lead_out_of_the_memory_is_an_error(changes, error, message):
    with pytest.raises(error, match=message):
        arrays.write_batch(**{"images": BATCH, "rows": [], "cols": [], "out": BATCH.clone()} | changes)


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
        arrays.write_batch(out, images, [], [AxisStep(kind, values, first, second)], fill=fill)
    except ValueError:
        return
    assert set(out.flatten().tolist()) <= set(range(1, 37)) | set(fill or [])


def test_room_for_large_batches_is_like_any_other():
    for memory_format in (torch.contiguous_format, torch.channels_last):
        out = arrays.empty((3, 3, 1024, 1024), torch.float32, memory_format)
        assert out.nbytes > arrays._LARGE
        assert out.is_contiguous(memory_format=memory_format)
        assert out.fill_(2).sum() == 2 * out.numel()
