"""What the measuring of stalls costs a training loop: ``uv run python -m benchmarks.stall``.

Claim: at most 20 µs a step, all included, with numbers taken every 50 steps. A loop of empty steps over batches that
cost nothing, with and without ``fastload.callbacks.Stall``, by turns; the difference of the fastest rounds counts, in
processor time of the loop's thread. The counts of fastload's own loader are part of it always; without them it is
measured with counters that do nothing. The hook of Lightning's callback is measured beside that.

With CUDA two events a step are recorded and read, which is part of it there.

Meaningless if: other work runs on the core.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data

import fastload
from benchmarks.neighbours import cores_used_by_others, read_cpu
from fastload.callbacks import Stall
from fastload.engine.steps import Steps

_STEPS, _ROUNDS, _EVERY = 5_000, 7, 50


class _Idle(Steps):
    """Counters that do nothing."""

    def ask(self, waited_ns: int | None = None) -> None:
        pass

    def give(self, waited_ns: int | None = None, ready: int | None = None) -> None:
        pass


def _loop(loader: Any, each: Callable[[], None] | None) -> float:
    """Return the time of a step in µs: processor time of the loop's thread."""
    iterator = iter(loader)
    next(iterator)
    begun = time.thread_time()
    if each is None:
        for _ in iterator:
            pass
    else:
        for step, _ in enumerate(iterator):
            if step % _EVERY == 0:
                each()
    return (time.thread_time() - begun) / (_STEPS - 1) * 1e6


@contextlib.contextmanager
def _without(loader: Any) -> Iterator[None]:
    if isinstance(loader, fastload.DataLoader):
        loader._kept.steps = _Idle()
    yield


@contextlib.contextmanager
def _with(loader: Any) -> Iterator[Callable[[], Any]]:
    if isinstance(loader, fastload.DataLoader):
        loader._kept.steps = Steps()
    stall = Stall(loader)
    yield stall.numbers
    stall.close()


def _lightning_us() -> float:
    """Return what Lightning's hook itself takes a step, in µs, beside its logging."""
    from fastload.callbacks.lightning import LightningCallback

    callback = LightningCallback()
    callback._every = 2 * _STEPS
    begun = time.thread_time()
    for step in range(_STEPS):
        callback.on_train_batch_end(None, None, None, None, step)
    return (time.thread_time() - begun) / _STEPS * 1e6


def main() -> None:
    """Measure, and print a line for each kind of loader."""
    before = read_cpu()
    print(f"torch {torch.__version__}, CUDA {torch.cuda.is_available()}")
    if torch.cuda.is_available():
        torch.cuda.init()
    for loader_class in (fastload.DataLoader, torch.utils.data.DataLoader):
        for workers in (0, 2):
            loader = loader_class(range(_STEPS), batch_size=1, num_workers=workers)
            plain, measured = [], []
            for _ in range(_ROUNDS):
                with _without(loader):
                    plain.append(_loop(loader, None))
                with _with(loader) as each:
                    measured.append(_loop(loader, each))
            name = f"{loader_class.__module__.partition('.')[0]}, {workers} workers"
            difference = min(measured) - min(plain)
            print(f"{name:22} {min(plain):6.1f} µs a step, measured {min(measured):6.1f}: {difference:4.1f} µs more")
    print(f"Lightning's hook       {_lightning_us():6.2f} µs a step")
    print(f"other processes used {cores_used_by_others(before, read_cpu()):.1f} cores", file=sys.stderr)


if __name__ == "__main__":
    main()
