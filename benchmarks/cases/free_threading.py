"""Worker threads on a Python without the GIL, beside worker threads with it, and beside processes; speed and memory.

Claim: threads take no more processor time and memory than processes. The interpreter, its packages and the pipelines
are the same for all sides; ``PYTHON_GIL`` switches the lock. Processes are forked, which shares most memory; Python
3.14 would start them by a fork server.

"PSS MiB" is read when the last batch of the second epoch arrives, while the workers live: pages of this process and its
workers, those that several of them map counted once.

Meaningless if: other work runs on the cores, the files are not in the file cache, or there are fewer cores than
workers. At a load of 25 to 40 on two cores the kernel let each forked worker run for 0.1 of the time, and each thread
for 0.2 to 0.4: threads sleep now and then, and come first when they wake. "samples/s" of processes were then a quarter
of the threads'; with the cores to themselves both are about as fast.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, RandomSampler

from benchmarks.loops import make_loader, time_epoch
from benchmarks.process_memory import read_tree_memory
from benchmarks.spec import Benchmark, Measurement, Metric, Side

_WITHOUT_GIL, _WITH_GIL = {"PYTHON_GIL": "0"}, {"PYTHON_GIL": "1"}
_PROCESSES = Side(
    name="processes", package="fastload", options={"multiprocessing_context": "fork"}, environment=_WITHOUT_GIL
)
_THREADS_WITH_GIL = Side(
    name="threads with the GIL",
    package="fastload",
    options={"worker_method": "thread"},
    environment=_WITH_GIL,
    compared_with="processes",
)
_THREADS = replace(_THREADS_WITH_GIL, name="threads without the GIL", environment=_WITHOUT_GIL)


class Lines(Dataset[tuple[Tensor, int]]):
    """Lines of 100 numbers as text, parsed, sorted and scaled in Python: about 50 us of bytecode each."""

    def __init__(self, num_samples: int) -> None:
        draw = random.Random(0)
        self._lines = [",".join(f"{draw.random():.6f}" for _ in range(100)) for _ in range(1000)]
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        values = [float(word) for word in self._lines[index % len(self._lines)].split(",")]
        middle = sorted(values)[len(values) // 2]
        return torch.tensor([(value - middle) * 2 for value in values]), index


class _WithMemory:
    """A loader that reads the memory when its last batch arrives."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.pss_mib = 0.0

    def __iter__(self) -> Iterator[object]:
        last = len(self._loader)
        for number, batch in enumerate(self._loader, 1):
            yield batch
            if number == last:
                self.pss_mib = read_tree_memory().pss_mib


def _images(side: Side, image_root: str, num_samples: int, **options: object) -> Any:
    from benchmarks.cases.imagefolder import _image_folder

    dataset = _image_folder(image_root, "v1")
    sampler = RandomSampler(
        dataset, replacement=True, num_samples=num_samples, generator=torch.Generator().manual_seed(0)
    )
    return make_loader(side, dataset, batch_size=50, sampler=sampler, num_workers=2, **options)


def epoch(side: Side, *, kind: str, num_samples: int, image_root: str = "") -> Measurement:
    """Time the second of two epochs; of "imagefolder" late decoding is switched off, so Pillow decodes."""
    torch.manual_seed(0)
    if kind == "python":
        batch_size, loader = 64, make_loader(side, Lines(num_samples), batch_size=64, shuffle=True, num_workers=2)
    else:
        fuse = False if kind == "imagefolder" else "auto"
        batch_size, loader = 50, _images(side, image_root, num_samples, fuse=fuse)
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    if has_gil != (side.environment["PYTHON_GIL"] == "1"):
        raise RuntimeError(f"the GIL is {'on' if has_gil else 'off'}, and {side.environment} asks for the opposite")
    for _ in range(2):
        with_memory = _WithMemory(loader)
        timed = time_epoch(with_memory, samples_per_batch=batch_size, num_warm_batches=4)
    return {**timed, "PSS MiB": with_memory.pss_mib}


BENCHMARKS = tuple(
    Benchmark(
        name=f"free_threading-{kind}",
        measure="benchmarks.cases.free_threading:epoch",
        metrics=(
            Metric(name="samples/s steady", more_is_better=True, least_ratio=None),
            Metric(name="CPU us/sample"),
            Metric(name="PSS MiB"),
        ),
        arguments={"kind": kind, "num_samples": num_samples},
        quick_arguments={"num_samples": num_samples // 4},
        sides=(_PROCESSES, _THREADS_WITH_GIL, _THREADS),
        fresh_process=True,
        needs_images=kind != "python",
        needs_free_threading=True,
    )
    for kind, num_samples in (("imagefolder", 1000), ("late", 2000), ("python", 64 * 400))
)
