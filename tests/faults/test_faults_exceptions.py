"""The user's code raises, or what it says of lengths is wrong: what the user sees, and what goes on."""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import fault_kinds as kinds
import kit.outcomes
import pytest
from fault_tools import AtGate, Numbers, batches_of, loader_of, outcomes, time_to_error
from torch.utils.data import IterableDataset

from fastload.errors import WorkerDied
from fastload.workers import threads, worker_process


class HoldsLock(Exception):
    """Its instances cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class RefusesPickling(Exception):
    """Its instances raise when they are pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


class NoText(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Quiet(ValueError):
    """An ordinary class of a user's module."""


def raise_(make: Callable[[], BaseException]) -> None:
    raise make()


def local_class() -> Exception:
    class DefinedInAFunction(Exception):
        pass

    return DefinedInAFunction("from a local class")


def deep_chain() -> Exception:
    """With a traceback of several packets."""
    error: Exception = Quiet("at the end of a chain")
    first = error
    for link in range(300):
        cause = ValueError(f"link {link} " + "x" * 100)
        error.__cause__ = cause
        error = cause
    return first


HUGE = 1_000_000


# Beside those of tests/contract: what is raised, the class that the user meets with processes, and a word of the text.
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "MemoryError": (lambda: MemoryError("too much"), MemoryError, "too much"),
    "holds a lock": (lambda: HoldsLock("locked"), HoldsLock, "locked"),
    "refuses pickling": (lambda: RefusesPickling("secret"), RefusesPickling, "secret"),
    "no text": (NoText, NoText, "NoText"),
    "local class": (local_class, RuntimeError, "DefinedInAFunction: from a local class"),
    "deep chain": (deep_chain, Quiet, "link 299"),
    "huge message": (lambda: Quiet("begin " + "x" * HUGE + " end"), Quiet, "x" * HUGE + " end"),
    "surrogates": (lambda: Quiet("a name of no encoding: \udcff"), Quiet, "no encoding"),
    "group": (lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]), RuntimeError, "several"),
}


@kinds.with_workers
def test_whatever_is_raised_the_user_sees_its_class_or_a_runtime_error_and_its_text(kind):
    """A sample of every other batch fails, each in its own way."""
    failing = {name: 8 * place + place % 4 for place, name in enumerate(ERRORS)}
    faults = {index: functools.partial(raise_, ERRORS[name][0]) for name, index in failing.items()}
    expected = batches_of(8 * len(ERRORS), 4)
    found = outcomes(iter(loader_of(Numbers(8 * len(ERRORS), faults=faults), batch_size=4, **kind.options())))
    for name, (_, seen, word) in ERRORS.items():
        error = found[failing[name] // 4]
        text = str(error.args[0])
        if name == "local class" and kind.method == "thread":
            seen = Exception  # the class itself: nothing has to be pickled
        assert isinstance(error, seen), f"{name}: {type(error)}: {text[:2000]}"
        assert word in text, name
        assert "Caught " in text, name
        assert "Original " in text, name  # "Original Traceback", or "Original KeyError: ..." where that is the cause
    assert found[1::2] == expected[1::2]
    assert len(found) == len(expected)


@kinds.everywhere
@pytest.mark.parametrize("where", ["sample", "collate", "single sample"])
def test_stop_iteration_of_the_users_code_is_an_error_and_not_the_end(kind, where):
    def collate(samples: list[int]) -> int:
        return next(iter([])) if samples == [5] else samples[0]

    faults = {} if where == "collate" else {5: lambda: next(iter([]))}
    arguments = {"batch_size": None} if where == "single sample" else {"collate_fn": collate}
    found = kit.outcomes.outcomes(iter(loader_of(Numbers(8, "number", faults), **arguments, **kind.options())))
    error = found.pop(5)
    assert isinstance(error, RuntimeError)
    assert "StopIteration" in str(error)
    assert found == [0, 1, 2, 3, 4, 6, 7]


@kinds.with_workers
@pytest.mark.parametrize("in_pass", [1, 3])
def test_an_exception_of_a_streams_iter_is_raised_in_whichever_pass_it_comes(kind, in_pass):
    fails = mmap.mmap(-1, 1)  # seen by forked workers too

    class Fails(IterableDataset):
        def __iter__(self) -> Any:
            if fails[0]:
                raise Quiet("failed")
            return iter(range(8))

    loader = loader_of(Fails(), batch_size=2, persistent_workers=True, **kind.options(1))
    for this_pass in (1, 2, 3):
        fails[0] = this_pass == in_pass
        found = outcomes(iter(loader))
        if this_pass == in_pass:
            (error,) = found
            assert isinstance(error, RuntimeError | Quiet)
        else:
            assert found == batches_of(8, 2)
    loader.close()


INIT: dict[str, tuple[Callable[[], BaseException], Any, str]] = {
    "ordinary": (lambda: Quiet("no licence"), Quiet, "Caught Quiet in DataLoader worker"),
    "an exit": (SystemExit, (RuntimeError, SystemExit), ""),
    "an interrupt": (KeyboardInterrupt, (RuntimeError, KeyboardInterrupt), ""),
    "the end": (StopIteration, RuntimeError, "StopIteration"),
    "huge message": ERRORS["huge message"],
    "local class": (local_class, Exception, "from a local class"),
}


@kinds.with_workers
@pytest.mark.parametrize("name", INIT)
@kinds.draws(2)
def test_an_exception_of_worker_init_fn_is_raised_by_next_and_the_loader_can_be_used_again(kind, name, draw, gate):
    num_workers = draw.randint(1, 3)
    failing = draw.choice([{draw.randrange(num_workers)}, set(range(num_workers))])
    fails = [True]
    make, seen, word = INIT[name]

    def start(worker_id: int) -> None:
        if fails[0] and worker_id in failing:
            raise make()

    # The others do not come to the end before the failing one has begun.
    dataset = Numbers(100, faults={99: AtGate(gate)})
    options = {"batch_size": 2, "persistent_workers": draw.random() < 0.5} | kind.options(num_workers)
    loader = loader_of(dataset, worker_init_fn=start, **options)
    iterator = iter(loader)
    with pytest.raises(seen) as caught:
        list(iterator)
    assert word in str(caught.value)
    del caught
    assert list(iterator) == []
    fails[0] = False
    gate.open()
    assert outcomes(iter(loader)) == batches_of(100, 2)
    loader.close()


def beside_a_thread(leave: Callable[[], None]) -> None:
    threading.Thread(target=threading.Event().wait).start()
    leave()


LEAVE: dict[str, tuple[Callable[[], None], int | None]] = {
    "by exit": (lambda: sys.exit(7), 7),
    "at once": (lambda: os._exit(7), 7),
    "at once with success": (lambda: os._exit(0), 0),
    "by an interrupt": (lambda: raise_(KeyboardInterrupt), 0),
    "by exit, though a thread goes on": (lambda: beside_a_thread(sys.exit), None),
    "by an interrupt, though a thread goes on": (lambda: beside_a_thread(lambda: raise_(KeyboardInterrupt)), None),
}


@kinds.persistent_or_not(kinds.PACKETS, kinds.PIPES)
@pytest.mark.parametrize("how", LEAVE)
def test_a_worker_that_ends_itself_is_an_error_that_names_its_exit_code(kind, how, persistent, monkeypatch):
    monkeypatch.setattr(worker_process, "GRACE", 0.1)  # so long it waits for threads of its own
    leave, code = LEAVE[how]
    leaving = kinds.Draw(f"{how} {persistent}").randrange(40)
    dataset = Numbers(40, faults={leaving: leave})
    loader = loader_of(dataset, batch_size=4, persistent_workers=persistent, **kind.options())
    iterator = iter(loader)
    given, error, took = time_to_error(iterator)
    assert given == batches_of(40, 4)[: leaving // 4][: len(given)]
    assert isinstance(error, WorkerDied)
    assert code is None or (error.exitcode == code and f"exited with code {code}" in str(error))
    assert leaving in error.samples
    assert took < 4
    assert list(iterator) == []
    dataset.faults.clear()
    assert outcomes(iter(loader)) == batches_of(40, 4)
    loader.close()


@kinds.of_kinds(kinds.THREAD, kinds.INLINE)
@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_in_threads_and_inline_an_exit_or_interrupt_is_raised_in_its_place(kind, raised):
    dataset = Numbers(20, faults={9: lambda: raise_(raised)})
    loader = loader_of(dataset, batch_size=4, **kind.options())
    found = outcomes(iter(loader))
    assert found[:2] == batches_of(20, 4)[:2]
    assert isinstance(found[2], raised)
    # Worker threads end the iteration with it, as an interrupt does; inline it goes on.
    assert found[3:] in ([], batches_of(20, 4)[3:])
    dataset.faults.clear()
    assert outcomes(iter(loader)) == batches_of(20, 4)


def test_a_thread_that_cannot_begin_its_work_is_an_error_and_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(threads.compat_features, "set_thread_worker_info", lambda _: raise_(SystemExit))
    with pytest.raises(SystemExit):
        next(iter(loader_of(Numbers(20), **kinds.THREAD.options())))


@kinds.forked
def test_a_worker_that_fails_to_start_while_others_do_the_work_is_an_error(kind, gate):
    def start(worker_id: int) -> None:
        if worker_id == 3:
            gate.wait_reached()
            raise ValueError("no start")

    # One task, which is under way when the worker fails that was given none.
    iterator = iter(loader_of(Numbers(1, faults={0: AtGate(gate)}), worker_init_fn=start, **kind.options(4)))
    with pytest.raises(ValueError, match="no start"):
        next(iterator)


# --- What goes in is wrong -------------------------------------------------------------------------------------------


class LyingBatch(list[int]):
    """A batch of indices that says that it has another number of them."""

    def __init__(self, indices: list[int], says: int) -> None:
        super().__init__(indices)
        self.says = says

    def __len__(self) -> int:
        return self.says

    def __reduce__(self) -> Any:
        return LyingBatch, (list(itertools.islice(self, None)), self.says)


@kinds.everywhere
@pytest.mark.parametrize("chunk_size", [None, 1, 2, "batch"])
def test_a_batch_of_indices_whose_length_lies_gives_its_samples_or_an_error(kind, chunk_size):
    """Whatever it says: no row that nobody wrote, no hang, and the batches beside it are right."""
    lengths = [0, 1, 3, 5, 9]
    batches = [batch for says in lengths for batch in ([0, 1, 2, 3], LyingBatch([4, 5, 6, 7], says), [8, 9, 10, 11])]
    loader = loader_of(Numbers(12), batch_sampler=batches, chunk_size=chunk_size, **kind.options())
    found = outcomes(iter(loader))
    assert len(found) == 3 * len(lengths), found
    for place, says in enumerate(lengths):
        before, lying, after = found[3 * place : 3 * place + 3]
        assert before == [0, 1, 2, 3], says
        assert lying == [4, 5, 6, 7] or isinstance(lying, Exception), (says, lying)
        assert after == [8, 9, 10, 11], says
