"""Whether functions of other packages were replaced: what was seen once is compared, and not looked at again."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.datasets import Made
from kit.proxies import Proxy
from torchvision.transforms import v2

import fastload
from fastload.late import containers, originals
from fastload.late.originals import Originals


def written_in_torch(name: str) -> Any:
    """Return a function of which Python says that it was written in torch."""
    space: dict[str, Any] = {"__name__": "torch.made"}
    exec(f"def {name}(): return 1", space)
    return space[name]


def standing_for(original: Any) -> Callable[[], int]:
    def own() -> int:
        return 1

    own.stands_for = original  # type: ignore[attr-defined]
    return own


@pytest.fixture
def owner() -> types.SimpleNamespace:
    module = types.ModuleType("owner")
    module.one, module.two = written_in_torch("one"), written_in_torch("two")  # type: ignore[attr-defined]
    return types.SimpleNamespace(module=module, originals=Originals("torch"))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of functions each time that all are looked at."""
    found: list[int] = []
    seen = originals._Seen
    monkeypatch.setattr(originals, "_Seen", lambda functions: found.append(len(functions)) or seen(functions))
    return found


@pytest.mark.parametrize("stands", [False, True])
def test_functions_are_looked_at_once_also_where_ours_stand_for_them(owner, looks, stands):
    if stands:
        owner.module.one = standing_for(owner.module.one)
    owner.originals.add(owner.module, ("one", "two"))
    assert [owner.originals.replaced() for _ in range(5)] == [None] * 5
    assert looks == [2]
    owner.module.three = written_in_torch("three")
    owner.originals.add(owner.module, ("three",))
    assert [owner.originals.replaced() for _ in range(5)] == [None] * 5
    assert looks == [2, 3]


def test_what_is_replaced_after_ours_was_put_there_is_named_until_it_is_back(owner):
    original = owner.module.one
    owner.originals.add(owner.module, ("one", "two"))
    assert owner.originals.replaced() is None
    owner.module.one = ours = standing_for(original)
    assert owner.originals.replaced() is None
    # A wrapper may say that it is what it wraps.
    for other in (Proxy(original), lambda: 2):
        owner.module.one = other
        assert owner.originals.replaced() == owner.originals.replaced() == "owner.one"
    for back in (ours, original, ours):
        owner.module.one = back
        assert owner.originals.replaced() is None
    del owner.module.two
    assert owner.originals.replaced() == "owner.two"


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}], ids=["inline", "worker"])
def test_after_the_first_sample_none_looks_at_functions_again(options):
    """In workers some functions are ours: looking at all of them again took a tenth of a sample's time."""

    def looks(index: int) -> int:
        found = []
        seen = originals._Seen
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(originals, "_Seen", lambda functions: found.append(functions) or seen(functions))
            assert v2.functional.to_dtype(torch.zeros(1, 3, 3), torch.float32).sum() == 0
            assert containers._known.is_intact()
        return len(found)

    loader = fastload.DataLoader(Made(4, looks), 2, **options)
    assert torch.cat(list(loader))[1:].tolist() == [0, 0, 0]
