"""Which of Ray's workers gets which task. Nothing is started."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fastload.work import WorkItem
from fastload.workers.ray.assignment import Assignment, RemoteTask, Worker
from fastload.workers.ray.pace import MOST_TASKS
from fastload.workers.ray.stores import Shares, Store


def item(serial: int) -> WorkItem:
    return WorkItem(serial, 0, 0, serial, 0, 0, 1, 0, 0, 0, 0, [serial])


def running(number: int, *, store_bytes: float = 1e9, shares: int = 0, beside_local: bool = False) -> Assignment:
    """Return workers that have started; the last ``shares`` of them share memory."""
    made = Assignment(range(number), assigned=False, home=Store(store_bytes).share(), beside_local=beside_local)
    for worker in made.workers.values():
        made.started(worker, shares_memory=worker.worker_id >= number - shares, now_ns=0)
    return made


def submit(made: Assignment, num_bytes: int | None = 10) -> list[tuple[int, int]]:
    """Hand out what waits; return pairs of worker and task."""
    given_out = []
    while (chosen := made.choose()) is not None:
        worker, task = chosen
        made.give(worker, task, num_bytes=0 if worker.shares_memory and num_bytes else num_bytes, now_ns=0)
        given_out.append((worker.worker_id, task.item.serial))
    return given_out


def lose(made: Assignment, worker: Worker) -> None:
    """Let a worker and what it has be lost, as the relay notes it: one task after the other."""
    made.down(worker)
    for task in list(worker.tasks.values()):
        made.lost(worker, task)


def test_the_worker_with_the_fewest_tasks_gets_the_next_and_none_gets_more_than_two():
    made = running(3)
    for serial in range(7):
        made.add(RemoteTask(item(serial)))
    assert submit(made) == [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4), (2, 5)]
    assert not made.wants_more
    made.done(made.workers[1], made.workers[1].tasks[1], num_bytes=0, now_ns=0)
    assert submit(made) == [(1, 6)]


def test_no_task_is_taken_before_a_worker_has_room_and_while_another_waits():
    made = Assignment([4], assigned=False, home=Store(1e9).share())
    assert not made.wants_more
    made.started(made.workers[4], shares_memory=False, now_ns=0)
    assert made.wants_more
    made.add(RemoteTask(item(0)))
    assert not made.wants_more
    submit(made)
    assert made.wants_more


def test_tasks_that_name_their_worker_wait_for_it_alone():
    made = Assignment(range(2), assigned=True, home=Store(1e9).share())
    made.started(made.workers[1], shares_memory=False, now_ns=0)
    for serial in range(6):
        made.add(RemoteTask(item(serial), serial % 2))
    assert made.wants_more
    assert submit(made) == [(1, 1), (1, 3), (1, 5)]
    made.started(made.workers[0], shares_memory=False, now_ns=0)
    assert submit(made) == [(0, 0), (0, 2), (0, 4)]


def test_a_full_object_store_leaves_tasks_to_workers_that_share_memory():
    made = running(3, store_bytes=20, shares=1)
    for serial in range(5):
        made.add(RemoteTask(item(serial)))
    assert submit(made) == [(0, 0), (1, 1), (2, 2), (2, 3)]
    assert (made.bytes_under_way, made.wants_more) == (20, False)
    made.done(made.workers[0], made.workers[0].tasks[0], num_bytes=0, now_ns=0)
    assert submit(made) == [(0, 4)]
    assert made.most_bytes_under_way == 20


def test_results_without_a_layout_take_in_the_object_store_what_the_latest_took():
    made = running(3, store_bytes=20, shares=1)
    made.add(RemoteTask(item(0)))
    assert submit(made, None) == [(0, 0)]
    assert made.bytes_under_way == 0
    made.done(made.workers[0], made.workers[0].tasks[0], num_bytes=15, now_ns=0)
    for serial in range(1, 6):
        made.add(RemoteTask(item(serial)))
    assert submit(made, None) == [(0, 1), (2, 2), (2, 3)]
    assert made.bytes_under_way == made.most_bytes_under_way == 15
    made.done(made.workers[0], made.workers[0].tasks[1], num_bytes=0, now_ns=0)
    assert made.bytes_under_way == 0
    assert submit(made, None) == [(0, 4)]


def test_loaders_share_the_store_and_each_of_them_may_always_have_one_result_there():
    store = Store(30)
    loaders = [Assignment(range(3), assigned=False, home=store.share()) for _ in range(3)]
    for made in loaders:
        for worker in made.workers.values():
            made.started(worker, shares_memory=False, now_ns=0)
        made.add(RemoteTask(item(0)))
        assert submit(made) == [(0, 0)]
        made.done(made.workers[0], made.workers[0].tasks[0], num_bytes=10, now_ns=0)
        for serial in range(1, 5):
            made.add(RemoteTask(item(serial)))
    assert [len(submit(made)) for made in loaders] == [3, 1, 1]
    assert store.taken == 50
    first, second, third = loaders
    for worker in first.workers.values():
        first.done(worker, next(iter(worker.tasks.values())), num_bytes=10, now_ns=0)
    assert (len(submit(second)), len(submit(third)), len(submit(first))) == (1, 0, 1)
    assert store.taken == 40


def test_a_small_store_where_a_worker_is_holds_it_back_and_no_other():
    made = running(3)
    there = Store(15).share()
    made.workers[1].store = made.workers[2].store = there
    made.add(RemoteTask(item(0)))
    submit(made)
    made.done(made.workers[0], made.workers[0].tasks[0], num_bytes=10, now_ns=0)
    for serial in range(1, 6):
        made.add(RemoteTask(item(serial)))
    assert submit(made) == [(0, 1), (1, 2), (0, 3)]
    assert (there.num_bytes, made.bytes_under_way) == (10, 30)
    lose(made, made.workers[1])
    assert (there.num_bytes, made.bytes_under_way) == (0, 20)


def test_what_a_process_and_its_ranks_put_into_a_store_is_counted_by_machine(monkeypatch):
    monkeypatch.setattr(Shares, "_stores", {})
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "8")
    loaders = [Shares("here", 1000) for _ in range(2)]
    loaders[0].home.num_bytes = 195
    assert loaders[1].home.has_room(999)  # it has nothing there
    loaders[1].home.num_bytes = 1
    assert [loaders[1].home.has_room(size) for size in (4, 5)] == [True, False]
    there = [one.of("there", 1000) for one in loaders]
    assert loaders[0].of("there", 1000) is there[0]
    there[0].num_bytes, there[1].num_bytes = 40, 1
    assert [there[1].has_room(size) for size in (9, 10)] == [True, False]
    loaders[0].give_back()
    assert there[1].has_room(49)
    del there, loaders[0]
    assert loaders[0].home.has_room(199)


def test_a_result_that_is_larger_than_a_store_is_told_once():
    shares = Shares("here", 1 << 20)
    shares.of("there", 1 << 30)
    shares.of("nobody knows", 0)
    assert shares.too_large("Ray worker 1", "there", 5, 1 << 20) is None
    words = shares.too_large("Ray worker 1", "nobody knows", 5, 3 << 20)
    assert words is not None
    assert "Ray worker 1 has made a result of 3.0 MiB from 5 samples, and an object store of Ray on its way ha" in words
    assert shares.too_large("Ray worker 1", "there", 5, 3 << 20) is None


def test_beside_local_workers_what_no_worker_has_room_for_is_theirs():
    made = running(1, beside_local=True)
    assert made.left_over() == []
    for serial in range(4):
        made.add(RemoteTask(item(serial)))
    assert submit(made) == [(0, 0), (0, 1)]
    assert [left.serial for left in made.left_over()] == [2, 3]
    lose(made, made.workers[0])
    assert submit(made) == []
    assert [left.serial for left in made.left_over()] == [0, 1]
    assert (made.left_over(), made.wants_more, made.made_again) == ([], False, 2)


def test_beside_local_workers_a_lost_task_waits_for_the_answer_of_an_idle_worker():
    made = running(2, beside_local=True)
    made.add(RemoteTask(item(0)))
    submit(made)
    lose(made, made.workers[0])
    assert submit(made) == []
    assert made.left_over() == []
    assert made.to_ask() == [made.workers[1]]
    lose(made, made.workers[1])
    assert [left.serial for left in made.left_over()] == [0]


def test_without_local_workers_nothing_is_left_over():
    made = running(1)
    made.add(RemoteTask(item(0)))
    lose(made, made.workers[0])
    assert made.left_over() == []


def test_a_lost_task_goes_only_to_workers_that_were_heard_of_since():
    made = running(3)
    made.add(RemoteTask(item(0)))
    assert submit(made) == [(0, 0)]
    lose(made, made.workers[0])
    assert submit(made) == []
    assert [worker.worker_id for worker in made.to_ask()] == [1, 2]
    assert made.to_ask() == []
    made.heard(made.workers[2])
    assert submit(made) == [(2, 0)]


def test_a_worker_that_is_busy_is_not_asked_but_waited_for():
    made = running(2)
    for serial in range(4):
        made.add(RemoteTask(item(serial)))
    submit(made)
    lose(made, made.workers[0])
    assert made.to_ask() == []
    made.done(made.workers[1], made.workers[1].tasks[1], num_bytes=0, now_ns=0)
    assert submit(made) == [(1, 0)]


@given(st.integers(1, 9), st.data())
def test_a_task_is_lost_once_however_many_idle_workers_had_died_before(number, data):
    made = running(number)
    dead = data.draw(st.sets(st.integers(0, number - 1)))
    task = RemoteTask(item(0))
    made.add(task)
    lost = 0
    unheard: list[Worker] = []
    while True:
        given_out = submit(made)
        unheard += made.to_ask()
        if given_out and given_out[0][0] not in dead:
            break
        if given_out:
            lost += 1
            at = made.workers[given_out[0][0]]
            lose(made, at)
        elif unheard:
            at = unheard.pop(data.draw(st.integers(0, len(unheard) - 1)))
            if at.worker_id in dead:
                lose(made, at)
            else:
                made.heard(at)
                continue
        dead -= {at.worker_id}
        if data.draw(st.booleans()) or not made.up:
            made.started(at, shares_memory=False, now_ns=0)
    assert lost <= 1


@given(
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 60),
    st.lists(st.tuples(st.sampled_from(["add", "start", "finish", "lose", "answer"]), st.integers(0, 3)), max_size=80),
)
def test_whatever_happens_each_task_is_done_once_by_a_worker_that_may(number, assigned, store_bytes, steps):
    made = Assignment(range(number), assigned=assigned, home=Store(store_bytes).share())
    serials = itertools.count()
    bound: dict[int, int | None] = {}
    done: list[int] = []

    def step(what: str, worker: Worker) -> None:
        if what == "add" and made.wants_more:
            serial = next(serials)
            bound[serial] = worker.worker_id if assigned else None
            made.add(RemoteTask(item(serial), bound[serial]))
        elif what == "start" and not worker.is_up:
            made.started(worker, shares_memory=worker.worker_id == 3, now_ns=0)
        elif what == "finish" and worker.tasks:
            task = next(iter(worker.tasks.values()))
            done.append(task.item.serial)
            made.done(worker, task, num_bytes=0, now_ns=0)
        elif what == "lose" and worker.is_up:
            lose(made, worker)
        elif what == "answer" and worker.is_asked and worker.is_up:
            made.heard(worker)
        before = made.bytes_under_way
        for worker_id, serial in submit(made):
            assert made.workers[worker_id].is_up
            assert bound[serial] in (None, worker_id)
            assert assigned or len(made.workers[worker_id].tasks) <= MOST_TASKS
            assert assigned or made.workers[worker_id].shares_memory or before < max(store_bytes, 1)
        made.to_ask()
        under_way = sum(task.num_bytes for one in made.workers.values() for task in one.tasks.values())
        assert made.bytes_under_way == under_way <= made.most_bytes_under_way

    for what, place in steps:
        step(what, made.workers[place % number])
    # In the end all run, and say so.
    for _ in range(len(bound) + 2):
        for what in ("start", "answer", "finish"):
            for worker in made.workers.values():
                step(what, worker)
    assert sorted(done) == sorted(bound)
    assert made.bytes_under_way == 0
