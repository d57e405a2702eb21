"""``forkserver``: multiprocessing's server, which has imported torch, forks the workers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import wait_gone

pytestmark = pytest.mark.slow

SCRIPT = """
import json, multiprocessing, os, sys, warnings
from multiprocessing import forkserver
import torch
import fastload

class Facts(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        server = os.getppid()
        threads = os.listdir(f"/proc/{server}/task")
        marked = getattr(sys.modules.get("users"), "PID", None)
        return server, len(threads), marked, os.getpid(), float(torch.rand(()))

def facts(**arguments):
    loader = fastload.DataLoader(
        Facts(), 2, num_workers=2, multiprocessing_context="forkserver", collate_fn=list, seed=1, **arguments
    )
    return [sample for batch in loader for sample in batch]

if __name__ == "__main__":
    warnings.filterwarnings("ignore", "This DataLoader will create")
    print(json.dumps(main()), flush=True)
"""


def told(folder: Path, main: str, *, cwd: Path | None = None, **files: str) -> Any:
    """Run the script with a ``main`` of its own, beside further modules; return what that returns."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    script = folder / "script.py"
    script.write_text(SCRIPT.replace('if __name__ == "__main__":', f'{main}\nif __name__ == "__main__":', 1))
    done = subprocess.run(
        [sys.executable, script], cwd=cwd or folder, capture_output=True, text=True, timeout=200, check=False,
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_one_server_with_the_users_modules_serves_all_loaders_has_one_thread_and_ends_with_the_process(tmp_path):
    (tmp_path / "nt.py").write_text("import torch\n")  # Python's pathlib imports one of that name, where there is one
    first, second, pid, words, drawn = told(
        tmp_path,
        """
def draw(end):
    import numpy
    end.send(float(numpy.random.rand()))

def main():
    multiprocessing.set_forkserver_preload(["users", "nowhere"])
    loader = fastload.DataLoader(Facts(), 8, num_workers=1, multiprocessing_context="forkserver", collate_fn=list)
    list(loader)
    context = multiprocessing.get_context("forkserver")
    drawn = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=draw, args=(theirs,))
        process.start()
        drawn.append(ours.recv())
        process.join()
    return facts(), facts(), forkserver._forkserver._forkserver_pid, loader.explain(), drawn
""",
        users="import os\nPID = os.getpid()\n",
    )
    assert {sample[0] for sample in first + second} == {sample[2] for sample in first + second} == {pid}
    assert {sample[1] for sample in first + second} == {1}
    assert [sample[4] for sample in first] == [sample[4] for sample in second]  # by seed=1
    assert {sample[3] for sample in first}.isdisjoint(sample[3] for sample in second)  # each loader has its workers
    assert "imports torch" not in words
    assert drawn[0] != drawn[1]  # other processes of the server have random states of NumPy's of their own
    wait_gone([pid])


def test_where_the_server_runs_already_its_workers_import_torch_each_and_explain_says_so(tmp_path):
    samples, before, pid, words = told(
        tmp_path,
        """
def main():
    forkserver.ensure_running()
    before = forkserver._forkserver._forkserver_pid
    loader = fastload.DataLoader(Facts(), 8, num_workers=1, multiprocessing_context="forkserver", collate_fn=list)
    return next(iter(loader)), before, forkserver._forkserver._forkserver_pid, loader.explain()
""",
    )
    assert {sample[0] for sample in samples} == {before} == {pid}
    assert "each worker imports torch: multiprocessing's fork server was started before the first loader" in words


def test_after_an_interrupt_while_the_server_imports_the_next_loader_starts_its_workers(tmp_path):
    interrupted, samples, pid = told(
        tmp_path,
        """
import signal, threading, time

def main():
    multiprocessing.set_forkserver_preload(["users"])
    def interrupt():
        while not os.path.exists("importing"):
            time.sleep(0.01)
        os.killpg(0, signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    interrupted = False
    try:
        facts()
    except KeyboardInterrupt:
        interrupted = True
    thread.join()
    return interrupted, facts(), forkserver._forkserver._forkserver_pid
""",
        users="""
import os, time
if not os.path.exists('importing'):
    open('importing', 'w').close()
    time.sleep(2)
""",
    )
    assert interrupted
    assert {sample[0] for sample in samples} == {pid}


def test_the_server_finds_modules_where_the_script_does_and_not_in_the_current_folder(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "numpy.py").write_text("raise RuntimeError('another module of this name')")
    samples, pid = told(
        tmp_path,
        """
class Names(Facts):
    def __getitem__(self, index):
        return [name for name in os.environ if name.startswith(("PYTHON", "FASTLOAD_FORK"))]

def main():
    own = [name for name in os.environ if name.startswith(("PYTHON", "FASTLOAD_FORK"))]
    loader = fastload.DataLoader(Names(), 8, num_workers=1, multiprocessing_context="forkserver", collate_fn=list)
    assert next(iter(loader))[0] == own
    return facts(), forkserver._forkserver._forkserver_pid
""",
        cwd=elsewhere,
    )
    assert {sample[0] for sample in samples} == {pid}


def test_a_server_that_ends_while_it_starts_is_an_error_that_names_what_it_imports(tmp_path):
    message = told(
        tmp_path,
        """
def main():
    multiprocessing.set_forkserver_preload(["users"])
    try:
        facts()
    except fastload.WorkerDied as error:
        return str(error)
""",
        users="raise RuntimeError('not today')",
    )
    assert "fork server has ended while it started" in message
    assert "It imports fastload.workers.preload, users, numpy; multiprocessing_context='spawn' needs no" in message
