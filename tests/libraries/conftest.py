"""What the tests with real libraries share: a small problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kit.libraries import forget_settings
from torch.utils.data import TensorDataset

LIBRARIES = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the libraries time to be imported, and leave their warnings to them; to import them takes 8 s."""
    for item in items:
        if LIBRARIES in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(300))
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture
def dataset() -> TensorDataset:
    """24 samples of two features and a class."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(24, 2, generator=generator), torch.arange(24) % 2)


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Accelerate keeps its settings in shared objects, and the Trainer's tests install our class."""
    yield
    forget_settings()
