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
def test_a_prepared_loader_and_one_that_is_not_take_each_others_states(make: Any) -> None:
    expected = uninterrupted(make)
    running = accelerator()
    alone = make()
    alone.load_state_dict(stopped(running.prepare(make()), 1, 3))
    assert rows(alone) == expected[1][3:]
    loader = make()
    loader.set_epoch(1)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    prepared = running.prepare(make())
    prepared.load_state_dict(loader.state_dict())
    assert rows(prepared) == expected[1][2:]
    assert rows(prepared) == expected[2]


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


def test_a_registered_loader_that_the_checkpoint_does_not_fit_begins_its_epoch_anew(tmp_path: Path) -> None:
    running = accelerator()
    prepared = running.prepare(keyed())
    running.register_for_checkpointing(prepared)
    stopped(prepared, 1, 4)
    running.save_state(str(tmp_path / "checkpoint"))
    AcceleratorState._reset_state(reset_partial_state=True)
    resuming = accelerator()
    resumed = resuming.prepare(fastload.DataLoader(Noisy(), 8, shuffle=True, seed=5))
    resuming.register_for_checkpointing(resumed)
    with pytest.warns(UserWarning, match=r"begins anew: .*batch size was 4 .* is 8 now.* do not register"):
        resuming.load_state(str(tmp_path / "checkpoint"))
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


@KNOWN
def test_skipping_twice_skips_both_and_the_state_is_that_of_the_whole_loader(make: Any) -> None:
    running = accelerator()
    twice = running.skip_first_batches(running.skip_first_batches(running.prepare(make()), 2), 1)
    resumed = running.prepare(make())
    resumed.load_state_dict(stopped(twice, 0, 2))
    expected = uninterrupted(make)
    assert rows(resumed) == expected[0][5:]
    assert rows(resumed) == expected[1]


@pytest.mark.parametrize("step", [1, 3, EPOCH])
def test_a_sampler_that_is_not_ours_is_fast_forwarded(step: int) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(3)
        return fastload.DataLoader(Noisy(), 4, shuffle=True, generator=generator, seeding="sample")

    running = accelerator(use_seedable_sampler=False)
    prepared = running.prepare(make())
    first = rows(prepared)
    seen, state = [], None
    for batch in prepared:
        seen.append(batch.tolist())
        if len(seen) == step:
            state = prepared.state_dict()
    following = rows(prepared)
    assert first != seen
    resumed = running.prepare(make())
    resumed.load_state_dict(state)
    if step < EPOCH:
        assert rows(resumed) == seen[step:]
        assert [[row[0] for row in batch] for batch in rows(resumed)] == [[row[0] for row in b] for b in following]


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


def test_epochs_that_are_broken_off_or_set_follow_accelerate() -> None:
    """Accelerate counts only epochs that come to their end."""
    expected = uninterrupted(keyed)
    prepared = accelerator().prepare(keyed())
    assert rows(prepared) == expected[0]
    for _ in prepared:
        break
    assert rows(prepared) == expected[1]
    prepared.set_epoch(0)
    assert rows(prepared) == expected[0]
    assert rows(prepared) == expected[1]


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


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_that_accelerate_shares_out_goes_on_too(shuffle: bool, tmp_path: Path) -> None:
    """By its BatchSamplerShard, whose order is drawn again."""

    def body(running: accelerate.Accelerator) -> Any:
        def make() -> Any:
            return running.prepare(fastload.DataLoader(Noisy(), 2, shuffle=shuffle, seed=5))

        prepared = make()
        assert type(prepared.base_dataloader) is fastload.DataLoader
        whole = [rows(prepared) for _ in range(3)]
        resumed = make()
        resumed.load_state_dict(stopped(make(), 1, 3))
        skipping = make()
        skipping.set_epoch(1)
        rest = [rows(resumed) for _ in range(2)]
        return whole, rest, rows(running.skip_first_batches(skipping, 3))

    given = in_two(body, tmp_path, even_batches=False)
    for whole, rest, skipped in given:
        assert rest == [whole[1][3:], whole[2]]
        assert skipped == whole[1][3:]
    seen = [row[0] for whole, _, _ in given for batch in whole[1] for row in batch]
    assert sorted(seen) == list(range(LENGTH))


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
