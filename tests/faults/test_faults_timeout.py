"""``timeout``: the error, and that trying again loses and repeats nothing."""

from __future__ import annotations

import signal
from typing import Any

import fault_kinds as kinds
import pytest
from fault_tools import FORMS, AtGate, Numbers, batches_of, loader_of, numbers, send
from processes import wait_gone

from fastload.errors import FastloadError, LoadTimeout, WorkerDied

TIMEOUT_S = 0.2


def next_over_timeouts(iterator: Any) -> tuple[Any, int]:
    """Return what ``next()`` gives, and how often it had to be tried again; the machine may be slow."""
    tries = 0
    while True:
        try:
            return numbers(next(iterator)), tries
        except LoadTimeout:
            tries += 1


@kinds.with_workers
@kinds.draws(4)
def test_after_a_timeout_next_can_be_tried_again_and_no_batch_is_lost_or_repeated(kind, draw, gate):
    length = draw.randint(5, 40)
    place = draw.randrange(length)
    form = draw.choice(FORMS)
    tries = draw.randint(1, 3)
    options = draw.loading(kind)
    dataset = Numbers(length, form, {place: AtGate(gate)})
    loader = loader_of(dataset, timeout=TIMEOUT_S, **options)
    expected = batches_of(length, options["batch_size"])
    iterator = iter(loader)
    blocked = place // options["batch_size"]
    assert [next_over_timeouts(iterator)[0] for _ in range(blocked)] == expected[:blocked]
    gate.wait_reached()
    begun = rf"^DataLoader timed out after 0\.2 seconds: .*worker \d+ \((pid|thread) \w+\) is loading batch {blocked} "
    for _ in range(tries):
        with pytest.raises(LoadTimeout, match=begun) as caught:
            next(iterator)
        assert isinstance(caught.value, RuntimeError)
        assert isinstance(caught.value, FastloadError)
        del caught
    gate.open()
    assert [next_over_timeouts(iterator)[0] for _ in expected[blocked:]] == expected[blocked:]
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
