"""``python file.py`` and ``python -m package.module`` search for imports in different places.

    python examples/parallelism/launch_by_name.py
    python -m examples.parallelism.launch_by_name
    torchrun --nproc-per-node=2 -m examples.parallelism.launch_by_name     # torchrun has -m too

As a file ``import common`` works and ``from . import common`` fails, with ``-m`` the opposite, as the notes say: a
script that must run in both ways imports installed packages only. ``fastload run`` has ``-m`` for the same reason.

Measured: as above, under torchrun too.
"""

from __future__ import annotations

import importlib.util
import os
import sys


def main() -> None:
    """Print where imports are searched for, and whether a file in the same folder is found."""
    neighbour = "found" if importlib.util.find_spec("common") else "not found"
    first = os.path.relpath(sys.path[0] or ".")
    rank = os.environ.get("RANK", "0")
    print(f"rank {rank}: package {__package__ or None}, sys.path[0] {first}, import common: {neighbour}", flush=True)


if __name__ == "__main__":
    main()
