"""``Stall`` and the loader's own counts, on one rank."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import TensorDataset

import fastload
from fastload.callbacks import Stall

ALWAYS = {"data/share", "data/samples_per_s", "data/startup", "data/here"}
forked = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}


def dataset(length: int = 40) -> TensorDataset:
    return TensorDataset(torch.arange(length))


def is_whole(found: dict[str, float]) -> bool:
    """Return whether the parts make up a share between 0 and 1."""
    parts = sum(found.get(f"data/{name}", 0.0) for name in ("startup", "workers", "here"))
    return 0.0 < found["data/share"] <= 1.0 and found["data/share"] == pytest.approx(parts)


def test_without_workers_all_is_lost_in_the_loops_thread():
    loader = fastload.DataLoader(dataset(), batch_size=4)
    stall = Stall(loader)
    assert stall.numbers() == {}
    list(loader)
    found = stall.numbers()
    assert set(found) - {"data/batches_ready"} == ALWAYS
    assert is_whole(found)
    assert stall.numbers() == {}, "a window ends with each call"
    assert "by the host's clock" in stall.last_line()


@forked
def test_the_loaders_own_statistics_have_the_same_numbers():
    loader = fastload.DataLoader(dataset(), batch_size=4, **FORKED)
    assert loader.statistics().stall == {}
    stall = Stall(loader)
    list(loader)
    found = loader.statistics().stall
    assert set(found) == ALWAYS | {"data/workers", "data/batches_ready"}
    assert is_whole(found)
    assert loader.statistics().stall == found == stall.numbers()


def test_another_loader_is_followed_and_what_was_counted_stays():
    first, second = (fastload.DataLoader(dataset(), batch_size=4) for _ in range(2))
    stall = Stall(first)
    list(first)
    stall.follow(second)
    list(first)
    list(second)
    stall.numbers()
    assert stall._counted.number == 20
    stall.follow(second)
    stall.numbers()
    assert stall._counted.number == 20


def test_two_may_take_the_numbers_of_one_loader_each_in_windows_of_its_own():
    loader = fastload.DataLoader(dataset(), batch_size=4)
    one = Stall(loader)
    list(loader)
    other = Stall(loader)
    list(loader)
    assert is_whole(one.numbers())
    assert is_whole(other.numbers())
    assert (one._counted.number, other._counted.number) == (20, 10)


@forked
def test_a_step_that_is_skipped_and_the_last_of_an_epoch_that_is_left_do_not_count():
    with closing(fastload.DataLoader(dataset(), batch_size=4, persistent_workers=True, **FORKED)) as loader:
        stall = Stall(loader)
        for epoch in range(3):
            for step, _ in enumerate(loader):
                if epoch == 0 and step == 2:
                    stall.skip()
                if step == 4:
                    break
        stall.numbers()
        assert stall._counted.number == 11, "four complete ones each, without the skipped one"


@pytest.mark.parametrize(
    "loader", [torch.utils.data.DataLoader(dataset(), batch_size=4), [1, 2]], ids=["torch's", "a list"]
)
def test_of_another_loader_it_is_said_once_that_nothing_is_logged_and_what_to_do(capsys, loader):
    before = dict(vars(loader)) if not isinstance(loader, list) else None
    stall = Stall(loader)
    for _ in range(2):
        list(loader)
        stall.follow(loader)
        assert stall.numbers() == {}
    stall.skip()
    stall.end()
    assert before is None or vars(loader) == before
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("fastload: nothing is logged of what steps lose to data: ")
    assert f"of type {type(loader).__qualname__}. `fastload run` on the script" in told
    assert "`fastload profile` measures a script" in told


def test_a_name_that_there_is_not_is_an_error():
    with pytest.raises(AttributeError, match="has no attribute 'KerasCallback'"):
        _: Any = fastload.callbacks.KerasCallback
