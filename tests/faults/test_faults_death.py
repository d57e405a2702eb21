"""Workers are killed, or take too long: what the error says, how soon it comes, and that the loader works again."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import time
from typing import Any

import fault_kinds as kinds
import pytest
import torch
from fault_tools import (
    FORMS,
    AtGate,
    Dies,
    ForksOne,
    Numbers,
    batches_of,
    loader_of,
    numbers,
    outcomes,
    send,
    time_to_error,
    wait_quiet,
)
from processes import wait_gone

from fastload.errors import FastloadError, LoadTimeout, WorkerDied

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS]

# A worker's death is to be told within about a second. A machine that does much else may take longer, but less than
# the five seconds that a pool gives its workers to finish.
SOON_S = 4.0


def assert_names(error: Exception, pid: int, worker_id: int, sent: signal.Signals) -> WorkerDied:
    """Check everything that the error says but the samples."""
    assert isinstance(error, WorkerDied)
    assert isinstance(error, FastloadError)
    assert isinstance(error, RuntimeError)
    assert str(error).startswith(f"DataLoader worker (pid(s) {pid}) exited unexpectedly")
    for word in (sent.name, f"worker {worker_id}"):
        assert word in str(error)
    assert error.worker_id == worker_id
    assert error.exitcode == -sent
    return error


def death(iterator: Any) -> tuple[list[list[int]], WorkerDied]:
    """Return the batches before a worker's death, and the error that tells it, soon."""
    given, error, took = time_to_error(iterator)
    assert isinstance(error, WorkerDied)
    assert took < SOON_S
    return given, error


def worker_pids(iterator: Any) -> list[int]:
    return [worker.pid for worker in iterator._workers]


@kinds.of_kinds(kinds.PACKETS, kinds.PIPES, kinds.SPAWN, kinds.SPAWN_PIPES)
@kinds.draws(10)
def test_a_worker_killed_in_a_batch_is_an_error_that_names_worker_signal_and_samples(kind, draw, tmp_path):
    length = draw.randint(1, 50)
    place = draw.choice([0, draw.randrange(length), length - 1])
    sent = draw.choice(SIGNALS)
    options = draw.loading(kind, max_workers=1 if kind.method == "spawn" else 3)
    dataset = Numbers(length, draw.choice(FORMS), {place: Dies(tmp_path / "note", sent)})
    loader = loader_of(dataset, **options)
    expected = batches_of(length, options["batch_size"])

    iterator = iter(loader)
    pids = worker_pids(iterator)
    given, error, _ = time_to_error(iterator)
    told_at = time.monotonic()
    victim, died_at = (tmp_path / "note").read_text().split()

    assert given == expected[: place // options["batch_size"]][: len(given)]
    worker_id = pids.index(int(victim))
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert place in assert_names(one, int(victim), worker_id, sent).samples
        assert set(one.samples) <= set(range(length))
    assert told_at - float(died_at) < SOON_S
    with pytest.raises(StopIteration):
        next(iterator)
    wait_gone(pids)
    dataset.faults.clear()
    assert outcomes(iter(loader)) == expected
    loader.close()


@kinds.forked
@kinds.draws(3)
def test_the_error_does_not_wait_for_other_workers_that_are_stuck(kind, draw, gate):
    num_workers = draw.randint(2, 4)
    # Each of the first batches stops a worker.
    dataset = Numbers(4 * num_workers, faults={4 * worker: AtGate(gate, 4 * worker) for worker in range(num_workers)})
    loader = loader_of(dataset, batch_size=4, chunk_size="batch", prefetch_factor=1, **kind.options(num_workers))
    iterator = iter(loader)
    pids = worker_pids(iterator)
    at_gate = dict(gate.wait_reached() for _ in range(num_workers))
    victim = draw.choice(sorted(at_gate))
    send(victim, signal.SIGKILL)
    given, error = death(iterator)
    assert given == []
    assert at_gate[victim] in assert_names(error, victim, pids.index(victim), signal.SIGKILL).samples
    wait_gone(pids)


@kinds.forked
@kinds.draws(3)
def test_workers_killed_while_idle_are_an_error_or_not_missed_and_the_loader_recovers(kind, draw):
    options = draw.loading(kind) | {"persistent_workers": True}
    loader = loader_of(Numbers(40), **options)
    expected = batches_of(40, options["batch_size"])
    iterator = iter(loader)
    assert outcomes(iterator) == expected
    pids = worker_pids(iterator)
    killed = draw.sample(pids, draw.randint(1, len(pids)))
    for pid in killed:
        send(pid, signal.SIGKILL)
    wait_gone(killed)
    found = outcomes(iter(loader))
    if len(killed) == len(pids) or isinstance(found[-1], WorkerDied):
        error = found.pop()
        assert isinstance(error, WorkerDied)
        assert "SIGKILL" in str(error)
    assert found == expected[: len(found)]
    if len(found) < len(expected):
        assert outcomes(iter(loader)) == expected
    loader.close()


@kinds.forked
def test_a_worker_killed_after_it_has_made_everything_costs_nothing(kind):
    """All results are there, and nobody has asked for them yet."""
    made = mmap.mmap(-1, 8)

    class Counted(Numbers):
        def __getitem__(self, index: int) -> Any:
            made[index] = 1
            return super().__getitem__(index)

    # Two tasks: as many as a pipe holds.
    iterator = iter(loader_of(Counted(8), batch_size=4, chunk_size="batch", prefetch_factor=2, **kind.options(1)))
    (pid,) = worker_pids(iterator)
    wait_quiet(pid, lambda: made[:] == b"\1" * 8)
    send(pid, signal.SIGKILL)
    wait_gone([pid])
    assert outcomes(iterator) == batches_of(8, 4)


@kinds.forked
@kinds.draws(12)
def test_a_kill_at_any_time_gives_a_right_beginning_and_then_an_error(kind, draw):
    # Some batches are much larger than a pipe, so that a kill may come in the middle of sending one.
    rows = draw.choice([1, 1, 20_000])
    options = draw.loading(kind)
    length = draw.randint(50, 400)
    expected = batches_of(length, options["batch_size"])
    after = draw.randrange(len(expected))

    def collate(samples: list[Any]) -> Any:
        stacked = torch.stack(samples)
        return stacked[None].expand(rows, *stacked.shape).contiguous()

    def of_all_rows(batch: torch.Tensor) -> list[int]:
        assert bool((batch == batch[0]).all())
        return numbers(batch[0])

    loader = loader_of(Numbers(length), **options, collate_fn=collate)
    iterator = iter(loader)
    victim = draw.choice(worker_pids(iterator))
    found = [of_all_rows(batch) for _, batch in zip(range(after), iterator, strict=False)]
    time.sleep(draw.choice([0, draw.random() * 0.01]))  # not for order: the kill may come at any time
    os.kill(victim, signal.SIGKILL)
    try:
        for batch in iterator:
            found.append(of_all_rows(batch))
    except WorkerDied as error:
        assert "SIGKILL" in str(error)
        error.__traceback__ = None
    else:
        assert len(found) == len(expected)
    assert found == expected[: len(found)]
    loader.close()


@kinds.forked
@pytest.mark.parametrize("how", [os.abort, lambda: os.kill(os.getpid(), signal.SIGKILL)], ids=["abort", "kill"])
def test_a_worker_that_dies_in_worker_init_fn_is_an_error_each_time(kind, how):
    loader = loader_of(Numbers(20), worker_init_fn=lambda _: how(), persistent_workers=True, **kind.options())
    for _ in range(2):
        assert death(iter(loader))[0] == []


@kinds.forked
def test_the_death_of_a_worker_that_has_forked_is_told_while_its_child_lives(kind):
    fork_and_die = ForksOne(lambda: os.kill(os.getpid(), signal.SIGKILL))
    given, error = death(iter(loader_of(Numbers(20, faults={5: fork_and_die}), batch_size=4, **kind.options())))
    fork_and_die.end()
    assert given == batches_of(20, 4)[: len(given)]
    assert 5 in error.samples


@kinds.forked
def test_other_loaders_go_on_when_a_worker_of_one_dies(kind, tmp_path):
    before = iter(loader_of(Numbers(80), batch_size=4, **kind.options()))
    dataset = Numbers(20, faults={5: Dies(tmp_path / "note")})
    dying = iter(loader_of(dataset, batch_size=4, **kind.options()))
    started_later = iter(loader_of(Numbers(80), batch_size=4, **kind.options()))
    death(dying)
    for iterator in (before, started_later):
        assert outcomes(iterator) == batches_of(80, 4)


# --- Timeouts --------------------------------------------------------------------------------------------------------


TIMEOUT_S = 0.2


def next_over_timeouts(iterator: Any) -> Any:
    """Return what ``next()`` gives, tried again as often as it takes: the machine may be slow."""
    while True:
        try:
            return numbers(next(iterator))
        except LoadTimeout:
            pass


@kinds.with_workers
@kinds.draws(4)
def test_after_a_timeout_next_can_be_tried_again_and_no_batch_is_lost_or_repeated(kind, draw, gate):
    length = draw.randint(5, 40)
    place = draw.randrange(length)
    options = draw.loading(kind)
    dataset = Numbers(length, draw.choice(FORMS), {place: AtGate(gate)})
    loader = loader_of(dataset, timeout=TIMEOUT_S, **options)
    expected = batches_of(length, options["batch_size"])
    iterator = iter(loader)
    blocked = place // options["batch_size"]
    assert [next_over_timeouts(iterator) for _ in range(blocked)] == expected[:blocked]
    gate.wait_reached()
    begun = rf"^DataLoader timed out after 0\.2 seconds: .*worker \d+ \((pid|thread) \w+\) is loading batch {blocked} "
    for _ in range(draw.randint(1, 2)):
        with pytest.raises(LoadTimeout, match=begun):
            next(iterator)
    gate.open()
    assert [next_over_timeouts(iterator) for _ in expected[blocked:]] == expected[blocked:]
    with pytest.raises(StopIteration):
        next(iterator)
    loader.close()


@kinds.forked
def test_a_worker_that_dies_after_a_timeout_is_an_error_of_its_own(kind, gate):
    iterator = iter(loader_of(Numbers(8, faults={2: AtGate(gate)}), batch_size=4, timeout=TIMEOUT_S, **kind.options()))
    victim, _ = gate.wait_reached()
    with pytest.raises(LoadTimeout):
        next(iterator)
    send(victim, signal.SIGKILL)
    wait_gone([victim])
    with pytest.raises(WorkerDied, match="SIGKILL"):
        next_over_timeouts(iterator)
