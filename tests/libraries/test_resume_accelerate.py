"""Accelerate's loops, stopped in the middle of an epoch and resumed: no sample is lost, repeated or another."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState
from kit.libraries import accelerator
from ranks import run_ranks
from resumed_loaders import LENGTH, Count, Noisy, global_batches, in_order, keyed, shared_out

import fastload

EPOCH = 7
"""Batches of four."""


KNOWN = pytest.mark.parametrize("make", [keyed, in_order, shared_out, global_batches])


def rows(batches: Any) -> list[list[Any]]:
    return [batch.tolist() for batch in batches]


def uninterrupted(make: Callable[..., Any], epochs: int = 3) -> list[list[list[Any]]]:
    loader = make()
    return [rows(loader) for _ in range(epochs)]


def stopped(prepared: Any, epoch: int, step: int) -> Any:
    """Iterate until a step of an epoch is over and return the prepared loader's state."""
    for _ in range(epoch):
        rows(prepared)
    for number, _ in enumerate(prepared, start=1):
        if number == step:
            return prepared.state_dict()
    raise AssertionError("the epoch has fewer steps")


@KNOWN
@pytest.mark.parametrize(("step", "num_workers"), [(1, 2), (4, 0), (EPOCH, 2)])
def test_a_prepared_loader_goes_on_from_its_state(make: Any, step: int, num_workers: int) -> None:
    """The state that was loaded is its state until the next step: it may be killed before that."""
    expected = uninterrupted(make, 4)
    running = accelerator()
    state = json.loads(json.dumps(stopped(running.prepare(make(num_workers)), 1, step)))
    loaded = running.prepare(make())
    loaded.load_state_dict(state)
    resumed = running.prepare(make(2 - num_workers))
    resumed.load_state_dict(loaded.state_dict())
    if step < EPOCH:  # the state of the last step is that of the next epoch's beginning
        assert rows(resumed) == expected[1][step:]
    assert rows(resumed) == expected[2]
    assert rows(resumed) == expected[3]


@KNOWN
def test_objects_registered_for_checkpoints_are_saved_and_loaded(make: Any, tmp_path: Path) -> None:
    expected = uninterrupted(make)
    running = accelerator()
    prepared = running.prepare(make())
    running.register_for_checkpointing(prepared)
    stopped(prepared, 1, 4)
    running.save_state(str(tmp_path / "checkpoint"))
    AcceleratorState._reset_state(reset_partial_state=True)
    resuming = accelerator()
    resumed = resuming.prepare(make(1))
    resuming.register_for_checkpointing(resumed)
    resuming.load_state(str(tmp_path / "checkpoint"))
    assert rows(resumed) == expected[1][4:]
    assert rows(resumed) == expected[2]


def test_a_state_that_does_not_fit_is_a_warning_and_the_epoch_begins_anew() -> None:
    running = accelerator()
    state = stopped(running.prepare(keyed()), 1, 4)
    resumed = running.prepare(fastload.DataLoader(Noisy(), 8, shuffle=True, seed=5))
    with pytest.warns(UserWarning, match=r"begins anew: .*batch size was 4 .* is 8 now.* do not register"):
        resumed.load_state_dict(state)
    expected = [list(itertools.chain(*batches)) for batches in uninterrupted(keyed)]
    assert [list(itertools.chain(*rows(resumed))) for _ in range(2)] == expected[1:]


def test_a_prepared_loader_makes_its_state_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's class there is none, and it may cost more than a batch."""
    prepared, asked = accelerator().prepare(fastload.DataLoader(Count(), 4)), []
    made = fastload.DataLoader.state_dict
    monkeypatch.setattr(fastload.DataLoader, "state_dict", lambda loader: asked.append(1) or made(loader))
    rows(prepared)
    assert not asked
    prepared.state_dict()
    assert asked


@KNOWN
@pytest.mark.parametrize("skipped", [1, 4, EPOCH])
def test_skipped_batches_leave_the_others_what_they_are(make: Any, skipped: int) -> None:
    expected = uninterrupted(make)
    running = accelerator()
    prepared = running.prepare(make())
    assert rows(prepared) == expected[0]
    rest = running.skip_first_batches(prepared, skipped)
    assert rows(rest) == expected[1][skipped:]
    assert rows(accelerate.skip_first_batches(make(), skipped)) == expected[0][skipped:]  # one that is not prepared
    prepared.set_epoch(2)
    assert rows(prepared) == expected[2]


@pytest.mark.parametrize(("dispatch", "num_workers"), [(False, 1), (True, 0), (True, 1)])
def test_a_stream_goes_on_from_its_state(dispatch: bool, num_workers: int) -> None:
    def make() -> Any:
        return fastload.DataLoader(Count(), 4, num_workers=num_workers)

    running = accelerator(dispatch_batches=dispatch)
    expected = rows(running.prepare(make()))
    prepared, seen, state = running.prepare(make()), [], None
    for batch in prepared:
        seen.append(batch.tolist())
        if len(seen) == 3:
            state = prepared.state_dict()
            break
    resumed = running.prepare(make())
    resumed.load_state_dict(state)
    assert rows(resumed) == expected[3:]


# --- Two processes ---------------------------------------------------------------------------------------------------


def in_two(body: Callable[[accelerate.Accelerator], Any], folder: Path, **options: Any) -> list[Any]:
    """Call ``body`` with an accelerator in each of two processes."""

    def rank(number: int) -> Any:
        os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # the group is there already
        running = accelerator(**options)
        assert (running.num_processes, running.process_index) == (2, number)
        return body(running)

    return run_ranks(rank, folder)


def both(parts: list[list[list[Any]]]) -> list[list[Any]]:
    """Put the batches of two ranks together, row by row, as positions interleave."""
    first, second = ([row for batch in part for row in batch] for part in parts)
    assert len(first) - len(second) in (0, 1)
    together = [None] * (len(first) + len(second))
    together[::2], together[1::2] = first, second
    return together


def of_ours(num_workers: int = 0, batch_size: int = 2, **options: Any) -> Any:
    sampler = fastload.DistributedSampler(Noisy(), seed=5, **options)
    return fastload.DataLoader(Noisy(), batch_size, sampler=sampler, num_workers=num_workers)


def whole_epochs(epochs: int = 3) -> list[list[Any]]:
    """The rows of each epoch by a process of its own."""
    loader = of_ours(num_replicas=1, rank=0, batch_size=4)
    return [[row for batch in loader for row in batch.tolist()] for _ in range(epochs)]


def test_two_ranks_with_our_sampler_share_out_once_skip_and_go_on_from_checkpoints(tmp_path: Path) -> None:
    def body(running: accelerate.Accelerator) -> Any:
        prepared = running.prepare(of_ours(num_workers=1))
        assert type(prepared.base_dataloader.batch_sampler) is torch.utils.data.BatchSampler
        whole = [rows(prepared) for _ in range(3)]
        skipping = running.prepare(of_ours())
        assert len(rows(skipping)) == EPOCH
        skipped = rows(running.skip_first_batches(skipping, 3))
        saving = running.prepare(of_ours())
        running.register_for_checkpointing(saving)
        state = stopped(saving, 1, 3)
        running.save_state(str(tmp_path / "checkpoint"))
        running.wait_for_everyone()  # the first process writes
        running._custom_objects.clear()
        resumed = running.prepare(of_ours(num_workers=1))
        running.register_for_checkpointing(resumed)
        running.load_state(str(tmp_path / "checkpoint"))
        return [*whole, skipped, *(rows(resumed) for _ in range(2))], state

    (first, state), (second, same) = in_two(body, tmp_path)
    assert state == same
    expected = whole_epochs()
    given = [both([one, other]) for one, other in zip(first, second, strict=True)]
    assert given == [*expected, expected[1][12:], expected[1][12:], expected[2]]
    alone = accelerator().prepare(of_ours(num_replicas=1, rank=0, batch_size=4))
    alone.load_state_dict(state)
    assert [row for batch in rows(alone) for row in batch] == expected[1][12:]


def test_global_batches_are_refused_with_the_remedy(tmp_path: Path) -> None:
    def body(running: accelerate.Accelerator) -> str:
        sampler = fastload.DistributedBatchSampler(Noisy(), 4)
        loader = fastload.DataLoader(Noisy(), batch_sampler=sampler)
        with pytest.raises(fastload.ConfigError) as refused:
            running.prepare(loader)
        assert sum(len(batch) for batch in loader) == LENGTH // 4 * 2
        return str(refused.value)

    first, second = in_two(body, tmp_path)
    assert first == second
    assert "DistributedBatchSampler" in first
    assert "Do not pass this loader to" in first
    assert "fastload.DistributedSampler" in first
