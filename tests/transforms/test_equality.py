"""Given its parameters, a transform makes of each sample what torchvision's function makes of it.

Resizes and mixes have files of their own: what they may differ by takes more words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from references import (
    DTYPES,
    EXACT,
    assert_near,
    batches,
    coloured,
    elsewhere,
    generators,
    halfway,
    made_images,
    one_by_one,
)
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from fastload import transforms as T
from fastload.transforms import color
from fastload.transforms.base import shape_of
from fastload.transforms.erasing import normal_noise

SIZES = st.tuples(st.integers(1, 16), st.integers(1, 16))
odd = st.sampled_from([1, 3, 5, 9])
numbers = st.floats(0.01, 2) | st.floats(-2, -0.01)
three = st.tuples(*[numbers] * 3)


class Case(NamedTuple):
    """A transform with any arguments, and torchvision's result for one image of the transform's parameters."""

    arguments: Callable[[Tensor], st.SearchStrategy[dict[str, Any]]]
    """Given the images."""
    reference: Callable[..., Tensor]
    """Of an image, the arguments, and the sample's parameters by name."""
    images: st.SearchStrategy[Tensor] = batches()
    levels: float = 0.0
    """How far uint8 may be from torchvision's; floats: ``references.TOLERANCES``."""
    exact: bool = False
    """Whether floats are equal bit for bit."""
    warps: bool = False
    """Whether pixels are where coordinates say: to ``WARPED``, and but for those halfway between two."""


def free(**own: Any) -> Callable[[Tensor], st.SearchStrategy[dict[str, Any]]]:
    """Return any of these arguments; a function's depend on the images."""
    return lambda images: st.fixed_dictionaries(
        {name: values(images) if callable(values) else values for name, values in own.items()}
    )


def padding_of(size: Any, padding: Any, pad_if_needed: bool, height: int, width: int) -> list[int]:
    """Return left, top, right, bottom."""
    some = [padding] if isinstance(padding, int) else list(padding or [0])
    left, top, right, bottom = some * (4 // len(some))
    rows, cols = max(size[0] - height - top - bottom, 0), max(size[1] - width - left - right, 0)
    more = [cols, rows] * 2 if pad_if_needed else [0] * 4
    return [side + more_of_it for side, more_of_it in zip((left, top, right, bottom), more, strict=True)]


@st.composite
def crops(draw: st.DrawFn, images: Tensor) -> dict[str, Any]:
    height, width = images.shape[2:]
    size, mode = draw(SIZES), draw(st.sampled_from(["constant", "edge", "reflect", "symmetric"]))
    lists = st.sampled_from([1, 2, 4]).flatmap(lambda many: st.lists(st.integers(0, 4), min_size=many, max_size=many))
    padding, needed = draw(st.none() | st.integers(0, 4) | lists), draw(st.booleans())
    left, top, right, bottom = padding_of(size, padding, needed, height, width)
    assume(height + top + bottom >= size[0] and width + left + right >= size[1])
    limit = {"reflect": 1, "symmetric": 0}.get(mode, -100)
    assume(max(left, right) <= width - limit and max(top, bottom) <= height - limit)
    fill = draw(values_for(images)) if mode == "constant" else 0
    return {"size": size, "padding": padding, "pad_if_needed": needed, "fill": fill, "padding_mode": mode}


def cropped(image: Tensor, given: dict[str, Any], *, top: int, left: int) -> Tensor:
    padding = padding_of(given["size"], given["padding"], given["pad_if_needed"], *image.shape[1:])
    padded = F.pad(image, padding, fill=given["fill"], padding_mode=given["padding_mode"])
    return F.crop(padded, top, left, *given["size"])


WARPED = {torch.uint8: 1, torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@st.composite
def warps(draw: st.DrawFn, images: Tensor, **own: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Return arguments of one transform, and those that both warps have."""
    number, channels = st.floats(0, 1), images.shape[1]
    fills = st.none() | st.just(0) | number | st.lists(number, min_size=channels, max_size=channels)
    return {
        **{name: draw(values) for name, values in own.items()},
        "interpolation": draw(st.sampled_from(["nearest", "bilinear"])),
        "fill": draw(fills),
        "center": draw(st.none() | st.lists(st.floats(-3, 12), min_size=2, max_size=2)),
    }


def values_for(images: Tensor) -> st.SearchStrategy[Any]:
    return st.sampled_from([3.3, [7.5 + channel for channel in range(images.shape[1])]])


def erased(image: Tensor, given: dict[str, Any], **box: int) -> Tensor:
    values = torch.tensor(given["value"]).reshape(-1, 1, 1)
    return F.erase(image, box["top"], box["left"], box["height"], box["width"], values)


def wide(image: Tensor) -> Tensor:
    """Return an image in a dtype in which torchvision computes as exactly."""
    return image if image.dtype in EXACT else image.float()


def sometimes(function: Callable[..., Tensor], levels: float = 0.0, **number: Any) -> Case:
    """Return the case of a function that is applied to some images, with torchvision's result in float32."""

    def reference(image: Tensor, given: dict[str, Any], *, chosen: bool) -> Tensor:
        return function(wide(image), *given.values()).to(image.dtype) if chosen else image

    return Case(lambda images: st.just(number), reference, coloured(most=9), levels)


def flipped(function: Callable[..., Tensor]) -> Case:
    return Case(lambda images: st.just({}), lambda image, _, flip: function(image) if flip else image, exact=True)


def warped(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what torchvision's function makes of an image, in float32 where coordinates would be in half precision."""

    def reference(image: Tensor, given: dict[str, Any], **params: Any) -> Tensor:
        mode = InterpolationMode(given["interpolation"])
        found = function(wide(image), **params, interpolation=mode, fill=given["fill"], center=given["center"])
        return found.to(image.dtype)

    return reference


CASES = {
    "RandomCrop": Case(crops, cropped, exact=True),
    "CenterCrop": Case(free(size=SIZES), lambda image, given: F.center_crop(image, list(given["size"])), exact=True),
    "RandomHorizontalFlip": flipped(F.horizontal_flip),
    "RandomVerticalFlip": flipped(F.vertical_flip),
    "RandomErasing": Case(free(value=values_for, p=st.just(0.7), scale=st.just((0.05, 0.9))), erased, exact=True),
    "Cutout": Case(free(value=values_for, p=st.just(0.7), size=st.integers(1, 9)), erased, exact=True),
    "GaussianBlur": Case(
        free(kernel_size=st.tuples(odd, odd), sigma=st.just((0.1, 3.0))),
        lambda image, given, sigma: F.gaussian_blur(image, list(given["kernel_size"]), [sigma] * 2),
        coloured(sides=(5, 40), channels=(1, 2, 3)),
        levels=1,  # of a mean halfway between two levels
    ),
    "RandomAffine": Case(
        lambda images: warps(
            images,
            degrees=st.just(180),
            translate=st.sampled_from([None, (0.3, 0.6)]),
            scale=st.just((0.4, 2)),
            shear=st.just((-30, 40, -20, 10)),
        ),
        warped(F.affine),
        warps=True,
    ),
    "RandomRotation": Case(
        lambda images: warps(
            images, degrees=st.sampled_from([180, (90, 90), (-90, -90), (180, 180), (0, 0), (30, 60)])
        ),
        warped(F.rotate),
        warps=True,
    ),
    "RandomGrayscale": sometimes(lambda image: F.rgb_to_grayscale(image, len(image))),
    "RandomInvert": sometimes(F.invert),
    "RandomEqualize": sometimes(F.equalize),
    "RandomAutocontrast": sometimes(F.autocontrast),
    "RandomSolarize": sometimes(F.solarize, threshold=0.4),
    "RandomPosterize": sometimes(F.posterize, bits=3),
    "RandomAdjustSharpness": sometimes(F.adjust_sharpness, sharpness_factor=1.7),
    "ToDtype": Case(
        free(dtype=st.sampled_from(EXACT), scale=st.booleans()),
        lambda image, given: F.to_dtype(image, **given),
        coloured(dtypes=EXACT, channels=(1, 2, 3)),
        exact=True,
    ),
    "Normalize": Case(
        free(mean=three | st.tuples(numbers), std=three | st.tuples(numbers)),
        lambda image, given: F.normalize(wide(image), **given).to(image.dtype),
        coloured(dtypes=DTYPES[1:], channels=(3,)),
        exact=True,
    ),
    "ToNormalized": Case(
        free(mean=three, std=three, dtype=st.sampled_from(DTYPES[1:])),
        lambda image, given: F.normalize(
            F.to_dtype(image, torch.float64, scale=True), list(given["mean"]), list(given["std"])
        ),
        coloured(dtypes=EXACT, channels=(3,)),
    ),
}


@pytest.mark.parametrize("name", CASES)
@given(data=st.data(), generator=generators())
def test_a_sample_is_what_torchvision_makes_of_it(name, data, generator):
    case = CASES[name]
    images = data.draw(case.images)
    arguments = data.draw(case.arguments(images))
    transform = getattr(T, name)(**arguments)
    before = images.clone()
    found, params = transform(images, generator=generator, return_params=True)
    assert torch.equal(images, before)
    assert found.dtype == arguments.get("dtype", images.dtype)
    assert found.shape == transform.shape_after(shape_of(images))
    assert found.data_ptr() != images.data_ptr() or name == "ToDtype"
    expected = one_by_one(images, lambda image, **row: case.reference(image, arguments, **row), params)
    far = (found.double() - expected.double()).abs()
    if case.exact:
        assert torch.equal(found, expected)
        assert torch.equal(elsewhere(transform, images, params=params), expected)
    elif name == "ToNormalized":
        limit = max(
            1e-6 * (1 + abs(one)) / abs(other) for one, other in zip(transform.mean, transform.std, strict=True)
        )
        rounding = 0 if found.dtype in EXACT else torch.finfo(found.dtype).eps * expected.abs()
        assert (far <= limit + rounding).all()
    elif case.warps:
        is_far = far > WARPED[images.dtype]
        if transform.interpolation == "nearest":
            is_far &= ~halfway(transform.matrix(params, shape_of(images), images.device), images)[:, None]
        assert not is_far.any()
    else:
        assert_near(found, expected, tolerance=case.levels if images.dtype == torch.uint8 else None)
        assert (found != expected).double().mean() < 0.01 or images.dtype != torch.uint8


@pytest.mark.parametrize(("top", "left"), [(5, 0), (-1, 0), (0, 3)])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_places_outside_of_the_images_leave_nothing_unwritten(top, left, mode):
    images = torch.full((4, 3, 10, 10), 7, dtype=torch.uint8)
    params = {"top": torch.tensor([top] * 4), "left": torch.tensor([left] * 4)}
    crop = T.RandomCrop(8, padding_mode=mode)
    if mode == "constant":
        for batch in (images, images.float()):
            with pytest.raises(ValueError, match=r"from outside of images of .*10"):
                crop(batch, params=params)
    else:
        assert (crop(images, params=params) == 7).all()


@pytest.mark.parametrize("degrees", [0, 90, 180, 270, -90, 360])
@pytest.mark.parametrize("dtype", EXACT)
def test_quarter_turns_to_the_nearest_are_copies(degrees, dtype):
    for sides in ((8, 8), (7, 7), (224, 224), (5, 9)):
        images = made_images(0, (2, 3, *sides), dtype)
        found = T.RandomRotation((degrees, degrees))(images)
        assert torch.equal(found, F.rotate(images, degrees, fill=0))


# -- Noise -------------------------------------------------------------------------------------------------------------


@given(images=batches(dtypes=DTYPES[1:]), generator=generators())
def test_noise_is_a_function_of_the_samples_words_and_the_place(images, generator):
    transform = T.RandomErasing(0.8, (0.05, 0.9), value="random")
    found, params = transform(images, generator=generator, return_params=True)
    places = torch.arange(images[0].numel()).view(images.shape[1:])

    def reference(image, noise, top, left, height, width):
        values = normal_noise(torch.tensor(noise), places).to(image.dtype)
        return F.erase(image, top, left, height, width, values[:, top : top + height, left : left + width])

    assert torch.equal(found, one_by_one(images, reference, params))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastload.transforms.erasing._CHUNK", 300)  # parts of a batch
        assert torch.equal(elsewhere(transform, images, params=params), found)


# Never change these: they say that next year's noise is this year's.
def test_noise_is_the_pinned_one():
    found = normal_noise(torch.tensor([0x12345678, 0x9ABCDEF0]), torch.tensor([0, 1, 2, 2**31 - 1]))
    pinned = [-0.6134811043739319, 1.7154626846313477, 0.29129618406295776, 0.09066765755414963]
    assert found.tolist() == pytest.approx(pinned, abs=1e-6)


# -- Colours -----------------------------------------------------------------------------------------------------------


NAMES = ("brightness", "contrast", "saturation", "hue")


def in_order(params, row):
    """Return the operations of a sample, in their order."""
    operations = [NAMES[kind] for kind in params["order"][row].tolist()]
    if "hue" in params:
        operations.insert(int(params["before_hue"][row]), "hue")
    return operations


def jittered(images, params):
    """Return what torchvision's functions make of the images; and whether a blend has a tie.

    That is a value which is an integer but for the rounding of a float32: torch's sum of two products is rounded once
    or twice, depending on where a pixel lies in memory, so that torchvision itself makes 84 or 85 of equal pixels.
    """
    changed, has_tie = [], False
    for row, image in enumerate(images):
        for name in in_order(params, row):
            factor = params[name][row].item()
            if name in ("contrast", "saturation"):
                other = F.rgb_to_grayscale(image) if len(image) == 3 else image
                other = other.double().mean() if name == "contrast" else other.double()
                exact = image.double() * factor + (1 - factor) * other
                has_tie |= bool(((exact - exact.round()).abs() < 1e-4).any())
            image = getattr(F, f"adjust_{name}")(image.contiguous(), factor)
        changed.append(image)
    return torch.stack(changed), has_tie


@given(images=coloured(most=12), used=st.tuples(*[st.booleans()] * 4), seed=st.integers(0, 2**32))
@example(
    images=torch.tensor([[[[0, 170, 85, 0, 170]]]], dtype=torch.uint8),
    used=(False, True, False, False),
    seed=20232211,
)
def test_jittered_samples_are_what_torchvision_makes_of_them(images, used, seed):
    before = images.clone()
    transform = T.ColorJitter(*(reach * use for reach, use in zip((0.8, 0.8, 0.8, 0.5), used, strict=True)))
    generator = torch.Generator().manual_seed(seed)
    found, params = transform(images, generator=generator, return_params=True)
    assert tuple(name in params for name in NAMES) == used, "a range of 0 draws nothing"
    assert torch.equal(images, before)
    expected, has_tie = jittered(wide(images), params)
    if images.dtype == torch.uint8:
        assert torch.equal(found, expected) or has_tie
    else:
        # A hue that is near to a boundary of sectors turns an error of the last place of a float into no larger one;
        # torchvision's roundings in half precision are larger.
        assert_near(found, expected.to(images.dtype), tolerance=1e-4 if images.dtype in EXACT else None)


def test_every_grey_level_keeps_or_loses_the_level_that_it_does_in_torchvision():
    # Factor * level + (1 - factor) * level is the level, or a little less, which is cut off to the next.
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(200, 3, -1, -1)
    factors = torch.linspace(0, 2, 200)
    found = color.blend(levels, torch.full((200, 1), 2), factors[:, None])
    assert torch.equal(found, one_by_one(levels, F.adjust_saturation, {"saturation_factor": factors}))


# -- Values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_conversions_of_half_precision_are_rounded_once(dtype):
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    halves = T.ToDtype(dtype, scale=True)(levels)
    assert torch.equal(halves, (levels.float() / 255).to(dtype))
    assert torch.equal(T.ToDtype(torch.uint8, scale=True)(halves), F.to_dtype(halves.float(), torch.uint8, scale=True))
    assert torch.equal(T.ToDtype(dtype)(levels), levels.to(dtype))
