"""Ray's workers share a cache with those of their machine, whichever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.forks import is_true_in_a_child
from ray_clusters import Images, digest

from fastload import DataLoader
from fastload.cache import shared
from fastload.cache.request import read
from fastload.cache.store import key_of_bytes

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]


NUM_FILES = 48
"""In memory, so they are known by their bytes: each is kept once, whoever reads it."""


def delivered(loader: Any, number: int) -> list[Any]:
    return [batch for _ in range(number) for batch in loader]


def counted(loader: Any, words: str) -> int:
    return sum(number for how, number in loader.statistics().decoded.items() if words in how)


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_workers_of_a_machine_share_what_any_of_them_has_kept(cluster, tmp_path, where):
    expected = delivered(DataLoader(Images(), 4, shuffle=True, seed=5), 3)
    # Images of a fourth epoch, loaded before it is asked for, would be counted too.
    given: dict[str, Any] = {"persistent_workers": True, "overlap_epochs": False}
    given |= {"cache": "32MiB"} if where == "memory" else {"cache": tmp_path / "cache", "cache_size": "32MiB"}
    loader = DataLoader(Images(), 4, shuffle=True, seed=5, num_workers=2, worker_method="ray", **given)
    found = delivered(loader, 3)
    assert digest(found) == digest(expected)
    # Each file once, but for two that both have at the same moment.
    assert counted(loader, "kept in the cache") + counted(loader, "from the cache") == 3 * NUM_FILES
    assert counted(loader, "from the cache") >= 2 * NUM_FILES
    assert loader.statistics().cached_files == NUM_FILES  # those of the workers, since they have this process's
    loader.close()


def test_a_worker_that_comes_first_on_its_machine_makes_the_cache_and_others_get_it(tmp_path: Path):
    """As on machines where no process of the loader is; here without Ray."""
    key = key_of_bytes(b"a file")
    asked, run = read("32MiB", None), ["a run of its own", str(tmp_path)]
    made = shared._records_here(asked, run)
    made.store.keep(key, b"abc")

    def finds() -> bool:
        shared.forget()
        found = shared._records_here(asked, run).store.find(key)
        return found is not None and bytes(found) == b"abc"

    assert is_true_in_a_child(finds)
