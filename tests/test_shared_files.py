"""Files in /dev/shm count only in the process that made them, or from which their maker descends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_files import files_of_this_process, forget_processes

FOLDER = Path("/dev/shm")
if not FOLDER.is_dir():
    pytest.skip("there is no /dev/shm", allow_module_level=True)


@pytest.fixture
def leaves() -> Iterator[list[str]]:
    """Names of files to remove."""
    names: list[str] = []
    yield names
    for name in names:
        (FOLDER / name).unlink()


def leave_file(pid: int, leaves: list[str]) -> str:
    leaves.append(f"torch_{pid}_1_1")
    (FOLDER / leaves[-1]).touch()
    return leaves[-1]


def test_files_of_this_process_and_of_a_living_descendant_count_and_no_others(leaves: list[str]) -> None:
    assert leave_file(os.getpid(), leaves) in files_of_this_process()
    with subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        name = leave_file(pid, leaves)
        assert name in files_of_this_process()
        os.kill(pid, signal.SIGKILL)
    others = {name, *(leave_file(pid, leaves) for pid in (1, os.getppid()))}
    assert not others & files_of_this_process()


def test_a_file_of_a_grandchild_that_has_ended_counts_until_processes_are_forgotten(leaves: list[str]) -> None:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        if (grandchild := os.fork()) == 0:
            os.write(write, str(os.getpid()).encode())
            os._exit(0)
        os.waitpid(grandchild, 0)
        os._exit(0)
    os.waitpid(child, 0)
    name = leave_file(int(os.read(read, 20)), leaves)
    os.close(read)
    os.close(write)
    assert name in files_of_this_process()
    forget_processes()
    assert name not in files_of_this_process()
