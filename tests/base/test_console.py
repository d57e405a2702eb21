"""Renderables as an element for a notebook, and the objects that notebooks show by it."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

import torch
from rich.text import Text

import fastload
from fastload.base.console import as_html, as_text, labelled


def words(element: str) -> str:
    """Return the text that a browser shows for an element."""
    return html.unescape(re.sub("<[^>]*>", "", element))


def assert_strict(element: str) -> None:
    """Fail for an element that is not closed, or loads something."""
    for node in ElementTree.fromstring(element).iter():
        assert node.tag in ("pre", "span")
        assert node.keys() in ([], ["style"])


def test_the_text_is_that_of_a_terminal_and_nothing_in_it_is_markup():
    parts = [Text("a <b> & [c]", "bold red"), Text("dim", "dim"), labelled([("name", "words " * 40), ("", "on")])]
    element = as_html(*parts, width=60)
    assert_strict(element)
    assert [line.rstrip() for line in words(element).splitlines()] == as_text(*parts, width=60).splitlines()


def test_in_a_notebook_the_element_is_returned_and_not_displayed_too(monkeypatch):
    displayed: list[object] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *parts: displayed.append(parts))
    assert "words" in as_html(Text("words"))
    assert as_text(Text("words"), width=20) == "words"
    assert not displayed


def test_a_loader_is_shown_as_it_explains_itself():
    loader = fastload.DataLoader(torch.arange(9), num_workers=2, batch_size=3)
    assert_strict(loader._repr_html_())
    shown = words(loader._repr_html_()).split()
    assert all(word in shown for word in loader.explain().split())


def test_a_recording_is_shown_before_while_and_after_it_is_made():
    loader = fastload.DataLoader(torch.arange(99))
    recorded = fastload.profile(loader)
    assert "no summary yet" in words(recorded._repr_html_())
    with recorded:
        assert "leave the block" in words(recorded._repr_html_())
        list(loader)
    assert_strict(recorded._repr_html_())
    verdict = recorded.analysis().ranks[0].verdict
    assert verdict.sentence in " ".join(words(recorded._repr_html_()).split())
