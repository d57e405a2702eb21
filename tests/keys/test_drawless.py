"""A dataset's samples are not seeded where its code cannot draw; where it may, they are."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.proxies import Proxy
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset, Subset

import fastload
from fastload.keys import drawless
from fastload.keys.drawless import Drawless
from fastload.keys.seeding import GlobalSeeder

SIZE = 4
generator = np.random.default_rng(0)


class Windows(Dataset[Any]):
    """Windows of tokens: what is known to draw nothing. The other classes each change one thing."""

    data: Any
    size: Any

    def __init__(self, data: Any = None) -> None:
        self.data = np.arange(400, dtype=np.uint16) if data is None else data
        self.size = SIZE

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        start = index * self.size
        return torch.from_numpy(self.data[start : start + self.size].astype(np.int64))


class Several(Windows):
    def __getitem__(self, index: int) -> Any:
        begin = max(index - 1, 0)
        part = self.data[begin : index + 1]
        if len(part) > 1 and index != 3:
            part = part[-1:]
        return {"x": torch.tensor(part.astype(np.float32) / 2), "y": int(part[0]), "z": (index, [begin, -index])}


class OfTensors(Windows):
    def __getitem__(self, index: int) -> Any:
        return self.data[index].float().mul(0.5), self.data[index + 1] + 1


class Draws(Windows):
    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.random.rand(2))


class DrawsByTorch(Windows):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(2)


class DrawsByMethod(Windows):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2).uniform_()


class DrawsByPython(Windows):
    def __getitem__(self, index: int) -> Any:
        return random.random()


class DrawsByFunction(Windows):
    def __getitem__(self, index: int) -> Any:
        return _any_function(index)


def _any_function(index: int) -> float:
    return index + random.random()


class CallsItsMethod(Windows):
    def __getitem__(self, index: int) -> Any:
        return self.other(index)

    def other(self, index: int) -> Any:
        return index


class HandsItselfOn(Windows):
    def __getitem__(self, index: int) -> Any:
        return len(self)


class HandsItselfOnSometimes(Windows):
    def __getitem__(self, index: int) -> Any:
        return (index or self).size


class ReadsAProperty(Windows):
    @property
    def length(self) -> int:
        return random.randrange(9)

    def __getitem__(self, index: int) -> Any:
        return self.length


class ImportsInside(Windows):
    def __getitem__(self, index: int) -> Any:
        import math

        return math.floor(index)


class Comprehends(Windows):
    def __getitem__(self, index: int) -> Any:
        return sorted(index for _ in range(2))


class KeepsState(Windows):
    def __getitem__(self, index: int) -> Any:
        self.size = index
        return index


class ReadsAnyAttribute(Windows):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class HasNoSuchAttribute(Windows):
    def __getattr__(self, name: str) -> Any:
        return random.random()


class Derived(np.ndarray):
    def __getitem__(self, place: Any) -> Any:
        return super().__getitem__(place) + random.randrange(5)


def _decorated(function: Any) -> Any:
    def around(self: Any, index: int) -> Any:
        return function(self, index), random.random()

    return around


class Decorated(Windows):
    __getitem__ = _decorated(Windows.__getitem__)


KNOWN: dict[str, Callable[[Path], Any]] = {
    "an array": lambda folder: Windows(),
    "a memory map": lambda folder: Windows(np.memmap(folder / "data", np.uint16, "w+", shape=(400,))),
    "several things": lambda folder: Several(),
    "tensors": lambda folder: OfTensors(torch.arange(100).reshape(50, 2)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_code_that_only_computes_is_known_to_draw_nothing(name: str, tmp_path: Path) -> None:
    assert Drawless(KNOWN[name](tmp_path)).draw_nothing([1, 2, 3])


@pytest.mark.parametrize(
    "kind",
    [
        *(Draws, DrawsByTorch, DrawsByMethod, DrawsByPython, DrawsByFunction, CallsItsMethod, HandsItselfOn),
        *(HandsItselfOnSometimes, ReadsAProperty, ImportsInside, Comprehends, KeepsState, Decorated, ReadsAnyAttribute),
        *(HasNoSuchAttribute,),
    ],
)
def test_all_other_code_may_draw(kind: type[Windows]) -> None:
    assert not Drawless(kind()).draw_nothing([1, 2, 3])


@pytest.mark.parametrize(
    "data",
    [
        [1, 2, 3], np.array([object()] * 9), np.arange(9).view(Derived), generator, torch.nn.Parameter(torch.ones(3)),
        np.ma.masked_array([1, 2, 3]),
    ],
)  # fmt: skip
def test_attributes_of_other_kinds_may_draw(data: Any) -> None:
    assert not Drawless(Windows(data)).draw_nothing([1])


def test_indices_that_are_no_integers_may_draw() -> None:
    known = Drawless(Windows())
    for indices in ([1, True], [np.int64(3)], (1, 2), torch.tensor([1]), [type("Own", (int,), {})(2)]):
        assert not known.draw_nothing(indices)


def _other(*args: Any, **named: Any) -> Any:
    raise AssertionError("it is not called")


def _with_own_method(dataset: Any) -> None:
    dataset.data.astype = _other


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Any], Any]] = {
    "a function of torch's": lambda patch, dataset: patch.setattr(torch, "from_numpy", _other),
    "a global variable": lambda patch, dataset: patch.setitem(globals(), "torch", object()),
    "a builtin under its name": lambda patch, dataset: patch.setitem(globals(), "np", object()),
    "its code": lambda patch, dataset: patch.setattr(Windows.__getitem__, "__code__", _any_function_2.__code__),
    "its method": lambda patch, dataset: patch.setattr(Windows, "__getitem__", Draws.__getitem__),
    "an attribute": lambda patch, dataset: patch.setattr(dataset, "data", [1, 2]),
    "an attribute of the class": lambda patch, dataset: patch.setattr(Windows, "size", property(_other), raising=False),
    "an attribute that is gone": lambda patch, dataset: patch.delattr(dataset, "data"),
    "how attributes are read": lambda patch, dataset: patch.setattr(Windows, "__getattribute__", _other, raising=False),
    "which are not there": lambda patch, dataset: patch.setattr(Windows, "__getattr__", _other, raising=False),
    "a method of memory maps": lambda patch, dataset: patch.setattr(np.memmap, "__getitem__", _other),
    "one that they have not": lambda patch, dataset: patch.setattr(np.memmap, "__add__", _other, raising=False),
    "an operator of tensors": lambda patch, dataset: patch.setattr(torch.Tensor, "__add__", _other),
    "a shift of tensors": lambda patch, dataset: patch.setattr(torch.Tensor, "__rshift__", _other),
    "what an operator calls": lambda patch, dataset: patch.setattr(torch, "pow", _other),
    "a method that an operator calls": lambda patch, dataset: patch.setattr(torch.Tensor, "reciprocal", _other),
    "a method that arrays alone had": lambda patch, dataset: patch.setattr(
        torch.Tensor, "astype", _other, raising=False
    ),
    "the array's own method": lambda patch, dataset: _with_own_method(dataset),
    "its class": lambda patch, dataset: patch.setattr(dataset, "__class__", Draws),
}


def _any_function_2(self: Any, index: int) -> Any:
    return random.random()


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_replaced_later_may_draw(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Windows(np.memmap(tmp_path / "data", np.uint16, "w+", shape=(400,)))
    known = Drawless(dataset)
    assert known.draw_nothing([1])
    with monkeypatch.context() as patch:
        CHANGES[name](patch, dataset)
        assert not known.draw_nothing([1])
        assert not Drawless(dataset).draw_nothing([1])


@pytest.mark.parametrize("is_known", [False, True])
def test_a_wrapper_that_says_it_is_what_it_wraps_may_draw(is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Drawless(Windows())
    assert found.draw_nothing([1])
    monkeypatch.setattr(torch, "from_numpy", Proxy(torch.from_numpy))
    assert not (found if is_known else Drawless(Windows())).draw_nothing([1])


def test_a_module_is_not_asked_for_names_that_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # NumPy 1.26 would warn of some.
    monkeypatch.setattr(np, "__getattr__", _other, raising=False)
    assert Drawless(Windows()).draw_nothing([1])


def test_under_a_mode_of_torchs_anything_may_draw() -> None:
    known = Drawless(Windows())
    with TorchFunctionMode():
        assert not known.draw_nothing([1])
    assert known.draw_nothing([1])


class SometimesDraws(Windows):
    """Known as long as its data are an array."""

    def __getitem__(self, index: int) -> Any:
        return self.data[index] + 0


class Drawing:
    def __getitem__(self, index: int) -> int:
        return int(np.random.randint(1 << 30)) + random.randrange(9)


def _epoch(loader: Any, dataset: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    batches = []
    dataset.data = np.arange(400)
    for number, batch in enumerate(loader):
        batches.append(batch.tolist())
        if number == 3:
            dataset.data = Drawing()
    return batches


@pytest.mark.parametrize("is_part", [False, True])
def test_samples_that_draw_from_the_middle_of_an_epoch_on_draw_the_same(
    is_part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = SometimesDraws()
    part: Any = Subset(dataset, list(range(39, 0, -1))) if is_part else dataset
    loader = fastload.DataLoader(part, 4, shuffle=True, seed=5)
    random.seed(1)
    state = random.getstate(), np.random.get_state()[1].tolist()  # torch's draws the epoch's seed, as without fastload
    found = _epoch(loader, dataset, monkeypatch)
    assert state == (random.getstate(), np.random.get_state()[1].tolist())
    monkeypatch.setattr(Drawless, "draw_nothing", lambda self, indices: False)
    again = fastload.DataLoader(part, 4, shuffle=True, seed=5)
    assert found == _epoch(again, dataset, monkeypatch)


def test_samples_that_draw_nothing_are_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[Any] = []
    each = GlobalSeeder.each
    monkeypatch.setattr(GlobalSeeder, "each", lambda self, *args: (seeded.append(args), each(self, *args))[1])
    for dataset, num in ((Windows(), 0), (Subset(Windows(), [3, 1, 2] * 4), 0), (Draws(), 10), (KeepsState(), 10)):
        seeded.clear()
        assert len(list(fastload.DataLoader(dataset, 4, shuffle=True, seed=1))) == (len(dataset) + 3) // 4
        assert len(seeded) == num


def test_indices_beyond_a_part_raise_what_they_did() -> None:
    loader = fastload.DataLoader(Subset(Windows(), [1, 2]), batch_sampler=[[0, 1, 7]], seed=1)
    with pytest.raises(IndexError):
        list(loader)


def test_names_that_are_known_draw_nothing() -> None:
    drawing = ("rand", "random", "normal", "uniform", "bernoulli", "multinomial", "dropout", "shuffle", "perm")
    found = {name for name in drawless._NAMES if any(part in name for part in drawing)}
    assert found == {"permute"}
