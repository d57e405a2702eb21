"""The threads between a pool and actors, with a Ray that does what the test says."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from test_ray_actors import FakeRay
from test_ray_assignment import item

from fastload import ClusterError, WorkerDied
from fastload.workers.fetch import Outcome, Result
from fastload.workers.on_error import Failure
from fastload.workers.processes import fields_of
from fastload.workers.ray import relay
from fastload.workers.ray.actor import Started
from fastload.workers.ray.dispatcher import RETURNED
from fastload.workers.ray.faults import Death, Room
from fastload.workers.ray.options import Options

PATIENCE_S = 60


class FakeSeat:
    memory = None
    iteration = 0

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.given: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self.takes: queue.SimpleQueue[None] = queue.SimpleQueue()
        """One for each time that a task was asked for."""

    def take(self) -> Any:
        self.takes.put(None)
        return self.tasks.get(timeout=PATIENCE_S)

    def layout(self, generation: int) -> None:
        return None

    def give(self, message: bytes, item: Any, worker_id: int, packed: Any = None) -> None:
        self.given.put(Result(*fields_of(message)))


class FakeCluster:
    head_error: ClusterError | None = None
    node_id = machine = "here"

    def __init__(self) -> None:
        self.ray: Any = FakeRay()
        names = (
            "ObjectLostError", "RayActorError", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError",
            "TaskCancelledError",
        )  # fmt: skip
        self.ray.exceptions = SimpleNamespace(**{name: type(name, (Exception,), {}) for name in names})
        self.is_closed = False

    def store_bytes(self, machine: str) -> int:
        return 0

    def check_open(self) -> None:
        return

    def check_head(self) -> None:
        if self.head_error is not None:
            raise self.head_error

    def placed_here(self) -> dict[str, Any]:
        return {"num_cpus": 0}

    def room(self, actor: Any) -> Room:
        return Room(None, True, "the cluster has little")

    def death(self, handle: Any, error: BaseException) -> Death:
        return Death(error, self.machine, ("here",))

    def close(self) -> None:
        self.is_closed = True


class Running:
    """A relay, with what is at its ends."""

    def __init__(
        self, number: int = 1, *, assigned: bool = False, tolerant: bool = False, num_local: int = 0, **options: Any
    ) -> None:
        self.cluster, self.seat = FakeCluster(), FakeSeat()
        given: Any = self.cluster, self.seat, b"job", Options(compare_nodes=False, **options)
        ids = range(num_local, num_local + number)
        self.relay = relay.Relay(*given, ids, assigned=assigned, tolerant=tolerant)

    def actor(self) -> Any:
        """Return the next actor that is made, which has started then."""
        actor = self.cluster.ray.new.get(timeout=PATIENCE_S)
        next_of(actor.start).set_result(Started("there", "node", 1, False, [], None))
        return actor

    def task(self, actor: Any, serial: int, worker_id: int | None = None) -> Any:
        """Let a worker get a task; return the future of its result."""
        self.seat.tasks.put((item(serial), worker_id))
        return next_of(actor.run)

    def stop(self) -> None:
        self.seat.tasks.put(None)
        assert self.relay.stop() == []


@pytest.fixture
def running(request) -> Iterator[Running]:
    made = Running(**getattr(request, "param", {}))
    yield made
    made.stop()


def next_of(method: Any) -> Any:
    """Return the future of a method's next call."""
    return method.called.get(timeout=PATIENCE_S)


def result(serial: int) -> bytes:
    return Result(serial, 0, Outcome.ROWS, 0, None, 5).pickled()


def failure_of(running: Running) -> BaseException:
    """Return why nothing more can come, once it is told."""
    assert running.seat.given.get(timeout=PATIENCE_S).serial == -1
    assert running.relay.failure is not None
    return running.relay.failure


def test_a_task_goes_to_an_actor_and_its_result_to_the_seat(running):
    actor = running.actor()
    running.task(actor, 5).set_result(result(5))
    assert running.seat.given.get(timeout=PATIENCE_S)[:3] == (5, 0, Outcome.ROWS)
    assert running.relay.dispatcher.held_by(0) is None
    assert running.relay.counts()["workers"] == 1


def test_tasks_of_an_iteration_that_is_over_come_back_undone(running):
    running.actor()
    running.seat.iteration = 1
    running.seat.tasks.put((item(5), None))
    assert running.seat.given.get(timeout=PATIENCE_S)[:3] == (5, 0, Outcome.SKIPPED)


@pytest.mark.parametrize("running", [{"number": 2}], indirect=True)
def test_a_lost_actor_is_replaced_and_an_idle_one_answers_before_it_gets_the_task(running):
    first, second = running.actor(), running.actor()
    running.task(first, 5).set_exception(running.cluster.ray.exceptions.RayActorError("killed"))
    answer = next_of(second.answer)
    assert running.cluster.ray.killed == [first]
    assert len(running.cluster.ray.made) == 3
    assert second.run.called.empty()
    answer.set_result(None)
    next_of(second.run).set_result(result(5))
    assert running.seat.given.get(timeout=PATIENCE_S).serial == 5
    assert [running.relay.counts()[name] for name in ("lost", "made_again")] == [1, 1]
    assert len(running.relay.words) == 1


@pytest.mark.parametrize("running", [{"num_local": 2}], indirect=True)
def test_beside_local_workers_a_lost_task_is_theirs_where_no_actor_is_left(running):
    future = running.task(running.actor(), 5)
    for _ in range(2):
        running.seat.takes.get(timeout=PATIENCE_S)  # it waits for a task for the actor that it still has
    future.set_exception(running.cluster.ray.exceptions.RayActorError("killed"))
    assert running.seat.given.get(timeout=PATIENCE_S) == RETURNED
    assert [one.serial for one in running.relay.dispatcher.returned] == [5]
    running.seat.tasks.put((item(6), None))
    assert running.seat.given.get(timeout=PATIENCE_S) == RETURNED
    assert [one.serial for one in running.relay.dispatcher.returned] == [5, 6]
    assert running.relay.failure is None


@pytest.mark.parametrize("running", [{"num_local": 2, "placement_timeout": 0.01}], indirect=True)
def test_beside_local_workers_actors_that_do_not_start_are_a_warning(running):
    seen = threading.Event()
    look = running.cluster.check_head

    def look_again() -> None:
        if running.relay.words:
            seen.set()
        look()

    running.cluster.check_head = look_again
    assert seen.wait(PATIENCE_S)
    assert [one[:40] for one in running.relay.words] == ["0 of 1 Ray workers run after 0.01 s (ray"]
    assert running.relay.failure is None


def test_an_interrupt_in_a_sample_is_a_loss(running):
    cancelled = running.cluster.ray.exceptions.TaskCancelledError("cancelled")
    running.task(running.actor(), 5).set_exception(cancelled)
    for _ in range(2):
        next_of(running.actor().run).set_exception(cancelled)
    error = failure_of(running)
    assert isinstance(error, WorkerDied)
    assert error.samples == (5,)


def test_actors_whose_machines_go_while_they_start_are_no_error(running):
    running.cluster.machine = "one that went"
    died = running.cluster.ray.exceptions.RayActorError("its node has died")
    for _ in range(10):
        next_of(running.cluster.ray.new.get(timeout=PATIENCE_S).start).set_exception(died)
    running.task(running.actor(), 5).set_result(result(5))
    assert running.seat.given.get(timeout=PATIENCE_S).serial == 5
    assert running.relay.failure is None


def test_actors_that_end_while_they_start_are_an_error_where_their_machine_stays(running):
    died = running.cluster.ray.exceptions.RayActorError("killed")
    for _ in range(3):
        next_of(running.cluster.ray.new.get(timeout=PATIENCE_S).start).set_exception(died)
    assert "Ray worker 0 cannot start; 3 attempts ended in: killed" in str(failure_of(running))


def with_failures(serial: int) -> bytes:
    """A result without rows 1 and 3."""
    failures = [Failure(row, 10 * row, f"{row}.jpg", "OSError", "no file", None) for row in (1, 3)]
    return Result(serial, 0, Outcome.SAMPLES, 0, None, 5, failures=failures).pickled()


def tried_here(running: Running, serial: int) -> Any:
    """Let a worker elsewhere give a result with failures; return the method by which they are tried here."""
    task = item(serial)._replace(indices=[0, 10, 20, 30], position=8, epoch=2)
    actor = running.actor()
    running.seat.tasks.put((task, None))
    next_of(actor.run).set_result(with_failures(serial))
    home = running.actor()
    assert home.try_samples.calls == [(2, 8, [(1, 10), (3, 30)])]
    return next_of(home.try_samples)


@pytest.mark.parametrize("running", [{"tolerant": True}], indirect=True)
def test_samples_that_fail_elsewhere_and_here_are_left_out(running):
    future = tried_here(running, 5)
    assert running.seat.given.empty()
    future.set_result([False, False])
    given = running.seat.given.get(timeout=PATIENCE_S)
    assert (given.serial, len(given.failures)) == (5, 2)
    assert len(running.cluster.ray.made) == 2


@pytest.mark.parametrize("running", [{"tolerant": True}], indirect=True)
def test_a_sample_that_fails_elsewhere_only_is_an_error_with_the_machine(running):
    tried_here(running, 5).set_result([False, True])
    error = failure_of(running)
    assert isinstance(error, ClusterError)
    assert "index 30, 3.jpg, cannot be loaded on there (pid 1, node node) (OSError: no file), and can" in str(error)
    assert error.samples == (30,)


@pytest.mark.parametrize("running", [{"tolerant": True}], indirect=True)
def test_samples_that_cannot_be_tried_here_are_an_error(running):
    tried_here(running, 5).set_exception(running.cluster.ray.exceptions.RayActorError("killed"))
    assert "could not be tried on the loader's machine: killed" in str(failure_of(running))


@pytest.mark.parametrize("running", [{"tolerant": True}], indirect=True)
def test_samples_are_not_waited_for_where_the_actor_here_does_not_start(running):
    actor = running.actor()
    running.task(actor, 5)
    home = running.relay._home
    assert home is not None
    home._timeout = 0.5  # of this actor alone
    item_at = actor.run.futures[0]
    running.seat.tasks.put((item(6), None))
    item_at.set_result(
        Result(5, 0, Outcome.SAMPLES, 0, None, 5, failures=[Failure(0, 5, None, "E", "", None)]).pickled()
    )
    assert "has not started within 0.5 s (ray_options['placement_timeout'])" in str(failure_of(running))


@pytest.mark.parametrize("running", [{"tolerant": True}, {"tolerant": False}], indirect=True)
def test_results_without_failures_wait_for_nothing(running):
    running.task(running.actor(), 5).set_result(result(5))
    assert running.seat.given.get(timeout=PATIENCE_S).serial == 5
    assert len(running.cluster.ray.made) == 1


def test_a_lost_result_is_made_again_by_the_actor_that_lost_it(running):
    actor = running.actor()
    running.task(actor, 5).set_exception(running.cluster.ray.exceptions.ObjectLostError("gone"))
    next_of(actor.answer).set_result(None)
    next_of(actor.run).set_result(result(5))
    assert running.seat.given.get(timeout=PATIENCE_S).serial == 5
    assert [running.relay.counts()[name] for name in ("lost", "made_again")] == [0, 1]


@pytest.mark.parametrize("running", [{"assigned": True}], indirect=True)
def test_a_lost_result_of_a_worker_that_cannot_go_back_is_an_error(running):
    running.task(running.actor(), 5, 0).set_exception(running.cluster.ray.exceptions.ObjectLostError("gone"))
    error = failure_of(running)
    assert isinstance(error, WorkerDied)
    assert "made a batch that was lost on the way, and its batches are bound to it" in str(error)
    assert error.samples == (5,)


def test_an_error_of_ours_in_an_actor_ends_the_relay_with_its_reason(running):
    running.task(running.actor(), 5).set_exception(ZeroDivisionError("oh"))
    assert "Ray worker 0 on there (pid 1, node node) failed: oh" in str(failure_of(running))


def test_without_a_head_actors_are_not_ended_by_ray(running):
    running.actor()
    running.cluster.head_error = ClusterError("the head is gone")
    assert failure_of(running) is running.cluster.head_error
    running.stop()
    assert running.cluster.ray.killed == []


@pytest.mark.parametrize("running", [{"placement_timeout": 0.01}], indirect=True)
def test_actors_that_do_not_start_in_time_are_an_error_with_what_there_is(running):
    words = str(failure_of(running))
    assert "0 of 1 Ray workers run after 0.01 s" in words
    assert "the cluster has little" in words


def test_a_relay_can_be_stopped_from_its_own_thread(running, monkeypatch):
    stopped: queue.SimpleQueue[Any] = queue.SimpleQueue()
    actor = running.actor()

    def stop_instead(*given: Any) -> Any:
        assert threading.current_thread().name == "fastload_ray_results"
        stopped.put(running.relay.stop())
        raise OSError("the seat is closed")

    monkeypatch.setattr(running.relay._results, "take", stop_instead)
    future = running.task(actor, 5)
    running.seat.tasks.put(None)
    future.set_result(result(5))
    assert stopped.get(timeout=PATIENCE_S) == []
    assert running.cluster.is_closed
    running.stop()
    assert running.relay.failure is None


def test_a_relay_that_cannot_be_made_leaves_no_actor():
    cluster: Any = FakeCluster()
    make_class = cluster.ray.remote

    def remote(kind: type) -> Any:
        make = make_class(kind).options().remote

        def fail_at_the_second() -> Any:
            if cluster.ray.made:
                raise ValueError("no such resource")
            return make()

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=fail_at_the_second))

    cluster.ray.remote = remote
    seat: Any = FakeSeat()
    with pytest.raises(ClusterError, match=r"Ray does not take these workers, .* no such resource"):
        relay.Relay(cluster, seat, b"job", Options(compare_nodes=False), range(3), assigned=False, tolerant=False)
    assert cluster.ray.killed == cluster.ray.made
    assert len(cluster.ray.made) == 1
