"""What an error is made of, and what cannot begin; where errors stand among batches is in test_contract_loaders.py."""

from typing import Any

import contract_datasets as data
import contract_ways as ways
import pytest
from contract_harness import as_in_torch, consume, outcome
from kit.datasets import Made, Sized, Stream
from kit.outcomes import outcomes
from torch.utils.data import IterableDataset, Subset


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize("failure", ["custom", "chained", "key_error"])
def test_an_exception_that_a_worker_raises_has_the_attributes_of_its_class_and_the_traceback_as_its_text(load, failure):
    (error,) = outcomes(iter(load(Made(1, lambda index: data.FAILURES[failure]()))))
    text = str(error)
    wanted = ["Traceback (most recent call last)", "in __getitem__", "in _chained", "ValueError: a bad sample"]
    wanted += ["The above exception was the direct cause", "RuntimeError: in consequence", "\\n", "DataLoader worker "]
    seen = [type(error), len(error.args), type(error.args[0]), type(error.__cause__), text.count("\n") > 2]
    return seen + [(part, part in text) for part in wanted]


@as_in_torch
def test_leaving_the_program_from_the_main_process(load):
    iterator = iter(load(Made(4, lambda index: data.raise_(SystemExit(3)) if index == 2 else index)))
    seen: list[Any] = [next(iterator), next(iterator)]
    with pytest.raises(SystemExit) as caught:
        next(iterator)
    return [*seen, caught.value.code, consume(iterator)]


class _CannotIterate(Sized):
    def __iter__(self) -> Any:
        raise RuntimeError("no order today")


class _NoIterator(IterableDataset):
    def __iter__(self) -> Any:
        return 5


class _HalfASubset(Subset):
    def __getitem__(self, index: Any) -> Any:
        return "mine"


_CANNOT_BEGIN: dict[str, Any] = {
    "sampler": lambda: {"dataset": Sized(4), "sampler": _CannotIterate(4), "batch_size": 2},
    "sampler without batches": lambda: {"dataset": Sized(4), "sampler": _CannotIterate(4), "batch_size": None},
    "length": lambda: {"dataset": data.LengthRaises()},
    "no length": lambda: {"dataset": data.WithoutLength()},
    "init function": lambda: {"dataset": Sized(6), "worker_init_fn": data.init_that_fails},
    "stream": lambda: {"dataset": Stream(lambda: data.raise_(data.CustomError("cannot begin")))},
    "stream without an iterator": lambda: {"dataset": _NoIterator()},
    "subset with one method only": lambda: {"dataset": _HalfASubset(data.Squares(4), [1, 2])},
    "collation": lambda: {"dataset": Sized(2), "collate_fn": 3},
    "sampler of a wrong type": lambda: {"dataset": Sized(2), "sampler": 5},
    "sampler of a wrong type without batches": lambda: {"dataset": Sized(2), "sampler": 5, "batch_size": None},
    "batch sampler of a wrong type": lambda: {"dataset": Sized(2), "batch_sampler": 5},
    "generator of a wrong type": lambda: {"dataset": Sized(2), "generator": "none"},
    "prefetch factor of zero": lambda: {"dataset": Sized(2), "num_workers": 2, "prefetch_factor": 0},
    "half a worker": lambda: {"dataset": Sized(2), "num_workers": 1.5},
    "timeout without workers": lambda: {"dataset": Sized(2), "num_workers": 0, "timeout": 1},
}


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_THREADS))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterators
@pytest.mark.parametrize("name", _CANNOT_BEGIN)
def test_what_cannot_begin_fails_in_iter_or_in_the_first_next_as_in_torch(load, name):
    # With workers a lazy sampler fails when torch reads ahead, inside iter(); both places are in reach. Later errors
    # of torch's are for names that were never set.
    return outcome(lambda: next(iter(load(**_CANNOT_BEGIN[name]()))))
