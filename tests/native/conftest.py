"""Tests of the C library are skipped where it is not built, unless the run insists on it."""

from __future__ import annotations

import os

import pytest

from fastload import native

REQUIRED = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")


@pytest.fixture(autouse=True)
def _library(request: pytest.FixtureRequest) -> None:
    """Skip or fail without the library; tests marked ``needs_jpeg`` also without that part of it."""
    if request.node.get_closest_marker("without_library"):
        return
    part = "jpeg" if request.node.get_closest_marker("needs_jpeg") else "arrays"
    reason = native.why_not(part)
    if reason is not None:
        (pytest.fail if REQUIRED else pytest.skip)(f"the native library cannot be used: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_jpeg: uses the part of the native library that decodes JPEG files")
    config.addinivalue_line("markers", "without_library: runs without the native library too")
