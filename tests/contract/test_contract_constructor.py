"""The constructor's checks, attributes and signature, and the lengths of a loader."""

import copy
import itertools
import multiprocessing
import pickle
import re
import warnings
from typing import Any, Generic, get_args, get_origin

import contract_datasets as data
import contract_ways as ways
import numpy as np
import pytest
import torch
from contract_harness import Raised, as_in_torch, consume, epochs, generator, outcome, recorded
from kit.datasets import Sized, Stream
from torch.utils.data import BatchSampler, DataLoader

import fastload


def attributes(loader: DataLoader) -> dict[str, Any]:
    """Take the attributes that torch's class gives a loader; samplers as their classes and contents."""
    plain = DataLoader([0])
    seen: dict[str, Any] = {}
    for name in sorted(vars(plain)):
        value = getattr(loader, name, "absent")
        if name == "sampler":
            value = [type(value).__name__, getattr(value, "data_source", None), getattr(value, "generator", None)]
        elif name == "batch_sampler" and type(value) is BatchSampler:
            value = ["BatchSampler", value.batch_size, value.drop_last, value.sampler is loader.sampler]
        seen[name] = value
    seen["multiprocessing_context"] = type(loader.multiprocessing_context)
    seen["_auto_collation"] = loader._auto_collation
    seen["_index_sampler"] = loader._index_sampler in (loader.sampler, loader.batch_sampler)
    return seen


# Objects that several constructions share, so that both classes are given the very same ones.
DATASET = data.Squares(10)
STREAM = data.Shards(10)
SAMPLER = [3, 1]
BATCHES = [[0, 1], [2]]

REJECTED: dict[str, dict[str, Any]] = {
    "negative num_workers": {"num_workers": -1},
    "negative timeout": {"timeout": -1},
    "prefetch_factor without workers": {"prefetch_factor": 2},
    "negative prefetch_factor": {"num_workers": 1, "prefetch_factor": -1},
    "persistent_workers without workers": {"persistent_workers": True},
    "multiprocessing_context without workers": {"multiprocessing_context": "fork"},
    "multiprocessing_context object without workers": {"multiprocessing_context": multiprocessing.get_context()},
    "unknown start method": {"num_workers": 1, "multiprocessing_context": "bad"},
    "context of a wrong type": {"num_workers": 1, "multiprocessing_context": 5},
    "stream and shuffle": {"dataset": STREAM, "shuffle": True},
    "stream and sampler": {"dataset": STREAM, "sampler": SAMPLER},
    "stream and empty sampler": {"dataset": STREAM, "sampler": []},
    "stream and batch_sampler": {"dataset": STREAM, "batch_sampler": BATCHES},
    "sampler and shuffle": {"sampler": SAMPLER, "shuffle": True},
    "batch_sampler and batch_size": {"batch_sampler": BATCHES, "batch_size": 2},
    "batch_sampler and batch_size None": {"batch_sampler": BATCHES, "batch_size": None},
    "batch_sampler and shuffle": {"batch_sampler": BATCHES, "shuffle": True},
    "batch_sampler and sampler": {"batch_sampler": BATCHES, "sampler": SAMPLER},
    "batch_sampler and drop_last": {"batch_sampler": BATCHES, "drop_last": True},
    "no batches and drop_last": {"batch_size": None, "drop_last": True},
    "batch_size zero": {"batch_size": 0},
    "batch_size float": {"batch_size": 2.0},
    "batch_size bool": {"batch_size": True},
    "batch_size tensor": {"batch_size": torch.tensor(4)},
    "drop_last no bool": {"drop_last": 1},
    "shuffle of nothing": {"dataset": [], "shuffle": True},
    "shuffle without a length": {"dataset": data.WithoutLength(), "shuffle": True},
    "shuffle with a length that raises": {"dataset": data.LengthRaises(), "shuffle": True},
    "num_workers None": {"num_workers": None},
    "prefetch_factor text": {"num_workers": 1, "prefetch_factor": "2"},
    "unknown argument": {"no_such_argument": 1},
    "two arguments of one name": {"args": (2,), "batch_size": 3},
    "too many positional arguments": {"args": (1, False, None, None, 0, None, False, False, 0, None, None, None, 2)},
    "no dataset": {"dataset": None, "args": None},
}

ACCEPTED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "empty dataset": {"dataset": []},
    "dataset without a length": {"dataset": data.WithoutLength()},
    "a dataset that is None": {"dataset": None},
    "shuffle": {"shuffle": True},
    "shuffle with a generator": {"shuffle": True, "generator": generator()},
    "shuffle None": {"shuffle": None},
    "truthy shuffle": {"shuffle": 1},
    "batch_size and drop_last": {"batch_size": 3, "drop_last": True},
    "batch_size None": {"batch_size": None},
    "batch_size None and shuffle": {"batch_size": None, "shuffle": True},
    "sampler": {"sampler": SAMPLER, "batch_size": 2},
    "sampler that is no iterable": {"sampler": 5},
    "batch_sampler": {"batch_sampler": BATCHES},
    "batch_sampler that is empty": {"batch_sampler": []},
    "batch_sampler and batch_size 1": {"batch_sampler": BATCHES, "batch_size": 1, "drop_last": False},
    "stream": {"dataset": STREAM, "batch_size": 2},
    "stream, drop_last": {"dataset": STREAM, "batch_size": 2, "drop_last": True},
    "stream without batches": {"dataset": STREAM, "batch_size": None},
    "collate_fn": {"collate_fn": data.identity},
    "workers": {"num_workers": 2},
    "workers, all arguments": {
        "num_workers": 2,
        "timeout": 3.5,
        "worker_init_fn": data.init_that_fails,
        "prefetch_factor": 4,
        "persistent_workers": True,
        "in_order": False,
        "pin_memory": True,
        "pin_memory_device": "cuda",
        "generator": generator(),
    },
    "prefetch_factor of zero": {"num_workers": 1, "prefetch_factor": 0},
    "num_workers True": {"num_workers": True},
    "start method by context": {"num_workers": 1, "multiprocessing_context": multiprocessing.get_context("fork")},
    "start method of torch": {"num_workers": 1, "multiprocessing_context": torch.multiprocessing.get_context("fork")},
    "timeout without workers": {"timeout": 5},
    "in_order without workers": {"in_order": False},
    "pin_memory_device alone": {"pin_memory_device": "cuda"},
    "not callable functions": {"collate_fn": 3, "worker_init_fn": 4},
    "generator that is none": {"generator": "none"},
    "positional": {"args": (4, None, None, None, 2, None, False, True, 1.0, None, "fork", generator())},
}


def _arguments(arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = dict(arguments)
    positional = given.pop("args", ())
    if positional is None:
        return (), {}
    return (given.pop("dataset", DATASET), *positional), given


@as_in_torch
@pytest.mark.parametrize("name", [*REJECTED, *ACCEPTED])
def test_a_construction_has_the_attributes_of_torchs_or_raises_what_that_raises(load, name):
    positional, arguments = _arguments({**REJECTED, **ACCEPTED}[name])
    result = outcome(load.loader_class, *positional, **arguments)
    assert isinstance(result, DataLoader) == (name in ACCEPTED)
    if isinstance(result, DataLoader):
        return attributes(result)
    if result.kind is TypeError and "unexpected keyword" in result.first_line:
        return result.kind
    if result.kind is TypeError and "positional" in result.first_line:
        # Python's own text counts and names the arguments and the class.
        return result.kind, result.first_line.partition("(")[0].rpartition(".")[2]
    return result


def _pairs(others: dict[str, dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each wrong argument with each other that does not name one argument twice."""
    pairs = itertools.product(REJECTED.values(), others.values())
    return [(one, other) for one, other in pairs if not set(one) & set(other) and "args" not in {**one, **other}]


@as_in_torch
@pytest.mark.parametrize("others", [REJECTED, ACCEPTED], ids=["two wrong ones", "a wrong and a legal one"])
def test_of_two_arguments_the_same_wrong_one_is_reported(load, others):
    # The order of the checks shows when two of them fail.
    seen = []
    for one, other in _pairs(others):
        arguments = {"dataset": DATASET, **one, **other}
        result = outcome(load.loader_class, **arguments)
        seen.append(attributes(result) if isinstance(result, DataLoader) else result)
        if "no_such_argument" in arguments:
            seen[-1] = result.kind
    assert len(seen) > 200
    return seen


_OF_OTHER_TYPES = [{"num_workers": number} for number in (np.int64(1), torch.tensor(1), 0.0)]
_OF_OTHER_TYPES += [{"num_workers": 1, "timeout": timeout} for timeout in (np.float32(60), torch.tensor(60.0))]


@as_in_torch
@pytest.mark.parametrize("arguments", _OF_OTHER_TYPES, ids=repr)
def test_numbers_may_be_of_another_type(load, arguments):
    return consume(iter(load(data.Squares(3), **arguments)))


@as_in_torch
def test_a_context_is_checked_when_it_is_set_later(load):
    seen: list[Any] = []
    for num_workers, context in itertools.product((0, 2), ("fork", "bad", 5, None, multiprocessing.get_context())):
        loader = load(DATASET, num_workers=num_workers)
        seen.append(outcome(setattr, loader, "multiprocessing_context", context))
        seen.append(type(loader.multiprocessing_context))
    return seen


@as_in_torch
def test_the_fixed_attributes_cannot_be_set_and_the_others_can_also_of_a_subclass(load):
    class Named(load.loader_class):
        pass

    loader = Named(DATASET)
    names = [*(name for name in sorted(vars(DataLoader([0]))) if not name.startswith("_")), "an_attribute_of_the_users"]
    return [(name, outcome(setattr, loader, name, getattr(loader, name, 3))) for name in names]


@as_in_torch
def test_the_guard_opens_for_those_who_know_its_flag(load):
    loader = load(Sized(4), batch_size=2)
    loader._DataLoader__initialized = False
    loader.batch_sampler = [[3], [2, 1]]
    loader._DataLoader__initialized = True
    object.__setattr__(loader, "drop_last", True)
    return epochs(loader), loader.drop_last, outcome(setattr, loader, "batch_sampler", [[0]])


def test_it_is_a_subclass_of_torchs_and_can_be_subscripted():
    subject = fastload.DataLoader
    assert issubclass(subject, DataLoader)
    assert subject.__name__ == "DataLoader"
    assert isinstance(subject(DATASET), Generic)
    assert get_origin(subject[int]) is subject
    assert get_args(subject[int]) == (int,)
    assert type(subject[int](DATASET)) is subject


# Lengths, beside those of test_contract_loaders.py.
LENGTHS: dict[str, dict[str, Any]] = {
    "sampler with another length": {"batch_size": 2, "sampler": data.Shards(10, told=5)},
    "batch_sampler without a length": {"batch_sampler": data.WithoutLengthSampler()},
    "dataset without a length": {"dataset": data.WithoutLength()},
    "dataset whose length raises": {"dataset": data.LengthRaises()},
    "stream without a length": {"dataset": Stream(lambda: range(10)), "batch_size": 3},
    "stream": {"dataset": data.Shards(10, told=10), "batch_size": 3},
    "stream, drop_last": {"dataset": data.Shards(10, told=10), "batch_size": 3, "drop_last": True},
    "stream, no batches": {"dataset": data.Shards(10, told=10), "batch_size": None},
    "stream of nothing": {"dataset": data.Shards(0, told=0), "batch_size": 3},
}


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO), reference=ways.INLINE)
@pytest.mark.parametrize("name", LENGTHS)
def test_the_length_of_a_loader_and_of_its_iterator(load, name):
    loader = load(**{"dataset": data.Squares(10), **LENGTHS[name]})
    seen = [outcome(len, loader), outcome(len, loader)]
    seen.append(loader._IterableDataset_len_called)
    # torch's workers read ahead in iter(), which then fails already if the sampler's first step does.
    iterator = outcome(iter, loader)
    if isinstance(iterator, Raised) or isinstance(outcome(next, iterator), Raised):
        return [*seen, "fails"]
    return [*seen, outcome(len, iterator), outcome(len, loader)]


@as_in_torch(ways.several_alone)
def test_a_stream_that_yields_more_than_its_length_warns_for_every_batch_too_many(load):
    loader = load(data.Shards(10, told=4), batch_size=2)
    seen: list[Any] = []
    # Without a call of len() nothing was promised, and nothing is said.
    for call in (False, True):
        if call:
            seen.append(len(loader))
        iterator = iter(loader)
        while not seen or seen[-1] is not None:
            batch, warned = recorded(next, iterator, None)
            seen += [[(kind, re.sub("<.*?>", "", text)) for kind, text in warned], batch]
        seen.append("end of an epoch")
    return seen


# Warnings.


@as_in_torch
@pytest.mark.skipif(not hasattr(torch._utils, "cpu_count"), reason="this torch counts cores in another way")
def test_too_many_workers_are_warned_of_unless_the_check_is_overridden(load, monkeypatch):
    class Quiet(load.loader_class):
        def check_worker_number_rationality(self):
            warnings.warn("quiet", stacklevel=2)

    monkeypatch.setattr(torch._utils, "cpu_count", lambda: 1)
    seen = []
    for make in (load.loader_class, Quiet):
        for num_workers, persistent in [(0, False), (1, False), (2, True)]:
            made: list[Any] = []
            arguments = {"num_workers": num_workers, "persistent_workers": persistent}
            seen.append(recorded(lambda make=make, made=made, arguments=arguments: made.append(make([1], **arguments))))
            seen += [recorded(lambda made=made: consume(iter(made[0]))) for _ in range(2)]
    return seen


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_PERSISTENT))
@pytest.mark.parametrize("device", ["", "cuda"])
@pytest.mark.parametrize("pin_memory", [False, True])
def test_pinning_warns_when_an_iterator_is_made_and_gives_the_same_batches(load, pin_memory, device):
    if device and torch.__version__.startswith("2.6."):
        pytest.skip("this torch fails in its pin thread by another error, and leaves its workers")
    (loader,), warned = recorded(lambda: [load(data.Squares(4), pin_memory=pin_memory, pin_memory_device=device)])
    return warned, [recorded(lambda: consume(iter(loader))) for _ in range(2)]


# Copies.


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO))
@pytest.mark.parametrize(
    "again",
    [lambda loader: pickle.loads(pickle.dumps(loader)), copy.deepcopy, copy.copy],
    ids=["pickle", "deep", "copy"],
)
def test_a_loader_can_be_pickled_and_copied(load, again):
    loader = load(data.Squares(7), batch_size=2, shuffle=True, generator=generator(), collate_fn=data.identity)
    copied = again(loader)
    return [
        type(copied) is type(loader),
        {name: type(value) for name, value in attributes(copied).items()},
        epochs(copied, 2),
        epochs(loader, 2),
        outcome(setattr, copied, "batch_size", 3),
    ]


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_PERSISTENT))
def test_an_iterator_cannot_be_pickled(load):
    loader = load(data.Squares(4))
    iterator = iter(loader)
    seen = [outcome(pickle.dumps, iterator).kind]
    # A loader with a persistent iterator holds it, so it cannot be pickled either.
    pickled = outcome(pickle.dumps, loader)
    return [*seen, pickled.kind if not isinstance(pickled, bytes) else "pickled"]


# What other libraries read from a loader and from its iterators.


@as_in_torch(ways.in_workers)
def test_the_private_names_that_libraries_read_are_there(load):
    loader = load(data.Squares(8), batch_size=2)
    seen = [loader._iterator is None, loader._dataset_kind, loader._auto_collation]
    iterator = iter(loader)
    seen += [loader._iterator is iterator, loader._iterator is None, isinstance(iterator._workers, list)]
    first = next(iterator)
    del iterator
    loader._iterator = None
    iterator = loader._get_iterator()
    return [*seen, first, epochs(loader), iter(iterator) is iterator, consume(iterator), len(iterator)]


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO))
def test_a_subclass_that_passes_everything_on_works(load):
    class Doubling(load.loader_class):
        def __iter__(self):
            for vectors, squares in super().__iter__():
                yield vectors * 2, squares

        def __len__(self):
            return 100

    loader = Doubling(data.Squares(6), 4, num_workers=load.workers.count)
    return [epochs(loader, 2), len(loader), type(loader).__mro__[-3:]]
