"""``python file.py`` and ``python -m package.module`` find imports in different places.

    python examples/parallelism/launch_by_name.py
    python -m examples.parallelism.launch_by_name
    torchrun --nproc-per-node=2 -m examples.parallelism.launch_by_name     # torchrun has -m too

The notes claim that a script that runs as a file may fail with ``-m`` and the other way round. Rightly: by its path
``sys.path`` begins with the script's folder, and there is no package, so ``import common`` works and
``from . import common`` does not; with ``-m`` it begins with the current folder, so it is the other way round. A script
that is to run in both ways imports only what is installed. ``fastload run -m package.module`` exists for the same
reason.

Measured: as above, under torchrun too.
"""

from __future__ import annotations

import importlib.util
import os
import sys


def main() -> None:
    """Say where imports are looked for, and whether a neighbour is found."""
    neighbour = "found" if importlib.util.find_spec("common") else "not found"
    first = os.path.relpath(sys.path[0] or ".")
    rank = os.environ.get("RANK", "0")
    print(f"rank {rank}: package {__package__ or None}, sys.path[0] {first}, import common: {neighbour}", flush=True)


if __name__ == "__main__":
    main()
