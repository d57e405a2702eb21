"""Geometric transforms where the host may read nothing: recorded by torch.compile, and on a device."""

from __future__ import annotations

import pytest
import torch
from geometry_references import keyed, made_images
from torch._subclasses.fake_tensor import FakeTensorMode

from fastload.transforms.affine import RandomAffine, RandomRotation
from fastload.transforms.base import shape_of
from fastload.transforms.compose import Compose
from fastload.transforms.crop import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from fastload.transforms.erasing import Cutout, RandomErasing
from fastload.transforms.resize import RandomResizedCrop, Resize

TRANSFORMS = {
    "crop": RandomCrop(8, 2, fill=(1, 2, 3)),
    "crop_reflect": RandomCrop(8, (1, 2, 3, 4), padding_mode="reflect"),
    "center": CenterCrop((8, 14)),
    "horizontal": RandomHorizontalFlip(),
    "vertical": RandomVerticalFlip(),
    "resize": Resize((5, 7)),
    "resize_nearest": Resize((5, 7), "nearest"),
    "resized": RandomResizedCrop(6),
    "resized_bicubic": RandomResizedCrop(6, interpolation="bicubic", antialias=False),
    "resized_nearest": RandomResizedCrop(6, interpolation="nearest"),
    "affine": RandomAffine(20, (0.1, 0.2), (0.8, 1.2), 5, "bilinear", (1, 2, 3)),
    "rotation": RandomRotation(20),
    "erasing": RandomErasing(0.7, value=(1, 2, 3)),
    "noise": RandomErasing(0.7, value="random"),
    "cutout": Cutout(4),
    "gathered": Compose([RandomCrop(8, 2), RandomHorizontalFlip(), RandomVerticalFlip()]),
    "warped": Compose([RandomRotation(20), RandomHorizontalFlip()]),
    "resized_flipped": Compose([RandomResizedCrop(6), RandomHorizontalFlip()]),
}
CASES = [
    (name, dtype)
    for name in TRANSFORMS
    for dtype in (torch.uint8, torch.float32)
    if (name, dtype) != ("noise", torch.uint8)
]


# torch.compile takes half a second for each: floats where the code for them is another.
RECORDED = [case for case in CASES if case[1] == torch.uint8 or case[0] in {"noise", "affine", "resized", "erasing"}]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), RECORDED)
def test_the_whole_of_a_transform_can_be_recorded(name, dtype):
    transform = TRANSFORMS[name]
    images = made_images(0, (3, 3, 12, 10), dtype)
    params = transform.draw_for(keyed(3), shape_of(images, "NCHW"))
    torch.compiler.reset()
    recorded = torch.compile(transform.transform, fullgraph=True, backend="eager")
    far = (recorded(images, params).double() - transform.transform(images, params).double()).abs().max()
    assert far <= (1 if dtype == torch.uint8 else 1e-5)


def on_device(params):
    if isinstance(params, dict):
        return {name: on_device(values) for name, values in params.items()}
    return torch.empty(params.shape, dtype=params.dtype, device="cuda")


# Tensors without values: whatever needs one fails.
@pytest.mark.parametrize(("name", "dtype"), CASES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_nothing_is_read_from_a_device(name, dtype, memory_format):
    transform = TRANSFORMS[name]
    images = made_images(0, (3, 3, 12, 10), dtype)
    params = transform.draw_for(keyed(3), shape_of(images, "NCHW"))
    expected = transform.transform(images, params)
    with FakeTensorMode():
        there = torch.empty(images.shape, dtype=dtype, device="cuda").to(memory_format=memory_format)
        found = transform.transform(there, on_device(params))
    assert found.device.type == "cuda"
    assert found.shape == expected.shape
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=memory_format)
