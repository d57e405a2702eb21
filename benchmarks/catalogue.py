"""All benchmarks, in the order in which they run.

It stands outside the package ``cases`` so that a child process, and the workers it spawns, import only the subject that
is measured: torchvision alone takes seconds.
"""

from benchmarks.cases import (
    arrays,
    cifar,
    custom_collate,
    determinism,
    free_threading,
    fuse,
    heavy_tail,
    imagefolder,
    memory,
    startup,
    strided,
    strings,
    tensors32,
    thread,
    tiny,
    tokens,
)
from benchmarks.spec import Benchmark

ALL: tuple[Benchmark, ...] = (
    *imagefolder.BENCHMARKS,
    *fuse.BENCHMARKS,
    *thread.BENCHMARKS,
    *free_threading.BENCHMARKS,
    *cifar.BENCHMARKS,
    *arrays.BENCHMARKS,
    *tensors32.BENCHMARKS,
    *tiny.BENCHMARKS,
    *tokens.BENCHMARKS,
    *custom_collate.BENCHMARKS,
    *strided.BENCHMARKS,
    *heavy_tail.BENCHMARKS,
    *determinism.BENCHMARKS,
    *startup.BENCHMARKS,
    *memory.BENCHMARKS,
    *strings.BENCHMARKS,
)
