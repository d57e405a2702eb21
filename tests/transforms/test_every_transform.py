"""The table of every transform: that it is whole, and that its checks can pass and fail."""

from __future__ import annotations

import pytest
import torch
from every_transform import CASES, arguments, check, made, params_of

from fastload import transforms
from fastload.transforms.base import Transform

EACH = [(name, dtype) for name, case in CASES.items() for dtype in case.dtypes]


def test_every_transform_is_in_the_table():
    public = [getattr(transforms, name) for name in transforms.__all__]
    names = {one.__name__ for one in public if isinstance(one, type) and issubclass(one, Transform)} - {"Transform"}
    assert {name.partition(" ")[0] for name in CASES} == names


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("name", "dtype"), EACH)
def test_results_are_the_same_whatever_the_memory_and_the_checks_can_fail(name, dtype, memory):
    case = CASES[name]
    transform = case.make()
    images = made(dtype)
    params = params_of(transform, images)
    expected = transform(*arguments(transform, images), params=params)
    found = transform(*arguments(transform, images.contiguous(memory_format=memory)), params=params)
    check(found, expected, case, dtype)
    other = transform(*arguments(transform, made(dtype, seed=1)), params=params)
    with pytest.raises(AssertionError, match="values, tolerance="):
        check(other, expected, case, dtype)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num", [15, 17])
def test_parameters_of_a_batch_of_another_size_are_refused(name, num):
    case = CASES[name]
    transform = case.make()
    images = made(case.dtypes[-1])
    params = params_of(transform, images)
    others = torch.cat([images, images])[:num]
    if params:
        with pytest.raises(ValueError, match=rf"^{name.partition(' ')[0]} got params\[.* shape \(16.* takes \({num}"):
            transform(*arguments(transform, others), params=params)
    else:
        assert len(transform(others, params=params)) == num


@pytest.mark.parametrize("name", CASES)
def test_parameters_of_other_names_are_refused(name):
    case = CASES[name]
    transform = case.make()
    images = made(case.dtypes[-1])
    params = params_of(transform, images)
    others = [params | {"foreign": torch.zeros(16)}]
    others += [{one: params[one] for one in params if one != missing} for missing in params]
    for other in others:
        with pytest.raises(ValueError, match=rf"^{name.partition(' ')[0]} got params with .*, and takes "):
            transform(*arguments(transform, images), params=other)
    with pytest.raises(TypeError, match="got params of int, and takes a dict with"):
        transform(*arguments(transform, images), params=3)


@pytest.mark.parametrize("name", ["Cutout", "RandomErasing", "RandomResizedCrop"])
@pytest.mark.parametrize(("side", "place"), [("top", -3), ("top", 38), ("left", -1), ("left", 36), ("height", 41)])
def test_boxes_outside_of_the_images_are_refused(name, side, place):
    transform, images = CASES[name].make(), made(torch.float32)
    boxes = {one: torch.full((16,), value) for one, value in (("top", 0), ("left", 0), ("height", 5), ("width", 5))}
    transform(images, params=boxes)
    boxes[side][7] = place
    with pytest.raises(ValueError, match=r"have a box of .*, outside of images of 40 x 36"):
        transform(images, params=boxes)
