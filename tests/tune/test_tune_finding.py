"""Which of several loaders is meant."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fastload
from fastload.run.targets import Target, UsageError
from fastload.tune.command import Found, chosen, loaders_in, names_in_stack


def loader() -> Any:
    return fastload.DataLoader(torch.arange(4))


FOUND = [Found(None, "train_loader", "train.py:30", "images"), Found(None, "", "train.py:31", "others")]
LISTED = "  1  train_loader, images, train.py:30\n  2  others, train.py:31"


@pytest.mark.parametrize(("wanted", "place"), [("1", 0), ("train_loader", 0), ("train.py:31", 1), ("2", 1)])
def test_a_loader_is_called_by_its_number_its_variable_or_its_line(wanted, place):
    assert chosen(FOUND, wanted, None) is FOUND[place]


def test_the_only_one_needs_no_name():
    assert chosen(FOUND[:1], None, None) is FOUND[0]


def test_of_several_the_user_is_asked():
    asked = []

    def ask(question: str) -> str:
        asked.append(question)
        return " 2 "

    assert chosen(FOUND, None, ask) is FOUND[1]
    assert asked == [f"There are 2 loaders:\n{LISTED}\nWhich one? [1-2] "]


def no_answer(question: str) -> str:
    raise EOFError


@pytest.mark.parametrize(
    ("wanted", "ask", "message"),
    [
        (None, None, "there are 2 loaders; name one with --loader NAME or a number:"),
        ("3", None, "'3' is no loader of this script; there are:"),
        ("", None, "'' is no loader"),
        (None, no_answer, "no loader was chosen"),
    ],
)
def test_without_an_answer_all_are_listed(wanted, ask, message):
    with pytest.raises(UsageError, match=message) as caught:
        chosen(FOUND, wanted, ask)
    if ask is None:
        assert str(caught.value).endswith(LISTED)


def test_loaders_have_the_names_of_variables_items_and_attributes_that_hold_them():
    class Trainer:
        def __init__(self) -> None:
            self.inside = loader()

    plain, trainer = loader(), Trainer()
    by_phase, listed, nobodys = {"val": loader()}, [loader()], iter([loader()])
    unheld = next(nobodys)
    names = names_in_stack([plain, trainer.inside, by_phase["val"], listed[0]])
    assert names == {
        id(plain): "plain",
        id(trainer.inside): "trainer.inside",
        id(by_phase["val"]): "by_phase['val']",
        id(listed[0]): "listed[0]",
    }
    del unheld


def test_loaders_are_found_in_what_a_module_holds_or_returns():
    one, two = loader(), loader()
    assert loaders_in(Target(one, "data:x")) == [("x", one)]
    assert loaders_in(Target((one, 3, two), "data:make()")) == [("make()[0]", one), ("make()[2]", two)]
    assert loaders_in(Target({"a": two}, "data:x")) == [("x['a']", two)]
    with pytest.raises(UsageError, match="data:x is of type list: no DataLoader, nor"):
        loaders_in(Target([1, 2], "data:x"))
