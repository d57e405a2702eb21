"""The page: its text is escaped, it loads and runs nothing, and it has what the summary leaves out."""

from __future__ import annotations

import re

import pytest
from profile_analyses import HOSTILE, all_kinds

from fastload.profiling.formatting import printable
from fastload.profiling.page import page

KINDS = all_kinds()


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_loads_nothing_and_runs_nothing(kind):
    text = page(KINDS[kind])
    assert "default-src 'none'" in text
    assert not re.search(r"<script|<img|https?://|javascript:", text)
    text.encode("utf-8")


def test_text_from_outside_is_text():
    text = page(KINDS["hostile"])
    shown = printable(HOSTILE)
    assert "<script" in shown
    assert shown not in text
    assert text.count("&lt;/script&gt;&lt;script&gt;throw 1&lt;/script&gt;") > 4


def test_the_page_has_the_stages_the_settings_and_each_rank():
    assert "RandomResizedCrop" in page(KINDS["verdict read"])
    assert "prefetch_factor: 2" in page(KINDS["verdict read"])
    text = page(KINDS["eight ranks"])
    assert text.count("<details>") == 7
    assert "<summary>rank 0: compute-bound</summary>" in text
    assert text.index("delays the others") < text.index("<details>")
