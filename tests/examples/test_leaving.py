"""A rank that has left its process group exits with its own status, whatever its other threads do."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import REPOSITORY, run

pytestmark = pytest.mark.slow

RANKS = '''
import atexit, os, sys, threading, time
import torch.distributed as dist
from leaving import leave, run_rank


class Finalised:
    """Destroyed while the interpreter is finalised, which ends all other threads that wait for the GIL."""

    def __init__(self, store):
        self.store = store

    def __del__(self, sleep=time.sleep):
        self.store.set("go", "")
        sleep(20)  # meanwhile the thread returns from the store, and is ended inside C++: SIGABRT


def be_rank(ending):
    store = dist.HashStore()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    threading.Thread(target=store.get, args=("go",), daemon=True).start()
    threading.Thread(target=lambda: (threading.main_thread().join(0.1), print("thread"))).start()
    sys.modules["__main__"].kept = Finalised(store)
    atexit.register(print, "registered")
    leave()
    ending()


def fail():
    raise ArithmeticError("of the script")


for ending in (lambda: None, lambda: sys.exit(3), lambda: sys.exit("a reason"), fail):
    sys.stdout.flush()
    rank = os.fork()
    if not rank:
        run_rank(lambda: be_rank(ending))
        break
    print("status", os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]))
'''


def test_a_rank_exits_with_its_own_status_while_a_thread_is_in_cpp(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(f"import sys\nsys.path.append({str(REPOSITORY / 'examples')!r})\n{RANKS}")
    statuses = [0, 3, 1, 1]
    assert run(script) == "".join(f"thread\nregistered\nstatus {status}\n" for status in statuses)
