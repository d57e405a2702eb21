"""With a ``collate_fn`` that only regroups its samples: one worker makes a batch, and it is torch's."""

# ruff: noqa: B905
import os
from typing import Any

import pytest
import torch
from kit.comparison import difference
from kit.datasets import Made
from kit.ways import USUAL

import fastload


def zipped(batch):
    return tuple(zip(*batch))


def ragged(index):
    """A sample with draws, a tensor of another length each, and an object."""
    return torch.rand(3, 5), {"boxes": torch.rand(index % 4, 4), "name": f"{index}.jpg"}, os.getpid()


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((way, {}) for way in USUAL),
    ("processes", {"chunk_size": 2}),
    ("processes", {"in_order": False}),
    ("threads", {"in_order": False}),
    ("processes", {"worker_threads": 3}),
]


@pytest.mark.parametrize(("way", "options"), OPTIONS, ids=str)
def test_batches_are_those_of_tasks_that_are_whole_batches(way, options):
    def make(**more):
        return fastload.DataLoader(Made(22, ragged), 8, shuffle=True, seed=3, collate_fn=zipped, **more)

    loader, alone = make(**USUAL[way], **options), make()
    for _ in range(2):
        expected, found = ([batch[:2] for batch in one] for one in (alone, loader))
        if not options.get("in_order", True):
            expected, found = (sorted(one, key=repr) for one in (expected, found))
        assert difference(found, expected) is None
    if loader.num_workers:
        assert loader.statistics().without_layout_reason == {"custom collate_fn": 3 * 2}
    loader.close()
