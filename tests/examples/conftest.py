"""Tests import the examples by name, as the scripts import each other."""

from __future__ import annotations

import sys
from pathlib import Path

# Ranks that are started by the fork server inherit this path.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "loading"))
