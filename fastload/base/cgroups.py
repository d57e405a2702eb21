"""The control groups that this process belongs to, and the processors that it may use.

Linux; elsewhere there are no groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def groups_of(controller: str, proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's groups and of those above them, whether or not they exist.

    With each: whether it is of version 2, in which all controllers ("memory", "cpu") share a tree.
    """
    try:
        memberships = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        unified = controllers == ""
        if not unified and controller not in controllers.split(","):
            continue
        root = cgroups if unified else cgroups / controller
        # Inside a container the path may be that of the host, and the root is the container's own group.
        group = root / path.lstrip("/")
        while group != root and root in group.parents:
            yield group, unified
            group = group.parent
        yield root, unified


def processors() -> int:
    """Return how many processors this process may be scheduled on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_quota(proc: Path = PROC, cgroups: Path = CGROUPS) -> float | None:
    """Return how many processors' time the groups of this process leave it; None where they set no limit."""
    found = []
    for group, unified in groups_of("cpu", proc, cgroups):
        try:
            if unified:
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota = (group / "cpu.cfs_quota_us").read_text().strip()
                period = (group / "cpu.cfs_period_us").read_text().strip()
        except (OSError, ValueError):
            continue
        if quota not in ("max", "-1"):
            found.append(int(quota) / int(period))
    return min(found, default=None)
