"""The table of probes, and those of versions, devices, packages and the system (:mod:`.images` has the others).

A probe is a function that yields findings. It imports what it looks at itself, since that may fail: what it raises
becomes a finding, too.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..base import gil
from ..base.cgroups import processor_quota, processors
from ..base.version import DISTRIBUTION
from ..errors import one_line, why_not_imported
from . import images
from .finding import Finding, pip
from .installation import own_files

REQUIRED = {"torch": "2.6", "torchvision": "0.21", "numpy": "1.26", "rich": "13"}
"""The oldest supported versions, as in pyproject.toml."""

# Each worker needs a few; datasets of many files, and torch's own tensors, which are sent as descriptors, more.
_OPEN_FILES = 1024
# Of photos (ImageNet): bytes of a record for a byte of its file.
_RECORD_BYTES = 1.4


# -- versions ---------------------------------------------------------------------------------------------------------


def python() -> Iterator[Finding]:
    """Tell the version of the interpreter; the package cannot be installed with one that is too old."""
    words = f"{platform.python_version()} ({platform.python_implementation()}), {platform.system()}"
    yield Finding("Python", "ok", words)


def required(name: str) -> Iterator[Finding]:
    """Import a required package, and check its version."""
    oldest = REQUIRED[name]
    # torch and torchvision must fit each other.
    names = ("torch", "torchvision") if name in ("torch", "torchvision") else (name,)
    packages = " ".join(f"'{one}>={REQUIRED[one]}'" for one in names)
    try:
        module = importlib.import_module(name)
    except Exception as error:  # whatever a broken installation raises
        remedy = pip(f"{'--upgrade' if isinstance(error, ModuleNotFoundError) else '--force-reinstall'} {packages}")
        yield Finding(name, "broken", why_not_imported(name, error), remedy=remedy)
        return
    version = str(getattr(module, "__version__", None) or importlib.metadata.version(name))
    if numbers(version) < numbers(oldest):
        remedy = pip(f"--upgrade {packages}")
        yield Finding(name, "broken", f"{version}; {oldest} or later is needed", remedy=remedy)
    else:
        yield Finding(name, "ok", version)


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) of "2.13.0+cu130"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def together() -> Iterator[Finding]:
    """Let torch, torchvision and numpy work with each other."""
    import numpy as np
    import torch
    from torchvision.ops import nms

    try:
        torch.from_numpy(np.arange(3)).sum()
        nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([1.0]), 0.5)
    except Exception as error:  # of missing operators, or arrays of another version
        packages = " ".join(f"'{name}>={REQUIRED[name]}'" for name in ("torch", "torchvision", "numpy"))
        words = f"torch, torchvision and numpy do not fit each other: {one_line(error)}"
        yield Finding("together", "broken", words, remedy=pip(f"--force-reinstall {packages}"))
    else:
        yield Finding("together", "ok", "torchvision's operators and numpy's arrays work in torch")


def without_gil() -> Iterator[Finding]:
    """On a Python that can do without the GIL: whether it does, and which module turns it on."""
    if not gil.IS_FREE_THREADED:
        return
    asked = getattr(sys.flags, "gil", None)  # None: not asked for
    if not gil.is_on():
        yield Finding("GIL", "ok", f"off{', as PYTHON_GIL=0 asks' if asked == 0 else ''}: threads run at the same time")
        return
    words, remedy = "PYTHON_GIL=1 asks for it", "unset PYTHON_GIL"
    if asked is None:
        command = [sys.executable, "-W", "always", "-c", "import torch, torchvision, numpy, PIL.Image"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        found = re.search(r"GIL\) has been enabled to load module '([^']+)'", done.stderr)
        words = f"{found[1] if found else 'a module'} turns it on, since it does not say that it can do without"
        remedy = "export PYTHON_GIL=0"
    yield Finding("GIL", "costs", f"on: {words}", "worker threads run Python code one at a time", remedy)


def seeding() -> Iterator[Finding]:
    """Check whether generators can be seeded per sample, as with a seed, by installing their states."""
    from ..keys.seeding import slow_because

    reason = slow_because()
    if reason is None:
        yield Finding("seeding", "ok", "the fast way of seeding each sample works, and gives the same numbers")
    else:
        yield Finding("seeding", "costs", reason, "with a seed, 7 µs of processor time per sample instead of 1 µs")


# -- devices ----------------------------------------------------------------------------------------------------------


def cuda() -> Iterator[Finding]:
    """Look for CUDA devices, and let each add two numbers."""
    import torch

    from ..base.memory import in_words

    built = f"torch is built for CUDA {torch.version.cuda}"
    if torch.version.hip is not None:
        built = f"torch is built for ROCm {torch.version.hip}"
    elif torch.version.cuda is None:
        yield Finding("CUDA", "absent", "torch is built without CUDA", "batches stay on the CPU")
        return
    driver = _driver()
    if not torch.cuda.is_available():
        if driver is None:
            yield Finding("CUDA", "absent", f"{built}; this machine has no driver and no device")
        else:
            remedy = "nvidia-smi; echo $CUDA_VISIBLE_DEVICES"
            words = f"{built} and there is a driver ({driver}), but no device can be used"
            yield Finding("CUDA", "costs", words, "batches stay on the CPU", remedy)
        return
    yield Finding("CUDA", "ok", f"{built}; driver {driver or 'of unknown version'}")
    for index in range(torch.cuda.device_count()):
        name = f"device {index}"
        about = torch.cuda.get_device_properties(index)
        words = f"{about.name}, {in_words(about.total_memory)}, compute capability {about.major}.{about.minor}"
        try:
            (torch.ones(1, device=f"cuda:{index}") + 1).item()
        except RuntimeError as error:
            yield Finding(name, "broken", f"{words}: {one_line(error)}")
        else:
            yield Finding(name, "ok", words)


def _driver() -> str | None:
    """Return the driver's version, or words if it does not say; None where there is none."""
    if shutil.which("nvidia-smi") is not None:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        lines = done.stdout.strip().splitlines() or ["no output"]
        return lines[0] if done.returncode == 0 else f"nvidia-smi fails: {lines[-1]}"
    return "loaded" if Path("/proc/driver/nvidia/version").exists() else None


def triton() -> Iterator[Finding]:
    """Check whether the fused kernel of :mod:`fastload.transforms` runs."""
    import torch

    if not torch.cuda.is_available():
        return
    from ..transforms.fused import available

    if available(torch.device("cuda", torch.cuda.current_device())):
        words = "is used for batches on the device, if its first results are those of torch's operations"
        yield Finding("Triton kernel", "ok", words)
        return
    why = "it needs Triton 3.6, compute capability 8.0, a C compiler and Python's headers"
    remedy = "apt-get install -y gcc libc6-dev python3-dev"
    if os.environ.get("FASTLOAD_TRITON") == "0":
        why, remedy = "FASTLOAD_TRITON=0 switches it off", "unset FASTLOAD_TRITON"
    cost = "torch's operations are used instead: more passes over the batch"
    yield Finding("Triton kernel", "absent", why, cost, remedy)


# -- the system -------------------------------------------------------------------------------------------------------


def cores() -> Iterator[Finding]:
    """Count the processors that this process may use."""
    count, quota = processors(), processor_quota()
    words = f"{count} of {os.cpu_count()} can be used"
    if quota is None or quota >= count:
        yield Finding("cores", "ok", words)
        return
    yield Finding(
        "cores",
        "costs",
        f"{words}, together for {quota:g} cores' time (limit of the control group)",
        "with more workers than that, the process is stopped for a part of each period",
        f"num_workers={max(int(quota), 1)}",
    )


def memory_files() -> Iterator[Finding]:
    """Create a memory file, as batches are written to."""
    from ..workers.transport import use_packets

    if not use_packets():
        asked = os.environ.get("FASTLOAD_TRANSPORT") == "pipes"
        words = "FASTLOAD_TRANSPORT=pipes asks for pipes" if asked else "this system has none; pipes are used"
        cost = "batches are sent through pipes: one more copy, and more work for the main process"
        yield Finding("memory files", "costs", words, cost, "unset FASTLOAD_TRANSPORT" if asked else "")
        return
    try:
        fd = os.memfd_create("fastload-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, 1 << 40)  # sparse
        finally:
            os.close(fd)
    except OSError as error:
        words = f"cannot be created: {error}"
        yield Finding("memory files", "broken", words, "workers cannot start", "export FASTLOAD_TRANSPORT=pipes")
        return
    yield Finding("memory files", "ok", "can be created (memfd_create): workers share batches without a copy")


def cache() -> Iterator[Finding]:
    """Say what ``cache="auto"`` would be."""
    from ..base.memory import in_words
    from ..cache.asked import LEAST_BYTES
    from ..cache.shared import size_of_auto

    size = size_of_auto()
    if size < LEAST_BYTES:
        cost = "cache='auto' is an error; a folder on a local disk needs no memory (docs/cache.md)"
        yield Finding("cache", "absent", "no memory is free for a cache of coefficients", cost)
    else:
        words = f"cache='auto' is {in_words(size)} of memory now, for the ranks of a run together"
        fits = f"the coefficients of about {in_words(size / _RECORD_BYTES)} of JPEG files"
        yield Finding("cache", "ok", f"{words}: {fits}")


def open_files() -> Iterator[Finding]:
    """Ask how many files a process may open."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return

    def in_figures(limit: int) -> str:
        return "no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}"

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = f"limit {in_figures(soft)}"
    if soft != hard:
        words += f" (ulimit -n can raise it to {in_figures(hard)})"
    if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES:
        most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        cost = "many workers or many open loaders fail with 'Too many open files'"
        yield Finding("open files", "costs", words, cost, f"ulimit -n {most}")
    else:
        yield Finding("open files", "ok", words)


class Probe(NamedTuple):
    """Looks at one thing."""

    section: str
    name: str
    function: Callable[[], Iterator[Finding]]
    needed: bool = False
    """Whether its failure counts as broken: exit status 1."""

    def findings(self) -> list[Finding]:
        """Run it; its own failure is a finding."""
        try:
            return list(self.function())
        except Exception as error:  # whatever it meets: the other probes run all the same
            return [self.failure(f"could not be checked: {one_line(error)}")]

    def failure(self, words: str) -> Finding:
        """Return the finding of a probe that failed."""
        return Finding(self.name, "broken" if self.needed else "costs", words)


PROBES = (
    Probe("Versions", DISTRIBUTION, own_files, needed=True),
    Probe("Versions", "Python", python, needed=True),
    *(Probe("Versions", name, partial(required, name), needed=True) for name in REQUIRED),
    Probe("Versions", "together", together, needed=True),
    Probe("Versions", "GIL", without_gil),
    Probe("Versions", "seeding", seeding),
    Probe("Images", "Pillow", images.pillow, needed=True),
    Probe("Images", "native library", images.native_library, needed=True),
    Probe("Images", "whole images", images.whole_images),
    Probe("Images", "tensors", images.tensors),
    Probe("Images", "measured here", images.speed),
    Probe("Devices", "CUDA", cuda),
    Probe("Devices", "Triton kernel", triton),
    Probe("This machine", "cores", cores),
    Probe("This machine", "memory files", memory_files, needed=True),
    Probe("This machine", "cache", cache),
    Probe("This machine", "open files", open_files),
)
"""All probes, in the order of the page."""
