"""How much memory a worker needs, and why each worker copies a list of strings. Linux only.

    python examples/loading/worker_memory.py

RSS counts shared pages for each process; what a worker adds is its USS. Python writes to an object on
each access, its reference count, so the objects of a list are copied page by page into every forked worker.

Measured (torch 2.13, two workers, 100,000 names of 400 characters, 43 MiB as strings): each worker has a USS of 51 MiB
with the list, and 6.5 MiB with an array; RSS shows 382 and 384 MiB, which hides the difference.
"""

import gc
import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from fastload import DataLoader

NUM, LETTERS = 100_000, 400
MIB = 1 << 20


def names() -> list[str]:
    """Return file names, each a separate object."""
    return [f"{number:0{LETTERS}}" for number in range(NUM)]


class Lengths(Dataset[int]):
    """The length of each name: a sample accesses its name and keeps nothing."""

    def __init__(self, kept: Sequence[str] | np.ndarray) -> None:
        self.kept = kept

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> int:
        return len(self.kept[index])


def memory_mib(pid: int) -> dict[str, float]:
    """Return a process's RSS, PSS and USS."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024 / MIB
    return {"RSS": fields["Rss"], "PSS": fields["Pss"], "USS": fields["Private_Clean"] + fields["Private_Dirty"]}


def after_an_epoch(kept: Sequence[str] | np.ndarray, num_workers: int = 2) -> list[dict[str, float]]:
    """Return each worker's memory after an epoch in random order."""
    before = {process.pid for process in multiprocessing.active_children()}
    loader = DataLoader(
        Lengths(kept),
        1000,
        shuffle=True,
        seed=0,
        num_workers=num_workers,
        persistent_workers=True,
        overlap_epochs=False,
        multiprocessing_context="fork",
    )
    try:
        for _ in loader:
            pass
        workers = [process.pid for process in multiprocessing.active_children() if process.pid not in before]
        return [memory_mib(pid) for pid in workers if pid is not None]
    finally:
        loader.close()


def main() -> None:
    """Print both ways."""
    gc.disable()  # a collection in a worker would write to all objects
    listed = names()
    for way, kept in (("a list of strings", listed), ("one array", np.array(listed, dtype=np.bytes_))):
        for worker, memory in enumerate(after_an_epoch(kept)):
            print(f"{way:18} worker {worker}:", *(f"{name} {size:6.1f} MiB" for name, size in memory.items()))
    print(f"this process ({os.getpid()}):", *(f"{k} {v:6.1f} MiB" for k, v in memory_mib(os.getpid()).items()))


if __name__ == "__main__":
    main()
