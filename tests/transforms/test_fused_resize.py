"""The resizing kernel, run by Triton's interpreter, gives the CPU's results within the tolerance of resample()."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import batches, keyed, made_images
from triton_kernels import CHAIN, VALUES, allow, check_close

from fastload.transforms import fused
from fastload.transforms.arithmetic import Arithmetic, Operation
from fastload.transforms.base import DTYPES
from fastload.transforms.compose import Compose
from fastload.transforms.crop import CenterCrop, RandomHorizontalFlip
from fastload.transforms.resampling import Boxes, _in_integers, whole_box
from fastload.transforms.resize import RandomResizedCrop, Resize
from fastload.transforms.tensors import memory_format_of
from fastload.transforms.values import ToDtype

RESIZING = {
    "crop": lambda interpolation: [RandomResizedCrop((4, 3), interpolation=interpolation)],
    "flipped": lambda interpolation: [RandomResizedCrop((3, 5), (0.05, 1), interpolation=interpolation), FLIP],
    "whole": lambda interpolation: [Resize((3, 2), interpolation)],
    "larger": lambda interpolation: [Resize((10, 6), interpolation)],
    "shorter": lambda interpolation: [Resize(3, interpolation, max_size=7), CenterCrop(4)],
}
FLIP = RandomHorizontalFlip()
COPY = Arithmetic(Operation.COPY, torch.uint8)


@pytest.mark.slow
@settings(max_examples=12)  # the interpreter takes its time
@given(
    images=batches(sides=(2, 9), dtypes=(torch.uint8,), channels=(1, 3)),
    resizing=st.sampled_from(sorted(RESIZING)),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    values=st.sampled_from(["nothing", "to", "scaled", "normalized", "alike", "together"]),
    dtype=st.sampled_from(DTYPES[1:]),
)
def test_resized_images_are_those_of_the_cpu(images, resizing, interpolation, values, dtype):
    channels = images.shape[1]
    moving = RESIZING[resizing](interpolation)
    levels, params = Compose(moving)(images, draws=keyed(len(images)), return_params=True)
    composed = Compose([*moving, *VALUES[values](channels, dtype)])
    before = images.clone()
    with pytest.MonkeyPatch.context() as monkeypatch:
        launches = allow(monkeypatch)
        found_levels = Compose(moving)(images, params=params)
        assert launches
        found = composed(images, draws=keyed(len(images)))
        # What changes the values is given the same levels: they are compared above, and rounded alike.
        expected = Compose(VALUES[values](channels, dtype))(found_levels) if values != "nothing" else found_levels
    apart = (found_levels.int() - levels.int()).abs()
    assert apart.max() <= (2 if interpolation == "bilinear" else 3)  # two sums halfway between levels: see resample()
    assert found_levels.is_contiguous(memory_format=memory_format_of(images))
    assert found.dtype == expected.dtype
    check_close(found, expected, torch.uint8, values)
    assert torch.equal(images, before)


def test_the_imagenet_chain_is_one_launch_in_either_layout(on_cpu):
    images = made_images(0, (2, 3, 12, 14))
    chain = [RandomResizedCrop(4), RandomHorizontalFlip(), *CHAIN[2:]]
    first = Compose(chain)(images, draws=keyed(2))
    last = Compose(chain, layout="NHWC")(images.permute(0, 2, 3, 1).contiguous(), draws=keyed(2))
    assert len(on_cpu) == 2
    assert last.is_contiguous()
    assert last.dtype == torch.bfloat16
    assert torch.equal(first, last.permute(0, 3, 1, 2))
    text = "in one launch with Triton: RandomResizedCrop + RandomHorizontalFlip + ToDtype + Normalize"
    assert text in repr(Compose(chain))


@pytest.mark.skipif(not _in_integers("bilinear"), reason="torch has no AVX2 here, so floats are resized")
def test_few_levels_of_a_photograph_are_one_apart(on_cpu, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand((2, 1, 9, 9), generator=generator)
    images = torch.nn.functional.interpolate(coarse, (60, 70), mode="bicubic").clamp(0, 1).mul(255).to(torch.uint8)
    crop = RandomResizedCrop(20)
    found, params = crop(images, draws=keyed(2), return_params=True)
    expected = crop.resized(images, params, None)
    apart = (found.int() - expected.int()).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.02
    assert len(on_cpu) == 1


def test_resizing_that_the_kernel_cannot_do_goes_the_other_way(on_cpu):
    images = made_images(0, (4, 3, 12, 10))
    Compose([Resize(7, antialias=False), ToDtype(torch.float32, scale=True)])(images)
    Compose([Resize(7), ToDtype(torch.float16, scale=True)])(images.float())
    assert len(on_cpu) == 2, "the values alone"
    assert Compose([Resize(7), ToDtype(torch.float64, scale=True)])(images).dtype == torch.float64
    assert len(on_cpu) == 3, "the pixels alone"


def test_boxes_that_nobody_drew_read_and_loop_within_the_images(on_cpu):
    images = made_images(0, (4, 3, 12, 10))
    far = torch.tensor([-(2**40), 2**40, 0, 11])
    boxes = Boxes(far, far, far.flip(0), far.flip(0))
    found = fused.resized(images, boxes, (5, 5), "bilinear", None, COPY)
    assert found.shape == (4, 3, 5, 5)
    with pytest.raises(ValueError, match="parameters for 3 samples, got 4 images"):
        fused.resized(images, Boxes(*(side[:3] for side in boxes)), (5, 5), "bilinear", None, COPY)


@pytest.mark.parametrize("shape", [(4, 1, 1, 20), (1, 4, 1, 20), (1, 1, 4, 20), (1, 1, 20, 4)])
def test_resized_images_may_span_more_than_32_bits_count(on_cpu, shape):
    strides = [2**30 if side == 4 else 1 if side == 20 else 0 for side in shape]
    images = torch.empty(3 * 2**30 + 20, dtype=torch.uint8).as_strided(shape, strides)
    images.copy_(made_images(0, shape))
    far, near = (
        fused.resized(one, whole_box(*shape[2:], one.device), (3, 5), "bilinear", None, COPY)
        for one in (images, images.contiguous())
    )
    assert torch.equal(far, near)
