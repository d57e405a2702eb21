"""Messages between the user's process and its workers; the workers here are threads, or forks where that matters."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastload.workers.pipes import Pipes
from fastload.workers.transport import MAX_PACKET, Packets, use_packets

Transport = Packets | Pipes
needs_packets = pytest.mark.skipif(not hasattr(socket, "SOCK_SEQPACKET"), reason="packets are Linux's")
MAKERS: dict[str, Callable[[int], Transport]] = {
    "shared packets": lambda num_workers: Packets(num_workers, shared=True),
    "packets": lambda num_workers: Packets(num_workers, shared=False),
    "pipes": lambda num_workers: Pipes(num_workers, multiprocessing.get_context("fork")),
}
each_transport = pytest.mark.parametrize(
    "name", ["pipes", *(pytest.param(name, marks=needs_packets) for name in ("shared packets", "packets"))]
)


def _as_if_inherited(endpoint: Any) -> Any:
    """Return an endpoint over a descriptor of its own, as a process gets it."""
    end = endpoint.end
    copy = end.dup() if isinstance(end, socket.socket) else type(end)(os.dup(end.fileno()))
    return type(endpoint)(copy)


class Team:
    """Worker threads that answer each message with what ``answer(worker_id, message)`` returns."""

    def __init__(self, transport: Transport, num_workers: int, answer: Callable[[int, bytes], bytes]) -> None:
        self.endpoints: list[Any] = [
            _as_if_inherited(transport.endpoint(worker_id)) for worker_id in range(num_workers)
        ]
        for worker_id in range(num_workers):
            transport.started(worker_id)
        self._answer = answer
        self._threads = [
            threading.Thread(target=self._live, args=(endpoint, worker_id), daemon=True)
            for worker_id, endpoint in enumerate(self.endpoints)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _live(self, endpoint: Any, worker_id: int) -> None:
        while (message := endpoint.receive()) is not None:
            endpoint.send(self._answer(worker_id, bytes(message)))

    def join(self) -> None:
        """Wait for the threads' ends, which closing the transport must have brought about."""
        started = [thread for thread in self._threads if thread.ident is not None]
        for thread in started:
            thread.join(10.0)
        for endpoint in self.endpoints:
            endpoint.end.close()
        assert not [thread for thread in started if thread.is_alive()], "workers were not told of the end"


Start = Callable[..., tuple[Transport, Team]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Make a transport with its team; both are ended after the test."""
    made: list[tuple[Transport, Team]] = []

    def make(
        name: str,
        num_workers: int = 1,
        answer: Callable[[int, bytes], bytes] = lambda _, message: message,
        begin: bool = False,
    ) -> tuple[Transport, Team]:
        transport = MAKERS[name](num_workers)
        made.append((transport, Team(transport, num_workers, answer)))
        if begin:
            made[-1][1].start()
        return made[-1]

    yield make
    for transport, team in made:
        for _ in range(2):
            transport.close()
        team.join()


def send_all(transport: Transport, messages: list[bytes]) -> list[bytes]:
    for message in messages:
        transport.send(message, None)
    return messages


def received(transport: Transport, count: int) -> list[bytes]:
    """Receive so many messages, waiting as delivery does."""
    found: list[bytes] = []
    while len(found) < count:
        message = transport.receive()
        if message is None:
            transport.wait([], None)
        else:
            found.append(bytes(message))
    return found


# A worker may take long to start, or hang in worker_init_fn: timeout= and Ctrl-C must still work then.
@each_transport
@pytest.mark.parametrize(("number", "size"), [(3000, 3000), (1, 20_000_000)], ids=["many", "large"])
def test_sending_never_waits_for_a_reader_nor_does_closing(start, name, number, size):
    """Of more than any buffer of the system, and for workers that are held up by their own answers meanwhile."""
    if number == 1 and name != "pipes":
        pytest.skip("packets are small: what is larger lies in memory")
    transport, team = start(name, answer=lambda _, message: message + bytes(8000))
    messages = [b"%05d" % i + bytes(size) for i in range(number)]
    sender = threading.Thread(target=send_all, args=(transport, messages), daemon=True)
    sender.start()
    sender.join(20.0)
    assert not sender.is_alive()
    assert transport.receive() is None
    assert transport.wait([], 0) == []
    team.start()  # nobody has read until now
    assert [message[:5] for message in received(transport, number)] == [message[:5] for message in messages]
    other, team = start(name)
    send_all(other, messages)  # which are there still when it is closed
    gone, team = start(name, num_workers=2)
    for endpoint in team.endpoints:
        endpoint.end.close()
    for i in range(20):
        gone.send(b"message", i % 2)
    assert gone.receive() is None


@each_transport
def test_a_busy_worker_does_not_keep_the_others_from_working(start, name):
    released = threading.Event()

    def answer(worker_id: int, message: bytes) -> bytes:
        if message == b"hold":
            released.wait()
        return message

    transport, _ = start(name, num_workers=2, answer=answer, begin=True)
    assigned = name == "packets"
    transport.send(b"hold", 0 if assigned else None)
    for _ in range(100):
        transport.send(b"quick", 1 if assigned else None)
    # Pipes give a worker a second message ahead of time, and it may be the busy one.
    found = received(transport, 100 if name != "pipes" else 99)
    assert set(found) == {b"quick"}
    released.set()
    assert b"hold" in received(transport, 101 - len(found))


@pytest.mark.parametrize(
    ("wish", "available", "expected"),
    [
        ("", True, True),
        ("pipes", True, False),
        ("", False, False),
        ("sockets", True, ValueError),
    ],
)
@pytest.mark.parametrize("missing", ["memfd_create", "SOCK_SEQPACKET"])
def test_the_environment_and_the_system_choose_the_transport(monkeypatch, wish, available, expected, missing):
    monkeypatch.setenv("FASTLOAD_TRANSPORT", wish)
    monkeypatch.setattr(os, "memfd_create", lambda *_: -1, raising=False)
    monkeypatch.setattr(socket, "SOCK_SEQPACKET", 5, raising=False)
    if not available:
        monkeypatch.delattr(os if missing == "memfd_create" else socket, missing)
    if isinstance(expected, bool):
        assert use_packets() is expected
    else:
        with pytest.raises(ValueError, match="FASTLOAD_TRANSPORT"):
            use_packets()


def _answer(endpoint: Any, foreign: list[Any], number: int) -> None:
    for end in foreign:
        end.close()
    while number and (message := endpoint.receive()) is not None:
        endpoint.send(bytes(message))
        number -= 1


@each_transport
@pytest.mark.parametrize("ended_by", ["closing", "itself"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
def test_forked_workers_end_though_others_hold_copies_and_all_that_they_sent_arrives(name, ended_by):
    transport = MAKERS[name](1)
    endpoint = transport.endpoint(0)
    number = 2 if ended_by == "itself" else -1
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=_answer, args=(endpoint, transport.inherited(), number))
    worker.start()
    transport.started(0)
    hears, tells = os.pipe()
    stranger = os.fork()  # has a copy of the user's ends, as any process forked meanwhile has
    if stranger == 0:
        os.close(tells)
        os.read(hears, 1)
        os._exit(0)
    messages = send_all(transport, [b"first", os.urandom(MAX_PACKET)])
    if ended_by == "itself":
        while transport.wait([worker.sentinel], None) != [worker.sentinel]:
            pass
    assert received(transport, 2) == messages
    assert transport.receive() is None
    transport.close()
    worker.join()
    assert worker.exitcode == 0
    worker.close()
    os.close(hears)
    os.close(tells)
    assert os.waitpid(stranger, 0)[1] == 0


@needs_packets
def test_workers_wait_without_end_whatever_the_default_timeout_of_sockets():
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.05)
    try:
        transport = Packets(1, shared=True)
        endpoint = transport.endpoint(0)
        inherited = _as_if_inherited(endpoint)
        assert (endpoint.end.gettimeout(), inherited.end.gettimeout()) == (None, None)
        inherited.end.close()
        transport.close()
    finally:
        socket.setdefaulttimeout(before)
