"""Tests that need a GPU. Without one they are skipped; with ``FASTLOAD_REQUIRE_GPU=1`` a skip is a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

REQUIRED = os.environ.get("FASTLOAD_REQUIRE_GPU") == "1"


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    if not torch.cuda.is_available():
        if REQUIRED:
            pytest.fail("FASTLOAD_REQUIRE_GPU=1, and torch sees no CUDA device")
        pytest.skip("needs a CUDA device; FASTLOAD_REQUIRE_GPU=1 makes this a failure")
    yield
    torch.cuda.synchronize()
