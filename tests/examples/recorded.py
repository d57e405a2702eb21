"""Run a script and record every batch of its loaders.

    python recorded.py FOLDER SCRIPT [ARGUMENTS...]

In: the script and its arguments, and torchrun's variables. Out: FOLDER/rank-R, JSON lines: torchrun's variables of this
rank, then a digest of each batch in the order of the script's loop.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import fastload

_iterate = fastload.DataLoader.__iter__


def digest(batch: Any) -> str:
    """Return a hash of the values of a batch."""
    found = hashlib.sha256()
    for leaf in tree_leaves(batch):
        found.update(leaf.cpu().numpy().tobytes() if isinstance(leaf, torch.Tensor) else repr(leaf).encode())
    return found.hexdigest()[:16]


def main() -> None:
    """Run the script in this process."""
    folder, script, *arguments = sys.argv[1:]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK")
    # Line-buffered, since forked workers inherit what is not written yet.
    with Path(folder, f"rank-{os.environ['RANK']}").open("w", buffering=1) as file:
        print(json.dumps({name: os.environ.get(name) for name in names} | {"agent": os.getppid()}), file=file)

        def recorded(loader: Any) -> Iterator[Any]:
            for batch in _iterate(loader):
                print(json.dumps(digest(batch)), file=file)
                yield batch

        fastload.DataLoader.__iter__ = recorded  # type: ignore[assignment,method-assign]
        sys.argv = [script, *arguments]
        sys.path[0] = str(Path(script).parent)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
