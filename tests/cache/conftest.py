"""Each test begins without a cache of the process, and leaves none. Skipped where no file is decoded late."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from entries import opened
from kit.stores import store_in_memory

from fastload.cache import records, shared, store
from fastload.late import opener

REQUIRED = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")


@pytest.fixture(autouse=True)
def no_cache() -> Iterator[None]:
    """Skip or fail where nothing can be kept; and forget what is kept."""
    reason = opener.unavailable_reason() or (None if hasattr(os, "memfd_create") else "the system has no memory files")
    if reason is not None:
        (pytest.fail if REQUIRED else pytest.skip)(f"nothing is kept here: {reason}")
    records.take_not_kept()  # of tests that call it without a loader
    yield
    shared.forget()


@pytest.fixture
def files_settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep files that were just written too."""
    monkeypatch.setattr(store, "SETTLED_NS", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a store may be, and is not yet."""
    return tmp_path / "cache"


@pytest.fixture(params=["memory", "folder"])
def new_store(request: pytest.FixtureRequest, folder: Path) -> Callable[[int], Any]:
    return store_in_memory if request.param == "memory" else lambda size: opened(folder, size)
