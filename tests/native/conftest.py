"""Tests of the C library are skipped where it is not built, unless the run insists on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from jpeg_files import Maker, use_level

from fastload import native

REQUIRED = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")


@pytest.fixture(scope="session")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def _level_restored() -> Iterator[None]:
    before = native.processor_level()
    yield
    use_level(before)


@pytest.fixture(params=native.LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    """Give each instruction set, which is the newest that kernels use meanwhile."""
    use_level(request.param)
    return str(request.param)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "without_library: runs without the native library too")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail without the library, before fixtures compile what goes with it."""
    if item.get_closest_marker("without_library"):
        return
    reason = native.unavailable_reason()
    if reason is not None:
        (pytest.fail if REQUIRED else pytest.skip)(f"the native library cannot be used: {reason}")
