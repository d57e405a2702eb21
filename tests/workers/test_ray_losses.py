"""When the loss of one of Ray's workers is an error, and when too few of them run. Nothing is started."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_ray_assignment import item

from fastload import ClusterError, WorkerDied
from fastload.workers.ray.actor import Started
from fastload.workers.ray.assignment import RemoteTask, Worker
from fastload.workers.ray.faults import Death, Losses, Placement, Room, reason

KILLED = Death(RuntimeError("The actor died.\n\tclass_name: RayWorker\n\tpid: 7\nIt was killed."), "a", ("a", "b"))
ROOM = Room(0, True, "the cluster has little")


def worker_at(*serials: int) -> Worker:
    return Worker(3, True, host="a machine", tasks={serial: RemoteTask(item(serial)) for serial in serials})


def started(*different: str) -> Started:
    return Started("elsewhere", "0123456789", 5, False, list(different), None)


def test_the_first_loss_is_told_and_the_others_are_counted():
    losses = Losses(assigned=False)
    words = losses.lost(worker_at(1, 2), KILLED)
    assert words is not None
    assert words.startswith("Ray worker 3 on a machine was lost (The actor died. It was killed); 2 task(s) of it")
    assert losses.lost(worker_at(5), KILLED) is None
    assert losses.num_lost == 2


def test_three_losses_at_one_task_are_an_error_with_its_samples_and_others_do_not_count():
    losses = Losses(assigned=False)
    for first in (7, 8, 7, 9, 8):
        losses.lost(worker_at(first, 20), KILLED)
    with pytest.raises(WorkerDied, match=r"3 Ray workers were lost .* while loading batch 7 ") as raised:
        losses.lost(worker_at(7, 20), KILLED)
    assert raised.value.samples == (7,)
    assert raised.value.__cause__ is KILLED.error


def test_losses_between_tasks_are_never_too_many():
    losses = Losses(assigned=False)
    for _ in range(50):
        losses.lost(worker_at(), KILLED)
    assert losses.num_lost == 50


@pytest.mark.parametrize(("serials", "samples"), [((4, 5), (4,)), ((), ())])
def test_the_loss_of_a_worker_whose_batches_are_bound_to_it_is_an_error(serials, samples):
    with pytest.raises(WorkerDied, match="Ray worker 3 on a machine was lost, and its batches are bound") as raised:
        Losses(assigned=True).lost(worker_at(*serials), KILLED)
    assert raised.value.samples == samples


def test_three_failed_starts_in_a_row_are_an_error_and_a_start_ends_the_row():
    losses = Losses(assigned=False)
    worker = Worker(3)
    for _ in range(2):
        losses.failed_start(worker, KILLED)
        losses.failed_start(worker, KILLED)
        losses.failed_start(Worker(2), KILLED)
        losses.started(worker, started())
        losses.started(Worker(2), started())
    losses.failed_start(worker, KILLED)
    losses.failed_start(worker, KILLED)
    with pytest.raises(ClusterError, match="Ray worker 3 cannot start; 3 attempts ended in: The actor died"):
        losses.failed_start(worker, KILLED)
    assert losses.num_lost == 0


def test_starts_that_fail_as_their_machine_goes_do_not_count_even_if_that_is_known_only_later():
    losses = Losses(assigned=False)
    error = KILLED.error
    for number in range(20):
        # It is not known yet that this machine goes, and that all before it went is known.
        losses.failed_start(Worker(3), Death(error, f"machine {number}", (f"machine {number}", "another")))
        losses.failed_start(Worker(3), Death(error, "", ("another",)))  # Ray does not say what has ended
    assert losses.last_failed_start == "The actor died. It was killed"
    for _ in range(2):
        losses.failed_start(Worker(3), Death(error, "another", ("another",)))
    with pytest.raises(ClusterError, match="Ray worker 3 cannot start; 3 attempts"):
        losses.failed_start(Worker(3), Death(error, "another", ("another",)))


def test_machines_that_go_are_not_held_against_the_task_that_was_lost_unless_it_is_always_the_same():
    losses = Losses(assigned=False)
    for number in range(9):
        losses.lost(worker_at(7), Death(KILLED.error, f"machine {number}", ("another",)))
    losses.lost(worker_at(8), KILLED)
    with pytest.raises(WorkerDied, match="10 Ray workers were lost one after the other while loading batch 7 "):
        losses.lost(worker_at(7), Death(KILLED.error, "", ()))


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (Room(4, True, "little"), r"\): 4 wait for room\. .*; little\. Ask for fewer, .*{'num_cpus': 0.5}$"),
        (Room(9, False, "little"), r"\): 4 cannot be placed, since no machine has as much\. .* Ask for fewer"),
        (Room(0, True, "little"), r"\): 4 placed and still starting \(.*\)\. .* Give those that start more time, by p"),
        (Room(1, True, "little"), r"\): 1 wait for room, 3 placed and still starting .* Ask for .*; give those that s"),
        (Room(None, True, "little"), r"\): 4 not placed, or still starting\. .* Ask for .*; give those that s"),
    ],
)
def test_workers_without_room_and_workers_that_are_starting_are_told_apart(room, words):
    placement = Placement(4, 10, assigned=False, now=0)
    assert re.search(words, placement.in_words(0, {"num_cpus": 1}, room, ""))
    told = placement.in_words(0, {"num_cpus": 1}, room, "it was killed")
    assert "; little. One that was starting has ended: it was killed. " in told


def test_a_machine_that_differs_is_an_error_with_what_differs():
    with pytest.raises(ClusterError, match=r"elsewhere \(Ray's node 01234567\) would make .*: torch; Pillow\. Install"):
        Losses(assigned=False).started(Worker(0), started("torch", "Pillow"))


def test_a_reason_without_words_is_the_name_of_the_error():
    assert reason(KeyError()) == "KeyError"


def test_the_words_of_a_loss_say_where_and_are_sentences():
    assert str(Worker(3)) == "Ray worker 3 (not started yet)"
    assert str(worker_at()) == "Ray worker 3 on a machine"
    assert reason(ValueError("it ended.\nexit code 3..")) == "it ended. exit code 3"


def looks(placement: Placement, *seen: tuple[int, float]) -> list[str | None]:
    return [placement.look(num_up, now) for num_up, now in seen]


def test_where_none_runs_in_time_it_is_an_error():
    placement = Placement(4, 10, assigned=False, now=100)
    assert looks(placement, (0, 101), (0, 109.9), (0, 110)) == [None, None, "fail"]


def test_where_some_run_it_is_one_warning_and_another_after_all_have_run():
    placement = Placement(4, 10, assigned=False, now=0)
    assert looks(placement, (3, 9), (3, 10), (3, 11), (0, 12), (3, 50)) == [None, "warn", None, None, None]
    assert looks(placement, (4, 60), (3, 69), (3, 70), (3, 90)) == [None, None, "warn", None]


def test_a_loss_gives_its_successor_the_whole_time_to_start():
    placement = Placement(2, 10, assigned=False, now=0)
    assert looks(placement, (2, 5), (2, 500), (1, 509), (2, 511), (0, 520), (1, 520.9)) == [None] * 6


def test_where_batches_are_bound_to_workers_all_must_run():
    placement = Placement(2, 10, assigned=True, now=0)
    assert looks(placement, (1, 9), (1, 10)) == [None, "fail"]
    assert placement.in_words(1, {"num_cpus": 1}, ROOM, "").endswith("batches that no other can make")


def test_beside_local_workers_it_is_never_more_than_a_warning():
    placement = Placement(2, 10, assigned=False, beside_local=True, now=0)
    assert looks(placement, (0, 9), (0, 10), (0, 50), (2, 60), (0, 69), (0, 70)) == [
        None, "warn", None, None, None, "warn",
    ]  # fmt: skip
    words = placement.in_words(0, {"num_cpus": 1}, ROOM, "")
    assert words.endswith("; the loader goes on with its local workers, and these join when there is room")


@given(st.integers(1, 5), st.booleans(), st.lists(st.tuples(st.integers(0, 5), st.floats(0.1, 9)), max_size=40))
def test_it_fails_exactly_if_none_ran_for_the_whole_time_and_never_warns_of_none(number, assigned, steps):
    placement = Placement(number, 10, assigned=assigned, now=0)
    now = any_at = all_at = 0.0
    for num_up, passed in steps:
        now += passed
        num_up = min(num_up, number)
        any_at, all_at = now if num_up else any_at, now if num_up == number else all_at
        verdict = placement.look(num_up, now)
        none_runs, few_run = now - any_at >= 10, num_up > 0 and now - all_at >= 10
        assert (verdict == "fail") == (none_runs or (assigned and few_run))
        assert verdict != "warn" or (few_run and not assigned)
