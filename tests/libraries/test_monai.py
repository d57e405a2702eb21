"""MONAI's random transforms: seeded for each sample, whoever loads it; by ``seeding="torch"`` with torch's bits."""

from __future__ import annotations

from typing import Any

import pytest

WORKERS = {
    "one process": {"num_workers": 1},
    "processes": {"num_workers": 3, "chunk_size": 1},
    "threads": {"num_workers": 3, "worker_method": "thread", "chunk_size": 1},
    "threads in processes": {"num_workers": 2, "worker_threads": 2},
}


@pytest.fixture(scope="module")
def data() -> Any:
    """MONAI's datasets, imported where these tests run and not in every process that collects tests."""
    pytest.importorskip("monai", reason="monai is not installed")
    import monai_datasets

    return monai_datasets


@pytest.mark.parametrize(
    "name", ["Dataset", "CacheDataset", "PersistentDataset", "ArrayDataset", "a Randomizable", "own"]
)
def test_samples_are_the_same_whoever_loads_them_and_differ_between_epochs(name, data, tmp_path, recwarn):
    make = data.DATASETS[name]
    loader = data.loader_of(make(tmp_path), seed=3)
    expected = [data.values(loader) for _ in range(2)]
    assert expected[0] != expected[1]
    for workers in WORKERS.values():
        loader = data.loader_of(make(tmp_path), seed=3, **workers)
        assert [data.values(loader) for _ in range(2)] == expected, workers
    assert [str(one.message) for one in recwarn if "does not seed" in str(one.message)] == []


def test_in_this_process_transforms_have_their_own_generators_back(data):
    own = data.Own()
    _, _, _, several, _, _, shift = own.stages
    state, words = several.R, several.R.get_state()[1].tolist()
    next(iter(data.loader_of(own, seed=3)))
    assert several.R is state
    assert state.get_state()[1].tolist() == words
    assert "R" not in vars(shift)
