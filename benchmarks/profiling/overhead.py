"""What ``fastload profile`` costs: the same script with and without it, in turns A B B A, so that drift cancels.

    python -m benchmarks.profiling.overhead --rounds 5

For samples of 1 ms and of CIFAR's size (50 µs), in torch's loader and in fastload's. The script measures its own steady
steps: wall time, and CPU time of all its processes, which neighbours on the machine disturb less. Imports, starting
workers and explaining the recording are not part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import json, os, resource, sys, time
import numpy as np, torch
from torch.utils.data import Dataset, DataLoader

engine, microseconds, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if engine == "fastload":
    from fastload import DataLoader

def work(turns, _table=np.arange(64, dtype=np.float32)):
    for _ in range(turns):
        _table.sum()

def turns_for(us):
    begun = time.thread_time_ns()
    work(20000)
    return max(1, round(us * 1000 * 20000 / (time.thread_time_ns() - begun)))

class Busy(Dataset):
    def __init__(self, turns):
        self.turns = turns
        self.sample = torch.zeros(3, 32, 32)
    def __len__(self):
        return number
    def __getitem__(self, index):
        work(self.turns)
        return self.sample, index

def cpu():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

if __name__ == "__main__":
    turns = int(os.environ.get("TURNS", 0)) or turns_for(microseconds)
    if number == 0:
        print(turns)
        sys.exit()
    before, begun = cpu(), time.perf_counter()
    for batch in DataLoader(Busy(turns), batch_size=64, num_workers=2):
        pass
    print(json.dumps([time.perf_counter() - begun, cpu() - before]))
"""

# Microseconds of a sample, samples of an epoch, goal: the share that the profiler may cost.
SIZES = {"1 ms": (1000, 6_400, 0.01), "CIFAR": (50, 128_000, 0.02)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of A B B A")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of samples")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--engines", nargs="+", choices=("torch", "fastload"), default=["torch", "fastload"])
    options = parser.parse_args(arguments)
    print(f"{'loader':9} {'sample':7} {'clock':5} {'median':>8} {'spread (of rounds)':>22} {'goal':>6}")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT, encoding="utf-8")
        for engine in options.engines:
            for size in options.sizes:
                microseconds, number, goal = SIZES[size]
                turns = run(script, engine, microseconds, 0)[0]
                rounds = [one_round(script, engine, microseconds, int(number * options.scale), turns)
                          for _ in range(options.rounds)]  # fmt: skip
                for place, clock in enumerate(("wall", "cpu")):
                    shares = sorted(shares[place] for shares in rounds)
                    spread = f"{shares[0]:+8.2%} to {shares[-1]:+8.2%}"
                    print(f"{engine:9} {size:7} {clock:5} {statistics.median(shares):+8.2%} {spread:>22} {goal:6.0%}")
    return 0


def one_round(script: Path, engine: str, microseconds: int, number: int, turns: float) -> list[float]:
    """Return by what share the profiler lengthens wall and CPU time."""
    plain_a, profiled_a, profiled_b, plain_b = (
        run(script, engine, microseconds, number, turns, profiled=profiled) for profiled in (False, True, True, False)
    )
    return [
        (one + two) / (three + four) - 1
        for one, two, three, four in zip(profiled_a, profiled_b, plain_a, plain_b, strict=True)
    ]


def run(
    script: Path, engine: str, microseconds: int, number: int, turns: float = 0, *, profiled: bool = False
) -> list[float]:
    """Return the wall and CPU seconds that the script measured, or how much work is a sample."""
    words = [str(script), engine, str(microseconds), str(number)]
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "recording"))
        prefix = ["-m", "fastload.cli", "profile", "--full", "--out", out] if profiled else []
        done = subprocess.run(
            [sys.executable, *prefix, *words],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "TURNS": str(int(turns)), "OMP_NUM_THREADS": "1"},
        )
    found = json.loads(done.stdout)
    return found if isinstance(found, list) else [found]


if __name__ == "__main__":
    sys.exit(main())
