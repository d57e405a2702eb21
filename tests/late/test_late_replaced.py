"""A function or method that a user has replaced is called as without late decoding, for as long as it is there."""

from __future__ import annotations

import functools
import pkgutil
import unittest.mock
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from comparing import as_sample, jpeg, opened
from kit.datasets import Made
from PIL import Image, ImageEnhance
from replacing import REGISTRY, forget, replaced
from test_late_containers import norm, seen
from test_late_tensors import PLAIN, pair, to_float
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import _functional_pil, _functional_tensor, v2
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import _utils

import fastload
from fastload.base.compat import process

pytestmark = pytest.mark.usefixtures("as_in_a_worker")

VERSION_1 = v1.Compose([v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor(), norm()])
VERSION_2 = v2.Compose([
    v2.ToImage(), v2.RandomCrop(100, pad_if_needed=True), v2.RandomResizedCrop(70), v2.Resize((66, 64)),
    v2.CenterCrop(60), v2.RandomHorizontalFlip(1.0), to_float(), norm(v2),
])  # fmt: skip


def version_1(image: Any) -> Any:
    return VERSION_1(image.convert("RGB"))


def version_2(image: Any) -> Any:
    image = image.convert("RGB")
    of_tensors = v2.Compose(VERSION_2.transforms[1:])
    return VERSION_2(image), pair(VERSION_2)(image), of_tensors(PLAIN(image)), of_tensors(tv_tensors.Image(image))


def by_pillow(image: Any) -> Any:
    return image.convert("RGB").crop((0, 0, 60, 59)).resize((50, 50)).transpose(0)


def enhanced(image: Any) -> Any:
    made = [kind(image.convert("RGB")).enhance(0.3) for kind in (ImageEnhance.Color, ImageEnhance.Contrast)]
    return *made, _functional_pil.adjust_hue(image.convert("RGB"), 0.2)


def saturated(image: Any) -> Any:
    tensor = PLAIN(image)
    return functional.adjust_saturation(tensor, 0.5), _functional_tensor.adjust_saturation(tensor, 0.5)


BY_IOU = v2.Compose([v2.ToImage(), v2.RandomIoUCrop()])
_FUNCTIONAL, _V2 = "torchvision.transforms.functional", "torchvision.transforms.v2"
METHODS = [f"PIL.Image.Image.{name}" for name in ("convert", "crop", "resize", "transpose")]
PLACES: dict[Callable[[Any], Any], list[Any]] = {
    version_1: [
        *(f"{_FUNCTIONAL}.{name}" for name in ("to_tensor", "normalize", "resized_crop")),
        "torchvision.transforms.transforms.Normalize.forward",
        "torchvision.transforms.transforms.RandomHorizontalFlip.forward",
        "torchvision.transforms.transforms.RandomResizedCrop.get_params",
        *(f"torch.{name}" for name in ("from_numpy", "log", "tensor")),
        *("torch.as_tensor", "torch.nn.Module._call_impl", "numpy.array"),
    ],
    version_2: [
        *(f"{_V2}.functional.{name}" for name in ("resize", "center_crop", "pad")),
        *(f"{_V2}.CenterCrop.transform", f"{_V2}.RandomResizedCrop.make_params"),
    ],
    by_pillow: [
        *METHODS,
        *(f"PIL.Image.Image.{name}" for name in ("_new", "_crop", "load")),
        *(f"PIL.JpegImagePlugin.JpegImageFile.{name}" for name in ("convert", "load_prepare", "load_read", "load_end")),
        "PIL.Image.open",
    ],
    enhanced: [
        *("PIL.Image.blend", "PIL.Image.merge", "PIL.ImageStat.Stat"),
        *("PIL.ImageEnhance._Enhance.enhance", "PIL.ImageEnhance.Color.__init__"),
    ],
    saturated: [f"{_V2}.functional._color._blend", "torchvision.transforms._functional_tensor._blend"],
    pair(BY_IOU): [f"{_V2}._geometry.box_iou"],
}
CASES = [(place, run) for run, places in PLACES.items() for place in places]


def other(made: Any) -> Any:
    """Return something else than a function of the user's is to return, if that can be."""
    if isinstance(made, (torch.Tensor, np.ndarray)):
        return 255 - made if made.dtype in (torch.uint8, np.uint8) else made + 0.1
    return not made if isinstance(made, bool) else made


def outcome_of(run: Callable[[Any], Any], *, late: bool) -> Any:
    """Return what a function makes of an image, or raises."""
    torch.manual_seed(0)

    def make() -> Any:
        try:
            return run(opened(jpeg(80, 60)))
        except Exception as error:
            return error

    return seen(as_sample(make) if late else make())


class Replacement:
    """Calls a function, returns something else, and counts the calls."""

    def __init__(self, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.monkeypatch, self.num_calls = place, monkeypatch, 0
        # Late decoding calls it itself, to compare or to draw.
        self.is_called_more = isinstance(place, str) and place.startswith(("torch.", "numpy.", "PIL.Image.blend"))

    def __enter__(self) -> None:
        self._context = self.monkeypatch.context()
        patch = self._context.__enter__()
        if not isinstance(self.place, str):
            patch.setitem(*self.place, self._around(self.place[0][self.place[1]]))
            return
        own = self._around(pkgutil.resolve_name(self.place))
        patch.setattr(self.place, staticmethod(own) if self.place.endswith("get_params") else own)

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def called(*inputs: Any, **named: Any) -> Any:
            self.num_calls += 1
            return other(original(*inputs, **named))

        return called

    def outcome(self, run: Callable[[Any], Any], *, late: bool) -> Any:
        """Return what a function makes of an image, and how often it called the replacement."""
        self.num_calls = 0
        made = outcome_of(run, late=late)
        return made, self.num_calls > 0 if self.is_called_more else self.num_calls


@pytest.mark.parametrize("moment", ["before the first sample", "between samples"])
@pytest.mark.parametrize(("place", "run"), CASES, ids=lambda one: one if isinstance(one, str) else "")
def test_it_is_called_as_often_and_as_long(place, run, moment, monkeypatch):
    replacement = Replacement(place, monkeypatch)
    plain = replacement.outcome(run, late=False)
    if moment == "between samples":
        assert replacement.outcome(run, late=True) == plain
    else:
        forget(monkeypatch)
    with replacement:
        expected = replacement.outcome(run, late=False)
        assert expected != plain
        for _ in range(2):
            assert replacement.outcome(run, late=True) == expected
    for _ in range(2):
        assert replacement.outcome(run, late=True) == plain


@pytest.mark.parametrize(("place", "run"), CASES, ids=lambda one: one if isinstance(one, str) else "")
def test_it_is_called_within_a_sample_too(place, run, monkeypatch):
    replacement = Replacement(place, monkeypatch)

    def first_as_it_is(image: Any) -> Any:
        made = run(image.copy())
        enhancer = ImageEnhance.Color(image.convert("RGB"))
        replacement.num_calls = 0
        with replacement:
            found = run(image)
            num_calls = replacement.num_calls if place in METHODS else None
            return made, found, num_calls, enhancer.enhance(0.5), enhancer.degenerate

    for _ in range(2):
        assert outcome_of(first_as_it_is, late=True) == outcome_of(first_as_it_is, late=False)


RUNS = version_1, version_2, enhanced, saturated, pair(BY_IOU)
OWNED: list[tuple[Any, Any]] = [
    *((v2.functional, name) for name in ("gaussian_blur", "pad", "get_size", "resize", "adjust_hue")),
    *((v2, name) for name in ("RandomVerticalFlip", "ToImage", "Normalize", "RandomIoUCrop")),
    *((v1.transforms, name) for name in ("ToTensor", "Normalize", "Compose", "RandomHorizontalFlip")),
    *((_functional_pil, "adjust_hue"), (_functional_tensor, "adjust_hue"), (v2.RandomIoUCrop, "make_params")),
    *((ImageEnhance, "Contrast"), (ImageEnhance, "_Enhance"), (ImageEnhance._Enhance, "enhance")),
    *((functional.adjust_hue, kind) for kind in (Image.Image, torch.Tensor, tv_tensors.Image)),
]


def own(image: Any, *inputs: Any, **named: Any) -> Any:
    return getattr(image, "image", image)  # that of an enhancer


OWN: dict[str, Any] = {
    "a function": lambda function: own,
    "a wrapper": lambda function: functools.wraps(function)(own),
    "a mock": lambda function: unittest.mock.Mock(side_effect=own),
    "another of torchvision's": lambda function: v2.functional.horizontal_flip,
    "nothing": None,
}


OF_OWN = [(place, kind) for place in OWNED for kind in OWN if "torchvision" not in kind or place[1] == "resize"]


@pytest.mark.parametrize(("place", "kind"), OF_OWN, ids=lambda one: one if isinstance(one, str) else str(one[1]))
def test_what_users_have_replaced_or_deleted_before_is_no_error_and_stays(place, kind, monkeypatch):
    owner, name = place
    registry = {function: {**kernels} for function, kernels in REGISTRY.items()}
    monkeypatch.setattr(_utils, "_KERNEL_REGISTRY", registry)
    forget(monkeypatch)
    kernels = registry.get(owner) if owner is functional.adjust_hue else None
    found = vars(owner) if kernels is None else kernels
    given = None if OWN[kind] is None else OWN[kind](found.get(name))
    with monkeypatch.context() as patch:
        if kernels is not None:
            patch.delitem(kernels, name) if given is None else patch.setitem(kernels, name, given)
        elif given is not None:
            patch.setattr(owner, name, given, raising=False)
        else:
            patch.delattr(owner, name)
        for run in RUNS:
            assert outcome_of(run, late=True) == outcome_of(run, late=False)
        assert given is None or found[name] is given


def test_only_in_worker_processes_more_than_containers_is_replaced():
    def found(**options: Any) -> list[str]:
        loader = fastload.DataLoader(Made(1, lambda index: sorted(replaced())), None, **options)
        return next(iter(loader))

    process.is_worker = False
    compose = {"Compose.__call__", "Compose.forward"}
    assert set(found()) == set(found(num_workers=1, worker_method="thread")) == compose
    in_workers = found(num_workers=1)
    expected = {"Brightness.enhance", "RandomIoUCrop.make_params", "adjust_hue_image of Image", "Sequential.forward"}
    assert expected | compose < set(in_workers)
