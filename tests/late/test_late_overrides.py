"""All overrides of images' libraries: the originals that users replace are called, and so are those that these call."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pkgutil
import types
import unittest.mock
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from comparing import Dispatch, Function, jpeg, opened, outcome
from kit.datasets import Made
from kit.proxies import Proxy
from PIL import ImageEnhance
from replacing import TABLE, WATCHED, forget, put_back, replaced
from test_late_containers import norm
from test_late_tensors import PLAIN, pair, to_float
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import _functional_pil, _functional_tensor, v2
from torchvision.transforms.v2 import functional

import fastload
from fastload.base import overrides
from fastload.base.compat import process
from fastload.base.overrides import Override
from fastload.cache import shared
from fastload.errors import ConfigError
from fastload.late import opener, tensor_colors

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


def changes_of_colors(image: Any) -> Any:
    tensor, made = PLAIN(image), [_functional_pil.to_grayscale(image.convert("RGB"), 3)]
    arguments = {"adjust_hue": 0.1, "rgb_to_grayscale": 3}
    for name in tensor_colors.KNOWN:
        for image_tensor in (tensor.clone(), tv_tensors.Image(tensor)):
            for module in (_functional_tensor, functional):
                made.append(getattr(module, name)(image_tensor, arguments.get(name, 0.7)))
    return made


def turned(image: Any) -> Any:
    return functional.adjust_hue(image.convert("RGB"), 0.1)


_FUNCTIONAL, _V2 = "torchvision.transforms.functional", "torchvision.transforms.v2"
METHODS = [f"PIL.Image.Image.{name}" for name in ("convert", "crop", "resize", "transpose")]
PLACES: dict[Callable[[Any], Any], list[Any]] = {
    version_1: [
        *(f"{_FUNCTIONAL}.{name}" for name in ("to_tensor", "normalize", "resized_crop")),
        "torchvision.transforms.transforms.Normalize.forward",
        "torchvision.transforms.transforms.RandomHorizontalFlip.forward",
        "torchvision.transforms.transforms.RandomResizedCrop.get_params",
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
}
CASES = [(place, run) for run, places in PLACES.items() for place in places]


def other(made: Any) -> Any:
    """Return something else than a function of the user's is to return, if that can be."""
    if isinstance(made, (torch.Tensor, np.ndarray)):
        return 255 - made if made.dtype in (torch.uint8, np.uint8) else made + 0.1
    return not made if isinstance(made, bool) else made


def outcome_of(run: Callable[[Any], Any], *, late: bool) -> Any:
    return outcome(lambda: run(opened(jpeg(80, 60))), late=late, lines=False)


class Called(Proxy):
    """Says that it is the function that it wraps, and calls another."""

    def __init__(self, wrapped: Any, call: Callable[..., Any]) -> None:
        super().__init__(wrapped)
        self.call = call

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self.call(*inputs, **named)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else functools.partial(self, owner)


def wrapped(original: Callable[..., Any], called: Callable[..., Any]) -> Callable[..., Any]:
    return functools.update_wrapper(called, original)


class Replacement:
    """Calls a function, returns something else, and counts the calls."""

    def __init__(self, place: str, monkeypatch: pytest.MonkeyPatch, wrap: Callable[..., Any] = wrapped) -> None:
        self.place, self.monkeypatch, self.wrap, self.num_calls = place, monkeypatch, wrap, 0

    def __enter__(self) -> None:
        self._context = self.monkeypatch.context()
        patch = self._context.__enter__()
        own = self._around(pkgutil.resolve_name(self.place))
        patch.setattr(self.place, staticmethod(own) if self.place.endswith("get_params") else own)

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*inputs: Any, **named: Any) -> Any:
            self.num_calls += 1
            return other(original(*inputs, **named))

        return self.wrap(original, called)

    def outcome(self, run: Callable[[Any], Any], *, late: bool) -> Any:
        """Return what a function makes of an image, and how often it called the replacement."""
        self.num_calls = 0
        made = outcome_of(run, late=late)
        return made, self.num_calls


@pytest.mark.parametrize(
    ("is_known", "wrap"),
    [(False, wrapped), (True, wrapped), (True, Called)],
    ids=["before the first sample", "between samples", "by what says that it is the original"],
)
@pytest.mark.parametrize(("place", "run"), CASES, ids=lambda one: one if isinstance(one, str) else "")
def test_it_is_called_as_often_and_as_long(place, run, is_known, wrap, monkeypatch):
    replacement = Replacement(place, monkeypatch, wrap)
    plain = replacement.outcome(run, late=False)
    if is_known:
        assert replacement.outcome(run, late=True) == plain
    else:
        forget(monkeypatch)
    with replacement:
        expected = replacement.outcome(run, late=False)
        assert expected != plain or wrap is Called  # version 2 finds the kernels of what it is equal to
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


RUNS = version_1, version_2, enhanced, changes_of_colors, pair(v2.Compose([v2.ToImage(), v2.RandomIoUCrop()]))


each_override = pytest.mark.parametrize("override", TABLE, ids=lambda one: one.path)


def put(override: Override, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a value under a name, or delete it: None."""
    owner, name = override.place()
    if isinstance(owner, dict):
        monkeypatch.delitem(owner, name) if value is None else monkeypatch.setitem(owner, name, value)
    elif value is None:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, value)


def own(image: Any = None, *inputs: Any, **named: Any) -> Any:
    if isinstance(image, torch.nn.Module):  # the object of a method
        return inputs[0] if inputs else None
    return getattr(image, "image", image)  # that of an enhancer


OWN: dict[str, Callable[[Any], Any]] = {
    "a function": lambda function: own,
    "a wrapper": lambda function: functools.wraps(function)(own),
    "a mock": lambda function: unittest.mock.Mock(side_effect=own),
    "nothing": lambda function: None,
}


@pytest.mark.parametrize("kind", OWN)
@each_override
def test_what_a_user_has_replaced_or_deleted_stays_and_is_told(override, kind, monkeypatch):
    put_back()
    if override.library == "PIL.Image":
        pytest.skip("what opens files is called, whosever it is")
    original = override.found()
    with monkeypatch.context() as patch:
        given = OWN[kind](original)
        put(override, given, patch)
        if given is not None:
            assert "it was replaced by" in (override.unavailable_reason() or "")
        forget(patch)
        for run in RUNS:
            assert outcome_of(run, late=True) == outcome_of(run, late=False)
        assert given is None or (override.found() is given and not override.is_installed)
    put_back()
    assert override.found() is original
    assert override.unavailable_reason() is None


@each_override
def test_where_both_differ_the_original_is_called(override, monkeypatch):
    cases = list(override.cases(usual=False))
    if not cases or override.make is None or override.library in ("cv2", "torchvision.io"):
        pytest.skip("it is compared in another way")
    made: list[Any] = []
    make = override.make

    def noting(*arguments: Any, **named: Any) -> Any:
        made.append(make(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(override, "make", noting)
    for agrees in (True, False):
        made.clear()
        monkeypatch.setattr(overrides, "results", dict(overrides.results) if agrees else {(override.path,): False})
        for run in (*RUNS, turned):
            assert outcome_of(run, late=True) == outcome_of(run, late=False)
        assert made
        assert any(one is not None for one in made) == agrees


@each_override
def test_who_reads_it_finds_what_the_original_has_until_it_is_undone(override):
    put_back()
    for one in opener.OVERRIDES:
        one.undo()
    original, reads = override.found(), [attrgetter("__name__"), inspect.getdoc]
    if isinstance(original, types.FunctionType):
        reads += [inspect.signature, inspect.getsource, inspect.getmodule, get_type_hints]
        reads += [] if hasattr(original, "__wrapped__") else [inspect.getfullargspec]
        reads += map(attrgetter, ("__module__", "__qualname__"))
    elif not isinstance(original, tuple):
        reads += [repr]
    else:
        pytest.skip("nobody reads what opens files")
    expected = [read(original) for read in reads]
    override.install()
    found = override.found()
    assert found is not original
    for read, one in zip(reads, expected, strict=True):
        assert read(found) == one, read
    if isinstance(original, types.FunctionType):  # torch.jit.script compiles with them
        assert found.__globals__ is inspect.unwrap(original).__globals__
    override.undo()
    assert override.found() is original


@contextlib.contextmanager
def in_double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SITUATIONS: dict[str, Callable[[], Any]] = {
    "in double precision": in_double_precision,
    "on another device": lambda: torch.device("meta"),
    "on the CPU": lambda: torch.device("cpu"),
    "in inference mode": torch.inference_mode,
    "returning tensors": lambda: tv_tensors.set_return_type("Tensor"),
    "returning the same class": lambda: tv_tensors.set_return_type("TVTensor"),
    "in a mode": Function,
    "in a mode of operators": Dispatch,
}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("run", RUNS)
def test_in_any_situation_samples_are_those_of_the_originals_and_a_mode_sees_their_calls_alone(run, situation):
    def within(image: Any) -> Any:
        with SITUATIONS[situation]() as mode:
            made = run(image)
        return made, getattr(mode, "noted", None)

    for one in (run, within, run):
        assert outcome_of(one, late=True) == outcome_of(one, late=False)


def test_only_in_worker_processes_that_decode_late_more_than_containers_is_replaced():
    def found(**options: Any) -> list[str]:
        loader = fastload.DataLoader(Made(1, lambda index: sorted(replaced())), None, **options)
        return next(iter(loader))

    process.is_worker = False
    assert found(num_workers=1, fuse=False) == []
    compose = {
        "torchvision.transforms.transforms.Compose.__call__",
        "torchvision.transforms.v2._container.Compose.forward",
    }
    assert set(found()) == set(found(num_workers=1, worker_method="thread")) == compose
    in_workers = found(num_workers=1)
    assert compose < set(in_workers) == {one.path for one in WATCHED if overrides.is_imported(one.library)}


def test_switched_off_nothing_is_replaced_or_decoded_late_and_worker_threads_cannot_draw(monkeypatch):
    def sample(index: int) -> list[str]:
        for run in RUNS:
            run(opened(jpeg(80, 60)))
        return sorted(replaced())

    put_back()
    # As in a new process: tests that register openers may leave ours behind.
    originals = {name: (found[0] and inspect.unwrap(found[0]), found[1]) for name, found in opener.Image.OPEN.items()}
    monkeypatch.setattr(opener.Image, "OPEN", originals)
    monkeypatch.setattr(overrides, "ON", False)
    loader = fastload.DataLoader(Made(2, sample), None, num_workers=1)
    assert list(loader) == [[], []]
    assert loader.statistics().decoded == {}
    monkeypatch.setattr(shared._process, "asked", None)  # of other tests' loaders; put back behind this one
    explained = " ".join(str(fastload.DataLoader(Made(1, own), num_workers=1, cache="auto").explain()).split())
    assert "FASTLOAD_OVERRIDES=0: no name of another library is replaced" in explained
    assert "decoded whole by Pillow: FASTLOAD_OVERRIDES=0" in explained
    assert "auto: nothing is kept, since Pillow decodes whole images" in explained
    with pytest.raises(ConfigError, match="FASTLOAD_OVERRIDES=0, but worker threads that draw need generators"):
        next(iter(fastload.DataLoader(Made(2, own), None, num_workers=1, worker_method="thread", seed=1)))
    with pytest.raises(ConfigError, match="use worker processes of one thread each"):
        next(iter(fastload.DataLoader(Made(2, own), None, num_workers=1, worker_threads=2)))
