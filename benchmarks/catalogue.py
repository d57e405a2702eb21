"""All cases of ``benchmarks.engine``, in the order in which they run.

It stands outside the package ``cases`` so that a child process, and the workers it spawns, import only the subject that
is measured: torchvision alone takes seconds.
"""

import importlib

from benchmarks.spec import Case

FILES = (
    "imagefolder", "fuse", "small", "heavy_tail", "startup", "memory", "waiting", "tables", "scale",
)  # fmt: skip
ALL: tuple[Case, ...] = tuple(
    case for name in FILES for case in importlib.import_module(f"benchmarks.cases.{name}").CASES
)
