"""Tests of late decoding are skipped where it is off, unless the run insists on the native library."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from kit.stores import store_in_memory
from replacing import put_back

from fastload.base import overrides
from fastload.base.compat import process
from fastload.cache import store
from fastload.cache.records import Records
from fastload.late import opener

_ARRAYS = "fastload.late.arrays"
REQUIRED = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")


@pytest.fixture(autouse=True)
def late_decoding() -> None:
    """Skip or fail where no file is decoded late."""
    reason = opener.unavailable_reason()
    if reason is not None:
        (pytest.fail if REQUIRED else pytest.skip)(f"no file is decoded late here: {reason}")
    opener.prepare()  # before a test puts something else in the place of Pillow's openers


@pytest.fixture(autouse=True)
def small_files_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode late what would not pay: small files are quick to test."""
    monkeypatch.setattr(opener, "LEAST_VALUES", 0)


@pytest.fixture
def as_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace what a worker process replaces, but functions that return whole images, and put it back."""
    put_back()
    monkeypatch.setattr(
        overrides, "_waiting", {name: of for name, of in overrides.MODULES.items() if _ARRAYS not in of}
    )
    torch.set_warn_always(True)  # else the second call does not repeat what the first was warned of
    monkeypatch.setattr(process, "is_worker", True)
    yield
    torch.set_warn_always(False)
    put_back()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Records]:
    """Return an empty cache, which keeps files that were just written too."""
    if not hasattr(os, "memfd_create"):
        pytest.skip("the system has no memory files")
    monkeypatch.setattr(store, "SETTLED_NS", 0)
    made = Records(store_in_memory(32 << 20))
    yield made
    vars(made).clear()  # pytest holds it for longer than its memory may stay
