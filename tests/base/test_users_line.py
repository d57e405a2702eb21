"""Warnings point at the user's own line, whatever lies between."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

import fastload
from fastload.base.users_line import is_users_module, users_frame, warn_at_users_line


def this_line() -> int:
    return sys._getframe(1).f_lineno


def test_it_is_the_line_that_calls():
    with pytest.warns(UserWarning, match="careful") as caught:
        warn_at_users_line("careful")
    assert (caught[0].filename, caught[0].lineno) == (__file__, this_line() - 1)


def test_pythons_default_filter_shows_it_once_for_a_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            warn_at_users_line("careful")
    assert len(caught) == 1


def test_frames_of_the_standard_library_and_of_packages_are_passed_over(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "between_frames.py"
    package.parent.mkdir()
    package.write_text("import contextlib\ndef call(function):\n    return function()\n")
    monkeypatch.syspath_prepend(str(package.parent))
    between = pytest.importorskip("between_frames")
    found = between.call(lambda: between.call(users_frame))
    assert found is not None
    assert found.f_code.co_name == "<lambda>"


def test_modules_of_python_of_packages_and_of_fastload_are_not_the_users():
    assert is_users_module("__main__")
    assert is_users_module(__name__)
    others = ["builtins", "json.decoder", "_json", "torch.utils.data", "fastload.loader", "no.such.module"]
    assert not any(map(is_users_module, others))


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 1}, {"device": "cpu"}])
def test_that_nothing_is_fused_is_told_once_at_the_line_that_iterates(arguments):
    loader = fastload.DataLoader(torch.arange(4), fuse=True, **arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for _ in loader:
                pass
            line = this_line() - 2
    told = [one for one in caught if "fuse=True" in str(one.message)]
    assert [(one.filename, one.lineno) for one in told] == [(__file__, line)]
