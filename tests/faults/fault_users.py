"""Users' processes that may die: they are killed, interrupted, run out of descriptors, or simply end.

``Launcher`` starts one interpreter that has imported everything, and forks it for each user. The user's process runs
one of the stories of fault_stories.py at the top level of its ``__main__``, and then ends as any script does, so it
passes through the whole of an interpreter's exit. What it has to tell comes through a pipe, a line of JSON each time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from processes import SOON_S, alive, wait_gone

HERE = Path(__file__).parent


@dataclasses.dataclass
class User:
    """A user's process."""

    pid: int
    told: int
    """Where its lines arrive."""
    stderr_path: Path
    launcher: Launcher
    lines: bytes = b""
    left: int | None = None
    workers: list[int] = dataclasses.field(default_factory=list)
    """Process ids that it has told of, by ``{"workers": [...]}``."""

    def hears(self, within: float = 2 * SOON_S) -> Any:
        """Block until it tells something; returns that."""
        deadline = time.monotonic() + within
        while b"\n" not in self.lines:
            assert select.select([self.told], [], [], max(0.0, deadline - time.monotonic()))[0], (
                f"nothing heard of the user; its stderr: {self.stderr()}"
            )
            more = os.read(self.told, 1 << 16)
            assert more, f"the user ended without a word; its stderr: {self.stderr()}"
            self.lines += more
        line, _, self.lines = self.lines.partition(b"\n")
        message = json.loads(line)
        if isinstance(message, dict) and "workers" in message:
            self.workers += message["workers"]
        return message

    def comes_to(self, word: str) -> None:
        """Block until it tells this word."""
        while self.hears() != word:
            pass

    def ends_as(self, code: int, within: float = 2 * SOON_S) -> None:
        """Block until it has ended, with this exit code or by minus this signal, and check that nothing is left."""
        assert self.ends(within) == code, self.stderr()
        self.nothing_is_left()

    def interrupt(self) -> None:
        """What Ctrl-C does: SIGINT to every process of the group."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self, sent: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, sent)

    def ends(self, within: float = 2 * SOON_S) -> int:
        """Block until it has ended; returns its exit code, or minus the signal."""
        if self.left is None:
            self.left = self.launcher.wait(self.pid, within)
        return self.left

    def nothing_is_left(self, within: float = 20.0) -> None:
        """Block until neither it nor any process of its group lives; and check that it made no shared files."""
        wait_gone([self.pid, *self.workers, *_group(self.pid)], within)
        makers = tuple(f"torch_{pid}_" for pid in (self.pid, *self.workers))
        files = [name for name in os.listdir("/dev/shm") if name.startswith(makers)]
        assert not files

    def stderr(self) -> str:
        return self.stderr_path.read_text(errors="replace")


class Launcher:
    """Starts users' processes.

    Args:
        folder: for their pipes and their stderr.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._users: list[User] = []
        self._count = 0
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(HERE / "fault_script.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # One thread each, and no word about the number of cores: the stories' stderr is looked at.
            env=os.environ
            | {
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
                "PYTHONWARNINGS": "ignore:This DataLoader will create:UserWarning",
            },
        )

    def start(self, story: str, *, transport: str = "", **options: Any) -> User:
        """Start a process that runs ``fault_stories.<story>(tell, **options)``."""
        if self._process.poll() is not None:
            self._process = self._begin()
        self._count += 1
        told_path = self._folder / f"told-{self._count}"
        os.mkfifo(told_path)
        told = os.open(told_path, os.O_RDONLY | os.O_NONBLOCK)
        stderr_path = self._folder / f"stderr-{self._count}"
        pid = self._ask(
            start=story,
            options=options,
            transport=transport,
            told=str(told_path),
            stderr=str(stderr_path),
        )
        user = User(pid, told, stderr_path, self)
        self._users.append(user)
        return user

    def wait(self, pid: int, within: float) -> int:
        """Block until a user's process has ended; returns its exit code, or minus the signal."""
        deadline = time.monotonic() + within
        while (code := self._ask(poll=pid)) is None:
            assert time.monotonic() < deadline, f"the user's process still lives after {within} s"
            time.sleep(0.02)
        return code

    def _ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end_all(self) -> None:
        """Kill what a test has left of its users."""
        for user in self._users:
            for pid in (user.pid, *_group(user.pid)):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
            user.ends()
            os.close(user.told)
        self._users.clear()

    def close(self) -> None:
        self._process.communicate()


def _group(leader: int) -> list[int]:
    """Return the processes of a group."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == leader:
                found.append(int(entry))
    return found
