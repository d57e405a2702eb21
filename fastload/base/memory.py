"""How much memory there is to fill: of this machine, of this container, of a device. In bytes; nothing is taken."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from .cgroups import CGROUPS, PROC, groups_of

# Of each span, at even distances.
_PAGES_ASKED = 5


def free_on_host(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return how much a process can still take without swapping; None where the system does not say.

    The least of what the machine has available and what the control groups of this process leave of their limits,
    where memory that only caches files counts as free.
    """
    left = (max(limit - used, 0) for limit, used in _limits(proc, cgroups))
    return min([*_of_machine(proc, "MemAvailable:", "SC_AVPHYS_PAGES"), *left], default=None)


def limit_of_host(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return how much memory the machine, or a control group of this process, has in all; None: it is not known."""
    limits = (limit for limit, _ in _limits(proc, cgroups))
    return min([*_of_machine(proc, "MemTotal:", "SC_PHYS_PAGES"), *limits], default=None)


def is_resident(spans: Iterable[tuple[int, int]]) -> bool:
    """Return whether memory, given as addresses and numbers of bytes, can be read without waiting for a disk.

    A few pages of each span are asked for; nineteen of twenty suffice. False where the system does not say.
    """
    try:
        mincore = ctypes.CDLL(None).mincore
    except (OSError, AttributeError):
        return False
    mincore.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    size, vector = mmap.PAGESIZE, ctypes.c_ubyte()
    asked = there = 0
    for address, num_bytes in spans:
        for part in range(_PAGES_ASKED if num_bytes else 0):
            page = (address + (num_bytes - 1) * part // (_PAGES_ASKED - 1)) // size * size
            asked += 1
            there += mincore(page, 1, ctypes.byref(vector)) == 0 and vector.value & 1
    return there >= 0.95 * asked


def free_on(device: torch.device) -> int | None:
    """Return how much can still be allocated on a device; None where it does not say. Waits for nothing.

    What torch's allocator has cached and does not use counts as free.
    """
    if device.type == "cpu":
        return free_on_host()
    module: Any = torch.get_device_module(device)
    if not all(hasattr(module, name) for name in ("mem_get_info", "memory_reserved", "memory_allocated")):
        return None
    free, _ = module.mem_get_info(device)
    return int(free + module.memory_reserved(device) - module.memory_allocated(device))


def _of_machine(proc: Path, line: str, pages: str) -> list[int]:
    """Return what a line of Linux says of the machine's memory, or elsewhere a number of pages; nothing: neither."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        return [int(one.split()[1]) * 1024 for one in lines if one.startswith(line)]
    except OSError:
        is_known = hasattr(os, "sysconf") and pages in os.sysconf_names
        return [os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")] if is_known else []


def _limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit of each control group that has one, and what is used of it, without what only caches files."""
    for group, unified in groups_of("memory", proc, cgroups):
        limit, usage, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        if unified:
            limit, usage, cached = "memory.max", "memory.current", "inactive_file"
        try:
            most, used = (int((group / name).read_text()) for name in (limit, usage))
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines() if line)
        except (OSError, ValueError):  # also "max": it has no limit
            continue
        yield most, used - int(statistics.get(cached, 0))


def in_words(num_bytes: float) -> str:
    """Return a number of bytes as a person reads it."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:,.0f} {unit}" if unit == "bytes" else f"{num_bytes:,.1f} {unit}"
