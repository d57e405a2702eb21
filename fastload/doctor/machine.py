"""What the system lets this process have: processors, memory, memory files, open files, and how workers start."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ..cgroups import processor_quota, processors
from .finding import Finding

# Each worker costs a few; datasets of many files, and of torch's own tensors sent as descriptors, more.
_FILES = 1024


def cores() -> Iterator[Finding]:
    """Count the processors that may be used."""
    count, quota = processors(), processor_quota()
    words = f"{count} of this machine's {os.cpu_count()} may be used"
    if quota is None or quota >= count:
        yield Finding("cores", "ok", words)
        return
    yield Finding(
        "cores",
        "costs",
        f"{words}, for {quota:g} cores' time in all (control group)",
        "more workers than that wait for each other, and the process is stopped for the rest of each period",
        f"num_workers={max(int(quota), 1)}",
    )


def memory() -> Iterator[Finding]:
    """Ask how much is left."""
    from ..memory import free_on_host, in_words

    free = free_on_host()
    yield Finding("memory", "ok", "the system does not say" if free is None else f"{in_words(free)} can be taken")
    if hasattr(os, "statvfs") and Path("/dev/shm").is_dir():
        about = os.statvfs("/dev/shm")
        size, left = in_words(about.f_blocks * about.f_frsize), in_words(about.f_bavail * about.f_frsize)
        yield Finding("/dev/shm", "ok", f"{size}, {left} free; batches do not lie there (torch's own loader needs it)")


def slots() -> Iterator[Finding]:
    """Make a memory file, as batches lie in."""
    from ..workers.transport import use_packets

    if not use_packets():
        asked = os.environ.get("FASTLOAD_TRANSPORT") == "pipes"
        words = "FASTLOAD_TRANSPORT=pipes asks for pipes" if asked else "this system has none; pipes are used"
        cost = "batches are sent through pipes: one copy more, and more work for the main process"
        yield Finding("memory files", "costs", words, cost, "unset FASTLOAD_TRANSPORT" if asked else "")
        return
    try:
        fd = os.memfd_create("fastload-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, 1 << 40)  # sparse
        finally:
            os.close(fd)
    except OSError as error:
        words = f"cannot be made: {error}"
        yield Finding("memory files", "broken", words, "workers cannot start", "export FASTLOAD_TRANSPORT=pipes")
        return
    yield Finding("memory files", "ok", "can be made (memfd_create): batches are shared without a copy")


def limits() -> Iterator[Finding]:
    """Ask for the limits of open files and of locked memory."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    from ..memory import in_words

    def said(limit: int) -> str:
        return "no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}"

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = f"{said(soft)} at most (up to {said(hard)} may be asked for)"
    if soft != resource.RLIM_INFINITY and soft < _FILES:
        most = 65536 if hard == resource.RLIM_INFINITY else hard
        cost = "many workers or many open loaders fail with 'Too many open files'"
        yield Finding("open files", "costs", words, cost, f"ulimit -n {min(most, 65536)}")
    else:
        yield Finding("open files", "ok", words)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    words = "no limit" if locked == resource.RLIM_INFINITY else f"at most {in_words(locked)}"
    yield Finding("locked memory", "ok", f"{words} (mlock; whether CUDA page-locks slots is tried where it is there)")


def starting() -> Iterator[Finding]:
    """Ask how worker processes start, and whether they compile what they import."""
    method = multiprocessing.get_start_method()
    words = {"fork": "they begin at once, with all that is imported"}.get(method, "each imports torch and the script")
    yield Finding("start method", "ok", f"{method}: {words}")
    if not sys.dont_write_bytecode:
        yield Finding("bytecode", "ok", "modules are compiled once")
        return
    torch = importlib.util.find_spec("torch")
    kept = None if torch is None or torch.origin is None else importlib.util.cache_from_source(torch.origin)
    if kept is not None and Path(kept).exists():
        yield Finding("bytecode", "ok", "PYTHONDONTWRITEBYTECODE is set; torch has been compiled before")
        return
    cost = "each process that imports torch compiles all of it anew: seconds at every start"
    remedy = "unset PYTHONDONTWRITEBYTECODE" + ("" if kept is None else f"; {sys.executable} -m compileall -q torch")
    if kept is not None and torch is not None and torch.origin is not None:
        remedy = f"unset PYTHONDONTWRITEBYTECODE; {sys.executable} -m compileall -q {Path(torch.origin).parent}"
    yield Finding("bytecode", "costs", "PYTHONDONTWRITEBYTECODE is set, and torch is not compiled", cost, remedy)


__all__ = ["cores", "limits", "memory", "slots", "starting"]
