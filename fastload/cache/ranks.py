"""One store in memory for all ranks of a user's run on a machine.

One rank makes it, and hands it to the others over an abstract socket, as a descriptor. Nothing of it has a name in the
file system, so nothing is left when processes end, however they do. Linux only.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable

from .store import Store

WAIT_S = 30.0
"""Seconds that a rank waits for local rank 0, from when its first loader with a cache is iterated."""
_ANSWER_S = 5.0  # for what takes milliseconds
_RETRY_S = 0.05  # there is no way to be woken by a name that comes to be
_MOST_BYTES = 1 << 14
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group
_NAMED_BY = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


def count() -> int:
    """Return how many ranks of this run are on this machine, as torchrun says; 1 without it."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(number), 1) if number.isdecimal() else 1


def words_of_run() -> list[str] | None:
    """Return what the ranks of this run have in common, for :func:`name_by`; None: they have nothing here."""
    if count() == 1 or not os.environ.get("LOCAL_RANK") or not os.environ.get("MASTER_PORT"):
        return None
    return [os.environ.get(variable, "") for variable in _NAMED_BY]


def name_by(words: Iterable[str]) -> str:
    """Return the abstract name of this user's socket by words."""
    text = "\n".join([str(os.getuid()), *words])
    return "\0fastload-cache-" + hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def is_first() -> bool:
    """Return whether this is local rank 0."""
    return os.environ.get("LOCAL_RANK") == "0"


def listening(name: str) -> socket.socket | None:
    """Return a socket that has this name, and answers nobody yet; None: another process has the name."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(name)
    except OSError:
        listener.close()
        return None
    return listener


def user_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end, as the kernel has it."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])


class Server:
    """Hands a store to the processes of this user that ask for it, until it is closed.

    A thread does that, which ends with the process, and is not in processes that it forks.

    Args:
        listener: of :func:`listening`; it belongs to this object then.
        store: what is handed over.
        asked: what this rank asked for.
    """

    def __init__(self, listener: socket.socket, store: Store, asked: str) -> None:
        self._listener = listener
        listener.listen(128)
        message = json.dumps({"asked": asked, "size": store.size}).encode()
        self._thread = threading.Thread(
            target=_serve, args=(listener, store, message), name="fastload-cache", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread, and wait for that: milliseconds."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def close_in_child(self) -> None:
        """Let go of the socket in a process that was just forked: it would keep the name beyond its parent's end."""
        self._listener.close()


def _serve(listener: socket.socket, store: Store, message: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except ConnectionAbortedError:
            continue
        except OSError:  # closed; or there are no descriptors: then the others wait in vain, and say so
            return
        with connection:
            try:
                connection.settimeout(_ANSWER_S)
                if user_of(connection) == os.getuid():
                    socket.send_fds(connection, [message], [store.file])
            except OSError:  # the other end has gone
                continue


def take(name: str, wait_s: float) -> tuple[Store, str] | str:
    """Return the store of this name's process, and what that asked for; or why there is none, as a clause.

    Args:
        name: of :func:`name_by`.
        wait_s: seconds to wait at most.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            return _take(name)
        except OSError:  # nobody has the name yet, or its process was killed just now
            if time.monotonic() > until:
                return f"local rank 0 has handed over none within {wait_s:g} s"
            time.sleep(_RETRY_S)


def _take(name: str) -> tuple[Store, str] | str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_ANSWER_S)
        connection.connect(name)
        if user_of(connection) != os.getuid():
            return "another user's process has the name of this run's socket"
        message, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        if not files:
            raise ConnectionResetError
        said = json.loads(message)
        return Store(said["size"], files[0]), said["asked"]
