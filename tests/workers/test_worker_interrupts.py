"""An interrupt that would be lost is raised afterwards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from fastload.workers.deferred_sigint import DeferredSigint, raise_deferred_sigint_in_worker


@pytest.fixture(autouse=True)
def _interrupts_are_raised() -> Iterator[None]:
    """A shell starts what runs in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_inside_is_raised_at_the_end_and_in_a_worker_that_inherited_it():
    handler = signal.getsignal(signal.SIGINT)
    reached = []
    with pytest.raises(KeyboardInterrupt), DeferredSigint():
        assert signal.getsignal(signal.SIGINT) is not handler
        signal.raise_signal(signal.SIGINT)
        reached.append("the end")
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is handler
    with DeferredSigint():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            raise_deferred_sigint_in_worker()
        raise_deferred_sigint_in_worker()  # it is over now


def test_in_a_finalizer_it_is_raised_a_moment_later(monkeypatch):
    left = threading.Event()

    class MomentLater(threading.Timer):
        def run(self) -> None:
            left.wait()  # on a busy machine the moment may be over before
            super().run()

    monkeypatch.setattr(threading, "Timer", MomentLater)
    with pytest.raises(KeyboardInterrupt):
        with DeferredSigint(finalizing=True):
            signal.raise_signal(signal.SIGINT)
        left.set()
        threading.Event().wait(10)
    assert left.is_set()


def test_other_threads_and_signals_without_a_handler_are_left_alone():
    handler = signal.getsignal(signal.SIGINT)
    seen = []

    def enter() -> None:
        with DeferredSigint():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        enter()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert seen == [handler, signal.SIG_IGN]
