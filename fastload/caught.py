"""A script run as it is, up to the loader that it iterates: what starts it, and what happens inside of its processes.

In: the words that start a script, and a variable of its environment. Out: where the script would ask for a batch,
something else is done with the loader, and the script ends. Ranks that it starts ask too: the first process that does
is the one. Imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from .users_line import users_frame

_SECONDS_TO_END = 20.0
"""For a script whose loader was caught: it may catch what ends it, or wait for a process that has ended."""

# What was iterated so far, by identity, so that the N-th loader is found; kept, so that no identity comes twice.
_seen: dict[int, Any] = {}


def run_script(
    program: Sequence[str],
    inject: Callable[[MutableMapping[str, str]], None],
    variable: str,
    wanted: Mapping[str, Any],
    output: int | None = None,
) -> int:
    """Run a script until its loader is caught, or to its end.

    Args:
        program: the words that start it.
        inject: changes an environment as ``fastload run`` does.
        variable: of its environment, which ``inject/sitecustomize.py`` reads.
        wanted: the options that :func:`catch_loader` gets there; ``result`` is the file that what is done there makes.
        output: the descriptor that its standard output goes to; None: this process's.

    Returns:
        Its exit status.
    """
    environment = dict(os.environ)
    inject(environment)
    environment[variable] = json.dumps(wanted)
    sys.stdout.flush()
    with subprocess.Popen(program, env=environment, stdout=output) as process, signals_passed_on(process):
        return _end_of(process, Path(wanted["result"]))


def _end_of(process: subprocess.Popen[bytes], result: Path) -> int:
    """Wait for the script's end, and see to it once there is a result; return its exit status."""
    while not result.exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(1.0)
    interrupt = signal.SIGTERM if os.name == "nt" else signal.SIGINT  # which also ends what it has started
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_SECONDS_TO_END)
    process.send_signal(interrupt)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_SECONDS_TO_END)
    process.kill()
    return process.wait()


def why_not_caught(command: Sequence[str], ended: int, number: int = 1) -> str:
    """Return what to say of a script that ended by itself.

    Args:
        command: as the user has named it: ``["train.py", ...]`` or ``["-m", "module", ...]``.
        ended: its exit status.
        number: of loaders that it was to iterate.
    """
    name = command[1] if command[0] == "-m" else command[0]
    if ended:
        how = f"by signal {-ended}" if ended < 0 else f"with status {ended}"
        return f"{name} ended {how} before it iterated over a loader"
    loaders = "a DataLoader" if number == 1 else f"{number} DataLoaders"
    remedy = "give it arguments that make it train, or name a loader as MODULE:NAME"
    return f"{name} did not iterate over {loaders}; {remedy}"


@contextlib.contextmanager
def signals_passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let a script end as this command is told to; what comes from the keyboard reaches both by itself."""

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = signal.signal(signal.SIGTERM, pass_on), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def catch_loader(
    loader_class: Any, options: Mapping[str, Any], variable: str, act: Callable[[Any], object], number: int = 1
) -> None:
    """In place of the first batch of the loader that the script iterates first (or as the N-th), do something else.

    Args:
        loader_class: :class:`fastload.DataLoader`.
        options: what :func:`run_script` was given as ``wanted``.
        variable: of the environment, that they came in.
        act: what to do with the loader, in one process of the script's; it makes ``options["result"]``.
        number: which loader of a process.
    """
    begin = loader_class._get_iterator

    @functools.wraps(begin)
    def _get_iterator(loader: Any) -> Any:
        if id(loader) not in _seen:
            _seen[id(loader)] = loader
            if len(_seen) == number:
                loader_class._get_iterator = begin
                _act_and_end(loader_class, loader, options["result"], variable, act)
        return begin(loader)

    loader_class._get_iterator = _get_iterator


class MadeLoaders:
    """The loaders that a script makes from now on, with the user's lines that make them.

    Args:
        loader_class: :class:`fastload.DataLoader`.
    """

    def __init__(self, loader_class: Any) -> None:
        self._class = loader_class
        self._made: list[tuple[weakref.ref[Any], str]] = []
        self._initialize = initialize = loader_class.__init__

        @functools.wraps(initialize)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            initialize(loader, *args, **kwargs)
            self._made.append((weakref.ref(loader), _users_line()))

        loader_class.__init__ = init

    def alive(self) -> list[tuple[Any, str]]:
        """Return those that are still there, and stop looking."""
        self._class.__init__ = self._initialize
        return [(loader, place) for reference, place in self._made if (loader := reference()) is not None]


def _users_line() -> str:
    """Return the file and line that is constructing a loader: the user's, else the library's that does it."""
    frame = users_frame()
    if frame is None:
        return ""
    file = frame.f_code.co_filename
    near = os.path.relpath(file)
    return f"{file if near.startswith(os.pardir) else near}:{frame.f_lineno}"


def _act_and_end(loader_class: Any, loader: Any, result: str, variable: str, act: Callable[[Any], object]) -> None:
    # The command's status comes from the result: a script may catch SystemExit. One that goes on to train must not.
    os.environ.pop(variable, None)
    status = 0
    try:
        if _is_first(result):
            act(loader)
    except Exception:  # a mistake of ours: the script may hide it
        traceback.print_exc()
        status = 2
    loader_class._get_iterator = _end_here
    sys.stdout.flush()
    if threading.current_thread() is not threading.main_thread():
        os._exit(status)  # SystemExit would end this thread alone, and the others may wait for its batches
    raise SystemExit(status)


def _is_first(result: str) -> bool:
    """Whether no other process of the script's has come here before."""
    try:
        os.close(os.open(f"{result}.begun", os.O_CREAT | os.O_EXCL))
    except (FileExistsError, FileNotFoundError):  # or the command has ended, and its folder is gone
        return False
    return True


def _end_here(loader: Any) -> Any:
    os._exit(0)  # the result has been written


__all__ = ["MadeLoaders", "catch_loader", "run_script", "signals_passed_on", "why_not_caught"]
