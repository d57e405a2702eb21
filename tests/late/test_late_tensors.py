"""What is done with a tensor before it is decoded gives what torch gives: bits, dtype, type, strides, draws, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from comparing import jpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from test_late_containers import _as_in_a_worker_process, assert_equal, norm, result  # noqa: F401  # a fixture
from torch import nn
from torch.utils._pytree import tree_leaves
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastload.late import undecoded
from fastload.late.undecoded import tensor_filters
from fastload.native import LEVELS
from fastload.native.rows import TENSOR_FILTERS, Cut, pixels_of_image

MODES = v2.InterpolationMode

Make = Callable[[], Any]

FIRST: dict[int, Sequence[Make]] = {
    1: (v1.ToTensor, v1.PILToTensor),
    2: (v2.ToImage, v2.PILToTensor, v2.ToImage),
}
PLACED: dict[int, Sequence[Make]] = {
    1: (
        lambda: v1.RandomResizedCrop((17, 15)),
        lambda: v1.RandomResizedCrop(12, interpolation=MODES.BICUBIC),
        lambda: v1.RandomResizedCrop(12, interpolation=MODES.NEAREST),
        lambda: v1.RandomHorizontalFlip(0.5),
        lambda: v1.RandomVerticalFlip(1.0),
        lambda: v1.RandomCrop(14, pad_if_needed=True),
        lambda: v1.CenterCrop(13),
        lambda: v1.Resize(16),
    ),
    2: (
        lambda: v2.RandomResizedCrop((17, 15)),
        lambda: v2.RandomResizedCrop(31, scale=(0.9, 1.0), interpolation="bicubic"),
        lambda: v2.RandomResizedCrop(12, interpolation=MODES.NEAREST),
        lambda: v2.RandomResizedCrop(12, interpolation=MODES.BILINEAR, antialias=False),
        lambda: v2.RandomHorizontalFlip(0.5),
        lambda: v2.RandomVerticalFlip(1.0),
        lambda: v2.RandomCrop(14, pad_if_needed=True, padding_mode="edge"),
        lambda: v2.RandomCrop(30, padding=3, fill={tv_tensors.Image: (9, 8, 7), "others": 0}),
        lambda: v2.CenterCrop(13),
        lambda: v2.CenterCrop((13, 60)),
        lambda: v2.Resize(16),
        lambda: v2.Resize((16, 40), interpolation=3),
        lambda: v2.Resize(16, max_size=19),
        lambda: v2.Resize(16, max_size=15),  # an error
        lambda: v2.Resize((40, 16), interpolation=MODES.NEAREST_EXACT),
        lambda: v2.RandomResize(9, 40),
        lambda: v2.RandomShortestSize([10, 20], max_size=25),
        lambda: v2.ScaleJitter((20, 30)),
        v2.RandomIoUCrop,  # an error: there are no boxes
    ),
}
VALUED: dict[int, Sequence[Make]] = {
    1: (norm, lambda: norm(inplace=True), lambda: v1.ConvertImageDtype(torch.float32)),
    2: (
        lambda: v2.ToDtype(torch.float32, scale=True),
        lambda: v2.ToDtype(torch.uint8, scale=True),
        lambda: norm(v2),
        lambda: norm(v2, inplace=True),
        v2.ToPureTensor,
        lambda: v2.RandomErasing(1.0),
        lambda: v2.Grayscale(3),
    ),
}


@st.composite
def pipelines(draw: Any) -> Any:
    version = draw(st.sampled_from((1, 2)))
    makes = st.sampled_from((*PLACED[version], *PLACED[version], *VALUED[version]))
    first = [draw(st.sampled_from(FIRST[version]))]
    transforms = [make() for make in [*first, *draw(st.lists(makes, min_size=1, max_size=5))]]
    compose = (v1.Compose, v2.Compose)[version - 1]
    return (
        compose(transforms)
        if draw(st.booleans())
        else nn.Sequential(*(one if isinstance(one, nn.Module) else Called(one) for one in transforms))
    )


class Called(nn.Module):
    """A module that calls one of version 1's transforms that are none."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, image: Any) -> Any:
        return self.transform(image)


@settings(max_examples=150)
@given(pipelines(), st.sampled_from(((40, 31), (16, 16), (9, 50), (1, 7))), st.booleans())
def test_any_transforms_after_the_first_give_the_same_and_draw_the_same(run, size, is_grey):
    def made(image: Any) -> tuple[Any, ...]:
        return run(image), torch.rand(1)

    data = jpeg(*size, "L" if is_grey else "RGB")
    assert_equal(run, data)
    assert_equal(lambda image: made(image)[1], data)


def decoded(run: Any, data: bytes) -> str:
    """Return how a sample's image was decoded."""
    counts: dict[str, int] = {}
    result(run, data, late=True, counts=counts)
    (how,) = counts
    return how


@pytest.mark.parametrize(
    "placed",
    [
        lambda: v2.RandomResizedCrop(16, scale=(0.1, 0.2)),
        lambda: v2.RandomCrop(20),
        lambda: v2.CenterCrop(16),
        lambda: v2.Compose([v2.CenterCrop(30), v2.Resize(20), v2.CenterCrop(10)]).transforms,
        lambda: v2.RandomResizedCrop(16, scale=(0.1, 0.2), interpolation=MODES.NEAREST),
        lambda: v2.RandomResizedCrop(16, scale=(0.1, 0.2), antialias=False),
    ],
)
def test_of_the_file_only_what_is_kept_is_decoded(placed):
    found = placed()
    last = [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), norm(v2)]
    transforms = [v2.ToImage(), *(found if isinstance(found, list) else [found]), *last]
    for run in (v2.Compose(transforms), nn.Sequential(*transforms)):
        assert decoded(run, jpeg(80, 60)) == "late, in part"
        assert_equal(run, jpeg(80, 60))


def test_version_1_decodes_what_is_kept_and_resizes_it_itself():
    for first in (v1.ToTensor(), v1.PILToTensor()):
        run = v1.Compose([first, v1.RandomResizedCrop(16, scale=(0.1, 0.2))])
        assert decoded(run, jpeg(80, 60)) == "late, in part"
        assert_equal(run, jpeg(80, 60))


def target(width: int, height: int) -> dict[str, Any]:
    boxes = [[0, 0, width // 2 + 1, height // 2 + 1], [width // 3, height // 3, width, height]]
    return {
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
        "mask": tv_tensors.Mask(torch.arange(width * height, dtype=torch.uint8).reshape(1, height, width)),
        "labels": torch.tensor([3, 4]),
        "name": "a file",
    }


TREES: dict[str, Make] = {
    "crop": lambda: [v2.RandomCrop(14, pad_if_needed=True)],
    "padding by class": lambda: [v2.RandomCrop(60, pad_if_needed=True, fill={tv_tensors.Image: 9, "others": 0})],
    "resized crop": lambda: [v2.RandomResizedCrop(12), v2.RandomHorizontalFlip()],
    "boxes": lambda: [v2.RandomIoUCrop(), v2.RandomVerticalFlip(), v2.SanitizeBoundingBoxes()],
    "scales": lambda: [v2.ScaleJitter((30, 30)), v2.RandomShortestSize([20, 24], max_size=40), v2.Resize(15)],
    "no more": list,
    "the user's own": lambda: [v2.CenterCrop(12), lambda *inputs: inputs[0] if len(inputs) == 1 else inputs],
    "statistics": lambda: [v2.RandomPhotometricDistort(p=1.0), v2.RandomResizedCrop(12)],
    "mixed": lambda: [v2.RandomApply([v2.Resize(9)], 1.0), v2.RandomZoomOut(p=1.0)],
    "an error": lambda: [v2.Resize(16, max_size=12)],
}


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("last", [[], [v2.ToDtype(torch.float32, scale=True), norm(v2), v2.ToPureTensor()]])
def test_images_beside_boxes_and_masks_give_the_same(name, last):
    def leaves(made: Any) -> torch.Tensor:
        seen.append([(type(one), getattr(one, "dtype", one), getattr(one, "shape", one)) for one in tree_leaves(made)])
        strides = [one.stride() for one in tree_leaves(made) if isinstance(one, torch.Tensor)]
        seen[-1].append(strides)
        flat = [one.as_subclass(torch.Tensor).double().flatten() for one in tree_leaves(made) if _is_tensor(one)]
        return torch.cat([*flat, torch.rand(1).double()])

    run = v2.Compose([v2.ToImage(), *TREES[name](), *last])
    for size in ((40, 31), (24, 50)):
        for arrange in (lambda image, found: (image, found), lambda image, found: ({"image": image, **found},)):
            seen: list[Any] = []
            assert_equal(lambda image: leaves(run(*arrange(image, target(*image.size)))), jpeg(*size))  # noqa: B023
            assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def _is_tensor(found: Any) -> bool:
    return isinstance(found, torch.Tensor)


def test_no_tensor_without_memory_leaves_a_container():
    image = jpeg(40, 31)
    found: list[type] = []

    def looked_at(*inputs: Any) -> Any:
        found.extend(type(one) for one in tree_leaves(inputs))
        return inputs

    for last in ([looked_at], []):
        run = v2.Compose([v2.ToImage(), v2.CenterCrop(9), *last])
        result(lambda image, run=run: looked_at(run(image, target(*image.size)))[0] and None, image, late=True)
    assert {kind.__module__.partition(".")[0] for kind in found if issubclass(kind, torch.Tensor)} == {
        "torch",
        "torchvision",
    }


def test_replaced_functions_of_tensors_are_called(monkeypatch):
    run = v2.Compose([v2.ToImage(), v2.Resize(20), v2.CenterCrop(10)])
    for name in ("resize", "center_crop"):
        original = getattr(v2.functional, name)
        monkeypatch.setattr(v2.functional, name, lambda *inputs, original=original, **named: original(*inputs, **named))
        assert decoded(run, jpeg(80, 60)) == "late, whole"
        assert_equal(run, jpeg(80, 60))
        monkeypatch.undo()


def test_where_the_kernel_differs_torchs_operator_resizes(monkeypatch):
    monkeypatch.setattr(undecoded, "tensor_filters", frozenset)
    run = v2.Compose([v2.ToImage(), v2.CenterCrop(40), v2.Resize(20), v2.CenterCrop(10)])
    assert decoded(run, jpeg(80, 60)) == "late, in part"
    assert_equal(run, jpeg(80, 60))


@given(
    st.integers(1, 90), st.integers(1, 90), st.integers(1, 70), st.integers(1, 70), st.integers(0, 2**32 - 1), st.data()
)
def test_the_kernel_resizes_tensors_as_torchvision_does(height, width, rows, columns, seed, data):
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels = levels if data.draw(st.booleans()) else np.where(levels < 128, 0, 255).astype(np.uint8)
    name = data.draw(st.sampled_from(TENSOR_FILTERS))
    if name not in tensor_filters():
        pytest.skip(f"this processor's torch resizes tensors of uint8 in another way: {name}")
    mode = MODES(name.removeprefix("tensor "))
    made = v2.functional.resize(torch.from_numpy(pixels).permute(2, 0, 1), [rows, columns], mode, antialias=True)
    top, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    window = top, left, rows - top, columns - left
    cut = Cut((0, 0, height, width), (rows, columns), name, window, (False, False))
    for level in LEVELS:
        found = pixels_of_image(pixels, cut, level=level)
        assert np.array_equal(found, made.permute(1, 2, 0).numpy()[top:, left:]), level
