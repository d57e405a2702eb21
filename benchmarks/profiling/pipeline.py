"""An ordinary script with a torch DataLoader whose costs are known: python -m benchmarks.profiling.pipeline --read 4.

Reading sleeps, computing spins on the thread's own CPU clock, so that what is asked for does not depend on who else
is on the machine.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset


def spin(ms: float) -> None:
    """Use so much CPU time."""
    end = time.thread_time() + ms / 1e3
    while time.thread_time() < end:
        pass


class Samples(Dataset[torch.Tensor]):
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def __len__(self) -> int:
        return int(self.options.batches * self.options.batch)

    def __getitem__(self, index: int) -> torch.Tensor:
        options = self.options
        if options.read:
            time.sleep(options.read / 1e3)
        if options.slow and index % options.one_in == options.one_in // 2:
            time.sleep(options.slow / 1e3)
        if options.cpu:
            spin(options.cpu)
        return torch.full((256,), float(index))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in {"read": 0.0, "cpu": 0.0, "slow": 0.0, "device": 0.0, "compute": 0.0}.items():
        parser.add_argument(f"--{name}", type=float, default=value, help="ms")
    for name, count in {"one-in": 50, "batch": 8, "batches": 60, "workers": 2, "prefetch": 2, "epochs": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    options = parser.parse_args()
    loader = DataLoader(
        Samples(options),
        batch_size=options.batch,
        num_workers=options.workers,
        prefetch_factor=options.prefetch if options.workers else None,
    )
    for _ in range(options.epochs):
        for _ in loader:
            if options.compute:
                spin(options.compute)
            time.sleep(options.device / 1e3)


if __name__ == "__main__":
    main()
