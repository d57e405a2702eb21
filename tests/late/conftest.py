"""Tests of late decoding are skipped where it is off, unless the run insists on the native library."""

from __future__ import annotations

import os

import pytest

from fastload.late import opener

REQUIRED = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")


@pytest.fixture(autouse=True)
def late_decoding() -> None:
    """Skip or fail where no file is decoded late."""
    reason = opener.why_not()
    if reason is not None:
        (pytest.fail if REQUIRED else pytest.skip)(f"no file is decoded late here: {reason}")
