"""What the tests of callbacks with real libraries share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit.libraries import forget_settings

_LIBRARIES = ("test_callbacks_lightning.py", "test_callbacks_transformers.py", "test_callbacks_accelerate.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the libraries time to be imported, and leave their warnings to them; to import them takes 8 s."""
    for item in items:
        if item.path.name in _LIBRARIES:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(300))
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    yield
    forget_settings()
