"""A plugin for pytest: a test's body runs as fastload's worker process runs a sample.

So Pillow's images, torchvision's transforms and ``torchvision.io`` are those of a worker in it.
"""

from collections.abc import Generator

import pytest

from fastload.base import compat
from fastload.late import LateSamples, opener


def pytest_configure() -> None:
    compat.process.is_worker = True
    opener.LEAST_VALUES = 0  # small files of tests are decoded late too, though it does not pay


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with LateSamples():
        return (yield)
