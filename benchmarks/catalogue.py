"""All benchmarks, in the order in which they run.

It stands outside the package ``cases`` so that a child process, and the workers it spawns, import only the subject that
is measured: torchvision alone takes seconds.
"""

import importlib

from benchmarks.spec import Benchmark

FILES = (
    "imagefolder", "fuse", "small", "heavy_tail", "startup", "memory", "waiting", "tables",
)  # fmt: skip
ALL: tuple[Benchmark, ...] = tuple(
    benchmark for name in FILES for benchmark in importlib.import_module(f"benchmarks.cases.{name}").BENCHMARKS
)
