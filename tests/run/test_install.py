"""fastload.install(): torch's DataLoader gives loaders with fastload's engine, and nothing else changes."""

from __future__ import annotations

import abc
import copy
import functools
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import DataLoader as TorchDataLoader

import fastload
from fastload.run.installation import install, uninstall

TORCH_INIT = TorchDataLoader.__init__


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    yield
    uninstall()
    assert TorchDataLoader.__init__ is TORCH_INIT


class EvensLoader(TorchDataLoader[Any]):
    """A subclass defined before install, which builds its dataset itself."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        super().__init__(torch.arange(0, 2 * size, 2), batch_size=2)


class OldStyleLoader(TorchDataLoader[Any]):
    """A subclass that names its base instead of calling super(), as much old code does."""

    def __init__(self, dataset: Any) -> None:
        TorchDataLoader.__init__(self, dataset, batch_size=2)


class Recorder:
    """A mixin that stands after torch's class."""

    recorded = "yes"


class MixedLoader(TorchDataLoader[Any], Recorder, abc.ABC):
    __slots__ = ("tag",)


class DoublingLoader(TorchDataLoader[Any]):
    """Overrides the iteration and passes it on."""

    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


class SelfMadeLoader(TorchDataLoader[Any]):
    """Brings an engine of its own, as torchdata's StatefulDataLoader does."""

    def _get_iterator(self) -> Any:
        return iter(["self-made"])


def batches_of(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


def test_after_install_torchs_class_gives_our_loader_through_every_name_it_is_known_by() -> None:
    known_by = [
        TorchDataLoader,
        torch.utils.data.DataLoader,
        torch.utils.data.dataloader.DataLoader,
        functools.partial(TorchDataLoader, batch_size=2),
        TorchDataLoader[int],
    ]
    install()
    for construct in known_by:
        loader = construct(torch.arange(4), seed=3, chunk_size=2)
        assert type(loader) is fastload.DataLoader
        assert (loader.seed, loader.chunk_size) == (3, 2), "our own arguments"
        list(loader)
        assert loader.statistics().batches == len(loader)


def defined_later() -> Any:
    class Later(TorchDataLoader[Any]):
        def __init__(self, dataset: Any) -> None:
            super().__init__(dataset, batch_size=2)

    return Later(torch.arange(4))


@pytest.mark.parametrize(
    "construct", [EvensLoader, lambda: OldStyleLoader(torch.arange(4)), lambda: MixedLoader([1]), defined_later]
)
def test_a_subclass_gets_our_engine_between_itself_and_torchs(construct: Any) -> None:
    install()
    loader = construct()
    assert type(loader).__name__ in ("EvensLoader", "OldStyleLoader", "MixedLoader", "Later")
    assert isinstance(loader, fastload.DataLoader)
    batches = list(loader)
    assert loader.statistics().batches == len(batches) > 0
    if isinstance(loader, EvensLoader):
        again = type(loader)(3)
        assert type(again) is type(loader)
        assert batches_of(again) == [[0, 2], [4]]
        assert again.statistics().batches == 2


def test_what_a_subclass_overrides_stays_in_force() -> None:
    install()
    doubling: Any = DoublingLoader(torch.arange(4), batch_size=2)
    assert batches_of(doubling) == [[0, 2], [4, 6]]
    assert doubling.statistics().batches == 2
    self_made: Any = SelfMadeLoader([1, 2])
    assert list(self_made) == ["self-made"]


def test_a_class_with_our_engine_looks_like_the_class_of_the_user() -> None:
    install()
    made = type(EvensLoader())
    assert (made.__name__, made.__qualname__, made.__module__) == ("EvensLoader", "EvensLoader", __name__)
    assert made.__doc__ == EvensLoader.__doc__
    assert type(EvensLoader()) is made
    assert inspect.signature(made) == inspect.signature(EvensLoader)
    mixed = MixedLoader([1])
    mixed.tag = "a"
    assert (mixed.tag, mixed.recorded) == ("a", "yes")


def test_a_subclass_of_ours_may_name_torchs_constructor() -> None:
    class Both(fastload.DataLoader[Any]):
        def __init__(self, dataset: Any) -> None:
            TorchDataLoader.__init__(self, dataset, batch_size=2)

    install()
    loader = Both(torch.arange(4))
    assert batches_of(loader) == [[0, 1], [2, 3]]
    assert loader.statistics().batches == 2


@pytest.mark.parametrize("duplicate", [lambda loader: pickle.loads(pickle.dumps(loader)), copy.copy, copy.deepcopy])
def test_loaders_are_copied_with_the_engine_they_have_also_where_nothing_is_installed_any_more(duplicate: Any) -> None:
    made = [EvensLoader(), TorchDataLoader(torch.arange(4), batch_size=2)]
    install()
    made += [EvensLoader(), TorchDataLoader(torch.arange(4), batch_size=2)]
    assert [isinstance(loader, fastload.DataLoader) for loader in made] == [False, False, True, True]
    assert all(isinstance(loader, torch.utils.data.DataLoader) for loader in made)
    for is_installed in (True, False):
        if not is_installed:
            uninstall()
        for loader in made:
            twin = duplicate(loader)
            assert isinstance(twin, fastload.DataLoader) == isinstance(loader, fastload.DataLoader)
            assert isinstance(twin, EvensLoader) == isinstance(loader, EvensLoader)
            assert batches_of(twin) == batches_of(loader)


def test_install_twice_and_uninstall_once_leaves_torch_as_it_was() -> None:
    install()
    replaced = TorchDataLoader.__init__
    install()
    assert TorchDataLoader.__init__ is replaced
    made = TorchDataLoader([1])
    uninstall()
    assert TorchDataLoader.__init__ is TORCH_INIT
    assert type(TorchDataLoader([1])) is TorchDataLoader
    assert type(EvensLoader()) is EvensLoader
    assert list(made) == [torch.tensor([1])]
    uninstall()
    assert TorchDataLoader.__init__ is TORCH_INIT


def test_the_constructor_keeps_torchs_signature_name_and_errors() -> None:
    expected = inspect.signature(TorchDataLoader)
    arguments = inspect.getfullargspec(TorchDataLoader.__init__)
    install()
    assert inspect.signature(TorchDataLoader) == expected
    assert inspect.getfullargspec(TorchDataLoader.__init__) == arguments
    assert TorchDataLoader.__init__.__doc__ == TORCH_INIT.__doc__
    with pytest.raises(ValueError, match="num_workers option should be non-negative"):
        TorchDataLoader([1], num_workers=-1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dataset'"):
        TorchDataLoader()


def test_another_librarys_wrapper_around_the_constructor_survives_install_and_uninstall() -> None:
    """Lightning wraps the constructor while it asks for the loaders, and puts back what it found."""
    seen: list[type] = []

    def wrap(init: Any) -> Any:
        @functools.wraps(init)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            seen.append(type(self))

        return wrapper

    install()
    ours = TorchDataLoader.__init__
    TorchDataLoader.__init__ = wrap(ours)
    for act, kind in ((install, fastload.DataLoader), (uninstall, TorchDataLoader), (install, fastload.DataLoader)):
        act()
        TorchDataLoader([1])
        assert seen[-1] is kind
    TorchDataLoader.__init__ = ours


def test_a_subclass_that_cannot_be_subclassed_again_says_so() -> None:
    class Registered(TorchDataLoader[Any]):
        def __init_subclass__(cls, **_: Any) -> None:
            raise TypeError("final")

    install()
    with pytest.warns(RuntimeWarning, match=r"Registered keeps torch's engine.*final"):
        loader = Registered([1, 2])
    assert type(loader) is Registered
    assert len(list(loader)) == 2


@pytest.mark.slow
def test_install_by_any_import_order_leaves_the_public_function_callable() -> None:
    script = "import fastload.run.installation, fastload; fastload.install(); fastload.install(); fastload.uninstall()"
    subprocess.run([sys.executable, "-c", script], check=True)
