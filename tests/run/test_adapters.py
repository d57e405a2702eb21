"""A device that another library would move the batches away from is an error. tests/callbacks has these libraries."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from fastload.errors import ConfigError
from fastload.run.adapters import _check_device

CASES = [
    ("cuda", "cuda", True),
    ("cuda", "cuda:1", True),  # "cuda": the current device of each process
    ("cuda:1", "cuda:1", True),
    ("cuda:0", "cuda:1", False),
    ("cuda", "cpu", False),
    ("cuda", "mps", False),
    ("cpu", "cuda", True),  # batches that are on the host are there to be moved
    (None, "cuda", True),
    ("cuda", None, True),  # the library moves none
]


@pytest.mark.parametrize(("device", "moved_to", "fits"), CASES)
def test_only_another_device_than_the_loaders_is_an_error(device, moved_to, fits):
    loader = SimpleNamespace(device=device, fixed_buffers=False, keep_on_host=())
    raises = pytest.raises(ConfigError, match=f"device='{device}', and Library would move every batch from there")
    with contextlib.nullcontext() if fits else raises:
        _check_device(loader, moved_to, "Library", "a remedy", ahead=False)
