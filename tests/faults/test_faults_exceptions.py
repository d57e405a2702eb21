"""The user's code raises, or what it says of lengths is wrong: what the user sees, and what goes on."""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import fault_kinds as kinds
import kit.outcomes
import pytest
from fault_errors import ERRORS, HUGE, Quiet, raise_
from fault_tools import AtGate, Numbers, batches_of, loader_of, outcomes, time_to_error
from torch.utils.data import IterableDataset

from fastload.errors import WorkerDied
from fastload.workers import threads, worker_process


def assert_outcomes(found: list[Any], expected: list[list[int]], failing: set[int], error_class: Any) -> None:
    """Each batch has its place; those with failing samples are errors there."""
    assert len(found) == len(expected), found
    for outcome, batch in zip(found, expected, strict=True):
        if failing.isdisjoint(batch):
            assert outcome == batch
        else:
            assert isinstance(outcome, error_class), f"{outcome!r} in the place of {batch}"


@kinds.with_workers
@kinds.draws(3)
def test_out_of_order_an_exception_takes_its_own_batch_only(kind, draw):
    length = draw.randint(20, 60)
    failing = set(draw.sample(range(length), 3))
    options = draw.loading(kind)
    dataset = Numbers(length, "dict", {index: lambda: raise_(lambda: Quiet("failed")) for index in failing})
    found = outcomes(iter(loader_of(dataset, **options, in_order=False)))
    expected = batches_of(length, options["batch_size"])
    good = [batch for batch in expected if failing.isdisjoint(batch)]
    assert sorted(outcome for outcome in found if isinstance(outcome, list)) == good
    assert sum(isinstance(outcome, Quiet) for outcome in found) == len(expected) - len(good)
    assert len(found) == len(expected)


@kinds.with_workers
def test_whatever_is_raised_the_user_sees_its_class_or_a_runtime_error_and_its_text(kind):
    """A sample of every other batch fails, each in its own way."""
    draw = kinds.Draw("whatever is raised")
    failing = {name: 8 * place + draw.randrange(4) for place, name in enumerate(ERRORS)}
    faults = {index: functools.partial(raise_, ERRORS[name][0]) for name, index in failing.items()}
    length = 8 * len(ERRORS)
    found = outcomes(iter(loader_of(Numbers(length, faults=faults), batch_size=4, **kind.options())))
    assert_outcomes(found, batches_of(length, 4), set(faults), Exception)
    for name, (_, seen, word) in ERRORS.items():
        error = found[failing[name] // 4]
        text = str(error.args[0])
        if name == "local class" and kind.method == "thread":
            seen = Exception  # the class itself: nothing has to be pickled
        assert isinstance(error, seen), f"{name}: {type(error)}: {text[:2000]}"
        assert word in text, name
        assert "Caught " in text, name
        assert "Original " in text, name  # "Original Traceback", or "Original KeyError: ..." where that is the cause
        if name == "local class":
            assert "DefinedInAFunction" in text
        if name == "huge message":
            assert len(text) > HUGE


@kinds.everywhere
@pytest.mark.parametrize("where", ["Numbers", "collate"])
@kinds.draws(2)
def test_stop_iteration_of_the_dataset_or_of_collate_fn_is_an_error_and_not_the_end(kind, where, draw):
    failing = draw.randrange(30)
    options = draw.loading(kind)

    def collate(samples: list[Any]) -> list[Any]:
        return next(iter([])) if failing in [int(sample[0]) for sample in samples] else samples

    if where == "collate":
        loader = loader_of(Numbers(30, "ragged"), **options | {"collate_fn": collate})
    else:
        loader = loader_of(Numbers(30, faults={failing: lambda: next(iter([]))}), **options)
    found = outcomes(iter(loader))
    assert_outcomes(found, batches_of(30, options["batch_size"]), {failing}, RuntimeError)
    error = found[failing // options["batch_size"]]
    assert "StopIteration" in str(error)
    assert where in str(error)


@kinds.everywhere
def test_stop_iteration_of_a_dataset_that_makes_its_batches_is_an_error_and_not_the_end(kind):
    dataset = Numbers(6, "number", {3: lambda: next(iter([]))})
    found = kit.outcomes.outcomes(iter(loader_of(dataset, batch_size=None, **kind.options())))
    assert isinstance(found.pop(3), RuntimeError)
    assert found == [0, 1, 2, 4, 5]


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
            assert found, "the pass was empty, without a word"
            assert len(found) == 1
            assert isinstance(found[0], RuntimeError | Quiet)
        else:
            assert found == batches_of(8, 2)
    loader.close()


@kinds.with_workers
@pytest.mark.parametrize("persistent", [False, True])
@kinds.draws(2)
def test_an_exception_of_worker_init_fn_is_raised_by_next_and_the_loader_can_be_used_again(
    kind, persistent, draw, gate
):
    num_workers = draw.randint(1, 3)
    failing = draw.choice([{draw.randrange(num_workers)}, set(range(num_workers))])
    fails = [True]

    def start(worker_id: int) -> None:
        if fails[0] and worker_id in failing:
            raise Quiet(f"worker {worker_id} has no licence")

    # The others do not come to the end before the failing one has begun.
    dataset = Numbers(400, faults={399: AtGate(gate)})
    loader = loader_of(
        dataset, worker_init_fn=start, persistent_workers=persistent, batch_size=2, **kind.options(num_workers)
    )
    iterator = iter(loader)
    given, error, _ = time_to_error(iterator)
    assert given == batches_of(400, 2)[: len(given)]
    assert type(error) is Quiet
    assert "has no licence" in str(error)
    assert "Caught Quiet in DataLoader worker" in str(error)
    assert list(iterator) == []
    fails[0] = False
    gate.open()
    assert outcomes(iter(loader)) == batches_of(400, 2)
    loader.close()


@kinds.with_workers
@pytest.mark.parametrize("name", ["huge message", "local class", "StopIteration"])
def test_whatever_worker_init_fn_raises_the_user_sees_its_text(kind, name):
    make, _, word = ERRORS.get(name, (StopIteration, None, name))
    loader = loader_of(Numbers(8), worker_init_fn=lambda _: raise_(make), **kind.options())
    _, error, _ = time_to_error(iter(loader))
    assert word in str(error), f"{type(error)}: {str(error)[:500]}"


LEAVE: dict[str, tuple[Callable[[], None], int]] = {
    "by exit": (lambda: sys.exit(7), 7),
    "at once": (lambda: os._exit(7), 7),
    "at once with success": (lambda: os._exit(0), 0),
    "by an interrupt": (lambda: raise_(KeyboardInterrupt), 0),
}


@kinds.persistent_or_not(kinds.PACKETS, kinds.PIPES)
@pytest.mark.parametrize("how", LEAVE)
def test_a_worker_that_ends_itself_is_an_error_that_names_its_exit_code(kind, how, persistent):
    leave, code = LEAVE[how]
    draw = kinds.Draw(f"{how} {persistent}")
    leaving = draw.randrange(40)
    dataset = Numbers(40, faults={leaving: leave})
    loader = loader_of(dataset, batch_size=4, persistent_workers=persistent, **kind.options())
    iterator = iter(loader)
    given, error, took = time_to_error(iterator)
    assert given == batches_of(40, 4)[: len(given)]
    assert len(given) <= leaving // 4
    assert isinstance(error, WorkerDied)
    assert error.exitcode == code
    assert f"exited with code {code}" in str(error)
    assert leaving in error.samples
    assert took < 4
    assert list(iterator) == []
    dataset.faults.clear()
    assert outcomes(iter(loader)) == batches_of(40, 4)
    loader.close()


@kinds.forked
@pytest.mark.parametrize("how", ["by exit", "by an interrupt"])
def test_a_worker_that_ends_itself_is_an_error_though_a_thread_of_its_own_goes_on(kind, how, monkeypatch):
    monkeypatch.setattr(worker_process, "GRACE", 0.1)

    def leave_a_thread() -> None:
        threading.Thread(target=threading.Event().wait).start()
        LEAVE[how][0]()

    given, error, took = time_to_error(
        iter(loader_of(Numbers(40, faults={9: leave_a_thread}), batch_size=4, **kind.options()))
    )
    assert given == batches_of(40, 4)[: len(given)]
    assert isinstance(error, WorkerDied)
    assert 9 in error.samples
    assert took < 4


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


@kinds.with_workers
@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_worker_init_fn_does_not_hang(kind, raised):
    loader = loader_of(Numbers(20), worker_init_fn=lambda _: raise_(raised), **kind.options())
    iterator = iter(loader)
    with pytest.raises((RuntimeError, raised)):
        while True:
            next(iterator)


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


@kinds.everywhere
@pytest.mark.parametrize("says", [0, 3, 1000, None])
def test_a_sampler_whose_length_lies_or_raises_gives_what_it_has(kind, says):
    class Lies:
        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

        def __len__(self) -> int:
            if says is None:
                raise LookupError("no length today")
            return says

    loader = loader_of(Numbers(20), sampler=Lies(), batch_size=3, **kind.options())
    assert outcomes(iter(loader)) == batches_of(20, 3)
    assert says is None or len(loader) == -(-says // 3)


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


class Replaces(Numbers):
    """Loads batches itself, and leaves samples out or adds some, as datasets do that drop what is damaged."""

    def __init__(self, length: int, form: str, dropped: set[int], added: int) -> None:
        super().__init__(length, form)
        self.dropped, self.added = dropped, added

    def __getitems__(self, indices: list[int]) -> list[Any]:
        given = [index for index in indices if index not in self.dropped] + list(indices[: self.added])
        return [self.sample(index) for index in given]


@kinds.everywhere
@pytest.mark.parametrize("form", ["number", "tensor", "dict", "ragged"])
@kinds.draws(3)
def test_a_getitems_that_gives_more_or_fewer_samples_than_asked_makes_batches_of_what_it_gave(kind, form, draw):
    options = draw.loading(kind) | {"batch_size": draw.randint(2, 6)}
    if draw.random() < 0.5:
        dropped, added = {index for index in range(30) if index % options["batch_size"] and draw.random() < 0.4}, 0
    else:
        dropped, added = set(), draw.randint(1, 2)
    dataset = Replaces(30, form, dropped, added)
    expected = [
        [index for index in batch if index not in dropped] + batch[:added]
        for batch in batches_of(30, options["batch_size"])
    ]
    assert outcomes(iter(loader_of(dataset, **options))) == expected
