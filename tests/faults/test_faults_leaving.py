"""Iterations that are left before their end. After each test the process is as it was: see conftest.py."""

from __future__ import annotations

import gc
import signal
import threading
import time
from typing import Any

import fault_kinds as kinds
import pytest
from fault_tools import FORMS, AtGate, ForksOne, Numbers, batches_of, loader_of, numbers, outcomes
from kit.leftovers import State, assert_nothing_left

# A pool that is closed gives its workers five seconds for what they are at, and then two more to die.
AT_ONCE_S = 4.0
BOUND_S = 60.0


def begun(loader: Any, after: int) -> Any:
    """Return an iterator that has given so many batches."""
    iterator = iter(loader)
    for _ in range(after):
        next(iterator, None)
    return iterator


def leave_by_break(loader: Any, after: int) -> None:
    for place, batch in enumerate(loader):
        numbers(batch)
        if place >= after:
            break


def leave_by_del(loader: Any, after: int) -> None:
    begun(loader, after)


def leave_in_a_cycle(loader: Any, after: int) -> None:
    cycle: list[Any] = [begun(loader, after)]
    cycle.append(cycle)
    del cycle
    gc.collect()


def leave_by_close(loader: Any, after: int) -> None:
    iterator = begun(loader, after)
    loader.close()
    assert list(iterator) == [] or loader.num_workers == 0


def leave_holding_batches(loader: Any, after: int) -> None:
    iterator = iter(loader)
    kept = [batch for _, batch in zip(range(after + 1), iterator, strict=False)]
    found = [numbers(batch) for batch in kept]
    del iterator
    loader.close()
    assert [numbers(batch) for batch in kept] == found


def leave_in_another_thread(loader: Any, after: int) -> None:
    thread = threading.Thread(target=leave_by_break, args=(loader, after))
    thread.start()
    thread.join()


LEAVE = [leave_by_break, leave_by_del, leave_in_a_cycle, leave_by_close, leave_holding_batches, leave_in_another_thread]


@kinds.everywhere
@pytest.mark.parametrize("leave", LEAVE, ids=lambda leave: leave.__name__)
@kinds.draws(2)
def test_an_iteration_can_be_left_anywhere_and_leaves_nothing(kind, leave, draw):
    options = draw.loading(kind)
    length = draw.randint(1, 200)
    expected = batches_of(length, options["batch_size"])
    after = draw.randint(0, len(expected))
    form = draw.choice(FORMS)
    before = State.in_full()
    loader = loader_of(Numbers(length, form), **options)
    leave(loader, after)
    if not options.get("persistent_workers"):
        assert_nothing_left(before)
    leave(loader, draw.randint(0, len(expected)))
    assert outcomes(iter(loader)) == expected
    del loader
    assert_nothing_left(before)


@kinds.with_workers
@kinds.draws(2)
def test_leaving_does_not_wait_for_work_that_nobody_wants_any_more(kind, draw):
    """Thousands of samples are waiting to be loaded, in loaders that were started after each other."""
    options = draw.loading(kind) | {"prefetch_factor": 50, "persistent_workers": False}
    iterators = [begun(loader_of(_Slow(100_000), **options), 1) for _ in range(3)]
    draw.shuffle(iterators)
    while iterators:
        since = time.monotonic()
        del iterators[-1]
        gc.collect()
        assert time.monotonic() - since < AT_ONCE_S


class _Slow(Numbers):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        return super().__getitem__(index)


# --- Workers that are stuck ------------------------------------------------------------------------------------------


def sleep_deaf() -> None:
    """Deaf to SIGTERM, as code is that sets handlers of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(10**6)


def spin() -> None:
    while True:
        pass


@kinds.of_kinds(kinds.PACKETS, kinds.PIPES, kinds.SPAWN)
def test_workers_that_are_stuck_in_the_users_code_are_ended_in_a_bounded_time(kind, gate):
    iterators = []
    for stuck in (sleep_deaf, spin):
        dataset = Numbers(40, faults={1: AtGate(gate, then=stuck)})
        options = kind.options(1 if kind is kinds.SPAWN else 2)
        iterators.append(iter(loader_of(dataset, batch_size=4, chunk_size="batch", **options)))
        gate.wait_reached()
    # All at once, since each takes its time.
    since = time.monotonic()
    threads = [threading.Thread(target=iterator._shutdown_workers, args=(0.5,)) for iterator in iterators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - since < BOUND_S


@kinds.of_kinds(kinds.PACKETS, kinds.PIPES)
@pytest.mark.parametrize("pidfds", [True, False], ids=["pidfds", "no-pidfds"])
def test_closing_does_not_wait_for_what_a_worker_has_forked(kind, pidfds, monkeypatch):
    """Such a child holds the pipe by which multiprocessing sees that a worker has ended."""
    if not pidfds:
        monkeypatch.setattr("fastload.workers.processes._pidfd", lambda process: None)
    fork = ForksOne()
    loader = loader_of(Numbers(20, faults={5: fork}), batch_size=4, **kind.options())
    iterator = begun(loader, 5)
    since = time.monotonic()
    loader.close()
    took = time.monotonic() - since
    fork.end()
    assert took < AT_ONCE_S
    assert list(iterator) == []


def test_a_thread_that_is_stuck_is_named_by_a_warning_and_ends_when_its_code_returns(gate):
    loader = loader_of(Numbers(40, faults={5: AtGate(gate)}), batch_size=4, **kinds.THREAD.options())
    iterator = iter(loader)
    gate.wait_reached()
    with pytest.warns(RuntimeWarning, match="fastload_worker"):
        iterator._shutdown_workers(0.5)
    assert list(iterator) == []
    gate.open()
