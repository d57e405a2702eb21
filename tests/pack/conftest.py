"""Images to pack."""

from __future__ import annotations

from pathlib import Path

import pytest
from pack_tools import tree


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tree(tmp_path / "images")
