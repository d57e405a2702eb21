"""A signal to any process of a command: its status, its words, and nothing left of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import SOON_S, wait_gone
from shared_files import files_of_this_process

SCRIPT = """
import os, sys, time, torch
from torch.utils.data import DataLoader

FOLDER = os.path.dirname(os.path.abspath(__file__))

def tell(name):
    unfinished = os.path.join(FOLDER, f"{name}.{os.getpid()}")
    with open(unfinished, "w") as file:
        file.write(str(os.getpid()))
    os.replace(unfinished, os.path.join(FOLDER, name))

class Slow:
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        worker = torch.utils.data.get_worker_info()
        if worker is not None and os.getpid() != SCRIPT:
            tell("worker")
        time.sleep(0.004)
        return torch.tensor(index)

SCRIPT = os.getpid()
tell("script")
while "hang" in sys.argv:
    time.sleep(0.05)  # of a signal that comes just before a sleep begins, Python hears when that ends
kind = {"worker_method": "thread"} if "thread" in sys.argv else {}
if kind:
    from fastload import DataLoader
loader = DataLoader(Slow(), batch_size=4, num_workers=2, **kind)
while True:
    for place, batch in enumerate(loader):
        if place == 4:
            tell("training")
"""

VERBS = {
    "tune": ["tune", "--seconds", "60"],
    "verify": ["verify", "--seed", "1", "--batches", "60"],
    "explain": ["explain"],
    "profile": ["profile", "--full", "--out", "recording"],
    "run": ["run"],
    "script": [],
}


@dataclass
class Command:
    """A command that runs, and what it has said."""

    verb: str
    process: subprocess.Popen[str]
    folder: Path
    temporary: str
    token: str

    def pid_of(self, who: str) -> int:
        """Block until a process is there; return its number."""
        if who == "command":
            return self.process.pid
        path, deadline = self.folder / who, time.monotonic() + 2 * SOON_S  # it imports torch
        while not path.exists():
            assert time.monotonic() < deadline, f"no {who}"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)
        return int(path.read_text())

    def ends(self) -> tuple[int, str, str]:
        """Block until it has ended; return its status, and what it has written."""
        status = self.process.wait(2 * SOON_S)
        return status, (self.folder / "stdout").read_text(), (self.folder / "stderr").read_text()

    def nothing_is_left(self) -> None:
        """Block until none of its processes lives; check that none of its files is left."""
        # A process that is killed leaves multiprocessing's folder, where a loader is torch's own, as in one check of
        # verify.
        theirs = ("pymp-",) if self.verb in ("profile", "script", "verify") else ()
        wait_gone(self.processes())
        assert [name for name in os.listdir(self.temporary) if not name.startswith(theirs)] == []

    def processes(self) -> list[int]:
        """Return the processes that descend from it, by what they have in their environment."""
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and self.token.encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
        return found


Begin = Callable[..., Command]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start commands, of which the test leaves nothing."""
    before = files_of_this_process()
    temporary = tempfile.mkdtemp(prefix="fastload-")  # short: names of sockets are at most 107 characters
    (tmp_path / "train.py").write_text(SCRIPT)
    started: list[Command] = []

    def start(verb: str, *arguments: str, options: tuple[str, ...] = ()) -> Command:
        token = str(uuid.uuid4())
        words = ["-m", "fastload.cli", *VERBS[verb], *options] if VERBS[verb] else []
        with (tmp_path / "stdout").open("w") as output, (tmp_path / "stderr").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, *words, "train.py", *arguments],
                cwd=tmp_path,
                env={**os.environ, "FASTLOAD_TEST_TOKEN": token, "TMPDIR": temporary},
                text=True,
                stdout=output,
                stderr=errors,
            )
        started.append(Command(verb, process, tmp_path, temporary, token))
        return started[-1]

    yield start
    for command in started:
        for pid in command.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.process.wait()
    shutil.rmtree(temporary)
    assert files_of_this_process() == before


INTERRUPTS = [signal.SIGINT, signal.SIGTERM]


def test_an_interrupt_raises_once_and_is_raised_again_where_it_was_lost() -> None:
    from fastload.base.interrupts import Interrupted, raise_if_interrupted, signals_raised

    before = [signal.getsignal(number) for number in INTERRUPTS]
    for number in INTERRUPTS:
        with signals_raised():
            raise_if_interrupted()
            with pytest.raises(Interrupted) as caught:
                signal.raise_signal(number)
            assert caught.value.number == number
            signal.raise_signal(number)  # the terminal's and the command's are one
            with pytest.raises(Interrupted):
                raise_if_interrupted()
        raise_if_interrupted()
    assert [signal.getsignal(number) for number in INTERRUPTS] == before


def test_a_result_file_lets_the_first_one_act_and_is_gone_with_its_owner() -> None:
    from fastload.run.result_file import has_begun, may_act, read_result, result_file, write_result

    with result_file() as path:
        assert not has_begun(path)
        child = os.fork()
        if not child:
            may = may_act(path)
            write_result(path, [3, "words"])
            os._exit(0 if may else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert has_begun(path)
        assert not may_act(path)
        assert read_result(path) == [3, "words"]
    assert not os.path.exists(path)
    assert not may_act(path)


@pytest.mark.slow
@pytest.mark.parametrize(("who", "number"), list(zip(("command", "script"), INTERRUPTS, strict=True)))
@pytest.mark.parametrize("verb", ["tune", "verify", "profile", "run", "script"])
def test_an_interrupted_command_says_so_and_leaves_nothing(begin, verb, who, number):
    command = begin(verb, options=("--json", "found.json") if verb == "tune" else ())
    trains = verb in ("profile", "run", "script")
    command.pid_of("training" if trains else "worker")
    time.sleep(0.5)
    os.kill(command.pid_of(who), number)
    status, output, errors = command.ends()
    if verb in ("run", "script"):
        assert status == -number, errors
    else:
        assert status == 128 + number, errors
    if verb == "profile":
        assert errors.endswith("page: recording/profile.html\n")
    elif not trains:
        assert errors.endswith(f"fastload {verb}: interrupted\n"), errors
        assert "Traceback" not in errors
    if verb == "tune":  # it shows what it has measured
        assert "nothing is recommended: interrupted before the last comparison" in output
        assert f'"interrupted": {int(number)}' in (command.folder / "found.json").read_text()
    if verb == "verify":
        assert re.search(r"interrupted: \d+ equal, the other checks were not made", output)
    command.nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "number"), [("tune", signal.SIGINT), ("verify", signal.SIGTERM), ("explain", signal.SIGINT)]
)
def test_a_command_that_is_interrupted_before_the_first_batch_says_so(begin, verb, number):
    command = begin(verb, "hang")
    command.pid_of("script")
    command.process.send_signal(number)
    status, _, errors = command.ends()
    assert status == 128 + number
    assert errors.endswith(f"fastload {verb}: interrupted\n")
    command.nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "kind"), [*((verb, "process") for verb in VERBS), ("tune", "thread"), ("run", "thread")]
)
def test_a_script_ends_with_its_command_that_is_killed(begin: Begin, verb: str, kind: str) -> None:
    command = begin(verb, kind)
    command.pid_of("training" if verb in ("profile", "run", "script") else "script")
    if verb != "explain" and kind == "process":
        command.pid_of("worker")
    command.process.kill()
    command.ends()
    command.nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "status"), [("tune", 1), ("verify", 1), ("profile", 128 + signal.SIGKILL)])
def test_a_script_that_is_killed_is_told_as_it_was(begin: Begin, verb: str, status: int) -> None:
    command = begin(verb)
    # A worker of torch's that begins only when the script has gone takes its new parent for the script, and stays.
    command.pid_of("training" if verb == "profile" else "worker")
    os.kill(command.pid_of("script"), signal.SIGKILL)
    found, _, errors = command.ends()
    assert found == status, errors
    if verb != "profile":
        assert errors.endswith(f"fastload {verb}: train.py ended by SIGKILL while its loader was run\n")
    command.nothing_is_left()
