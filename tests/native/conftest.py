"""Tests of the C library are skipped where it is not built, unless the run insists on it."""

from __future__ import annotations

import os

import pytest

from fastload import native

REQUIRED = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_libjpeg: uses the part of the native library that is built with libjpeg")
    config.addinivalue_line("markers", "without_library: runs without the native library too")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail without the library, before fixtures compile what goes with it."""
    if item.get_closest_marker("without_library"):
        return
    reason = native.why_not()
    if reason is None and item.get_closest_marker("needs_libjpeg") and not native.has_libjpeg():
        reason = "it was built without libjpeg-turbo's headers"
    if reason is not None:
        (pytest.fail if REQUIRED else pytest.skip)(f"the native library cannot be used: {reason}")
