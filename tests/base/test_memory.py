"""What is free: the least of what the machine and its control groups leave, read from files like the system's."""

from __future__ import annotations

import ctypes
import mmap
import os

import pytest
import torch

from fastload.base.memory import free_on, free_on_host, is_resident

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:   20000000 kB\n"


@pytest.fixture
def system(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    groups.mkdir()
    (proc / "meminfo").write_text(MEMINFO)
    return proc, groups


def test_without_groups_it_is_what_the_machine_has(system):
    proc, groups = system
    assert free_on_host(proc, groups) == pytest.approx(20000000 * 1024)


@pytest.mark.parametrize(
    ("membership", "groups", "free"),
    [
        (
            "0::/jobs/mine",
            {
                "jobs/mine": {"memory.max": "max", "memory.current": 5, "memory.stat": "inactive_file 3"},
                "jobs": {"memory.max": 1000, "memory.current": 600, "memory.stat": "anon 1\ninactive_file 100"},
            },
            500,
        ),
        (
            "4:cpu,memory:/box\n1:cpu:/\n0::/",
            {
                "memory/box": {"memory.limit_in_bytes": 700, "memory.usage_in_bytes": 800}
                | {"memory.stat": "total_inactive_file 150"}
            },
            50,
        ),
        ("0::/path/of/the/host", {"": {"memory.max": 900, "memory.current": 100, "memory.stat": ""}}, 800),
        ("0::/", {"": {"memory.max": 100, "memory.current": 300, "memory.stat": ""}}, 0),
    ],
    ids=["version two and those above", "version one", "the root of a container", "more than full"],
)
def test_control_groups_limit_it(system, membership, groups, free):
    proc, root = system
    (proc / "self" / "cgroup").write_text(f"{membership}\n")
    for place, files in groups.items():
        (root / place).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (root / place / name).write_text(f"{content}\n")
    assert free_on_host(proc, root) == free


def test_here_something_is_free_and_a_device_of_the_cpu_has_the_same():
    assert free_on_host() > 1 << 20
    assert free_on(torch.device("cpu")) > 1 << 20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None) if os.name == "posix" else None, "mincore"), reason="no mincore")
def test_memory_is_resident_once_it_has_been_written():
    size = 64 * mmap.PAGESIZE
    with mmap.mmap(-1, size) as memory:
        start = ctypes.c_char.from_buffer(memory)
        span = ctypes.addressof(start), size
        assert not is_resident([span])
        memory[:] = bytes(range(1, 65)) * mmap.PAGESIZE
        assert is_resident([span])
        assert is_resident([])
        del start
