"""Colors of tensors are changed by the native library: what torchvision returns, raises and draws."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import comparing
import numpy as np
import pytest
import torch
from comparing import as_sample, described
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from replacing import put_back
from torch import Tensor, nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import _functional_tensor
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import _color

from fastload.base import overrides
from fastload.base.overrides import Override
from fastload.late import tensor_colors

FUNCTIONS: dict[str, Any] = {
    **{name: getattr(functional, name) for name in tensor_colors.KNOWN},
    **{f"{name}, version 1": getattr(_functional_tensor, name) for name in tensor_colors.KNOWN},
}
ARGUMENTS: dict[str, Any] = {
    "adjust_brightness": 1.1,
    "adjust_contrast": 0.6,
    "adjust_saturation": 1.4,
    "adjust_hue": -0.04,
    "rgb_to_grayscale": 3,
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def call(name: str, image: Any, *values: Any, **named: Any) -> Any:
    """Call a function as torchvision's transforms do: version 1's by its name in the module."""
    plain, is_1 = name.removesuffix(", version 1"), name.endswith(", version 1")
    return (getattr(_functional_tensor, plain) if is_1 else FUNCTIONS[name])(image, *values, **named)


def known_of(name: str) -> tensor_colors.Known:
    return tensor_colors.KNOWN[name.removesuffix(", version 1")]


def override_of(name: str) -> Override:
    """Return that of plain tensors."""
    plain = name.removesuffix(", version 1")
    path = f"{tensor_colors._V1}.{plain}" if plain != name else f"{tensor_colors._V2}.{plain} of torch.Tensor"
    return next(one for one in tensor_colors.OVERRIDES if one.path == path)


def value_of(name: str) -> Any:
    return ARGUMENTS[name.removesuffix(", version 1")]


def original_of(name: str) -> Any:
    """Return torchvision's function of plain tensors."""
    return FUNCTIONS[name] if name.endswith(", version 1") else getattr(_color, f"{name}_image")


@pytest.fixture(autouse=True)
def changed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Replace the functions, as a worker process does, and put them back.

    Returns the list that gets the name of each change that the native library makes of a sample.
    """
    made: list[str] = []

    def noted(name: str, make: Any) -> Any:
        def noting(*arguments: Any, **named: Any) -> Any:
            found = make(*arguments, **named)
            if found is not None:
                made.append(name)
            return found

        return noting

    for one in tensor_colors.OVERRIDES:
        name = f"{one.name}, version 1" if one.library == tensor_colors._V1 else one.owner.partition(":")[2]
        monkeypatch.setattr(one, "make", noted(name, one.make))
    put_back()
    overrides.install()
    yield made
    put_back()


def picture(height: int = 24, width: int = 37, seed: int = 0) -> Tensor:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(2, 0, 1)


assert_equal = functools.partial(comparing.assert_equal, lines=False)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize(
    "transform",
    [
        nn.Sequential(v1.RandomHorizontalFlip(), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandomGrayscale(0.5)),
        v1.RandAugment(),
    ],
)
def test_functions_that_were_replaced_are_scripted_and_give_the_same(transform: nn.Module) -> None:
    def run(function: Any) -> Any:
        torch.manual_seed(3)
        return described(function(picture()))

    scripted = torch.jit.script(transform)
    assert as_sample(lambda: run(scripted)) == run(transform)


@pytest.mark.parametrize("kind", [tv_tensors.Image, Tensor])
@each_function
def test_the_library_changes_images_of_both_classes(name: str, kind: Any, changed: list[str]) -> None:
    value, named = value_of(name), {known_of(name).argument: value_of(name)}
    image = picture().as_subclass(kind)
    for form in (image, image.contiguous(), image[:, 2:20, 3:30], image.contiguous()[:, 2:20, 3:30]):
        form = form.as_subclass(kind)
        assert_equal(lambda form=form: call(name, form, value))
        assert_equal(lambda form=form: call(name, form, **named))
    is_its_own = kind is Tensor or not name.endswith("version 1")
    assert changed.count(name) == (8 if is_its_own else 0)
    assert torch.equal(image, picture())
    changed.clear()
    call(name, image, value)  # outside of samples
    assert not changed


factor = st.floats(0, 4) | st.integers(0, 3) | st.sampled_from([0.0, 1.0, 1e6, 1e7, -0.5])


@settings(max_examples=200, deadline=None)
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
def test_what_the_library_does_not_take_is_left_to_torchvision(name: str, changed: list[str]) -> None:
    class Own(tv_tensors.Image):
        pass

    value, image = value_of(name), picture()
    for other in (
        image.to(torch.float32) / 255,
        image.to(torch.int16),
        image[:1],
        image[:2],
        image[None],
        image[:, :0],
        image[:, :1],
        image.transpose(1, 2),
        image[..., ::2],
        image.as_subclass(Own),
        tv_tensors.Video(image[None]),
        (image / 255).requires_grad_(),
        Image.fromarray(image.permute(1, 2, 0).numpy()),
    ):
        assert_equal(lambda other=other: call(name, other, value))
    bad: Any
    for bad in (-3, "much", None, [0, 1], [2, 1, -1], [0, 1, 3], torch.tensor(0.5), True):
        assert_equal(lambda bad=bad: call(name, image, bad))
    assert_equal(lambda: call(name, image, value, 3))
    assert_equal(lambda: call(name, image, some=value))
    assert name not in changed
    assert_equal(lambda: call(name, image))  # one of them has a default
    assert_equal(lambda: torch.func.vmap(lambda one: call(name, one, value))(torch.stack([image, image])))


@each_function
def test_a_function_that_makes_something_else_stays_in_its_place(
    name: str, changed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overrides, "results", {})

    def one_other(image: Tensor, value: Any) -> Tensor:
        made = original_of(name)(image, value).clone()
        made[0, 0, 0] ^= 1
        return made

    def other_strides(image: Tensor, value: Any) -> Tensor:
        return original_of(name)(image, value).transpose(1, 2).contiguous().transpose(1, 2)

    def fails(image: Tensor, value: Any) -> Tensor:
        raise RuntimeError("it fails")

    for function in (one_other, other_strides, fails):
        space: Any = types.SimpleNamespace(function=function)
        monkeypatch.setitem(sys.modules, "space", space)
        override = Override("space", "space", "function", "", self_test=override_of(name).self_test)
        assert not override.compare()
    overrides.results[override_of(name).path,] = False
    assert_equal(lambda: call(name, picture(), value_of(name)))
    assert not changed


def test_hues_that_are_computed_in_another_way_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (tensor_colors._Color(tensor_colors.KNOWN["adjust_hue"], version) for version in (1, 2))

    def in_the_form_of_1(image: Tensor, factor: float) -> Tensor:
        return _color.adjust_hue_image(image, factor).permute(1, 2, 0).contiguous().permute(2, 0, 1)

    def in_the_form_of_2(image: Tensor, factor: float) -> Tensor:
        return FUNCTIONS["adjust_hue, version 1"](image, factor).contiguous()

    def divided(image: Tensor, dtype: Any, scale: bool) -> Tensor:
        return image.to(dtype) / 255 if dtype.is_floating_point else by_torch(image, dtype, scale)

    def same(one: tensor_colors._Color, function: Any) -> bool:
        return one.makes_the_same(types.SimpleNamespace(original=function))  # type: ignore[arg-type]

    assert same(second, _color.adjust_hue_image)
    assert not same(first, in_the_form_of_1)
    assert not same(second, in_the_form_of_2)
    by_torch = _color.to_dtype_image
    monkeypatch.setattr(_color, "to_dtype_image", divided)
    assert not same(second, _color.adjust_hue_image)


def test_where_torch_rounds_now_once_now_twice_its_sums_are_its_own(
    changed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_colors, "_fused", lambda version: None)
    monkeypatch.setattr(overrides, "results", {})
    for name in tensor_colors.KNOWN:
        assert_equal(lambda name=name: call(name, picture(), value_of(name)))
    assert changed == ["adjust_brightness", "adjust_hue"]
