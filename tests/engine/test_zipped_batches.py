"""With a ``collate_fn`` that only regroups its samples: one worker makes a batch, and it is torch's."""

# ruff: noqa: B905
import os
import resource

import pytest
import torch
from kit.comparison import difference
from kit.ways import USUAL

import fastload


def zipped(batch):
    return tuple(zip(*batch))


class Ragged:
    """Samples with draws, a tensor of another length each, and an object."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.rand(3, 5), {"boxes": torch.rand(index % 4, 4), "name": f"{index}.jpg"}, os.getpid()


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
