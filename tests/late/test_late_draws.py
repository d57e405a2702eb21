"""torchvision's random crops and flips, drawn with fewer calls: the same images and the same state of the generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from comparing import Calls, jpeg, opened, outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from fastload.base import overrides
from fastload.late import LateSamples, draws


@pytest.fixture(autouse=True)
def _warnings_repeat():
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def result(transform: Any, data: bytes, *, late: bool, seed: int = 0) -> Any:
    """Return what a container makes of a file, what it warned of, and the generator's state behind it."""
    run = (v2 if type(transform).__module__.startswith("torchvision.transforms.v2") else v1).Compose([transform])
    torch.manual_seed(seed)
    return outcome(lambda: run(opened(data)), late=late), torch.get_rng_state().tolist()


def assert_equal(transform: Any, data: bytes, seed: int = 0) -> None:
    assert result(transform, data, late=True, seed=seed) == result(transform, data, late=False, seed=seed)


@settings(max_examples=150, deadline=None)
@given(
    version=st.sampled_from([v1, v2]),
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    to=st.sampled_from([9, (7, 12), [12, 7]]),
    scale=st.tuples(st.floats(0.001, 1), st.floats(0.001, 2)).map(sorted),
    ratio=st.tuples(st.floats(0.05, 20), st.floats(0.05, 20)).map(sorted),
    interpolation=st.sampled_from([*list(InterpolationMode)[:3], InterpolationMode.BOX, InterpolationMode.LANCZOS]),
    seed=st.integers(0, 2**63),
)
def test_a_random_resized_crop_draws_and_makes_the_same(version, size, to, scale, ratio, interpolation, seed):
    transform = version.RandomResizedCrop(to, scale, ratio, interpolation)
    assert_equal(transform, jpeg(*size, "RGB"), seed)


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(
        [v1.RandomHorizontalFlip, v1.RandomVerticalFlip, v2.RandomHorizontalFlip, v2.RandomVerticalFlip]
    ),
    p=st.floats(0, 1),
    seed=st.integers(0, 2**63),
)
def test_a_random_flip_draws_and_makes_the_same(kind, p, seed):
    assert_equal(kind(p), jpeg(9, 7, "RGB"), seed)


@pytest.mark.parametrize("version", [v1, v2])
def test_a_probability_is_compared_in_single_precision(version):
    drawn = torch.rand(1, generator=torch.Generator().manual_seed(0)).item()
    for p in (drawn, np.nextafter(drawn, 1), np.nextafter(drawn, 0)):
        assert_equal(version.RandomHorizontalFlip(float(p)), jpeg(9, 7, "RGB"))


@pytest.mark.parametrize("version", [v1, v2])
def test_the_ordinary_calls_are_spared(version):
    transforms = version.RandomResizedCrop(7), version.RandomHorizontalFlip()
    for transform in transforms:
        result(transform, jpeg(40, 31, "RGB"), late=True)  # compares both ways
    with Calls(torch.rand, torch.randint) as calls:
        for transform in transforms:
            result(transform, jpeg(40, 31, "RGB"), late=True)
        assert calls.count == 0
        result(transforms[0], jpeg(40, 31, "RGB"), late=False)
        assert calls.count == 2


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("size", 9),
        ("size", [9]),
        ("size", (9.0, 9.0)),
        ("scale", (1.0, 0.5)),
        ("scale", (torch.tensor(0.1), torch.tensor(0.5))),
        ("scale", [0.1, 0.5, 0.7]),
        ("ratio", np.array([0.5, 2.0])),
        ("ratio", (0.0, 0.0)),
        ("ratio", (-1.0, 1.0)),
        ("interpolation", "bicubic"),
        ("interpolation", "BICUBIC"),
        ("interpolation", 3),
        ("interpolation", InterpolationMode.NEAREST_EXACT),
        ("antialias", False),
        ("antialias", None),
        *(("p", p) for p in (1, torch.tensor(0.5), torch.nn.Parameter(torch.tensor(0.5)), np.float32(0.3), "half")),
    ],
)
@pytest.mark.parametrize("version", [v1, v2])
def test_unusual_attributes_do_what_they_do_in_torchvision(version, attribute, value):
    transform = version.RandomHorizontalFlip() if attribute == "p" else version.RandomResizedCrop(7)
    delattr(transform, attribute)  # a parameter is none of its attributes
    setattr(transform, attribute, value)
    assert_equal(transform, jpeg(40, 31, "RGB"))


@pytest.mark.parametrize("version", [v1, v2])
def test_the_default_dtype_and_the_default_device_are_followed(version, request):
    request.addfinalizer(lambda: torch.set_default_device(None))
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    transforms = version.RandomResizedCrop(7), version.RandomHorizontalFlip()
    torch.set_default_dtype(torch.float64)
    for transform in transforms:
        assert_equal(transform, jpeg(40, 31, "RGB"))
    torch.set_default_dtype(torch.float32)
    torch.set_default_device("meta")  # on which nothing can be drawn
    for transform in transforms:
        assert_equal(transform, jpeg(40, 31, "RGB"))


@pytest.mark.parametrize("version", [v1, v2])
def test_overridden_methods_and_those_of_an_instance_are_called(version):
    def box(*args: Any) -> tuple[int, int, int, int]:
        return 1, 2, 3, 4

    def parameters(*args: Any) -> dict[str, int]:
        return {"top": 1, "left": 2, "height": 3, "width": 4}

    class Mine(version.RandomResizedCrop):
        get_params = staticmethod(box)
        make_params = parameters

    middle = result(Mine(7), jpeg(40, 31, "RGB"), late=False)
    assert result(Mine(7), jpeg(40, 31, "RGB"), late=True) == middle
    own = version.RandomResizedCrop(7)
    own.get_params, own.make_params = box, parameters
    assert result(own, jpeg(40, 31, "RGB"), late=True) == middle


@pytest.mark.parametrize("version", [v1, v2])
def test_a_transform_that_replaces_a_function_is_followed_by_those_behind_it(version, monkeypatch):
    def replace(image: Image.Image) -> Image.Image:
        monkeypatch.setattr(version.RandomHorizontalFlip, "forward", lambda self, image: image.resize((5, 3)))
        return image

    run = version.Compose([version.RandomHorizontalFlip(), replace, version.RandomHorizontalFlip()])
    with LateSamples() as late:
        made = run(opened(jpeg(40, 31, "RGB")))
        late.materialize(made)
    assert made.size == (5, 3)


@pytest.fixture
def compared(monkeypatch) -> dict[Any, bool]:
    """What was compared in this process: nothing yet."""
    monkeypatch.setattr(overrides, "results", {})
    return overrides.results


def test_the_classes_draw_as_they_do_here_and_comparing_leaves_the_generator_as_it_was(compared):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    names = ("RandomResizedCrop", "RandomHorizontalFlip", "RandomVerticalFlip")
    assert set(draws.classes()) == {getattr(version, name) for version in (v1, v2) for name in names}
    assert all(map(draws.draw_of, draws.classes()))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_class_that_draws_otherwise_is_called(compared, monkeypatch):
    monkeypatch.setattr(v1.RandomResizedCrop, "get_params", staticmethod(lambda *_: (0, 0, 1, 1)))
    monkeypatch.setattr(v2.RandomHorizontalFlip, "__init__", None)
    assert draws.draw_of(v1.RandomResizedCrop) is None
    assert draws.draw_of(v2.RandomHorizontalFlip) is None
    assert draws.draw_of(v2.RandomResizedCrop) is not None


def test_an_unusual_default_dtype_at_first_decides_nothing(compared, request):
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    assert draws.draw_of(v1.RandomResizedCrop) is None
    torch.set_default_dtype(torch.float32)
    assert draws.draw_of(v1.RandomResizedCrop) is not None
