"""How the ranks of a run meet, before there is a process group: each says that it is there, and whether it can go on.

In: who a process is, and what keeps it from going on, if anything does. Out: a store by which the process group can be
made; or the same end for all ranks, of which one tells. All within a time limit.

The making of a process group waits until its time limit for a rank that has ended, and hears no signal meanwhile. So it
begins when all are there.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from torch.distributed import (  # type: ignore[attr-defined]  # torch does not say that it exports them
    DistError,
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)

from .endings import FAILED, SIGINT_CODE, Ending, tell
from .errors import RunError, UsageError

_LAST_WORDS_S = 10.0
"""How long a rank stays for the others to hear why the run ends."""

_CONNECT_S = 10.0
"""How long a store that is there may take to answer."""


def meet(
    url: str | None,
    rank: int,
    world_size: int,
    limit_s: float,
    ending: Ending | None,
    asked_to_end: Callable[[], Ending | None],
) -> Store:
    """Wait until all ranks are there, and end with all of them if one cannot go on.

    Args:
        url: where the store is: ``tcp://host:port``, ``file:///path``; None: ``env://``, as torchrun says.
        rank: of this process.
        world_size: how many there are.
        limit_s: how long the others are waited for, in seconds.
        ending: why this process cannot go on; None: it can.
        asked_to_end: returns how the run is to end if a signal has come; asked again and again.

    Raises:
        SystemExit: some rank cannot go on, or has not come. Rank 0 has told of it if it is there.
        UsageError: there is no such place to meet.
        RunError: nobody answers there.
    """
    deadline = time.monotonic() + limit_s
    store = _open(url or "env://", rank, world_size, deadline, asked_to_end)
    # torchrun may start all anew, by the same store.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    roll = _Roll(PrefixStore(f"roll/{attempt}", store), rank, world_size)
    try:
        if roll.come() > 1 and (url or "").startswith("file:"):
            raise UsageError(
                f"this rank has been at --init-method {url} before: a run that was killed has left the file, or two "
                "processes have one RANK; remove the file, or take a new name for each run"
            )
        decision = roll.decision(ending, deadline, limit_s, asked_to_end)
        if decision is None:
            return PrefixStore(f"group/{attempt}", store)
        roll.end(decision)
    except KeyboardInterrupt:
        roll.leave()
        raise
    except DistError as error:
        raise RunError(
            f"the store that the ranks meet by is lost ({str(error).splitlines()[0]}): rank 0 has ended"
        ) from None
    sys.exit(decision.code)


class _Roll:
    """Who is there, and what the first who could say so said of the run: that it begins, or how it ends."""

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._expected = world_size
        """How many are to hear of the end."""
        self._is_ready = False

    def come(self) -> int:
        """Say that this rank is there; return how often it has been."""
        return int(self._store.add(f"rank/{self._rank}", 1))

    def decision(
        self, ending: Ending | None, deadline: float, limit_s: float, asked_to_end: Callable[[], Ending | None]
    ) -> Ending | None:
        """Wait until it is decided how the run goes on; return how it ends, or None: it begins."""
        if ending is not None:
            self._decide(ending)
        if self._store.add("here", 1) == self._world_size:
            self._store.set("all are here", "")

        def hear() -> None:
            asked = asked_to_end()
            if asked is not None:
                self._decide(asked)
            # One that came first may have gone since: so each says, when all have come, that it is still there.
            if not self._is_ready and self._store.check(["all are here"]):
                self._is_ready = True
                self._store.set(f"ready/{self._rank}", "")
                if self._store.add("ready", 1) == self._world_size:
                    self._decide(None)

        if not _until(self._is_decided, deadline, hear):
            said = "ready" if self._store.check(["all are here"]) else "rank"
            absent = [rank for rank in range(self._world_size) if not self._store.check([f"{said}/{rank}"])]
            self._expected -= len(absent)
            listed = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
            self._decide(
                Ending(
                    f"rank {listed} of {self._world_size} is not there after {limit_s:g} s: it has ended or was not "
                    "started; see what it wrote, or give a longer --join-timeout",
                    FAILED,
                )
            )
            if not _until(self._is_decided, time.monotonic() + _LAST_WORDS_S):
                raise RunError("a rank has ended in the midst of the meeting; start again")
        decided = json.loads(self._store.get("decision"))
        return None if decided is None else Ending(*decided)

    def end(self, ending: Ending) -> None:
        """Let one rank tell of the end, and stay until the others have heard of it."""
        deadline = time.monotonic() + _LAST_WORDS_S
        if self._rank == 0:
            tell(ending)
            self._store.set("told", "")
            self._store.add("heard", 1)
            # It may be this process that keeps the store; and torchrun ends the others as soon as one has left.
            _until(lambda: self._store.add("heard", 0) >= self._expected, deadline)
            return
        told = False
        with contextlib.suppress(DistError):  # rank 0 keeps the store, and has gone
            told = _until(lambda: self._store.check(["told"]), deadline)
            self._store.add("heard", 1)
        if not told:
            tell(ending)

    def leave(self) -> None:
        """Say, at once, that this rank has been interrupted."""
        with contextlib.suppress(DistError):
            self._decide(Ending(f"rank {self._rank} was stopped by SIGINT", SIGINT_CODE))

    def _decide(self, ending: Ending | None) -> None:
        if self._store.add("decided", 1) == 1:  # the first word counts, for all ranks alike
            self._store.set("decision", json.dumps(ending))

    def _is_decided(self) -> bool:
        return bool(self._store.check(["decision"]))


def _until(there: Callable[[], bool], deadline: float, meanwhile: Callable[[], None] | None = None) -> bool:
    """Ask again and again, less and less often; return whether it came true in time."""
    pause_s = 0.005
    while not there():
        if time.monotonic() >= deadline:
            return False
        if meanwhile is not None:
            meanwhile()
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.25)
    return True


def _open(url: str, rank: int, world_size: int, deadline: float, asked_to_end: Callable[[], Ending | None]) -> Store:
    """Return the store at an address, as torch's own rendezvous does; but a rank 0 that keeps it waits for nobody."""
    try:
        place = urlsplit(url)
        host, port = place.hostname, place.port
        if place.scheme == "env":
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as error:
        raise UsageError(
            f"{world_size} processes need {error.args[0]} in the environment, where rank 0 can be found; start them "
            "by torchrun, or give --init-method"
        ) from None
    except ValueError as error:
        raise UsageError(f"--init-method {url} and MASTER_PORT must name a port ({error}); correct it") from None
    if place.scheme == "file":
        return _open_file(url, Path(place.path), world_size)
    if place.scheme not in ("env", "tcp") or not host or port is None:
        raise UsageError(f"--init-method must be tcp://HOST:PORT or file:///PATH, got {url!r}; correct it")
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun keeps the store, then
    keeps = rank == 0 and not of_agent
    if not keeps:
        _wait_for_port(host, port, deadline, asked_to_end)
    try:
        return TCPStore(
            host,
            port,
            world_size,
            keeps,
            datetime.timedelta(seconds=_CONNECT_S),
            wait_for_workers=False,
            multi_tenant=not of_agent,
        )
    except DistError as error:
        reason = str(error).splitlines()[0]
    done = "open" if keeps else "meet the others at"
    raise RunError(f"it cannot {done} {host}:{port} ({reason}); take another port, or correct that")


def _wait_for_port(host: str, port: int, deadline: float, asked_to_end: Callable[[], Ending | None]) -> None:
    """Wait until somebody listens; torch's store would wait too, but hear no signal, and say much."""
    reason = ""

    def listens() -> bool:
        nonlocal reason
        try:
            socket.create_connection((host, port), timeout=1.0).close()
        except OSError as error:
            reason = error.strerror or str(error)
            return False
        return True

    def hear() -> None:
        ending = asked_to_end()
        if ending is not None:
            tell(ending)
            sys.exit(ending.code)

    if not _until(listens, deadline, hear):
        raise RunError(
            f"there is no rank 0 at {host}:{port} ({reason}): it has ended or was not started; see what it "
            "wrote, or give a longer --join-timeout"
        )


def _open_file(url: str, path: Path, world_size: int) -> Store:
    reason = "its folder is not there"
    if path.parent.is_dir():  # torch would wait for it
        try:
            return FileStore(str(path), world_size)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
    raise UsageError(f"--init-method must be a file that can be written to, got {url!r}: {reason}; correct it")
