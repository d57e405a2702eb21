"""Colors of tensors are changed by the native library: what torchvision returns, raises and draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from comparing import as_sample, jpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.datasets import Made
from PIL import Image
from test_late_containers import seen
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import _color, _utils

import fastload
from fastload.late import tensor_colors
from fastload.late.scope import thread

REGISTRY = _utils._KERNEL_REGISTRY
NAMES = tuple(tensor_colors.CHANGES)
ARGUMENTS: dict[str, Any] = {
    "adjust_brightness": 1.1,
    "adjust_contrast": 0.6,
    "adjust_saturation": 1.4,
    "adjust_hue": -0.04,
    "permute_channels": [2, 0, 1],
    "rgb_to_grayscale": 3,
}


@pytest.fixture(autouse=True)
def changed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Replace the kernels, as a worker process does, and put them back.

    Returns the list that gets the name of each change that the native library makes of a sample.
    """
    made: list[str] = []

    def noted(name: str, change: tensor_colors.Change) -> tensor_colors.Change:
        def make(original: Any, image: Tensor, value: Any) -> Tensor | None:
            found = change(original, image, value)
            if found is not None and thread.scope is not None:
                made.append(name)
            return found

        return make

    for name, known in tensor_colors.CHANGES.items():
        monkeypatch.setitem(tensor_colors.CHANGES, name, known._replace(make=noted(name, known.make)))
    before = [(kernels, dict(kernels)) for kernels in (REGISTRY[getattr(functional, name)] for name in NAMES)]
    tensor_colors._prepared = False
    tensor_colors.prepare()
    yield made
    tensor_colors._prepared = False
    for kernels, originals in before:
        kernels.update(originals)


def with_originals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put torchvision's kernels back, and let them be replaced again."""
    for name in NAMES:
        kernels = REGISTRY[getattr(functional, name)]
        for kind in (tv_tensors.Image, Tensor):
            monkeypatch.setitem(kernels, kind, kernels[kind].__wrapped__)
    tensor_colors._prepared = False


def picture(height: int = 24, width: int = 37, seed: int = 0) -> Tensor:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def outcome(run: Any) -> Any:
    try:
        return seen(run())
    except Exception as error:
        return seen(error)


def assert_equal(run: Any) -> Any:
    """Assert that a function does the same within a sample as outside of one; return what it makes."""
    found = outcome(lambda: as_sample(run))
    assert found == outcome(run)
    return found


@pytest.mark.parametrize("kind", [tv_tensors.Image, Tensor])
@pytest.mark.parametrize("name", NAMES)
def test_the_library_changes_images_of_both_classes(name: str, kind: Any, changed: list[str]) -> None:
    image = picture().as_subclass(kind)
    for form in (image, image.contiguous(), image[:, 2:20, 3:30], image.contiguous()[:, 2:20, 3:30]):
        assert_equal(lambda form=form: getattr(functional, name)(form, ARGUMENTS[name]))
        assert_equal(lambda form=form: getattr(functional, name)(form, **{_argument(name): ARGUMENTS[name]}))
    assert changed == [name] * 8


def _argument(name: str) -> str:
    return tensor_colors.CHANGES[name].argument


factor = st.floats(0, 4) | st.integers(0, 3) | st.sampled_from([0.0, 1.0, 1e6, 1e7, -0.5, math.inf, math.nan])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(NAMES[:3]), factor, st.integers(1, 70), st.integers(1, 70), st.integers(0, 5), st.booleans()
)  # fmt: skip
def test_any_factor_gives_what_torchvision_gives(
    name: str, factor: float, height: int, width: int, seed: int, as_planes: bool
) -> None:
    image = tv_tensors.Image(picture(height, width, seed))
    image = image.contiguous() if as_planes else image
    if math.isfinite(factor):  # torch's conversion of others to 8 bits is not defined
        assert_equal(lambda: getattr(functional, name)(image, factor))


@pytest.mark.parametrize("name", NAMES)
def test_what_the_library_does_not_take_is_left_to_torchvision(name: str, changed: list[str]) -> None:
    class Own(tv_tensors.Image):
        pass

    function, value, image = getattr(functional, name), ARGUMENTS[name], picture()
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
        assert_equal(lambda other=other: function(other, value))
    bad: Any
    for bad in (-3, "much", None, [0, 1], [2, 1, -1], [0, 1, 3], torch.tensor(0.5), True):
        assert_equal(lambda bad=bad: function(image, bad))
    assert_equal(lambda: function(image, value, 3))
    assert_equal(lambda: function(image, some=value))
    assert not changed
    assert_equal(lambda: function(image))  # one of them has a default


@pytest.mark.parametrize("name", NAMES)
def test_in_modes_and_transforms_of_functions_torchvisions_kernels_run(name: str, changed: list[str]) -> None:
    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    calls: list[str] = []
    function, value, image = getattr(functional, name), ARGUMENTS[name], picture()

    def run() -> Any:
        with Seeing():
            return function(image, value)

    assert_equal(run)
    assert calls[: len(calls) // 2] == calls[len(calls) // 2 :]
    assert_equal(lambda: torch.func.vmap(lambda one: function(one, value))(torch.stack([image, image])))

    def in_double_precision() -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            return function(image, value)
        finally:
            torch.set_default_dtype(torch.float32)

    assert_equal(in_double_precision)
    assert not changed
    assert_equal(lambda: torch.inference_mode()(function)(image, value))
    assert changed == [name]


def test_the_image_itself_stays_as_it_was() -> None:
    image = picture()
    before = image.clone()
    for name in NAMES:
        as_sample(lambda name=name: getattr(functional, name)(image, ARGUMENTS[name]))
        assert torch.equal(image, before)


def test_outside_of_samples_torchvisions_kernels_run(changed: list[str]) -> None:
    for name in NAMES:
        getattr(functional, name)(picture(), ARGUMENTS[name])
    assert not changed


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_that_makes_something_else_stays_in_its_place(name: str, changed: list[str]) -> None:
    def original(image: Tensor, value: Any) -> Tensor:
        made = getattr(_color, f"{name}_image")(image, value)
        made[0, 0, 0] ^= 1
        return made

    def other_strides(image: Tensor, value: Any) -> Tensor:
        return getattr(_color, f"{name}_image")(image, value).transpose(1, 2).contiguous().transpose(1, 2)

    def fails(image: Tensor, value: Any) -> Tensor:
        raise RuntimeError("it fails")

    for kernel in (original, other_strides, fails):
        assert not tensor_colors.agrees(name, kernel)
        run = tensor_colors._around(kernel, name, kernel, Tensor)
        assert_equal(lambda run=run: run(picture(), ARGUMENTS[name]))
    assert not changed


def test_where_torch_rounds_now_once_now_twice_its_sums_are_its_own(
    changed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_colors, "_fused", lambda: None)
    monkeypatch.setattr(tensor_colors, "_agreeing", {})
    for name in NAMES:
        assert_equal(lambda name=name: getattr(functional, name)(picture(), ARGUMENTS[name]))
    assert changed == ["adjust_brightness", "adjust_hue", "permute_channels"]


def test_a_function_of_torchvisions_that_was_replaced_is_called(
    changed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_color, "_blend", lambda image, other, ratio: image + 1)
    assert_equal(lambda: functional.adjust_saturation(picture(), 0.5))
    assert not changed


def test_kernels_that_somebody_has_replaced_or_removed_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with_originals(monkeypatch)
    monkeypatch.setitem(REGISTRY[functional.adjust_hue], tv_tensors.Image, lambda image, hue_factor: "own")
    monkeypatch.delitem(REGISTRY[functional.adjust_contrast], Tensor)
    monkeypatch.delattr(functional, "permute_channels")
    assert tensor_colors.originals().keys() == set(NAMES) - {"adjust_contrast", "permute_channels"}
    tensor_colors.prepare()
    assert as_sample(lambda: functional.adjust_hue(tv_tensors.Image(picture()), 0.1)) == "own"
    assert not tensor_colors.originals()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 50), st.integers(2, 50), st.booleans(), st.floats(0, 1))
def test_random_transforms_draw_and_make_the_same(
    seed: int, height: int, width: int, as_planes: bool, p: float
) -> None:
    image = tv_tensors.Image(picture(height, width, seed % 7))
    image = image.contiguous() if as_planes else image

    def run() -> Any:
        torch.manual_seed(seed)
        first = v2.RandomPhotometricDistort(p=p)(image)
        jittered = v2.ColorJitter(0.4, 0.4, 0.4, 0.2)(first)
        return first, jittered, v2.RandomGrayscale(0.5)(jittered), torch.rand(2)

    assert_equal(run)


def _detection(folder: Path, to_image_first: bool) -> Any:
    moves = [v2.RandomIoUCrop(), v2.RandomHorizontalFlip()]
    first = [v2.ToImage(), *moves] if to_image_first else [*moves, v2.ToImage()]
    last = [v2.SanitizeBoundingBoxes(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
    steps = v2.Compose([*first, v2.RandomPhotometricDistort(p=0.7), *last])

    def sample(index: int) -> Any:
        image = Image.open(folder / f"{index % 6}.jpg").convert("RGB")
        width, height = image.size
        boxes = [[0, 0, width // 2, height // 2], [width // 3, height // 3, width, height]]
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
            "masks": tv_tensors.Mask(torch.arange(2 * width * height).reshape(2, height, width).to(torch.uint8)),
            "labels": torch.tensor([1, 2]),
        }
        return steps(image, target)

    return sample


@pytest.mark.parametrize("to_image_first", [False, True])
def test_samples_of_a_detection_pipeline_are_those_without_late_decoding(tmp_path: Path, to_image_first: bool) -> None:
    for place in range(6):
        (tmp_path / f"{place}.jpg").write_bytes(jpeg(70 + place, 50, "L" if place == 3 else "RGB", seed=place))
    dataset = Made(36, _detection(tmp_path, to_image_first))
    sides = [
        list(fastload.DataLoader(dataset, None, num_workers=1, seed=1, **options)) for options in ({}, {"fuse": False})
    ]
    assert list(map(seen, sides[0])) == list(map(seen, sides[1]))


def test_the_kernels_are_replaced_in_worker_processes_alone(
    changed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_replaced(index: int) -> bool:
        return not tensor_colors.originals()

    with_originals(monkeypatch)
    assert list(fastload.DataLoader(Made(1, is_replaced), None, num_workers=1)) == [True]
    for options in ({"num_workers": 0}, {"num_workers": 1, "worker_method": "thread"}):
        assert list(fastload.DataLoader(Made(1, is_replaced), None, **options)) == [False]
