"""Tracing keeps one branch; compile is right for both; export raises, or uses torch.cond."""

from __future__ import annotations

import ast
import re

import pytest
from scripts import PARALLELISM, run

pytestmark = pytest.mark.slow


def test_only_tracing_is_wrong_and_export_with_cond_is_right_for_both_branches() -> None:
    printed = run(PARALLELISM / "compile_and_export.py")
    right = {name: ast.literal_eval(answers) for name, answers in re.findall(r"^(.+?): +(\[.*?\])", printed, re.M)}
    assert right["torch.jit.trace"] == [True, False]
    assert "TracerWarning" in printed
    assert right["torch.compile"] == [True, True]
    assert re.search(r"^torch.export: +\w+", printed, re.M)
    assert not re.search(r"^torch.export: +none", printed, re.M)
    assert right["with torch.cond"] == [True, True, True]
