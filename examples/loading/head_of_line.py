"""Head-of-line blocking: in torch's loader a slow sample holds up its worker, and finally all workers.

    python examples/loading/head_of_line.py

A worker has ``prefetch_factor`` batches queued. Batch ``i`` belongs to worker ``i % num_workers``: if one sample is
slow, the other workers finish their queued batches, and wait too. In fastload with a seed a task is one sample or a
few, any idle worker takes the next one, and the order is kept.

Measured (torch 2.13, two cores): while sample 0 is blocked, torch's other worker loads 8 of the other 15 queued;
fastload loads all 15. Waits with four workers, batches of 8 and 10 ms a sample, on a busy machine: torch 60 ms for
every fourth batch and 0 to 26 ms for the others; fastload 19 to 31 ms, where four workers need at least 20.
"""

import functools
import os
import select
import time
import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import fastload

BATCH, WORKERS, PREFETCH, LENGTH = 4, 2, 2, 32
IN_FLIGHT = BATCH * WORKERS * PREFETCH
_LIMIT_S = 60.0


class Blocking(Dataset[int]):
    """Indices; each is reported when it is loaded, and index 0 is blocked until the gate is opened."""

    def __init__(self) -> None:
        self._told, self._tell = os.pipe()
        self._gate, self._open = os.pipe()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        if index == 0:
            os.read(self._gate, 1)
        os.write(self._tell, bytes([index]))
        return index

    def loaded(self, count: int) -> list[int]:
        """Return the next ``count`` indices that were loaded. Blocks until they are; fewer if that takes too long."""
        found: list[int] = []
        while len(found) < count and select.select([self._told], [], [], _LIMIT_S)[0]:
            found += os.read(self._told, count - len(found))
        return found

    def open_gate(self) -> None:
        """Unblock index 0."""
        os.write(self._open, b"!")

    def close(self) -> None:
        """Close the pipes."""
        for end in (self._told, self._tell, self._gate, self._open):
            os.close(end)


def while_one_is_held(make: Any, expected: int, **options: Any) -> tuple[list[int], list[int], list[list[int]]]:
    """Iterate while sample 0 is blocked.

    Returns:
        What was loaded while it was blocked, in the order of the dataset; what was loaded next; the batches.
    """
    dataset = Blocking()
    try:
        loader = make(
            dataset, BATCH, num_workers=WORKERS, prefetch_factor=PREFETCH, multiprocessing_context="fork", **options
        )
        batches: Iterator[Any] = iter(loader)  # both loaders start here
        meanwhile = dataset.loaded(expected)
        dataset.open_gate()
        then = dataset.loaded(1)
        given = [batch.tolist() for batch in batches]
        dataset.loaded(LENGTH - expected - 1)
        return sorted(meanwhile), then, given
    finally:
        dataset.close()


def first_given_while_one_is_held() -> list[int]:
    """Return the first batch of torch's loader with ``in_order=False``: sample 0 is still blocked."""
    dataset = Blocking()
    try:
        loader: Any = TorchDataLoader(
            dataset, BATCH, num_workers=WORKERS, in_order=False, multiprocessing_context="fork"
        )
        batches = iter(loader)
        first: list[int] = next(batches).tolist()
        dataset.open_gate()
        for _ in batches:
            pass
        return first
    finally:
        dataset.close()


class Equal(Dataset[int]):
    """Samples that cost 10 ms each."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return index


def waits_ms(make: Any) -> list[int]:
    """Return how long each ``next()`` waited, in milliseconds, with steps that take no time."""
    waits = []
    asked = time.perf_counter()
    for _ in make(Equal(), 8, num_workers=4):
        waits.append(round(1e3 * (time.perf_counter() - asked)))
        asked = time.perf_counter()
    return waits


def main() -> None:
    """Print what is loaded meanwhile, and the waits."""
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores, on purpose
    meanwhile, _, _ = while_one_is_held(TorchDataLoader, IN_FLIGHT - BATCH * PREFETCH)
    print(f"torch, while sample 0 is blocked:  {meanwhile}")
    print(f"torch, in_order=False gives first: {first_given_while_one_is_held()}")
    meanwhile, _, _ = while_one_is_held(fastload.DataLoader, IN_FLIGHT - 1, seed=0, chunk_size=1)
    print(f"fastload, sample 0 is blocked:     {meanwhile}")
    print(f"waits in ms, torch:    {waits_ms(TorchDataLoader)}")
    print(f"waits in ms, fastload: {waits_ms(functools.partial(fastload.DataLoader, seed=0))}")


if __name__ == "__main__":
    main()
