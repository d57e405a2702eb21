"""The kernel, run by Triton's interpreter on the CPU, gives what torch's operations give; and it compiles for GPUs."""

from __future__ import annotations

import pytest
import torch
from geometry_references import batches, keyed, made_images
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from triton_kernels import CHAIN, MEAN, STD, VALUES, allow, check_close, interpreted

from fastload.native.arrays import AxisStep, StepKind
from fastload.transforms import fused, gather
from fastload.transforms.arithmetic import Arithmetic, Operation
from fastload.transforms.base import DTYPES, BatchShape
from fastload.transforms.compose import Compose
from fastload.transforms.crop import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from fastload.transforms.gather import IndexMap
from fastload.transforms.resize import RandomResizedCrop, Resize
from fastload.transforms.tensors import memory_format_of
from fastload.transforms.values import Normalize, ToDtype, ToNormalized


def pixel_by_pixel(images, steps, length, axis):
    """Return each sample's source places along an axis, or -1: the steps, followed one place at a time."""
    rows = []
    for sample in range(len(images)):
        places = []
        for result in range(length):
            place = result
            for step in reversed(steps):
                if step.kind == StepKind.FLIP:
                    place = step.second - 1 - place if step.values[sample] else place
                elif step.kind == StepKind.MAP:
                    place = step.values[sample, place].item()
                else:
                    place += step.first + (0 if step.values is None else step.values[sample].item())
                    place = OUTSIDE[step.kind](place, step.second)
                if place < 0:
                    break
            places.append(place)
        rows.append(places)
    return torch.tensor(rows)


def mirrored(place, side, again):
    """Go back and forth until the place is inside."""
    while not 0 <= place < side:
        place = -place - again if place < 0 else 2 * side - 2 + again - place
    return place


OUTSIDE = {
    StepKind.OFFSET: lambda place, side: place if 0 <= place < side else -1,
    StepKind.SHIFT: lambda place, side: place if 0 <= place < side else -1,
    StepKind.EDGE: lambda place, side: min(max(place, 0), side - 1),
    StepKind.REFLECT: lambda place, side: mirrored(place, side, 0),
    StepKind.SYMMETRIC: lambda place, side: mirrored(place, side, 1),
}


@st.composite
def steps_along(draw, num, side):
    """Up to three steps of an axis, and how long the result is."""
    steps = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(StepKind))
        length = draw(st.integers(1, 9))
        if kind == StepKind.FLIP:
            values = torch.tensor(draw(st.lists(st.booleans(), min_size=num, max_size=num)))
            steps.append(AxisStep(kind, values, 0, side))
            continue
        if kind == StepKind.MAP:
            row = st.lists(st.integers(-1, side - 1), min_size=length, max_size=length)
            values = torch.tensor(draw(st.lists(row, min_size=num, max_size=num)))
            steps.append(AxisStep(kind, values, length, length))
            side = length
            continue
        # A mirror shows no more than the image, and its last pixel only once.
        most = {StepKind.REFLECT: side - 1, StepKind.SYMMETRIC: side}.get(kind, 5)
        before, after = draw(st.integers(0, most)), draw(st.integers(0, most))
        length = min(length, side + before + after)
        places = st.integers(0, side + before + after - length)
        values = torch.tensor(draw(st.lists(places, min_size=num, max_size=num)))
        if kind == StepKind.OFFSET:
            steps.append(AxisStep(kind, None, int(values[0]) - before, side))
        else:
            steps.append(AxisStep(kind, values, -before, side))
        side = length
    return steps, side


@settings(max_examples=30)  # slow ones; the test of whole chains has many
@given(data=st.data())
def test_pixels_come_from_where_the_steps_say_bit_for_bit(data):
    images = data.draw(batches(sides=(1, 9)))
    rows, height = data.draw(steps_along(len(images), images.shape[2]))
    cols, width = data.draw(steps_along(len(images), images.shape[3]))
    fill = data.draw(st.sampled_from([(7.0,), tuple(1.5 + channel for channel in range(images.shape[1]))]))
    before = images.clone()
    with pytest.MonkeyPatch.context() as monkeypatch:
        allow(monkeypatch)
        copy = Arithmetic(Operation.COPY, images.dtype)
        found = fused.transformed(images, rows, cols, (height, width), fill, copy)
    index_map = IndexMap(pixel_by_pixel(images, rows, height, 2), pixel_by_pixel(images, cols, width, 3))
    mapped = gather.map_of(rows, cols, BatchShape(*images.shape[:2], height, width), images.device)
    assert torch.equal(mapped.rows, index_map.rows)
    assert torch.equal(mapped.cols, index_map.cols)
    expected = gather._gather(images, index_map, fill)
    assert torch.equal(found, expected)
    assert found.dtype == images.dtype
    assert found.is_contiguous(memory_format=memory_format_of(images))
    assert torch.equal(images, before)


MOVING = {
    "crop": lambda channels: RandomCrop(6, padding=3),
    "filled": lambda channels: RandomCrop((5, 7), padding=(1, 2, 3, 4), fill=tuple(range(20, 20 + channels))),
    "small": lambda channels: RandomCrop((4, 3)),
    "needed": lambda channels: RandomCrop(12, pad_if_needed=True, fill=0.4),
    "edge": lambda channels: RandomCrop(9, padding=6, padding_mode="edge"),
    "reflect": lambda channels: RandomCrop((7, 6), padding=3, padding_mode="reflect"),
    "symmetric": lambda channels: RandomCrop((7, 6), padding=4, padding_mode="symmetric"),
    "center": lambda channels: CenterCrop((5, 11)),
    "across": lambda channels: RandomHorizontalFlip(),
    "down": lambda channels: RandomVerticalFlip(),
    "nearest": lambda channels: Resize((7, 5), "nearest"),
    "resized": lambda channels: RandomResizedCrop((6, 5), interpolation="nearest"),
}


@given(
    images=batches(sides=(4, 13)),
    moving=st.lists(st.sampled_from(sorted(MOVING)), max_size=3),
    values=st.sampled_from(sorted(VALUES)),
    dtype=st.sampled_from(DTYPES[1:]),
)
def test_a_compose_gives_what_it_gives_elsewhere(images, moving, values, dtype):
    assume(moving or values != "nothing")
    channels = images.shape[1]
    if values == "floats" and images.dtype == torch.uint8:
        images = images.half()
    composed = Compose([*(MOVING[name](channels) for name in moving), *VALUES[values](channels, dtype)])
    try:
        expected, params = composed(images, draws=keyed(len(images)), return_params=True)
    except ValueError as error:  # a crop of more than there is
        with pytest.MonkeyPatch.context() as monkeypatch:
            allow(monkeypatch)
            with pytest.raises(ValueError, match=str(error)[:20]):
                composed(images, draws=keyed(len(images)))
        return
    before = images.clone()
    with pytest.MonkeyPatch.context() as monkeypatch:
        launches = allow(monkeypatch)
        found = composed(images, params=params)
    assert found.dtype == expected.dtype
    assert found.is_contiguous(memory_format=memory_format_of(images)) or not launches
    check_close(found, expected, images.dtype, values)
    assert torch.equal(images, before)
    if moving and torch.float64 not in (images.dtype, dtype):
        assert launches


def test_the_usual_chain_is_one_launch_in_either_layout(on_cpu):
    images = made_images(0, (4, 3, 12, 10))
    first = Compose(CHAIN)(images, draws=keyed(4))
    last = Compose(CHAIN, layout="NHWC")(images.permute(0, 2, 3, 1).contiguous(), draws=keyed(4))
    assert len(on_cpu) == 2
    assert last.is_contiguous()
    assert last.dtype == torch.bfloat16
    assert torch.equal(first, last.permute(0, 3, 1, 2))


def test_print_says_what_is_one_launch_and_what_is_one_pass_elsewhere():
    lines = repr(Compose([*CHAIN, RandomResizedCrop(5), RandomVerticalFlip()])).splitlines()
    assert "  in one pass: RandomCrop + RandomHorizontalFlip; ToDtype + Normalize" in lines
    whole = "RandomCrop + RandomHorizontalFlip + ToDtype + Normalize"
    assert f"  in one launch with Triton, or one native call from uint8: {whole}" in lines
    assert "on CUDA" not in repr(Compose([RandomCrop(4), RandomHorizontalFlip()]))


def test_what_the_kernel_cannot_take_goes_the_other_way(on_cpu):
    crop, normalize = RandomCrop(8, 2), Normalize(MEAN[:3], STD[:3])
    floats = made_images(0, (4, 3, 12, 10), torch.float32)
    assert Compose([crop, normalize])(floats.requires_grad_()).requires_grad
    assert Compose([crop, normalize])(floats.detach().double()).dtype == torch.float64
    same = floats.detach()
    assert Compose([ToDtype(torch.float32)])(same) is same
    torch.compiler.reset()
    composed = Compose([crop, normalize])
    params = composed.draw_for(keyed(4), BatchShape(4, 3, 12, 10))
    compiled = torch.compile(composed.transform, fullgraph=True, backend="eager")
    found = compiled(same, params)
    assert not on_cpu
    assert torch.equal(found, composed.transform(same, params))
    assert len(on_cpu) == 1


def test_errors_of_the_members_are_the_same(on_cpu):
    images = made_images(0, (4, 3, 12, 10))
    with pytest.raises(TypeError, match=r"got torch\.uint8; put ToDtype"):
        Compose([RandomCrop(8), Normalize(MEAN[:3], STD[:3])])(images)
    with pytest.raises(ValueError, match="has mean and std for 4 channels, got images of 3"):
        Compose([RandomCrop(8), ToNormalized(MEAN, STD)])(images)
    with pytest.raises(ValueError, match="fill must be one number, or one for each of the images' 3"):
        Compose([RandomCrop(8, 2, fill=(1, 2)), RandomHorizontalFlip()])(images)
    with pytest.raises(ValueError, match=r"fill must be in \[0, 255\]"):
        Compose([RandomCrop(8, 2, fill=300), ToDtype(torch.float16, scale=True)])(images)


def test_parameters_of_another_batch_are_refused(on_cpu):
    composed = Compose(CHAIN)
    _, params = composed(made_images(0, (3, 3, 12, 10)), return_params=True)
    with pytest.raises(ValueError, match="parameters for 3 samples, got 4 images"):
        composed.transform(made_images(0, (4, 3, 12, 10)), params)


def test_an_error_of_the_kernel_names_the_switch(on_cpu, monkeypatch):
    class Broken:
        def __getitem__(self, grid):
            raise RuntimeError("no such instruction")

    monkeypatch.setattr(interpreted(), "transformed", Broken())
    with pytest.raises(RuntimeError, match="no such instruction") as caught:
        Compose(CHAIN)(made_images(0, (4, 3, 12, 10)))
    assert "FASTLOAD_TRITON=0" in caught.value.__notes__[0]


def test_the_switch_and_the_device_decide(monkeypatch):
    monkeypatch.setattr(fused, "_can_run_triton", lambda: True)
    monkeypatch.setattr(fused, "_capability", lambda device: (7, 5) if device.index else (9, 0))
    monkeypatch.delenv("FASTLOAD_TRITON", raising=False)
    assert fused.available(torch.device("cuda", 0))
    assert not fused.available(torch.device("cuda", 1))
    assert not fused.available(torch.device("cpu"))
    monkeypatch.setenv("FASTLOAD_TRITON", "0")
    assert not fused.available(torch.device("cuda", 0))
    monkeypatch.setenv("FASTLOAD_TRITON", "yes")
    with pytest.raises(ValueError, match="FASTLOAD_TRITON must be 0 or 1, got 'yes'"):
        fused.available(torch.device("cuda", 0))


def test_triton_needs_a_compiler_and_headers(monkeypatch, tmp_path):
    can_run = fused._can_run_triton.__wrapped__
    monkeypatch.setattr(fused.torch.version, "cuda", "13.0")
    monkeypatch.setattr(fused.sysconfig, "get_path", lambda *args: str(tmp_path))
    monkeypatch.setenv("CC", "mycc")
    assert not can_run()
    (tmp_path / "Python.h").touch()
    assert can_run()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not can_run()
    (tmp_path / "gcc").touch(mode=0o755)
    assert can_run()
    monkeypatch.setattr(fused.torch.version, "cuda", None)
    assert not can_run()


@pytest.mark.parametrize("shape", [(4, 1, 1, 20), (1, 4, 1, 20), (1, 1, 4, 20), (1, 1, 20, 4)])
def test_images_may_span_more_than_32_bits_count(on_cpu, shape):
    # Strides that 32 bits hold, and products that they do not. Memory that is not touched is not taken.
    strides = [2**30 if side == 4 else 1 if side == 20 else 0 for side in shape]
    images = torch.empty(3 * 2**30 + 20, dtype=torch.uint8).as_strided(shape, strides)
    images.copy_(made_images(0, shape))
    flip = [AxisStep(StepKind.FLIP, torch.ones(shape[0], dtype=torch.bool), 0, shape[3])]
    found = fused.transformed(images, [], flip, shape[2:], None, Arithmetic(Operation.COPY, torch.uint8))
    assert torch.equal(found, images.flip(3))


@pytest.mark.parametrize("size", [(32, 32), (224, 224), (1, 1), (7, 1000), (5, 100_000)])
@pytest.mark.parametrize("pixel", [1, 3])
@pytest.mark.parametrize("planes", [1, 256])
def test_tiles_cover_the_result_once(size, pixel, planes):
    (rows, cols), strips, programs = fused._tiles(size, pixel, planes)
    across, down = -(-size[1] * pixel // cols), -(-size[0] // (rows * strips))
    assert programs == planes * across * down
    assert rows & (rows - 1) == cols & (cols - 1) == 0
