"""Ray's workers make the batches that local processes make."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from ray_clusters import Images, digest, epochs

from fastload import DataLoader

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def expected() -> str:
    return epochs()[0]


def test_batches_are_those_of_local_processes(cluster, expected):
    found, statistics = epochs(worker_method="ray")
    assert found == expected
    assert statistics.remote["tasks"] > 0
    assert statistics.remote["bytes"] > 0


class Ragged(torch.utils.data.Dataset[Any]):
    """Samples that have no layout in common: they travel pickled."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.rand(1 + index % 3), {"index": index}, random.random()


def as_list(samples: list[Any]) -> list[Any]:
    return [*samples, float(np.random.rand())]


def test_samples_without_a_layout_and_whole_batches_come_pickled(cluster):
    arguments = {"dataset": Ragged(), "batch_size": 4, "collate_fn": as_list, "number": 1}
    assert epochs(worker_method="ray", **arguments)[0] == epochs(**arguments)[0]


class Counting(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        for number in range(20):
            yield number, info.id, random.random()


@pytest.mark.parametrize(("dataset", "seeding"), [(Counting, "sample"), (Counting, "torch"), (Images, "torch")])
def test_a_replica_stays_with_its_actor(cluster, dataset, seeding):
    # By torch's seeding each batch of any dataset is bound to a worker as well.
    def batches(**arguments: Any) -> str:
        generator = torch.Generator().manual_seed(4)
        loader = DataLoader(dataset(), 3, num_workers=2, generator=generator, seeding=seeding, **arguments)
        found = [batch for _ in range(2) for batch in loader]
        loader.close()
        return digest(found)

    assert batches(worker_method="ray", persistent_workers=True) == batches(persistent_workers=True)


_SCRIPT = """
import collections, dataclasses, sys
import ray, torch
import fastload

Pair = collections.namedtuple("Pair", "first second")

@dataclasses.dataclass
class Sample:
    value: int

class Unreadable(Exception):
    pass

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        if index == 8:
            raise Unreadable(f"sample {index}")
        return Pair(Sample(index), index)

def collate(samples):
    return Pair([one.first for one in samples], [one.second for one in samples])

def found(method):
    loader = fastload.DataLoader(Samples(), 2, num_workers=1, seed=1, collate_fn=collate, worker_method=method)
    batches = []
    try:
        for batch in loader:
            batches.append(batch)
    except Unreadable as error:
        batches.append(str(error).splitlines()[-1])
    loader.close()
    return batches

if __name__ == "__main__":
    expected = found("multiprocessing")
    assert len(expected) == 5 and type(expected[0]) is Pair and type(expected[0].first[0]) is Sample
    ray.init(log_to_driver=False)
    assert found("ray") == expected
    print("equal")
"""


@pytest.mark.thorough
def test_samples_batches_and_errors_may_be_of_classes_of_the_script(cluster, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.stdout, done.returncode) == ("equal\n", 0), done.stderr
