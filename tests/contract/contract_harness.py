"""Runs one case through torch's DataLoader and through the class under test, and compares what they gave.

A case is a function of one argument, ``load``, with which it makes its loaders: ``load(dataset, batch_size=4)`` is
``loader_class(dataset, batch_size=4, num_workers=..., ...)``. It returns an observation: anything that
``kit.comparison.difference`` can compare. The class under test is ``fastload.DataLoader``; with the environment
variable ``FASTLOAD_CONTRACT_SUBJECT=torch`` it is torch's own, which shows that the cases themselves are
deterministic.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import os
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import resource_sharer
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from contract_ways import INLINE, SETTINGS, SUBJECT_IS_TORCH, Workers
from kit.comparison import difference


def subject_class() -> type[torch.utils.data.DataLoader]:
    """Return the class under test."""
    if SUBJECT_IS_TORCH:
        return torch.utils.data.DataLoader
    import fastload

    return fastload.DataLoader


@dataclasses.dataclass(frozen=True)
class Load:
    """Makes the loaders of one run of a case."""

    loader_class: type[torch.utils.data.DataLoader]
    workers: Workers
    own_arguments: dict[str, Any]

    def __call__(self, dataset: Any, *args: Any, **arguments: Any) -> torch.utils.data.DataLoader:
        """Make a loader of the class of this run, with the workers of this run."""
        return self.loader_class(dataset, *args, **self.arguments(**arguments))

    def arguments(self, **arguments: Any) -> dict[str, Any]:
        """Complete a case's arguments by those of this run; the case's own win."""
        given: dict[str, Any] = {"num_workers": self.workers.count}
        if self.workers.persistent:
            given["persistent_workers"] = True
        if self.workers.start_method:
            given["multiprocessing_context"] = self.workers.start_method
        return {**given, **self.own_arguments, **arguments}


Case = Callable[[Load], Any]


def run_case(
    case: Case,
    loader_class: type[torch.utils.data.DataLoader],
    workers: Workers,
    own_arguments: dict[str, Any] | None = None,
) -> Any:
    """Run a case once, from the same state of the global generators, and return its observation."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    with warnings.catch_warnings():
        # Cases about warnings record them by themselves (`recorded`).
        warnings.simplefilter("ignore")
        observation = case(Load(loader_class, workers, own_arguments or {}))
    # torch does not wait for the threads that feed its queues, which hold the queues' pipes; a test's end is checked
    # for descriptors.
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(timeout=5)
    if loader_class is torch.utils.data.DataLoader:
        # Nor does it end the thread that hands out the descriptors of tensors, where it sent some to its workers.
        resource_sharer.stop(timeout=5)
    return observation


def assert_same_as_torch(
    case: Case,
    workers: Workers = INLINE,
    *,
    reference: Workers | None = None,
    or_reference: Workers | None = None,
    view: Callable[[Any], Any] | None = None,
    loader_class: type[torch.utils.data.DataLoader] | None = None,
    **own_arguments: Any,
) -> None:
    """Check that the class under test gives what torch's gives.

    Args:
        case: the case.
        workers: how the loaders of the case load.
        reference: torch loads in this way instead.
        or_reference: what torch gives in this way is as good.
        view: what of an observation is compared; None for all of it.
        loader_class: the class under test, where it is not the usual one.
        own_arguments: arguments that only the class under test is given.

    Raises:
        AssertionError: the observations differ; the text says where.
    """
    if loader_class is None:
        loader_class = subject_class()
    if SUBJECT_IS_TORCH:
        own_arguments = {}
        # Then an exception to the rule cannot be tested: torch compared with itself must be the same everywhere.
        workers, reference, or_reference = reference or workers, None, None
    elif workers.threads:
        own_arguments = {"worker_method": "thread", **own_arguments}
    elif workers.worker_threads > 1:
        own_arguments = {"worker_threads": workers.worker_threads, **own_arguments}
    if view is None:
        view = _whole
    expected = view(_torch_observation(case, reference or workers))
    actual = _without_words_that_torch_has_not(view(run_case(case, loader_class, workers, own_arguments)), expected)
    found = difference(actual, expected)
    if found and or_reference is not None:
        second = difference(actual, view(_torch_observation(case, or_reference)))
        found = f"{found}; and, {or_reference}: {second}" if second else None
    if found:
        raise AssertionError(f"differs from torch's DataLoader ({workers}) at {found}")


def as_in_torch(settings: Workers | pytest.MarkDecorator | Case = INLINE, **options: Any) -> Any:
    """Make a test of a case: ``assert_same_as_torch`` with these settings of workers and these options.

    Parameters of the case beside ``load`` are the test's, as fixtures and ``parametrize`` give them.
    """
    if not isinstance(settings, (Workers, pytest.MarkDecorator)):
        return as_in_torch()(settings)

    def decorated(case: Callable[..., Any]) -> Any:
        signature = inspect.signature(case)
        parameters = [one for name, one in signature.parameters.items() if name != "load"]
        is_marked = isinstance(settings, pytest.MarkDecorator)
        if is_marked:
            parameters.append(inspect.Parameter("workers", inspect.Parameter.POSITIONAL_OR_KEYWORD))

        @functools.wraps(case)
        def test(**given: Any) -> None:
            workers = given.pop("workers") if is_marked else settings
            assert_same_as_torch(lambda load: case(load, **given), workers, **options)

        test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return settings(test) if is_marked else test

    return decorated


def _without_words_that_torch_has_not(actual: Any, expected: Any) -> Any:
    """Take away the messages of our errors where torch's have none, as those of its assertions had not until 2.13."""
    if isinstance(actual, Raised) and isinstance(expected, Raised) and not expected.first_line:
        return dataclasses.replace(actual, first_line="", last_line="")
    if type(actual) is type(expected) is list and len(actual) == len(expected):
        return [_without_words_that_torch_has_not(one, other) for one, other in zip(actual, expected, strict=True)]
    return actual


def _whole(observation: Any) -> Any:
    return observation


def without_messages(observation: Any) -> Any:
    """Keep of each error its class only: where a message says "in a worker" or does not by how the sample came."""
    if isinstance(observation, Raised):
        return observation.kind
    if type(observation) is list:
        return [without_messages(seen) for seen in observation]
    if type(observation) is dict:
        return {key: without_messages(seen) for key, seen in observation.items()}
    return observation


_torch_observations: dict[Any, Any] = {}


def _torch_observation(case: Case, workers: Workers) -> Any:
    """Run a case through torch's class, or recall what it gave.

    Only threads profit: torch has none, so their reference is that of the same number of processes, which the same
    test has just made for its own setting. Nothing is kept beyond one test's settings.
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" (")[0]
    for setting in sorted((str(setting) for setting in SETTINGS), key=len, reverse=True):
        test = test.replace(setting, "workers")
    about = (test, case.__code__)
    if about not in _torch_observations:
        _torch_observations.clear()
        _torch_observations[about] = {}
    known = _torch_observations[about]
    key = (workers.count, workers.persistent, workers.start_method)
    if workers.is_ours_alone and key in known:
        return known[key]
    observation = run_case(case, torch.utils.data.DataLoader, workers)
    if not SUBJECT_IS_TORCH:
        # A copy, as the descriptors of torch's shared memory must not outlive the test.
        with contextlib.suppress(Exception):
            copied = copy.deepcopy(observation)
            # The copy of a strided array is another one.
            if difference(copied, observation) is None:
                known[key] = copied
    return observation


@dataclasses.dataclass(frozen=True)
class Raised:
    """An exception, as far as the contract fixes it."""

    kind: type[BaseException]
    first_line: str
    last_line: str
    """Of an error that comes from a worker: the last line of the original traceback."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """A regular end (StopIteration)."""


def raised(error: BaseException) -> Raised:
    """Take from an exception what must be the same: its class, and what its message says at both ends.

    Which worker it was is left out, as a batch is not bound to one; so are addresses of objects. The exception loses
    its traceback: torch's re-raised error refers to itself through it, and its frames hold the iterator. Such an
    iterator would live until the garbage is collected, perhaps by a later worker, which then waits for its cousins in
    vain.
    """
    error.__traceback__ = None
    # A KeyError prints its text as a literal, in which line breaks and all are escaped.
    literal = isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str)
    text = re.sub(r"0x[0-9a-f]+", "0x...", error.args[0] if literal else str(error))
    text = re.sub(r"in DataLoader worker (process|thread) \d+", "in a worker", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return Raised(type(error), lines[0], lines[-1])


def outcome(function: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
    """Call a function; return its result, or what it raised."""
    try:
        return function(*args, **arguments)
    except StopIteration:
        return Ended()
    except Exception as error:
        return raised(error)


def consume(iterator: Iterator[Any], limit: int = 500) -> list[Any]:
    """Take every batch of an iterator, going on after an error; the errors stand in the batches' places."""
    outcomes: list[Any] = []
    while len(outcomes) < limit:
        outcomes.append(outcome(next, iterator))
        if isinstance(outcomes[-1], Ended):
            break
    return outcomes


def epochs(loader: Any, count: int = 1) -> list[Any]:
    """Iterate over a loader several times, as ``consume`` does."""
    return [consume(iter(loader)) for _ in range(count)]


def recorded(function: Callable[..., Any], *args: Any, **arguments: Any) -> tuple[Any, list[Any]]:
    """Call a function; return its outcome and the warnings it gave, as (category, text).

    Left out are warnings of our own, which name an argument of ours, and Python's since 3.12 about a fork of a process
    with threads: where torch forks workers, ours may be threads.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = outcome(function, *args, **arguments)
    texts = [(warning.category, re.sub(r"0x[0-9a-f]+", "0x...", str(warning.message))) for warning in caught]
    left_out = ("seeding=", "worker_method=", "use of fork() may lead to deadlocks")
    return result, [pair for pair in texts if not any(part in pair[1] for part in left_out)]


def generator(seed: int = 11) -> torch.Generator:
    """Make a generator of torch with the given seed."""
    return torch.Generator().manual_seed(seed)


def random_states(own: torch.Generator | None = None) -> list[Any]:
    """Take the states of all global generators, and of one's own."""
    states = [random.getstate(), np.random.get_state(), torch.get_rng_state()]
    return states + ([own.get_state()] if own is not None else [])
