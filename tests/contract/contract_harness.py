"""Runs one case through torch's DataLoader and through fastload's, and compares what they gave.

A case is a function of one argument, ``load``, with which it makes its loaders: ``load(dataset, batch_size=4)`` is
``loader_class(dataset, batch_size=4, num_workers=..., ...)``. It returns an observation: anything that
``kit.comparison.difference`` can compare.
"""

import dataclasses
import functools
import inspect
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
from contract_ways import INLINE, Workers
from kit.comparison import difference

import fastload


@dataclasses.dataclass(frozen=True)
class Load:
    """Makes the loaders of one run of a case."""

    loader_class: type[torch.utils.data.DataLoader]
    workers: Workers
    own_arguments: dict[str, Any]

    def __call__(self, dataset: Any, *args: Any, **arguments: Any) -> torch.utils.data.DataLoader:
        """Make a loader of the class and with the workers of this run; the case's own arguments win."""
        given: dict[str, Any] = {"num_workers": self.workers.count, **self.own_arguments}
        if self.workers.persistent:
            given["persistent_workers"] = True
        if self.workers.start_method:
            given["multiprocessing_context"] = self.workers.start_method
        return self.loader_class(dataset, *args, **{**given, **arguments})


Case = Callable[[Load], Any]


def run_case(
    case: Case, loader_class: type[torch.utils.data.DataLoader], workers: Workers, **own_arguments: Any
) -> Any:
    """Run a case once, from the same state of the global generators, and return its observation."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    is_torch = loader_class is torch.utils.data.DataLoader
    with warnings.catch_warnings():
        # Cases about warnings record them by themselves (`recorded`).
        warnings.simplefilter("ignore")
        observation = case(Load(loader_class, workers, {} if is_torch else {**workers.own_arguments, **own_arguments}))
    # torch does not wait for the threads that feed its queues, which hold the queues' pipes; a test's end is checked
    # for descriptors.
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(timeout=5)
    if is_torch:
        # Nor does it end the thread that hands out the descriptors of tensors, where it sent some to its workers.
        resource_sharer.stop(timeout=5)
    return observation


def assert_same_as_torch(
    case: Case,
    workers: Workers = INLINE,
    *,
    reference: Workers | None = None,
    or_reference: Workers | None = None,
    view: Callable[[Any], Any] = lambda observation: observation,
    loader_class: type[torch.utils.data.DataLoader] = fastload.DataLoader,
    **own_arguments: Any,
) -> None:
    """Check that fastload's loader gives what torch's gives.

    Args:
        case: the case.
        workers: how the loaders of the case load.
        reference: torch loads in this way instead.
        or_reference: what torch gives in this way is as good.
        view: what of an observation is compared.
        loader_class: the class under test.
        own_arguments: arguments that only this class is given.

    Raises:
        AssertionError: the observations differ; the text says where.
    """
    expected = view(run_case(case, torch.utils.data.DataLoader, reference or workers))
    actual = view(run_case(case, loader_class, workers, **own_arguments))
    actual = _without_words_that_torch_has_not(actual, expected)
    found = difference(actual, expected)
    if found and or_reference is not None:
        second = difference(actual, view(run_case(case, torch.utils.data.DataLoader, or_reference)))
        found = f"{found}; and, {or_reference}: {second}" if second else None
    assert not found, f"differs from torch's DataLoader ({workers}) at {found}"


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


def without_messages(observation: Any) -> Any:
    """Keep of each error its class only: where a message says "in a worker" or does not by how the sample came."""
    if isinstance(observation, Raised):
        return observation.kind
    if type(observation) is list:
        return [without_messages(seen) for seen in observation]
    if type(observation) is dict:
        return {key: without_messages(seen) for key, seen in observation.items()}
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


def consume(iterator: Iterator[Any], limit: int = 500, seen: Callable[[Any], Any] = lambda outcome: outcome) -> Any:
    """Take every batch of an iterator, going on after an error; the errors stand in the batches' places.

    ``seen`` makes of each outcome what is returned of it.
    """
    outcomes: list[Any] = []
    while len(outcomes) < limit:
        last = outcome(next, iterator)
        outcomes.append(seen(last))
        if isinstance(last, Ended):
            break
    return outcomes


def epochs(loader: Any, count: int = 1) -> list[Any]:
    """Iterate over a loader several times, as ``consume`` does."""
    return [consume(iter(loader)) for _ in range(count)]


def trained(loader: Any, stops: tuple[int | None, ...], own: torch.Generator | None = None) -> list[Any]:
    """Iterate several times, some of them only so far; the loop draws between the batches, as training does.

    So what is returned tells the places of all global generators after each step; and of one's own too, if it is given.
    """

    def drawn(*seen: Any) -> Any:
        state = None if own is None else own.get_state()
        return *seen, random.random(), np.random.rand(), torch.rand(1), state

    found = []
    for stop in stops:
        iterator = iter(loader)
        found.append([drawn(), consume(iterator, 500 if stop is None else stop, drawn), random_states(own)])
        del iterator
    return found


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
