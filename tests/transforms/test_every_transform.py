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
