"""Run examples/train.py with ``torch.cuda.set_sync_debug_mode("error")`` in every step except the first two.

A script: its arguments are those of train.py, and the last line that it prints is the number of guarded steps. The
first two steps compile kernels and allocate page-locked memory. On the CPU the steps are only counted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import train

_UNGUARDED = 2


def main() -> None:
    """Train, and print the number of guarded steps."""
    train_step, agreed = train.Run.train_step, train.StopRequest.agreed  # a step's first and last call
    steps = 0

    def guard_from_here(*args: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > _UNGUARDED and torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("error")
        return train_step(*args)

    def guard_to_here(stop: Any) -> int:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
        return agreed(stop)

    train.Run.train_step, train.StopRequest.agreed = guard_from_here, guard_to_here  # type: ignore[method-assign]
    train.main()
    print(f"{steps - _UNGUARDED} guarded steps")


if __name__ == "__main__":
    main()
