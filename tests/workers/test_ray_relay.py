"""The thread between a pool and actors, with a Ray that does what the test says."""

from __future__ import annotations

import pickle
import queue
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import task

from fastload import ClusterError, WorkerDied
from fastload.buffers.layout import learn
from fastload.buffers.private_memory import PrivateMemory
from fastload.buffers.slots import SlotPool
from fastload.work import Task
from fastload.workers.fetch import Outcome, Result, read_result
from fastload.workers.ray import relay
from fastload.workers.ray.actor import Started
from fastload.workers.ray.options import options_of

PATIENCE_S = 60


def item(task_id: int, **fields: Any) -> Task:
    return task(task_id, slot=task_id)._replace(**fields)


def done(task_id: int, **fields: Any) -> bytes:
    return Result(task_id, 0, Outcome.SKIPPED, None, 5)._replace(**fields).pickled()


class Method:
    """A method of an actor: its calls are noted, and end when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.called: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()

    def remote(self, *arguments: Any) -> Any:
        future: Future[Any] = Future()
        self.calls.append(arguments)
        self.called.put(future)
        return SimpleNamespace(future=lambda: future)

    def next(self) -> Future[Any]:
        """Return the next call, waited for."""
        return self.called.get(timeout=PATIENCE_S)


class FakeRay:
    def __init__(self) -> None:
        self.made: list[Any] = []
        self.killed: list[tuple[Any, bool]] = []
        self.options: dict[str, Any] = {}
        names = (
            "ObjectLostError", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "TaskCancelledError",
        )  # fmt: skip
        actor_error: Any = type("RayActorError", (Exception,), {})
        kinds = {name: type(name, (Exception,), {}) for name in names} | {"RayActorError": actor_error}
        for name in ("ActorDiedError", "ActorUnavailableError"):
            kinds[name] = type(name, (actor_error,), {})
        self.exceptions: Any = SimpleNamespace(**kinds)

    def put(self, value: Any) -> Any:
        return value

    def is_initialized(self) -> bool:
        return True

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=self._options)

    def _options(self, **options: Any) -> Any:
        self.options = options
        return SimpleNamespace(remote=self.make)

    def make(self, worker_id: int, packed_job: Any) -> Any:
        self.made.append(SimpleNamespace(started=Method(), run=Method()))
        return self.made[-1]

    def kill(self, handle: Any, no_restart: bool = True) -> None:
        self.killed.append((handle, no_restart))


class FakeCluster:
    head_is_gone = False
    head_error: ClusterError | None = None

    def __init__(self) -> None:
        self.ray: Any = FakeRay()

    def check_open(self) -> None:
        return

    def check_head(self) -> None:
        if self.head_error is not None:
            self.head_is_gone = True
            raise self.head_error


class Running:
    """A relay, with what is at its ends."""

    def __init__(self, number: int = 1, *, assigned: bool = False, **options: Any) -> None:
        self.assigned = assigned
        self.cluster, self.slots = FakeCluster(), SlotPool(PrivateMemory(), keep=1)
        self.errors = self.cluster.ray.exceptions
        given: Any = self.cluster, self.slots, b"job", options_of(options)
        self.relay = relay.RayPool(*given, number, assigned=assigned)
        self.actors = self.cluster.ray.made

    def start(self, number: int) -> Any:
        """Let an actor say that it has started; return it."""
        self.actors[number].started.next().set_result(Started(f"machine {number}", None))
        return self.actors[number]

    def add(self, task_id: int, worker_id: int | None = None, **fields: Any) -> None:
        task = item(task_id, **fields)
        self.relay.submit(task, worker_id)

    def told(self) -> Any:
        """Return what the pool is told next, waited for."""
        return self.relay._told.get(timeout=PATIENCE_S)


@pytest.fixture
def running(request) -> Iterator[Running]:
    made = Running(**getattr(request, "param", {}))
    yield made
    made.relay.close()


def of(*parameters: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("running", parameters, indirect=True, ids=str)


def tasks_of(actor: Any) -> list[int]:
    return [pickle.loads(call[1])[0] for call in actor.run.calls]


def test_a_task_goes_to_an_actor_and_its_result_to_the_pool(running):
    running.add(5)
    actor = running.start(0)
    actor.run.next().set_result(done(5))
    assert running.told()[:3] == (5, 0, Outcome.SKIPPED)
    assert running.relay.workers[0].tasks == {}
    assert running.relay.remote() == {"workers": 1, "tasks": 1, "lost": 0, "made_again": 0, "bytes": len(done(5))}
    assert running.cluster.ray.options == {"max_restarts": -1, "num_cpus": 1}


def test_tasks_of_an_iteration_that_is_over_come_back_undone(running):
    running.start(0)
    running.relay.begin(1)
    running.add(5)
    assert running.told()[:3] == (5, 0, Outcome.SKIPPED)


@of({"number": 2, "assigned": True})
def test_where_batches_are_bound_to_workers_none_is_skipped_and_each_gets_its_own(running):
    running.relay.begin(1)  # a stream of random numbers goes on
    for task_id in range(6):
        running.add(task_id, task_id % 2)
    for number, actor in enumerate(running.actors):
        for _ in range(3):
            actor.run.next()
        assert tasks_of(actor) == [number, number + 2, number + 4]


@of({"number": 2})
def test_no_worker_has_more_than_two_tasks_and_the_one_with_fewer_gets_the_next(running):
    first, second = running.start(0), running.start(1)
    for task_id in range(6):
        running.add(task_id)
    futures = [actor.run.next() for _ in range(2) for actor in (first, second)]
    futures[1].set_result(done(1))
    second.run.next()
    assert (tasks_of(first), tasks_of(second)) == ([0, 2], [1, 3, 4])


@pytest.mark.parametrize("own", [False, True])
def test_each_task_of_rows_brings_the_layout_and_rows_come_into_the_slot(running, own):
    layout = learn([np.zeros(4, dtype=np.uint8)])
    running.relay.publish(1, layout)
    actor = running.start(0)
    running.add(5, layout=1, num_rows=3, row=1)
    rows = np.zeros(layout.offsets(1)[1], dtype=np.uint8)
    layout.rows(rows, 1, 0, 1)[0][0][:] = 7
    written = [["an object"]], pickle.PickleBuffer(rows.data)
    fields: dict[str, Any] = {"outcome": Outcome.ROWS, "payload": written}
    if own:
        fields = {"outcome": Outcome.ROWS_NEW_LAYOUT, "payload": (layout, written)}
    future = actor.run.next()
    (generation, encoded), _ = actor.run.calls[0]
    assert (generation, pickle.loads(encoded)) == (1, layout)
    future.set_result(np.frombuffer(done(5, **fields), dtype=np.uint8))
    payload = [["an object"]]
    assert running.told().payload == ((layout, payload) if own else payload)
    size = layout.offsets(3)[1]
    batch = np.frombuffer(running.slots.memory.buffer(5, size), dtype=np.uint8, count=size)
    assert layout.rows(batch, 3, 0, 3)[0][1].tolist() == [7] * 4


@of({"number": 2})
def test_a_lost_task_goes_to_a_worker_that_has_no_other_and_has_answered_since(running):
    first, second = running.start(0), running.start(1)
    running.add(5)
    first.run.next().set_exception(running.errors.ActorUnavailableError("killed"))
    told = running.told()
    assert told.startswith("Ray worker 0 on machine 0 was lost (")
    assert "its 1 task(s) are done again" in told
    answer = second.started.next()
    assert second.run.calls == []
    answer.set_result(Started("machine 1", None))
    second.run.next().set_result(done(5))
    assert running.told().task_id == 5
    assert [running.relay.remote()[name] for name in ("lost", "made_again")] == [1, 1]
    running.start(0)  # Ray has started it again
    running.add(6)
    first.run.next()


@of({"number": 2})
def test_only_the_task_that_a_lost_worker_was_at_is_suspected_and_waits_for_a_worker_without_others(running):
    first, second = running.start(0), running.start(1)
    for task_id in range(4):
        running.add(task_id)
    (at, _), (other, behind) = ([actor.run.next() for _ in range(2)] for actor in (first, second))
    at.set_exception(running.errors.RayActorError())
    assert isinstance(running.told(), str)
    other.set_result(done(1))
    assert running.told().task_id == 1
    assert tasks_of(second) == [1, 3]  # it has room, and is at another
    behind.set_result(done(3))
    for _ in range(2):
        second.run.next()
    assert tasks_of(second) == [1, 3, 0, 2]


def test_what_a_worker_says_of_a_life_that_is_over_is_not_heard(running):
    actor = running.start(0)
    running.add(5)
    running.add(6)
    first, second = actor.run.next(), actor.run.next()
    first.set_exception(running.errors.RayActorError())
    second.set_result(done(6))
    running.told()
    running.start(0)
    actor.run.next().set_result(done(5))
    assert running.told().task_id == 5
    actor.run.next().set_result(done(6))
    assert running.told().task_id == 6


@of({}, {"assigned": True})
@pytest.mark.parametrize("name", ["RayActorError", "TaskCancelledError", "OutOfMemoryError", "ObjectLostError"])
def test_a_worker_or_result_that_is_lost_too_often_or_that_no_other_stands_in_for_is_an_error(running, name):
    assigned = running.assigned
    running.add(5, 0 if assigned else None)
    for _ in range(1 if assigned else 3):
        running.start(0).run.next().set_exception(getattr(running.errors, name)())
    if not assigned:
        assert isinstance(running.told(), str)
    error = running.told()
    assert isinstance(error, WorkerDied)
    assert error.samples == (5,)
    words = "its batches are bound to it" if assigned else "as 2 others were at batch 5 (samples 5)"
    assert words in str(error)


@pytest.mark.parametrize(
    ("error", "words"),
    [("ActorDiedError", r"Ray worker 0 \(not started yet\) cannot start: no such place$"), ("", "same fastload")],
)
def test_a_worker_is_told_to_start_until_it_is_there_or_never_will_be(running, error, words):
    for _ in range(4):
        running.actors[0].started.next().set_exception(running.errors.ActorUnavailableError())
    raised = getattr(running.errors, error, ZeroDivisionError)("no such place")
    running.actors[0].started.next().set_exception(raised)
    assert running.relay.remote()["lost"] == 0
    with pytest.raises(ClusterError, match=words):
        raise running.told()


def test_the_users_error_at_the_start_is_told(running):
    failed = Result(-1, 0, Outcome.FAILED_START, None, 0).pickled()
    running.actors[0].started.next().set_result(Started("machine", failed))
    assert running.told() == read_result(failed)


def test_without_a_head_actors_are_not_ended_by_ray(running):
    running.start(0)
    running.cluster.head_error = ClusterError("the head is gone")
    assert running.told() is running.cluster.head_error
    running.relay.close()
    assert running.cluster.ray.killed == []


@of({"number": 2, "placement_timeout": 0.01}, {"number": 2, "assigned": True, "placement_timeout": 1.0})
def test_where_no_worker_runs_in_time_or_batches_are_bound_to_one_that_does_not_it_is_an_error_with_why(running):
    if running.assigned:
        running.start(0)
    else:
        running.actors[0].started.next().set_exception(running.errors.ActorUnavailableError("killed"))
        running.relay._events.put(lambda: None)
    words = r"^[01] of 2 Ray workers run after .* num_cpus=1.* 'ray status'"
    with pytest.raises(ClusterError, match=words):
        raise running.told()


@of({"number": 3, "placement_timeout": 30})
def test_where_some_run_it_is_one_warning(running):
    def tick_late() -> None:
        running.relay._all_up_at -= 30
        running.relay._tick()

    running.start(0)
    running.relay._events.put(tick_late)
    words = running.told()
    assert words.startswith("1 of 3 Ray workers run after 30 s")
    assert words.endswith("The loader goes on with those that run, and others join")
    for then in (tick_late, tick_late, lambda: running.relay._told.put("nothing more")):
        running.relay._events.put(then)
    assert running.told() == "nothing more"


def test_a_relay_that_cannot_be_made_leaves_no_actor():
    cluster: Any = FakeCluster()
    make = cluster.ray.make

    def fail_at_the_second(*arguments: Any) -> Any:
        if cluster.ray.made:
            raise ValueError("no such resource")
        return make(*arguments)

    cluster.ray.make = fail_at_the_second
    with pytest.raises(ClusterError, match=r"Ray does not take these workers, .* no such resource"):
        relay.RayPool(cluster, SlotPool(PrivateMemory(), keep=1), b"job", options_of(None), 3, assigned=False)
    assert [handle for handle, _ in cluster.ray.killed] == cluster.ray.made
    assert len(cluster.ray.made) == 1
