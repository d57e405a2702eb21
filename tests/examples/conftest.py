"""The examples are imported by name, as they import each other when they are run as scripts."""

from __future__ import annotations

import sys
from pathlib import Path

# Ranks started by the fork server get this path too.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "parallelism"))
