"""Every transform: nothing but its own keys decides on a sample, no device is asked, and compilers record all of it."""

from __future__ import annotations

import contextlib
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from every_transform import CASES, arguments, check, draws_of, made, params_of
from references import elsewhere, lain_out, random_images
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map
from torch_settings import default_device, default_dtype, deterministic

from fastload import transforms
from fastload.base.nesting import tensors_in
from fastload.transforms import Compose, Draws, RandomCrop, RandomResizedCrop, tensors
from fastload.transforms.base import Transform, shape_of


class Contiguous(Transform):
    """A user's: it does not restore channels_last."""

    def transform(self, images: Tensor, params: Any) -> Tensor:
        return images.contiguous()


# What several members do in one pass, and ways of one that its case does not take.
MAKE = {name: case.make for name, case in CASES.items()} | {
    "gathered": lambda: Compose([RandomCrop(8, 2), *FLIPS]),
    "warped": lambda: Compose([transforms.RandomRotation(20), transforms.RandomAffine(10)]),
    "resized to the nearest": lambda: RandomResizedCrop(6, interpolation="nearest"),
    "resized without antialiasing": lambda: RandomResizedCrop(6, interpolation="bicubic", antialias=False),
    "filled": lambda: RandomCrop(8, 2, fill=(1, 2, 3)),
    "a user's": Contiguous,
    "noise": lambda: transforms.Cutout(4, value="random"),
}
FLIPS = [transforms.RandomHorizontalFlip(), transforms.RandomVerticalFlip()]
OF_FLOATS = {"Normalize", "RandomErasing of noise", "noise"}
DTYPES = (torch.uint8, torch.bfloat16, torch.float32)
WITH_DTYPES = [(name, dtype) for name in MAKE for dtype in DTYPES if dtype != torch.uint8 or name not in OF_FLOATS]
# All floats are alike to what does not look at values.
RECORDED = [(name, dtype) for name, dtype in WITH_DTYPES if dtype != torch.bfloat16]


def changed(transform, images, **options):
    """Return the images of a call, also where it mixes labels."""
    found = transform(*arguments(transform, images), **options)
    return found[0] if transform.mixes else found


def test_every_transform_is_in_the_table():
    public = [getattr(transforms, name) for name in transforms.__all__]
    names = {one.__name__ for one in public if isinstance(one, type) and issubclass(one, Transform)} - {"Transform"}
    assert {name.partition(" ")[0] for name in CASES} == names


@pytest.mark.parametrize("name", CASES)
def test_parameters_of_another_batch_or_of_other_names_are_refused(name):
    case, kind = CASES[name], name.partition(" ")[0]
    transform = case.make()
    images = made(case.dtypes[-1])
    params = params_of(transform, images)
    for num in (15, 17):
        others = torch.cat([images, images])[:num]
        if params:
            with pytest.raises(ValueError, match=rf"^{kind} got params\[.* shape \(16.* takes \({num}"):
                transform(*arguments(transform, others), params=params)
        else:
            assert len(transform(others, params=params)) == num
    others = [params | {"foreign": torch.zeros(16)}]
    others += [{one: params[one] for one in params if one != missing} for missing in params]
    for other in others:
        with pytest.raises(ValueError, match=rf"^{kind} got params with .*, and takes "):
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


@pytest.mark.parametrize(("name", "dtype"), WITH_DTYPES)
def test_a_sample_does_not_depend_on_the_others_nor_on_the_memory(name, dtype, monkeypatch):
    transform, images = MAKE[name](), random_images((12, 3, 33, 37), dtype, 5)
    ids = np.arange(12) * 7 + 2**33
    draws = Draws(bytes(range(16)), ids, epochs=draws_of(1).epochs)
    before = images.clone()
    together = changed(transform, images, draws=draws)
    for layout in ("channels_last", "strided", "turned"):
        found = changed(transform, lain_out(images, layout), draws=draws)
        assert torch.equal(found, together)
        assert layout != "channels_last" or found.is_contiguous(memory_format=torch.channels_last)
    for rows in ([4], list(range(11, -1, -1))) if not transform.mixes else ([4, 5], [8, 9, 0, 1]):
        assert torch.equal(changed(transform, images[rows], draws=draws.of(rows)), together[rows])
    with monkeypatch.context() as patch:
        # Three samples would fit into a part, which has two: no pair is divided.
        patch.setattr(tensors, "PART_SIZE", 3 * images[0].numel() // torch.get_num_threads() + 1)
        assert torch.equal(changed(transform, images, draws=draws), together)
    assert torch.equal(images, before)
    last = changed(Compose([transform], layout="NHWC"), images.permute(0, 2, 3, 1), draws=draws)
    assert torch.equal(last, together.permute(0, 2, 3, 1))


@pytest.mark.parametrize("name", ["gathered", "RandomInvert", "RandomGrayscale", "Normalize"])
def test_gradients_pass_on_the_cpu_as_they_do_elsewhere(name):
    transform, images = MAKE[name](), made(torch.float32)
    params = params_of(transform, images)
    here, there = images.clone().requires_grad_(), images.clone().requires_grad_()
    transform(here, params=params).square().sum().backward()
    elsewhere(transform, there, params=params).square().sum().backward()
    assert here.grad.any()
    torch.testing.assert_close(here.grad, there.grad)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[pytest.mark.slow] if is_slow else [])
        for name, dtype in RECORDED
        # All that ColorJitter can do takes the compiler longest.
        for is_slow in [name == "ColorJitter" or (dtype != torch.uint8 and name not in OF_FLOATS)]
    ],
)
def test_transforms_are_compiled_without_a_break_and_once(name, dtype):
    torch._dynamo.reset()
    transform = MAKE[name]()
    images = random_images((30, 3, 40, 41), dtype, 1)
    given = arguments(transform, images)
    drawn = [
        transform.draw_for(Draws(bytes(16), np.arange(start, start + 30), epochs=draws_of(1).epochs), shape_of(images))
        for start in (0, 30)
    ]
    call = (lambda *given, params: transform(*given, params=params)[0]) if transform.mixes else transform.transform
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    far = (compiled(*given, params=drawn[0]).double() - changed(transform, images, params=drawn[0]).double()).abs()
    # Of a warped image, a pixel halfway between two may be the other one.
    share = CASES.get(name, CASES["Resize"]).share
    assert (far > (1 if images.dtype == torch.uint8 else 1e-5)).double().mean() <= share
    if not transform.mixes:
        with torch.compiler.set_stance("fail_on_recompile"):  # with other rows
            compiled(*given, params=drawn[1])


@pytest.mark.thorough
@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))),
    reason="inductor needs a C++ compiler for the CPU, and there is none",
)
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # its own imports
@pytest.mark.parametrize("name", ["RandomAutocontrast", "RandomEqualize"])
def test_extremes_of_bytes_are_found_by_the_code_of_torchs_compiler(name):
    from torch._inductor import config

    torch.compiler.reset()
    transform = getattr(transforms, name)(1.0)
    images = random_images((30, 3, 9, 10), torch.uint8, 0).clamp(60, 200)  # no level is the highest or the least
    params = params_of(transform, images)
    with config.patch(compile_threads=1):  # else it starts a process for each core, and each imports torch
        found = torch.compile(transform.transform, fullgraph=True)(images, params).int()
    assert (found - transform.transform(images, params).int()).abs().max() <= 1


@pytest.mark.parametrize(("name", "dtype"), RECORDED)
def test_nothing_is_read_from_a_device(name, dtype):
    """Tensors without values: whatever needs one fails."""
    transform, images = MAKE[name](), made(dtype)
    given, params = arguments(transform, images), params_of(transform, images)
    expected = changed(transform, images, params=params)
    found = [transform(*(one.to("meta") for one in given), params=params)]
    with FakeTensorMode() as mode:
        try:
            there, its_params = tree_map(lambda one: mode.from_tensor(one).to("cuda"), (given, params))
        except RuntimeError as error:
            pytest.skip(f"this torch pretends a GPU only where there is one: {error}")
        found.append(transform(*there, params=its_params))
    for one, device in zip(found, ("meta", "cuda"), strict=True):
        result = one[0] if transform.mixes else one
        assert (result.shape, result.dtype, result.device.type) == (expected.shape, expected.dtype, device)


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, case in CASES.items() for dtype in case.dtypes])
def test_elsewhere_a_transform_gives_what_it_gives_on_the_cpu(name, dtype):
    transform, images = CASES[name].make(), made(dtype)
    given, params = arguments(transform, images), params_of(transform, images)
    expected = transform(*given, params=params)
    check(elsewhere(transform, *given, params=params), expected, CASES[name], dtype)


# -- settings of torch's -----------------------------------------------------------------------------------------------


SETTINGS = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "half by default": lambda: default_dtype(torch.float16),
    "double by default": lambda: default_dtype(torch.float64),
    "another device by default": lambda: default_device("meta"),  # what is put there has no values
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "deterministic algorithms": deterministic,
}


def results(name: str, dtype: torch.dtype, setting: Any) -> list[Tensor]:
    """Return what a transform draws and makes when everything but the images is made inside of a setting."""
    images = made(dtype)
    labels = arguments(CASES[name].make(), images)[1:]
    with setting:
        transform = CASES[name].make()
        params = params_of(transform, images)
        found = transform(images, *labels, params=params, return_params=True)
        torch.manual_seed(3)
        by_torch = [
            Draws.from_generator(one, 5).stream("a").uniform() for one in (None, torch.Generator().manual_seed(4))
        ]
    return [*found[:-1], *tensors_in(params), *map(torch.from_numpy, by_torch)]


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["on the CPU", "as on other devices"])
@pytest.mark.parametrize("name", CASES)
def test_no_setting_of_torch_changes_a_transform(name, is_elsewhere, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: is_elsewhere)
    for dtype in CASES[name].dtypes:
        expected = results(name, dtype, contextlib.nullcontext())
        for setting, make in SETTINGS.items():
            for one, other in zip(results(name, dtype, make()), expected, strict=True):
                assert (one.dtype, one.device) == (other.dtype, other.device), (setting, dtype)
                assert torch.equal(one, other), (setting, dtype)
