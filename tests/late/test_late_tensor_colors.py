"""Colors of tensors are changed by the native library: what torchvision returns, raises and draws."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import comparing
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import _functional_tensor
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import _color

from fastload.base import overrides
from fastload.late import tensor_colors

FUNCTIONS: dict[str, Any] = {
    **{name: getattr(functional, name) for name in tensor_colors.KNOWN},
    **{f"{name}, version 1": getattr(_functional_tensor, name) for name in tensor_colors.KNOWN},
}
VALUES: dict[str, Any] = {
    "adjust_brightness": 1.1,
    "adjust_contrast": 0.6,
    "adjust_saturation": 1.4,
    "adjust_hue": -0.04,
    "rgb_to_grayscale": 3,
}
pytestmark = pytest.mark.usefixtures("as_in_a_worker")
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def call(name: str, image: Any, *values: Any, **named: Any) -> Any:
    """Call a function as torchvision's transforms do: version 1's by its name in the module."""
    plain, is_1 = name.removesuffix(", version 1"), name.endswith(", version 1")
    return (getattr(_functional_tensor, plain) if is_1 else FUNCTIONS[name])(image, *values, **named)


def picture(height: int = 24, width: int = 37, seed: int = 0) -> Tensor:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(2, 0, 1)


assert_equal = functools.partial(comparing.assert_equal, lines=False)


class Own(tv_tensors.Image):
    pass


FORMS: list[Callable[[Tensor], Any]] = [
    lambda image: image,
    lambda image: image.contiguous(),
    lambda image: image[:, 2:20, 3:30],
    lambda image: image.contiguous()[:, 2:20, 3:30],
    lambda image: tv_tensors.Image(image[:, 2:20, 3:30]),
    lambda image: tv_tensors.Image(image.contiguous()),
    lambda image: image.to(torch.float32) / 255,
    lambda image: image.to(torch.int16),
    lambda image: image[:1],
    lambda image: image[:2],
    lambda image: image[None],
    lambda image: image[:, :0],
    lambda image: image[:, :1],
    lambda image: image.transpose(1, 2),
    lambda image: image[..., ::2],
    lambda image: image.as_subclass(Own),
    lambda image: tv_tensors.Video(image[None]),
    lambda image: (image / 255).requires_grad_(),
    lambda image: Image.fromarray(image.permute(1, 2, 0).numpy()),
]
OTHER_VALUES: list[Any] = [-3, "much", None, [0, 1], [2, 1, -1], [0, 1, 3], torch.tensor(0.5), True]


@pytest.mark.parametrize("is_exact", [True, False], ids=["", "where torch rounds now once, now twice"])
@each_function
def test_images_and_values_of_any_form_do_what_they_do_in_torchvision(name: str, is_exact: bool, monkeypatch) -> None:
    plain, image = name.removesuffix(", version 1"), picture()
    if not is_exact:
        monkeypatch.setattr(tensor_colors, "_fused", lambda version: None)
        monkeypatch.setattr(overrides, "results", {})
    value, argument = VALUES[plain], tensor_colors.KNOWN[plain].argument
    for make in FORMS:
        assert_equal(lambda make=make: call(name, make(image), value))
    for other in OTHER_VALUES:
        assert_equal(lambda other=other: call(name, image, other))
    assert_equal(lambda: call(name, image, value, 3))
    assert_equal(lambda: call(name, image, some=value))
    assert_equal(lambda: call(name, image, **{argument: value}))
    assert_equal(lambda: call(name, image))  # one of them has a default
    assert_equal(lambda: torch.func.vmap(lambda one: call(name, one, value))(torch.stack([image, image])))
    assert torch.equal(image, picture())


factor = st.floats(0, 4) | st.integers(0, 3) | st.sampled_from([0.0, 1.0, 1e6, 1e7, -0.5])


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([name for name in FUNCTIONS if "hue" not in name and "adjust" in name]), factor,
    st.integers(1, 70), st.integers(1, 70), st.integers(0, 5), st.booleans(),
)  # fmt: skip
def test_any_factor_gives_what_torchvision_gives(
    name: str, factor: float, height: int, width: int, seed: int, as_planes: bool
) -> None:
    image = picture(height, width, seed)
    image = image.contiguous() if as_planes else image
    assert_equal(lambda: call(name, image, factor))


@each_function
def test_a_function_that_makes_something_else_is_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, version = name.removesuffix(", version 1"), 1 if name.endswith(", version 1") else 2
    original = FUNCTIONS[name] if version == 1 else getattr(_color, f"{name}_image")

    def one_other(image: Tensor, value: Any) -> Tensor:
        made = original(image, value).clone()
        made[0, 0, 0] ^= 1
        return made

    def other_strides(image: Tensor, value: Any) -> Tensor:
        return original(image, value).transpose(1, 2).contiguous().transpose(1, 2)

    def is_same(function: Any) -> bool:
        color = tensor_colors._Color(tensor_colors.KNOWN[plain], version)
        return color.makes_the_same(types.SimpleNamespace(original=function))  # type: ignore[arg-type]

    assert is_same(original)
    assert not any(map(is_same, (one_other, other_strides)))
    if plain == "adjust_hue":
        by_torch = _color.to_dtype_image
        monkeypatch.setattr(
            _color,
            "to_dtype_image",
            lambda image, dtype, scale: (
                image.to(dtype) / 255 if dtype.is_floating_point else by_torch(image, dtype, scale)
            ),
        )
        assert is_same(original) == (version == 1)
