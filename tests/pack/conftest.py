"""Images to pack."""

from __future__ import annotations

from pathlib import Path

import pytest
from pack_tools import made, written


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(tmp_path / "images", made())
