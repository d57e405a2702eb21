"""Whether functions of other packages were replaced, also where fastload's own stand for them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from kit.proxies import Proxy

from fastload.late.patch_guard import PatchGuard


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
    return types.SimpleNamespace(module=module, guard=PatchGuard("torch"))


def test_what_is_replaced_after_ours_was_put_there_is_named_until_it_is_back(owner):
    original = owner.module.one
    owner.guard.add(owner.module, ("one", "two"))
    assert owner.guard.replaced() is None
    owner.module.one = ours = standing_for(original)
    assert owner.guard.replaced() is None
    # A wrapper may say that it is what it wraps.
    for other in (Proxy(original), lambda: 2):
        owner.module.one = other
        assert owner.guard.replaced() == owner.guard.replaced() == "owner.one"
    for back in (ours, original, ours):
        owner.module.one = back
        assert owner.guard.replaced() is None
    del owner.module.two
    assert owner.guard.replaced() == "owner.two"
