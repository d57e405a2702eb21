"""A script or program as the child of a command: it gets the command's signals, and does not outlive it.

NOTE [Signals of a command]
Ctrl-C comes from the terminal to every process in its foreground, so to the script too, and a second one could disturb
what it does at the first. A SIGINT that a process sends may be for the command alone, and is passed on. The kernel says
which of them it was, but not to a handler: hence signals are blocked and waited for. The child is killed by the kernel
when the command ends, however it ends. Both is Linux's; elsewhere only SIGTERM is passed on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

_PR_SET_PDEATHSIG = 1  # from Linux's sys/prctl.h
# How often a child is looked at whose end is not told.
_LOOK_AGAIN_S = 0.2


def exit_status(status: int) -> int:
    """Return an exit status as shells have it, from one as ``subprocess`` has it."""
    return 128 - status if status < 0 else status


class Child:
    """A program, given by its words, as a child, for a ``with`` statement in the main thread; it has ended at its end.

    ``options`` are those of ``subprocess.Popen``.
    """

    def __init__(self, program: Sequence[str], **options: Any) -> None:
        self.signal = 0
        """The signal that this process has got; 0: none."""
        self._program = program
        self._options = options
        self._signals = {one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) != signal.SIG_IGN}
        self._handlers: list[tuple[signal.Signals, Any]] = []

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*self._signals, signal.SIGCHLD})
            parent, libc = os.getpid(), ctypes.CDLL(None)

            def begin() -> None:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:  # it has ended before
                    os._exit(1)
                signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

            self._options["preexec_fn"] = begin  # a command has no threads
        try:
            self.process = subprocess.Popen(self._program, **self._options)
        except BaseException:
            self._restore()
            raise
        if sys.platform != "linux":
            self._handlers = [(one, signal.signal(one, self._pass_on)) for one in self._signals]
        return self

    def __exit__(self, *_: object) -> None:
        while self.wait(60.0) is None:
            pass
        self._restore()

    def _restore(self) -> None:
        if sys.platform == "linux":
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._handlers:
            signal.signal(number, handler)

    def wait(self, seconds: float) -> int | None:
        """Wait for the child; return its exit status, as ``subprocess`` has it, or None when the time is over."""
        deadline = time.monotonic() + seconds
        while (status := self.process.poll()) is None and (left := deadline - time.monotonic()) > 0:
            if sys.platform == "linux":
                got = signal.sigtimedwait({*self._signals, signal.SIGCHLD}, min(left, _LOOK_AGAIN_S))
                if got is not None and got.si_signo != signal.SIGCHLD:
                    self.signal = got.si_signo
                    if got.si_signo != signal.SIGINT or got.si_code <= 0:  # above: the kernel's, for the terminal
                        self.process.send_signal(got.si_signo)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(min(left, _LOOK_AGAIN_S))
        return status

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        if number != signal.SIGINT:
            self.process.send_signal(number)
