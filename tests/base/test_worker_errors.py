"""Exceptions that a worker sends to the training loop."""

from __future__ import annotations

import gc
import weakref

import pytest

from fastload.base.worker_errors import error_of, wrap_exception


class TwoArguments(Exception):
    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)


class Local:
    pass


def wrapped(error: Exception):
    try:
        raise error
    except Exception as raised:
        return wrap_exception(raised, "in a test")


ERRORS = [KeyError(3), TwoArguments("a", "b"), UnicodeDecodeError("utf-8", b"a", 0, 1, "no")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_that_was_raised_again_keeps_no_frame_alive(error):
    wrapper = wrapped(error)

    def raise_it() -> weakref.ref[Local]:
        local = Local()
        try:
            raise error_of(wrapper)
        except Exception:
            return weakref.ref(local)

    gc.disable()
    try:
        assert raise_it()() is None
    finally:
        gc.enable()
