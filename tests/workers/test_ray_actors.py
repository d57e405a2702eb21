"""How actors are made, called and ended, with a Ray that only notes what it is asked for."""

from __future__ import annotations

import pickle
import queue
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from test_ray_assignment import item

from fastload.buffers.layout import learn
from fastload.buffers.slots import MemoryFile
from fastload.workers.ray import actors
from fastload.workers.ray.actor import Started
from fastload.workers.ray.assignment import RemoteTask, Worker
from fastload.workers.ray.options import Options


class Method:
    """A method of an actor: its calls are noted, and end when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.futures: list[Future[Any]] = []
        self.called: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        """The same futures, to wait for."""

    def remote(self, *arguments: Any) -> Any:
        future: Future[Any] = Future()
        self.calls.append(arguments)
        self.futures.append(future)
        self.called.put(future)
        return SimpleNamespace(future=lambda: future)


class FakeRay:
    def __init__(self) -> None:
        self.made: list[Any] = []
        self.new: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """The same, to wait for."""
        self.killed: list[Any] = []
        self.may_make = threading.Event()
        self.may_make.set()
        self.is_making = threading.Event()
        self.meanwhile: Callable[[], None] | None = None

    def put(self, value: Any) -> Any:
        return value

    def is_initialized(self) -> bool:
        return True

    def remote(self, kind: type) -> Any:
        def make() -> Any:
            self.is_making.set()
            assert self.may_make.wait(60)
            if self.meanwhile is not None:
                self.meanwhile()
            made = SimpleNamespace(start=Method(), run=Method(), answer=Method(), try_samples=Method())
            self.made.append(made)
            self.new.put(made)
            return made

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=make))

    def kill(self, handle: Any) -> None:
        self.killed.append(handle)


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay()


def actors_of(ray: FakeRay, memory: MemoryFile | None = None) -> tuple[actors.Actors, Any]:
    calls: Any = queue.SimpleQueue()
    options = Options(compare_nodes=False)
    return actors.Actors(SimpleNamespace(ray=ray, check_open=lambda: None), memory, b"job", options, calls), calls  # type: ignore[arg-type]


def test_nothing_is_made_after_close(ray):
    made, _ = actors_of(ray)
    made.create(Worker(0))
    made.close()
    made.create(Worker(0))
    made.run(Worker(0), RemoteTask(item(1)), 0, None)
    made.ask(Worker(0))
    assert ray.killed == ray.made
    assert len(ray.made) == 1
    assert ray.made[0].run.calls == ray.made[0].answer.calls == []


def test_an_actor_that_is_being_made_while_all_are_ended_is_ended_too(ray):
    made, _ = actors_of(ray)
    ray.may_make.clear()
    creating = threading.Thread(target=made.create, args=(Worker(0),))
    creating.start()
    assert ray.is_making.wait(60)
    closing = threading.Thread(target=made.close)
    closing.start()
    ray.may_make.set()
    creating.join(60)
    closing.join(60)
    assert ray.killed == ray.made
    assert len(ray.made) == 1


def test_an_actor_is_ended_that_is_being_made_while_its_own_thread_ends_all(ray):
    made, _ = actors_of(ray)
    ray.meanwhile = made.close  # as when a pool that was dropped is collected just then
    made.create(Worker(0))
    assert ray.killed == ray.made
    assert len(ray.made) == 1


def test_a_call_is_told_with_its_worker_and_an_actor_that_was_replaced_is_not_current(ray):
    made, calls = actors_of(ray)
    worker, task = Worker(3), RemoteTask(item(1))
    made.create(worker)
    made.run(worker, task, 0, None)
    ray.made[0].run.futures[0].set_result(b"done")
    call = calls.get(timeout=60)
    assert (call.worker, call.task, call.future.result()) == (worker, task, b"done")
    assert made.is_current(call)
    made.end(worker)
    assert not made.is_current(call)
    made.create(worker)
    assert not made.is_current(call)
    assert (ray.killed, len(ray.made)) == (ray.made[:1], 2)


def test_each_actor_gets_a_layout_once_and_those_that_share_memory_never(ray):
    made, _ = actors_of(ray)
    layout = learn([1.5])
    worker = Worker(0)

    def told() -> list[bytes]:
        return [pickle.loads(message)[1] for (message,) in ray.made[-1].run.calls]

    made.create(worker)
    for generation in (1, 1, 2):
        made.run(worker, RemoteTask(item(generation)), generation, layout)
    assert [pickle.loads(one) if one else None for one in told()] == [layout, None, layout]
    made.end(worker)
    made.create(worker)
    made.run(worker, RemoteTask(item(4)), 1, layout)
    assert [pickle.loads(one) for one in told()] == [layout]
    worker.shares_memory = True
    made.run(worker, RemoteTask(item(5)), 1, None)
    assert pickle.loads(ray.made[-1].run.calls[-1][0]) == tuple(item(5))


@pytest.mark.parametrize("all_at_once", [True, False])
def test_an_actor_that_writes_to_our_memory_has_ended_when_it_is_said_to_have(ray, monkeypatch, all_at_once):
    monkeypatch.setattr(actors, "_GRACE_S", 0.3)  # this Ray does not end it
    made, calls = actors_of(ray, MemoryFile())
    worker = Worker(0)
    made.create(worker)
    with subprocess.Popen(["sleep", "600"]) as process:
        ray.made[0].start.futures[0].set_result(Started("here", "node", process.pid, True, [], None))
        made.watch(calls.get(timeout=60), process.pid)
        made.close() if all_at_once else made.end(worker)
        assert process.wait(60) == -9


def test_a_process_that_has_ended_before_it_is_watched_is_an_error(ray):
    made, calls = actors_of(ray, MemoryFile())
    made.create(Worker(0))
    with subprocess.Popen(["true"]) as process:
        process.wait()
    ray.made[0].start.futures[0].set_result(None)
    with pytest.raises(ProcessLookupError):
        made.watch(calls.get(timeout=60), process.pid)
