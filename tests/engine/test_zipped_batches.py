"""With a ``collate_fn`` that only regroups its samples: one worker makes a batch, and it is torch's."""

# ruff: noqa: B905
import os
import pickle
import resource

import pytest
import torch
from kit.comparison import difference
from kit.ways import USUAL

import fastload
from fastload.errors import WorkerDied


def zipped(batch):
    return tuple(zip(*batch))


class Ragged:
    """Samples with draws, a tensor of another length each, and an object."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.rand(3, 5), {"boxes": torch.rand(index % 4, 4), "name": f"{index}.jpg"}, os.getpid()


class Shared(Ragged):
    """All samples hold the same objects: a table of names, and an array."""

    def __init__(self):
        self.names, self.table = {"cat": 0, "dog": 1}, torch.zeros(1000)

    def __getitem__(self, index):
        return self.names, self.table, index


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [zipped, list], ids=lambda collate_fn: collate_fn.__name__)
@pytest.mark.parametrize("loader_class", [torch.utils.data.DataLoader, fastload.DataLoader])
def test_an_object_that_samples_share_is_one_object_in_the_batch(loader_class, collate_fn, num_workers):
    for batch in loader_class(Shared(), 4, num_workers=num_workers, collate_fn=collate_fn):
        names, tables, _ = batch if collate_fn is zipped else zipped(batch)
        assert len({id(one) for one in names}) == 1
        assert len({one.untyped_storage().data_ptr() for one in tables}) == 1


def epochs(way, collate_fn=zipped, **options):
    loader = fastload.DataLoader(Ragged(), 8, shuffle=True, seed=3, collate_fn=collate_fn, **{**USUAL[way], **options})
    found = [[batch[:2] for batch in loader] for _ in range(2)]
    return found, loader


OPTIONS = [(way, options) for way in USUAL for options in ({}, {"chunk_size": 2}, {"in_order": False})]
OPTIONS += [("processes", {"worker_threads": 3}), ("kept", {"worker_threads": 3})]


@pytest.mark.parametrize(("way", "options"), OPTIONS, ids=str)
def test_batches_are_those_of_tasks_that_are_whole_batches(way, options):
    expected, _ = epochs("inline")
    found, loader = epochs(way, **options)
    if not options.get("in_order", True):
        expected, found = ([sorted(epoch, key=repr) for epoch in one] for one in (expected, found))
    assert difference(found, expected) is None
    if loader.num_workers:
        assert loader.statistics().without_layout_reason == {"custom collate_fn": 3 * 2}


class Damaged(Ragged):
    """The samples at ``at`` cannot be loaded."""

    def __init__(self, at):
        self.at = at

    def __getitem__(self, index):
        if index in self.at:
            raise OSError(f"sample {index} is damaged")
        return super().__getitem__(index)


@pytest.mark.parametrize("at", [{2}, set(range(8))])
def test_samples_that_cannot_be_loaded_are_left_out(at):
    loader = fastload.DataLoader(Damaged(at), 8, num_workers=3, collate_fn=zipped, on_error="skip")
    names = [[target["name"] for target in batch[1]] for batch in loader]
    rows = [[index for index in range(start, min(start + 8, 22)) if index not in at] for start in (0, 8, 16)]
    assert names == [[f"{index}.jpg" for index in indices] for indices in rows if indices]


def test_an_error_of_the_first_batch_has_its_place():
    iterator = iter(fastload.DataLoader(Damaged({5, 6}), 8, num_workers=3, collate_fn=zipped))
    with pytest.raises(OSError, match="sample 5 is damaged"):
        next(iterator)
    assert len(next(iterator)[0]) == 8


class Unequal:
    """A sample that has no parts, so that it cannot be zipped."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return 3 if index == 1 else (index, index)


def test_an_error_of_collation_is_worded_as_one_of_a_worker():
    with pytest.raises(TypeError, match="Caught TypeError in DataLoader worker process 0"):
        next(iter(fastload.DataLoader(Unequal(), 4, num_workers=2, collate_fn=zipped)))


class WithFunction(Ragged):
    """A part of each sample cannot be pickled."""

    def __getitem__(self, index):
        return torch.full((2,), index), lambda: index


def test_samples_that_cannot_be_sent_raise_the_error_of_a_batch_that_cannot():
    with pytest.raises((AttributeError, pickle.PicklingError)):
        next(iter(fastload.DataLoader(WithFunction(), 8, num_workers=2, collate_fn=zipped)))


class Lazy(list):
    """Its parts are made where it is iterated."""

    def __iter__(self):
        yield from (self[0], torch.utils.data.get_worker_info() is not None, torch.rand(()).item())


class LazySamples(Ragged):
    def __getitem__(self, index):
        return Lazy([index])


def test_samples_of_a_class_of_the_users_are_regrouped_by_a_worker():
    torch.manual_seed(0)
    loader = fastload.DataLoader(LazySamples(), 8, num_workers=2, collate_fn=zipped, seed=1)
    batches = list(loader)
    after = torch.rand(())
    torch.manual_seed(0)
    whole = list(fastload.DataLoader(LazySamples(), 8, num_workers=2, collate_fn=zipped, seed=1, chunk_size="batch"))
    assert batches == whole
    assert all(in_worker for batch in batches for in_worker in batch[1])
    assert torch.equal(after, torch.rand(()))


def fail():
    raise ValueError("cannot be read")


class Unreadable:
    """Can be pickled, and not be read."""

    def __reduce__(self):
        return fail, ()


class WithUnreadable(Ragged):
    def __getitem__(self, index):
        return index, Unreadable()


def test_a_sample_that_cannot_be_read_is_the_error_that_its_batch_is():
    iterator = iter(fastload.DataLoader(WithUnreadable(), 8, num_workers=2, collate_fn=zipped))
    with pytest.raises(ValueError, match="cannot be read"):
        next(iterator)


class Deadly(Ragged):
    def __getitem__(self, index):
        if index == 1:
            os._exit(3)
        return super().__getitem__(index)


def test_a_worker_that_dies_at_its_part_raises():
    with pytest.raises(WorkerDied):
        next(iter(fastload.DataLoader(Deadly(), 8, num_workers=2, collate_fn=zipped)))


class Claiming:
    """An index batch that says it has more indices than it gives."""

    def __init__(self, indices):
        self.indices = indices

    def __len__(self):
        return 5

    def __iter__(self):
        return iter(self.indices)


@pytest.mark.parametrize(
    "indices",
    [torch.arange(9).numpy(), tuple(range(9)), Claiming([3, 4]), Claiming([])],
    ids=["array", "tuple", "2", "0"],
)
def test_index_batches_may_be_anything_that_torch_iterates(indices):
    batches = [indices, [9, 10]]
    lengths = [
        [len(batch) for batch in loader(Ragged(), batch_sampler=batches, num_workers=2, collate_fn=lambda batch: batch)]
        for loader in (fastload.DataLoader, torch.utils.data.DataLoader)
    ]
    assert lengths[0] == lengths[1]


@pytest.mark.slow
def test_32_workers_and_kept_batches_of_many_tensors_need_few_descriptors():
    """torch's loader needs a descriptor for each tensor: 40 batches of 16 x 24 tensors would be 15,360 of them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    try:
        dataset = [{f"target{n}": torch.zeros((index + n) % 10, 4) for n in range(24)} for index in range(640)]
        loader = fastload.DataLoader(dataset, 16, num_workers=32, collate_fn=lambda batch: tuple(batch))
        batches = list(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert difference([sample for batch in batches for sample in batch], dataset) is None
