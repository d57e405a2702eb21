"""Copies of objects that share what was not to be copied."""

from __future__ import annotations

import functools
import re
import threading
from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import pytest

from fastload.base.copies import COPIED, copied, copy_with_replacements
from fastload.base.objects import find


class Wanted:
    """What is searched for."""


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held
        self.other: list[int] = [1]

    def method(self) -> Any:
        return self.held

    def __reduce__(self) -> Any:
        raise TypeError("copy_with_replacements() asks no hooks")


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class Derived(list[Any]):
    pass


Pair = namedtuple("Pair", "first second")


def in_a_closure(wanted: Wanted) -> Callable[[], Any]:
    return lambda: wanted


def calls_itself(wanted: Wanted) -> Callable[[int], Any]:
    def down(times: int) -> Any:
        return down(times - 1) if times else wanted

    return down


HOLDERS: dict[str, tuple[Callable[[Wanted], Any], Callable[[Any], Any]]] = {
    "attribute": (Holder, lambda one: one.held),
    "slot": (Slotted, lambda one: one.held),
    "list": (lambda wanted: [0, wanted], lambda one: one[1]),
    "class of lists": (lambda wanted: Derived([wanted]), lambda one: one[0]),
    "tuple": (lambda wanted: (0, wanted), lambda one: one[1]),
    "named tuple": (lambda wanted: Pair(0, wanted), lambda one: one.second),
    "dict": (lambda wanted: {"a": wanted}, lambda one: one["a"]),
    "ordered dict": (lambda wanted: OrderedDict(a=wanted), lambda one: one["a"]),
    "user's dict": (lambda wanted: UserDict(a=wanted), lambda one: one["a"]),
    "deque": (lambda wanted: deque([wanted], 3), lambda one: one[0]),
    "set": (lambda wanted: {wanted}, lambda one: next(iter(one))),
    "method": (lambda wanted: Holder(wanted).method, lambda one: one()),
    "partial": (lambda wanted: functools.partial(max, wanted, key=id), lambda one: one.args[0]),
    "closure": (in_a_closure, lambda one: one()),
    "default": (lambda wanted: lambda held=wanted: held, lambda one: one()),
    "function that calls itself": (calls_itself, lambda one: one(3)),
    "all in one": (lambda wanted: [{"a": (Holder(in_a_closure(wanted)),)}], lambda one: one[0]["a"][0].held()),
}


@pytest.mark.parametrize(("make", "get"), HOLDERS.values(), ids=HOLDERS)
def test_only_what_leads_to_an_object_is_copied(make, get):
    wanted, other, shared = Wanted(), Wanted(), [1]
    holder = [make(wanted), shared]
    found = find(holder, lambda thing: thing is wanted, inside=False)
    made = copy_with_replacements(found, {id(wanted): other})
    assert get(made[0]) is other
    assert type(made[0]) is type(holder[0])
    for name in ("__name__", "__qualname__", "__module__"):
        assert getattr(made[0], name, None) == getattr(holder[0], name, None)
    assert made[1] is shared
    assert get(holder[0]) is wanted


def test_functions_that_write_one_variable_go_on_to_share_it():
    wanted, count = Wanted(), 0

    def counted() -> int:
        nonlocal count
        count += 1
        return count if wanted else 0

    found = find(counted, lambda thing: thing is wanted, inside=False)
    other = copy_with_replacements(found, {id(wanted): Wanted()})
    assert [counted(), other(), counted()] == [1, 2, 3]


def test_a_rule_says_what_is_copied_and_what_is_shared():
    lock, pattern, shared = threading.Lock(), re.compile("a"), [1]
    root = {"slots": Slotted([lock]), "pattern": pattern, "shared": shared, "again": (shared,)}

    def rule(thing: Any) -> Any:
        return thing if thing is shared or thing is lock or callable(thing) else COPIED

    made = copied(root, rule)
    assert made is not root
    assert made["slots"] is not root["slots"]
    assert made["slots"].held[0] is lock
    assert made["shared"] is made["again"][0] is shared
    assert made["pattern"] == pattern
