"""examples/train.py, with every step but the first two in ``torch.cuda.set_sync_debug_mode("error")``.

A script: its arguments are those of train.py, and the last line that it prints says how many steps were guarded. The
first two compile kernels and page-lock memory. On the CPU nothing can wait for a device, and the steps are counted.
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
    """Train, and say how many steps were guarded."""
    begin, end = train.set_learning_rates, train.Stop.agreed  # a step's first and last call
    steps = 0

    def guarded_from_here(*args: Any) -> None:
        nonlocal steps
        steps += 1
        if steps > _UNGUARDED and torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("error")
        begin(*args)

    def guarded_to_here(stop: Any) -> int:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
        return end(stop)

    train.set_learning_rates, train.Stop.agreed = guarded_from_here, guarded_to_here  # type: ignore[method-assign]
    train.main()
    print(f"{steps - _UNGUARDED} guarded steps")


if __name__ == "__main__":
    main()
