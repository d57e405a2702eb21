"""What-if against reality for worker threads: predicted from a recording with processes, and then run with threads.

    python -m benchmarks.profiling.threads --data DIR [--repeat 3] [--steps 100] [NAME ...]

Each pipeline runs under ``fastload profile`` with torch's loader and two worker processes; ``fastload whatif --rerun``
says what a step would take with fastload's loader and as many threads, and runs the script so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fastload.profiling.changes import sample_cost
from fastload.profiling.command import load_analysis
from fastload.profiling.reader import read_trace
from fastload.profiling.schema import Interval
from fastload.profiling.workload import Workload, measure_workload

_ME = "benchmarks.profiling.threads"
_COMMAND = [sys.executable, "-m", "fastload.cli"]
LENGTH = 4_000


class Images(Dataset[Any]):
    """JPEGs of one's own folder: decoding releases the interpreter."""

    def __init__(self, folder: str) -> None:
        from torchvision import transforms

        self.paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        return self.transform(Image.open(self.paths[index]).convert("RGB"))


class Tokens(Dataset[Any]):
    """Text is split and numbered in Python, which holds the interpreter all the time."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        known: dict[str, int] = {}
        words = " ".join(f"w{(index * 7 + place * 13) % 997}" for place in range(3_000)).split()
        return torch.tensor([known.setdefault(word, len(known)) for word in words][:512])


class Reads(Dataset[Any]):
    """A slow store, and some NumPy."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return np.random.default_rng(index).standard_normal(20_000).astype("f4")


class Sorted(Dataset[Any]):
    """NumPy that computes without the interpreter."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return np.sort(np.random.default_rng(index).standard_normal(50_000)).astype("f4")


def rest() -> None:
    """A loop that waits for a device: 5 ms."""
    time.sleep(0.005)


def trained() -> Callable[[], None]:
    """Return a loop that trains a small network here."""
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)))
    optimizer, rows = torch.optim.SGD(model.parameters(), 0.01), torch.rand(256, 64)

    def train() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(rows).sum().backward()
            optimizer.step()

    return train


PIPELINES: dict[str, tuple[Callable[[str], Dataset[Any]], int, Callable[[], Callable[[], None]]]] = {
    "images": (Images, 8, lambda: rest),
    "images, training": (Images, 8, trained),
    "tokens": (lambda _: Tokens(), 8, lambda: rest),
    "tokens, training": (lambda _: Tokens(), 8, trained),
    "reads": (lambda _: Reads(), 8, lambda: rest),
    "sorted arrays": (lambda _: Sorted(), 8, lambda: rest),
    "tensors": (
        lambda _: TensorDataset(torch.rand(100_000, 64), torch.arange(100_000)),
        256,
        lambda: lambda: time.sleep(0.001),
    ),
}
"""Dataset, batch size, loop."""


def run(name: str, data: str) -> None:
    """Be the script."""
    torch.set_num_threads(1)
    dataset, batch_size, loop = PIPELINES[name]
    loader = DataLoader(dataset(data), batch_size=batch_size, shuffle=True, num_workers=2)
    step = loop()
    while True:
        for _ in loader:
            step()


def compared(name: str, data: str, steps: int, folder: str) -> str:
    """Return a row: processor time of samples with threads, over that with processes, predicted and measured; steps.

    Steps are recorded, predicted and measured, in ms, with 90 % intervals. And how many times as long a worker wanted a
    core as it had one, with processes and with threads.
    """
    seen, again = f"{folder}/seen", f"{folder}/again"
    script = ["-m", _ME, "--run", name, "--data", data]
    ended = ["--steps", str(steps), "--warmup", "20", "--out", seen]
    subprocess.run([*_COMMAND, "profile", *ended, *script], check=True, capture_output=True)
    change = ["--engine", "fastload", "--worker-method", "thread", "--json", "--rerun", "--out", again]
    done = subprocess.run([*_COMMAND, "whatif", seen, *change], capture_output=True, text=True)
    if done.returncode:
        return f"{name} | {done.stderr.strip()}"
    said = json.loads(done.stdout)
    predicted = Interval(**said["fixes"][0]["step_ms"])
    before, after = (load_analysis(where).ranks[0].step_ms for where in (seen, again))
    measured = dataclasses.replace(after, value=said["rerun_ms"])
    workload = [measure_workload(trace.ranks[0], trace.warmup) for trace in map(read_trace, (seen, again))]
    cost = sample_cost(workload[0], {"engine": "fastload", "worker_method": "thread"})
    cpu, slowed = zip(*map(computed, workload), strict=True)
    return " | ".join(
        [
            name,
            f"{cost.value.cpu:.2f} [{cost.low.cpu:.2f}-{cost.high.cpu:.2f}]",
            f"{cpu[1] / cpu[0]:.2f}",
            *(f"{one.value:.3g} [{one.low:.3g}-{one.high:.3g}]" for one in (before, predicted, measured)),
            f"{predicted.value / measured.value - 1:+.0%}",
            f"{slowed[0]:.1f}, {slowed[1]:.1f}",
        ]
    )


def computed(workload: Workload) -> tuple[float, float]:
    """Return the processor time of a sample in ns, and how many times as long its thread wanted a core."""
    parts = [part for one in workload.epochs for batch in one for part in (*batch.samples, batch.collate)]
    samples = sum(len(batch.samples) for one in workload.epochs for batch in one)
    cpu, queued = sum(part.cpu for part in parts), sum(part.queued for part in parts)
    return cpu / samples, (cpu + queued) / cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PIPELINES)}")
    parser.add_argument("--data", required=True, help="a folder with JPEG files")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        run(options.run, options.data)
        return
    for number in range(options.repeat):
        for name in options.names or PIPELINES:
            with tempfile.TemporaryDirectory() as folder:
                print(f"| {number} | {compared(name, options.data, options.steps, folder)} |", flush=True)


if __name__ == "__main__":
    main()
