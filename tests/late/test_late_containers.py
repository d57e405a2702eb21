"""Containers of transforms give what they give without late decoding: bits, dtype, type, strides, errors, warnings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from comparing import jpeg, opened, outcome
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload.late import containers

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
pytestmark = pytest.mark.usefixtures("as_in_a_worker")


@pytest.fixture(autouse=True, params=["RGB", "L"])
def file(request) -> bytes:
    return jpeg(40, 31, request.param)


def result(run: Callable[[Image.Image], Any], data: bytes, *, late: bool) -> Any:
    return outcome(lambda: run(opened(data)), late=late, lines=False)


def assert_equal(run: Callable[[Image.Image], Any], data: bytes) -> None:
    assert result(run, data, late=True) == result(run, data, late=False)


def norm(kind: Any = v1, **options: Any) -> Any:
    return kind.Normalize(MEAN, STD, **options)


MEANS: dict[str, Callable[[], Any]] = {
    "a tuple": lambda: (0.4, 0.5, 0.6),
    "integers": lambda: [0, 1, 1],
    "one": lambda: [0.5],
    "two": lambda: [0.5, 0.4],
    "none": list,
    "a number": lambda: 0.5,
    "a tensor": lambda: torch.tensor([0.4, 0.5, 0.6]),
    "a tensor of float64": lambda: torch.tensor([0.4, 0.5, 0.6], dtype=torch.float64),
    "a tensor of no dimension": lambda: torch.tensor(0.5),
    "a tensor of three dimensions": lambda: torch.full((3, 1, 1), 0.4),
    "a tensor as large as the image": lambda: torch.rand(3, 31, 40),
    "a tensor as large as the trial": lambda: torch.rand(3, 16, 16),
    "an array": lambda: np.array([0.4, 0.5, 0.6]),
    "array scalars": lambda: list(np.array([0.4, 0.5, 0.6], dtype=np.float32)),
    "tensors in a list": lambda: [torch.tensor(0.4), torch.tensor(0.5), torch.tensor(0.6)],
    "lists": lambda: [[[0.4]], [[0.5]], [[0.6]]],
    "lists of one dimension less": lambda: [[0.4], [0.5], [0.6]],
    "strings": lambda: ["0.4", "0.5", "0.6"],
    "with a gradient": lambda: torch.full((3,), 0.4).requires_grad_(),
    "not a number": lambda: [float("nan"), 0.5, 0.5],
}


@pytest.mark.parametrize(
    ("mean", "std"),
    [*((mean, [0.5] * 3) for mean in MEANS), *(("a tuple", std) for std in ([0.0, 1, 1], [1e-40] * 3, [float("inf")]))],
)
def test_means_and_deviations_of_any_kind_do_what_they_do_without(mean, std, file):
    for kind, first in ((v1, [v1.ToTensor()]), (v2, [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])):
        try:
            transform = kind.Normalize(MEANS[mean](), std)
        except Exception:  # the same with and without
            continue
        run = kind.Compose([*first, transform])
        assert_equal(run, file)
        assert_equal(lambda image, run=run: run(image.convert("RGB")), file)
        assert_equal(lambda image, run=run: run(image.convert("RGB").resize((16, 16))), file)


@pytest.mark.parametrize("kind", [v1, v2])
def test_arguments_that_change_between_samples_are_followed(kind):
    file = jpeg(40, 31)
    first = [v1.ToTensor()] if kind is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    changing = kind.Normalize(list(MEAN), torch.tensor(STD))
    run = kind.Compose([*first, changing])

    def changed(change: Callable[[], Any]) -> None:
        before = result(run, file, late=True)
        change()
        after = result(run, file, late=True)
        assert after == result(run, file, late=False)
        assert after != before

    changed(lambda: changing.mean.__setitem__(0, 0.1))
    changed(lambda: changing.std.__setitem__(0, 0.1))
    changed(lambda: setattr(changing, "mean", (0.3, 0.3, 0.3)))
    changed(lambda: run.transforms.pop())
    changed(lambda: run.transforms.append(changing))
    changed(lambda: run.transforms.__setitem__(-1, kind.RandomErasing(1.0)))


class Doubled(v1.Normalize):
    def forward(self, tensor: Any) -> Any:
        return super().forward(tensor) * 2


class Tripled(v1.ToTensor):
    def __call__(self, pic: Any) -> Any:
        return super().__call__(pic) * 3


class Logged(v1.Compose):
    def __call__(self, img: Any) -> Any:
        return super().__call__(img) + 1


class Always(v1.RandomHorizontalFlip):
    def __init__(self) -> None:
        super().__init__(1.0)


def with_a_method_of_its_own() -> Any:
    own = norm()
    own.forward = lambda tensor: tensor + 5
    return v1.Compose([v1.ToTensor(), own])


def in_the_place_of_its_class(image: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v1.transforms, "RandomHorizontalFlip", Always)
        patch.setattr(containers, "_known", containers._Known())
        return v1.Compose([Always(), v1.ToTensor()])(image)


def hooked(image: Any) -> Any:
    heard: list[str] = []
    target = norm()
    run = v1.Compose([v1.ToTensor(), target])
    target.register_forward_hook(lambda module, inputs, output: heard.append("behind") or output + 1)
    target.register_forward_pre_hook(lambda module, inputs: heard.append("before"))
    of_all = nn.modules.module.register_module_forward_hook(lambda *_: heard.append("any"))
    try:
        return run(image), v1.Compose([v1.ToTensor(), norm()])(image), heard
    finally:
        of_all.remove()


def growing(image: Any) -> Any:
    transforms: list[Any] = [lambda image: transforms.append(norm()) or image, v1.ToTensor()]
    return v1.Compose(transforms)(image)


def emptied(image: Any, *others: Any) -> Any:
    run = v2.Compose([v2.ToImage()])
    run.transforms = []
    return run(image, *others)


def by_timm(image: Any) -> Any:
    data = pytest.importorskip("timm.data.transforms")
    firsts = data.MaybeToTensor(), data.MaybePILToTensor(), data.ToNumpy()
    lasts = (), (norm(),), (v1.ConvertImageDtype(torch.float32), norm())
    made: list[Any] = []
    for run in (v1.Compose([first, *last]) for first in firsts for last in lasts):
        try:
            made.append(run(image))
        except Exception as error:
            made.append(error)
    return made


RUNS: list[Callable[[Any], Any]] = [
    by_timm,
    hooked,
    growing,
    emptied,
    in_the_place_of_its_class,
    with_a_method_of_its_own(),
    v1.Compose([v1.ToTensor(), Doubled(MEAN, STD)]),
    v1.Compose([Tripled(), norm()]),
    Logged([v1.ToTensor(), norm()]),
    lambda image: emptied(image, 3),
    lambda image: v1.Compose([v1.ToTensor()])(img=image),
    lambda image: nn.Sequential(v2.PILToTensor())(input=image),
    lambda image: v2.Compose([v2.ToImage()])({"image": image})["image"],
    lambda image: v2.Compose([v2.ToImage()])(image, 3)[0],
    lambda image: v1.Compose([])(image),
    lambda image: nn.Sequential()(image),
    lambda image: v1.Compose([None])(image),
    lambda image: v1.Compose((v1.ToTensor(),))(image),
    lambda image: v1.Compose(None)(image),
    lambda image: v1.Compose([v1.Compose([v1.ToTensor()]), norm()])(image),
    lambda image: v1.Compose([v1.ToTensor()])(np.asarray(image)),
    lambda image: v1.Compose([v1.ToTensor()])(),
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: getattr(run, "__name__", None))
def test_containers_do_what_they_do_without(run, file):
    assert_equal(run, file)
