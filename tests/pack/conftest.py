"""Images to pack."""

from __future__ import annotations

from pathlib import Path

import pytest
from pack_tools import tree

from fastload.pack import run


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have several processes something to do."""
    monkeypatch.setattr(run, "_IMAGES_A_TASK", 3)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tree(tmp_path / "images")
