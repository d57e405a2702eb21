"""The rest of an epoch is what it would have been: other ranks, other workers, any step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.datasets import Noisy

import fastload


class Case(NamedTuple):
    """A training of several ranks, each with a loader of its own in this process."""

    batches: bool
    """Whether they are DistributedBatchSampler's; else DistributedSampler's."""
    length: int
    global_batch: int
    shared: dict[str, Any]
    """Further arguments of the sampler."""

    def loaders(self, world_size: int, **options: Any) -> list[fastload.DataLoader[Any]]:
        dataset = Noisy(self.length)

        def sampling(rank: int) -> dict[str, Any]:
            if self.batches:
                ranks = {"rank": rank, "world_size": world_size}
                sampler = fastload.DistributedBatchSampler(dataset, self.global_batch, **ranks, **self.shared)
                return {"batch_sampler": sampler}
            sampler = fastload.DistributedSampler(dataset, world_size, rank, **self.shared)
            return {"batch_size": self.global_batch // world_size, "sampler": sampler}

        return [fastload.DataLoader(dataset, **sampling(rank), **options) for rank in range(world_size)]


def steps(case: Case, loaders: list[fastload.DataLoader[Any]]) -> Iterator[tuple[list[Any], list[dict[str, Any]]]]:
    """Yield each step's samples, in the order of positions, and the state after it of each rank that has a part."""
    iterators: list[Any] = [iter(loader) for loader in loaders]
    while True:
        parts: dict[int, list[list[float]]] = {}
        for rank, iterator in enumerate(iterators):
            batch = next(iterator, None)
            if batch is not None:
                parts[rank] = batch.tolist()
        if not parts:
            return
        if case.batches:
            together = [sample for rank in sorted(parts) for sample in parts[rank]]
        else:
            most = max(map(len, parts.values()))
            together = [part[row] for row in range(most) for _, part in sorted(parts.items()) if row < len(part)]
        yield together, [loaders[rank].state_dict() for rank in sorted(parts)]


@st.composite
def cases(draw: Any) -> Case:
    batches, length = draw(st.booleans()), draw(st.integers(1, 40))
    global_batch = draw(st.sampled_from([4, 8, 12, 20]))
    shared: dict[str, Any] = {
        "seed": draw(st.integers(-(2**63), 2**63 - 1)),
        "tail": draw(st.sampled_from(["drop", "short", "pad"])),
    }
    kind = draw(st.sampled_from(["keyed", "torch", "block", "in order", "weights", "lengths"]))
    if kind == "torch":
        shared |= {"order": "torch", "seed": draw(st.integers(0, 2**31))}
    elif kind == "block":
        shared |= {"order": "block", "block_size": draw(st.integers(1, 9))}
    elif kind == "in order":
        shared |= {"shuffle": False}
    elif kind == "weights":
        shared |= {"weights": [1.0 + index % 3 for index in range(length)], "num_draws": draw(st.integers(1, 50))}
    elif kind == "lengths" and batches:
        shared |= {"lengths": [index * 7 % 11 for index in range(length)], "bucket_window": draw(st.integers(1, 4))}
    return Case(batches, length, global_batch, shared)


@settings(max_examples=30)
@given(
    case=cases(),
    before=st.sampled_from([1, 2, 4]),
    after=st.sampled_from([1, 2, 4]),
    epoch=st.integers(0, 3),
    place=st.integers(0, 12),
    again=st.integers(0, 12),
    num_workers=st.sampled_from([0] * 14 + [1, 3]),
)
@example(Case(True, 30, 8, {"seed": 1, "tail": "pad"}), 4, 1, 1, 3, 0, 0)
@example(Case(False, 30, 8, {"seed": 1, "tail": "pad"}), 4, 2, 1, 3, 0, 0)
@example(Case(True, 3, 8, {"seed": 1, "tail": "short"}), 4, 1, 0, 1, 0, 0)
@example(Case(True, 30, 4, {"seed": 1, "tail": "short"}), 2, 2, 0, 1, 2, 1)
def test_any_rest_of_an_epoch_is_the_same_on_any_ranks_and_workers(
    case, before, after, epoch, place, again, num_workers
):
    """And its state again: what was resumed may be resumed once more."""
    padded_anew = not case.batches and case.shared["tail"] != "short"
    if padded_anew:
        after = before  # what does not share out evenly among other ranks is another tail
    killed = case.loaders(before)
    for loader in killed:
        loader.set_epoch(epoch)
    expected = list(steps(case, killed))
    following = [samples for samples, _ in steps(case, killed)]
    if not expected:
        return
    place %= len(expected)
    states = expected[place][1]
    assert all(state == states[0] for state in states)
    resumed = case.loaders(after, num_workers=num_workers)
    for loader in resumed:
        loader.load_state_dict(dict(states[0]))
    rest = [samples for samples, _ in expected[place + 1 :]]
    found = list(steps(case, resumed))
    assert [samples for samples, _ in found] == rest
    assert [samples for samples, _ in steps(case, resumed)] == following
    if found:
        again %= len(found)
        states = found[again][1]
        if after == before:
            assert states == expected[place + 1 + again][1]
        once_more = case.loaders(after)
        for loader in once_more:
            loader.load_state_dict(dict(states[0]))
        assert [samples for samples, _ in steps(case, once_more)] == rest[again + 1 :]


CASE = Case(True, 40, 4, {"seed": 5})


@pytest.mark.parametrize(("place", "persistent"), [(0, True), (4, False), (8, True)])
def test_a_state_may_be_loaded_in_the_middle_of_another_iteration(place, persistent):
    """Workers that stay, with batches of another epoch under way, are given the new place."""
    expected = list(steps(CASE, CASE.loaders(1)))
    (loader,) = CASE.loaders(1, num_workers=2, persistent_workers=persistent)
    under_way = iter(loader)
    for _ in range(6):
        next(under_way)
    loader.load_state_dict(expected[place][1][0])
    del under_way
    assert [samples for samples, _ in steps(CASE, [loader])] == [samples for samples, _ in expected[place + 1 :]]
    loader.close()


@pytest.mark.parametrize(("batches", "num_workers"), [(True, 0), (False, 0), (None, 0), (True, 1)])
def test_an_epoch_that_has_begun_is_not_changed_by_setting_another(batches, num_workers):
    """Lightning sets it after iter(): neither the order alone may follow, nor only without workers."""

    def make() -> Any:
        if batches is None:
            return fastload.DataLoader(Noisy(40), 8, shuffle=True, seed=7, num_workers=num_workers)
        (loader,) = Case(batches, 40, 8, {"seed": 5}).loaders(1, num_workers=num_workers)
        return loader

    whole, loader = make(), make()
    expected = [[batch.tolist() for batch in whole] for _ in range(3)]
    begun = iter(loader)
    loader.set_epoch(2)
    assert [batch.tolist() for batch in begun] == expected[0]
    assert [batch.tolist() for batch in loader] == expected[2]
