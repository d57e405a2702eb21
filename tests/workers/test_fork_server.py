"""``forkserver``: a server of fastload's own, which has imported torch, forks the workers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import alive, wait_gone

pytestmark = pytest.mark.slow

SCRIPT = """
import json, multiprocessing, os, sys, warnings
from multiprocessing import forkserver
import torch
import fastload
from fastload.workers import fork_server

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

def said(run):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = run()
    return found, [str(warning.message) for warning in heard if "fork server" in str(warning.message)]

if __name__ == "__main__":
    warnings.filterwarnings("ignore", "This DataLoader will create")
    print(json.dumps(main()), flush=True)
"""


def told(folder: Path, main: str, cwd: Path | None = None, **files: str) -> Any:
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
def test_one_server_serves_all_loaders_has_one_thread_and_ends_with_the_process(tmp_path):
    first, second, pid, processs_own = told(
        tmp_path,
        """
def main():
    own = forkserver._forkserver._forkserver_pid
    return facts(), facts(), fork_server._process.server._forkserver_pid, own
""",
    )
    assert {sample[0] for sample in first + second} == {pid}
    assert {sample[1] for sample in first + second} == {1}
    assert [sample[4] for sample in first] == [sample[4] for sample in second]  # by seed=1
    assert {sample[3] for sample in first}.isdisjoint(sample[3] for sample in second)  # each loader has its workers
    assert processs_own is None
    wait_gone([pid])


def test_the_server_and_its_workers_end_when_the_process_is_killed(tmp_path):
    script = SCRIPT.replace(
        'if __name__ == "__main__":',
        """
def main():
    iterator = iter(fastload.DataLoader(Facts(), 1, num_workers=2, multiprocessing_context="forkserver"))
    next(iterator)
    pids = [fork_server._process.server._forkserver_pid, *(worker.pid for worker in iterator._workers)]
    print(json.dumps(pids), flush=True)
    sys.stdin.read()

if __name__ == "__main__":""",
        1,
    )
    (tmp_path / "script.py").write_text(
        script.replace("None, os.getpid()", "0, os.getpid()").replace(", marked,", ", 0,")
    )
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        pids = json.loads(process.stdout.readline())
        assert all(alive(pid) for pid in pids)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    wait_gone(pids)


@pytest.mark.thorough
def test_modules_that_the_user_has_named_for_forkserver_are_imported_by_the_server(tmp_path):
    samples, pid = told(
        tmp_path,
        """
def main():
    multiprocessing.set_forkserver_preload(["users", "nowhere"])
    return facts(), fork_server._process.server._forkserver_pid
""",
        users="import os\nPID = os.getpid()\n",
    )
    assert {sample[2] for sample in samples} == {pid}


def test_modules_are_found_where_the_script_finds_them_and_the_environment_is_the_scripts(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "users.py").write_text("PID = 'elsewhere'")
    samples, pid, variables = told(
        tmp_path,
        """
class Variables(Facts):
    def __getitem__(self, index):
        return [os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH", "FASTLOAD_FORK_SERVER")]

def main():
    multiprocessing.set_forkserver_preload(["users"])
    os.environ["PYTHONPATH"] = "a path"
    samples, pid = facts(), fork_server._process.server._forkserver_pid
    loader = fastload.DataLoader(
        Variables(), 8, num_workers=1, multiprocessing_context="forkserver", collate_fn=lambda_of_batch
    )
    return samples, pid, list(loader)[0][0]

def lambda_of_batch(batch):
    return batch
""",
        cwd=elsewhere,
        users="import os\nPID = os.getpid()\n",
    )
    assert {sample[2] for sample in samples} == {pid}
    assert variables == ["a path", None, None]


@pytest.mark.thorough
def test_an_interrupt_while_the_server_imports_ends_the_start_and_not_the_server(tmp_path):
    interrupted, heard, samples, pid = told(
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
    samples, heard = said(facts)
    return interrupted, heard, samples, fork_server._process.server._forkserver_pid
""",
        users="import time\nopen('importing', 'w').close()\ntime.sleep(2)\n",
    )
    assert interrupted
    assert heard == []
    assert {sample[0] for sample in samples} == {pid}


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["raise RuntimeError('no licence')", "raise SystemExit(0)"])
def test_a_module_that_ends_the_server_makes_multiprocessings_server_start_the_workers(tmp_path, text):
    # It fails the first time only, as multiprocessing's own server would end by it, too.
    once = (
        f"import os\nif not os.path.exists('failed'):\n    open('failed', 'w').close()\n    {text}\nPID = os.getpid()\n"
    )
    samples, heard, pid, again, heard_again = told(
        tmp_path,
        """
def main():
    multiprocessing.set_forkserver_preload(["users"])
    samples, heard = said(facts)
    again, heard_again = said(facts)
    return samples, heard, forkserver._forkserver._forkserver_pid, again, heard_again
""",
        users=once,
    )
    assert {sample[0] for sample in samples + again} == {pid}
    assert [sample[4] for sample in samples] == [sample[4] for sample in again]
    (words,) = heard
    assert "(users)" in words
    assert heard_again == []


def test_a_server_that_was_killed_between_loaders_is_started_again(tmp_path):
    first, second = told(
        tmp_path,
        """
def main():
    first = facts()
    os.kill(first[0][0], 9)
    while os.waitid(os.P_PID, first[0][0], os.WEXITED | os.WNOWAIT) is None:
        pass
    return first, facts()
""",
    )
    assert {sample[0] for sample in first}.isdisjoint(sample[0] for sample in second)
    assert [sample[4] for sample in first] == [sample[4] for sample in second]


@pytest.mark.thorough
def test_a_process_that_the_user_forks_has_a_server_of_its_own(tmp_path):
    parents, childs, again = told(
        tmp_path,
        """
def child(end):
    end.send(facts())

def main():
    parents = facts()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs,))
    process.start()
    childs = ours.recv()
    process.join()
    return parents, childs, facts()
""",
    )
    assert {sample[0] for sample in parents} == {sample[0] for sample in again}
    assert {sample[0] for sample in childs}.isdisjoint(sample[0] for sample in parents)
    assert [sample[4] for sample in childs] == [sample[4] for sample in parents]


def test_a_context_of_the_users_own_is_left_alone(tmp_path):
    samples, pid = told(
        tmp_path,
        """
class Context(type(multiprocessing.get_context("forkserver"))):
    pass

def main():
    loader = fastload.DataLoader(Facts(), 8, num_workers=1, multiprocessing_context=Context(), collate_fn=list)
    return next(iter(loader)), forkserver._forkserver._forkserver_pid
""",
    )
    assert {sample[0] for sample in samples} == {pid}
