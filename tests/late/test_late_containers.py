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
from fastload.late.deferred import DeferredTensor

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
pytestmark = pytest.mark.usefixtures("as_in_a_worker")


@pytest.fixture(autouse=True, params=["RGB", "L"])
def file(request) -> bytes:
    return jpeg(40, 31, request.param)


def result(run: Callable[[Image.Image], Any], data: bytes, *, late: bool) -> Any:
    return outcome(lambda: run(opened(data)), late=late, lines=False)


def assert_equal(run: Callable[[Image.Image], Any], data: bytes) -> None:
    """Assert that a container does what it does without late decoding."""
    assert result(run, data, late=True) == result(run, data, late=False)


def norm(kind: Any = v1, **options: Any) -> Any:
    return kind.Normalize(MEAN, STD, **options)


def test_timms_first_transforms_give_the_same_tensors(file):
    data = pytest.importorskip("timm.data.transforms")
    for first in (data.MaybeToTensor(), data.MaybePILToTensor(), data.ToNumpy()):
        for last in ((), (norm(),), (v1.ConvertImageDtype(torch.float32), norm())):
            assert_equal(v1.Compose([first, *last]), file)


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


@pytest.mark.parametrize("mean", MEANS)
def test_means_of_any_kind_do_what_they_do_without(mean, file):
    for kind, first in ((v1, [v1.ToTensor()]), (v2, [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])):
        try:
            transform = kind.Normalize(MEANS[mean](), [0.5, 0.5, 0.5])
        except Exception:  # the same with and without
            continue
        run = kind.Compose([*first, transform])
        assert_equal(run, file)
        assert_equal(lambda image, run=run: run(image.convert("RGB")), file)
        assert_equal(lambda image, run=run: run(image.convert("RGB").resize((16, 16))), file)


@pytest.mark.parametrize("std", [[0.0, 1.0, 1.0], [1e-40] * 3, [-1.0] * 3, [float("inf")] * 3])
def test_deviations_of_any_size_do_what_they_do_without(std, file):
    assert_equal(v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, std)]), file)


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


def test_hooks_are_called():
    heard = []
    target = norm()
    run = v1.Compose([v1.ToTensor(), target])
    handles = [
        target.register_forward_hook(lambda module, inputs, output: heard.append("behind") or output + 1),
        target.register_forward_pre_hook(lambda module, inputs: heard.append("before")),
    ]
    assert_equal(run, jpeg(40, 31))
    for handle in handles:
        handle.remove()
    assert heard == ["before", "behind"] * 2
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: heard.append("any"))
    try:
        assert_equal(run, jpeg(40, 31))
    finally:
        handle.remove()
    assert heard.count("any") == 2


def test_subclasses_and_instances_with_methods_of_their_own_are_called(file):
    class Doubled(v1.Normalize):
        def forward(self, tensor: Any) -> Any:
            return super().forward(tensor) * 2

    class Tripled(v1.ToTensor):
        def __call__(self, pic: Any) -> Any:
            return super().__call__(pic) * 3

    class Logged(v1.Compose):
        def __call__(self, img: Any) -> Any:
            return super().__call__(img) + 1

    assert_equal(v1.Compose([v1.ToTensor(), Doubled(MEAN, STD)]), file)
    assert_equal(v1.Compose([Tripled(), norm()]), file)
    assert_equal(Logged([v1.ToTensor(), norm()]), file)
    own = norm()
    own.forward = lambda tensor: tensor + 5
    assert_equal(v1.Compose([v1.ToTensor(), own]), file)


def test_a_subclass_in_the_place_of_its_class_is_called(monkeypatch):
    class Always(v1.RandomHorizontalFlip):
        def __init__(self) -> None:
            super().__init__(1.0)

    monkeypatch.setattr(v1.transforms, "RandomHorizontalFlip", Always)
    monkeypatch.setattr(containers, "_known", containers._Known())
    assert_equal(v1.Compose([Always(), v1.ToTensor()]), jpeg(40, 31))


def test_containers_take_what_they_took(file):
    def growing(image: Any) -> Any:
        transforms: list[Any] = [lambda image: transforms.append(norm()) or image, v1.ToTensor()]
        return v1.Compose(transforms)(image)

    assert_equal(growing, file)
    assert_equal(lambda image: v1.Compose([v1.ToTensor()])(img=image), file)
    assert_equal(lambda image: nn.Sequential(v2.PILToTensor())(input=image), file)
    assert_equal(lambda image: v2.Compose([v2.ToImage()])({"image": image})["image"], file)
    assert_equal(lambda image: v2.Compose([v2.ToImage()])(image, 3)[0], file)
    assert_equal(lambda image: v1.Compose([])(image), file)
    emptied = v2.Compose([v2.ToImage()])
    emptied.transforms = []
    assert_equal(emptied, file)
    assert_equal(lambda image: emptied(image, 3), file)
    assert_equal(lambda image: nn.Sequential()(image), file)
    assert_equal(lambda image: v1.Compose([None])(image), file)
    assert_equal(lambda image: v1.Compose((v1.ToTensor(),))(image), file)
    assert_equal(lambda image: v1.Compose(None)(image), file)
    assert_equal(lambda image: v1.Compose([v1.Compose([v1.ToTensor()]), norm()])(image), file)
    assert_equal(lambda image: v1.Compose([v1.ToTensor()])(np.asarray(image)), file)
    assert_equal(lambda image: v1.Compose([v1.ToTensor()])(), file)


def test_an_image_that_goes_through_two_containers_stays_what_it_is(file):
    def views(image: Image.Image) -> torch.Tensor:
        run = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor(), norm()])
        image = image.convert("RGB")
        return torch.stack([run(image), run(image), v1.functional.to_tensor(image.resize((16, 16)))])

    assert_equal(views, file)


def test_a_known_run_is_made_in_the_decoding_pass(monkeypatch):
    made = []
    original = DeferredTensor.of_image
    monkeypatch.setattr(DeferredTensor, "of_image", lambda *inputs: made.append(original(*inputs)) or made[-1])
    assert_equal(v1.Compose([v1.RandomResizedCrop(17), v1.ToTensor(), norm()]), jpeg())
    assert len(made) == 1
    assert made[0] is not None


def test_outside_of_samples_transforms_are_called_one_by_one(monkeypatch, file):
    monkeypatch.setattr(containers, "_run", lambda *inputs: pytest.fail("called outside of a sample"))
    v1.Compose([v1.ToTensor()])(opened(file))
    v2.Compose([v2.ToImage()])(opened(file))
    nn.Sequential(v2.PILToTensor())(opened(file))
