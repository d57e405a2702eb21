"""torchvision's random crops and flips are drawn with fewer calls: the same samples and state of the generator."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import comparing
import numpy as np
import pytest
import torch
from comparing import as_sample, jpeg, opened
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

from fastload.base import overrides
from fastload.late import draws

pytestmark = pytest.mark.usefixtures("as_in_a_worker")

Make = Callable[[], Any]


def of_file(transform: Any, width: int = 40, height: int = 31) -> Make:
    run = (v2 if type(transform).__module__.startswith("torchvision.transforms.v2") else v1).Compose([transform])
    data = jpeg(width, height, "RGB")
    return lambda: run(opened(data))


def boxes_of(edges: Any, form: Any = "XYXY", dtype: torch.dtype = torch.float32) -> Any:
    found = torch.tensor(edges, dtype=dtype).reshape(-1, len(edges[0]) if edges else 4)
    return tv_tensors.BoundingBoxes(found, format=form, canvas_size=(60, 80))


assert_equal = functools.partial(comparing.assert_equal, lines=False)
IMAGE = tv_tensors.Image(torch.arange(3 * 60 * 80).reshape(3, 60, 80).to(torch.uint8))
BOXES = boxes_of([[2, 3, 30, 40], [40, 20, 70, 50], [10, 10, 75, 58]])


def of_boxes(transform: Any, boxes: Any = BOXES) -> Make:
    return lambda: transform({"image": IMAGE, "boxes": boxes})


corner = st.tuples(*[st.floats(0, 60, width=32)] * 4).map(
    lambda edges: [min(edges[:2]), min(edges[2:]), max(edges[:2]), max(edges[2:])]
)
scale = st.tuples(st.floats(0.05, 1), st.floats(0.05, 1.2)).map(sorted)
aspect = st.tuples(st.floats(0.1, 1), st.floats(0.8, 8))
options = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0, -1]), max_size=4).map(lambda found: [*found, 1.0])


@settings(max_examples=120, deadline=None)
@given(
    st.lists(corner, max_size=5), st.sampled_from(["XYXY", "XYWH", "CXCYWH"]),
    st.sampled_from([torch.float32, torch.int64]), scale, aspect, options, st.integers(0, 50), st.integers(0, 2**62),
)  # fmt: skip
def test_a_crop_that_keeps_any_boxes_draws_and_makes_the_same(edges, form, dtype, scale, aspect, options, trials, seed):
    transform = v2.RandomIoUCrop(*scale, *aspect, sampler_options=options, trials=trials)
    assert_equal(of_boxes(transform, boxes_of(edges, form, dtype)), seed=seed)


@pytest.mark.parametrize("version", [v1, v2])
def test_a_probability_is_compared_in_single_precision(version):
    drawn = torch.rand(1, generator=torch.Generator().manual_seed(0)).item()
    for p in (drawn, np.nextafter(drawn, 1), np.nextafter(drawn, 0)):
        assert_equal(of_file(version.RandomHorizontalFlip(float(p))))


@pytest.fixture
def compared(monkeypatch) -> None:
    """Nothing was compared in this process yet."""
    monkeypatch.setattr(overrides, "results", {})


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("size", 9),
        ("size", [9]),
        ("size", (9.0, 9.0)),
        ("scale", (1.0, 0.5)),
        ("scale", (torch.tensor(0.1), torch.tensor(0.5))),
        ("scale", [0.1, 0.5, 0.7]),
        ("ratio", np.array([0.5, 2.0])),
        ("ratio", (0.0, 0.0)),
        ("ratio", (-1.0, 1.0)),
        ("interpolation", "bicubic"),
        ("interpolation", "BICUBIC"),
        ("interpolation", 3),
        ("interpolation", InterpolationMode.NEAREST_EXACT),
        ("antialias", False),
        ("antialias", None),
        *(("p", p) for p in (1, torch.tensor(0.5), torch.nn.Parameter(torch.tensor(0.5)), np.float32(0.3), "half")),
    ],
)
@pytest.mark.parametrize("version", [v1, v2])
def test_unusual_attributes_do_what_they_do_in_torchvision(version, attribute, value):
    transform = version.RandomHorizontalFlip() if attribute == "p" else version.RandomResizedCrop(7)
    delattr(transform, attribute)  # a parameter is none of its attributes
    setattr(transform, attribute, value)
    assert_equal(of_file(transform))


class OwnBoxes(tv_tensors.BoundingBoxes):
    pass


OTHER_BOXES = [
    boxes_of([]),
    boxes_of([[2, 3, 30, 40]], dtype=torch.float64),
    boxes_of([[2, 3, 30, 40]], dtype=torch.float16),
    boxes_of([[2, 3, 30, math.nan]]),
    boxes_of([[2, 3, 30, 1e9]]),
    BOXES.as_subclass(OwnBoxes),
    *([boxes_of([[2, 3, 30, 40, 15]], "CXCYWHR")] if hasattr(tv_tensors.BoundingBoxFormat, "CXCYWHR") else []),
    torch.zeros(1, 4),
    tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYXY", canvas_size=(9, 9)),
]
UNUSUAL: list[tuple[Any, dict[str, Any]]] = [
    *((boxes, {}) for boxes in OTHER_BOXES),
    (BOXES, {"min_scale": 0.0, "max_scale": 0.0}),  # a crop without rows: a division by zero
    (BOXES, {"min_scale": "a"}),
    (BOXES, {"max_scale": math.inf}),
    (BOXES, {"min_scale": 1e9, "max_scale": 2e9}),
    *((BOXES, {"options": options}) for options in ([], [math.nan, 1.0], ["a"])),
    *((BOXES, {"trials": trials}) for trials in (3.0, None)),
]


@pytest.mark.parametrize(("boxes", "changes"), UNUSUAL)
def test_unusual_boxes_and_arguments_do_what_they_do_in_torchvision(boxes, changes):
    transform = v2.RandomIoUCrop(trials=5)
    vars(transform).update(changes)
    for seed in range(5):
        assert_equal(of_boxes(transform, boxes), seed=seed)


@pytest.mark.parametrize("version", [v1, v2])
def test_overridden_methods_and_those_of_an_instance_are_called(version):
    def box(*args: Any) -> tuple[int, int, int, int]:
        return 1, 2, 3, 4

    def parameters(*args: Any) -> dict[str, int]:
        return {"top": 1, "left": 2, "height": 3, "width": 4}

    class Mine(version.RandomResizedCrop):
        get_params = staticmethod(box)
        make_params = parameters

    own = version.RandomResizedCrop(7)
    own.get_params, own.make_params = box, parameters
    for transform in (Mine(7), own):
        assert_equal(of_file(transform))


@pytest.mark.parametrize("version", [v1, v2])
def test_a_transform_that_replaces_a_function_is_followed_by_those_behind_it(version, monkeypatch):
    def replace(image: Image.Image) -> Image.Image:
        monkeypatch.setattr(version.RandomHorizontalFlip, "forward", lambda self, image: image.resize((5, 3)))
        return image

    run = version.Compose([version.RandomHorizontalFlip(), replace, version.RandomHorizontalFlip()])
    assert as_sample(lambda: run(opened(jpeg(40, 31, "RGB")))).size == (5, 3)


@pytest.mark.usefixtures("compared")
def test_an_unusual_default_dtype_at_first_decides_nothing(request):
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    assert draws.draw_of(v1.RandomResizedCrop) is None
    torch.set_default_dtype(torch.float32)
    assert draws.draw_of(v1.RandomResizedCrop) is not None


@pytest.mark.usefixtures("compared")
def test_the_usual_boxes_are_drawn_without_torchvision(monkeypatch):
    found, drawn = [], draws._drawn
    monkeypatch.setattr(draws, "_drawn", lambda *arguments: found.append(drawn(*arguments)) or found[-1])
    for seed in range(5):
        assert_equal(of_boxes(v2.RandomIoUCrop()), seed=seed)
    assert draws.OVERRIDES[0].agrees()
    assert len(found) >= 5
    assert None not in found


@pytest.mark.usefixtures("compared")
def test_where_both_ways_differ_the_original_keeps_boxes(monkeypatch):
    monkeypatch.setattr(draws, "_most_overlap", lambda *edges: 0.95)
    for seed in range(5):
        assert_equal(of_boxes(v2.RandomIoUCrop()), seed=seed)
    assert not draws.OVERRIDES[0].agrees()
