"""Files in /dev/shm count only in the process that made them, or from which their maker descends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from shared_files import files_of_this_process, forget_processes

FOLDER = Path("/dev/shm")
if not FOLDER.is_dir():
    pytest.skip("there is no /dev/shm", allow_module_level=True)


def test_files_of_this_process_and_of_its_descendants_count_until_these_are_forgotten_and_no_others() -> None:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        if (grandchild := os.fork()) == 0:
            os.write(write, str(os.getpid()).encode())
            os._exit(0)
        os.waitpid(grandchild, 0)
        os._exit(0)
    os.waitpid(child, 0)
    started = subprocess.Popen(["sleep", "600"])
    pids = {"own": os.getpid(), "grandchild": int(os.read(read, 20)), "started": started.pid}
    pids |= {"init": 1, "parent": os.getppid()}
    os.close(read)
    os.close(write)
    names = {who: f"torch_{pid}_1_1" for who, pid in pids.items()}
    try:
        for name in names.values():
            (FOLDER / name).touch()
        found = {who for who, name in names.items() if name in files_of_this_process()}
        forget_processes()
        later = {who for who, name in names.items() if name in files_of_this_process()}
    finally:
        started.kill()
        started.wait()
        for name in names.values():
            (FOLDER / name).unlink()
    assert (found, later) == ({"own", "grandchild", "started"}, {"own", "started"})
