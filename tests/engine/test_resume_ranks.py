"""What is left of an epoch after a kill is what it would have been: other ranks, other workers, any step."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import resume_script
from hypothesis import example, given
from hypothesis import strategies as st
from kit.datasets import Noisy
from processes import wait_gone
from resume_script import EPOCHS, GLOBAL_BATCH, LENGTH, hashes, make_loader

import fastload

STEPS = -(-LENGTH // GLOBAL_BATCH)


# --- Real processes, killed ------------------------------------------------------------------------------------------


def descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that these have."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = {int(child) for child in (thread / "children").read_text().split()}
        except OSError:
            continue
        found |= children.union(*(descendants(child) for child in children))
    return found


def train_until_killed(folder: Path, kind: str, num_workers: int, epoch: int, step: int) -> None:
    """Start two ranks, and kill both, and so their workers, once a step is over on the first."""
    ranks = []
    for rank in range(2):
        command = [sys.executable, resume_script.__file__, str(folder), str(rank), "2", kind, str(num_workers)]
        surroundings = os.environ | {"OMP_NUM_THREADS": "1"}
        with (folder / f"errors{rank}").open("w") as errors:
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=surroundings, text=True))
    try:
        assert ranks[0].stdout is not None
        for line in ranks[0].stdout:
            if line == f"{epoch} {step}\n":
                break
        else:
            raise AssertionError((folder / "errors0").read_text() + (folder / "errors1").read_text())
        workers = set.union(*(descendants(rank.pid) for rank in ranks))
        assert len(workers) >= 2 * num_workers
    finally:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.wait()
            rank.stdout.close()  # type: ignore[union-attr]
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL] * 2
    wait_gone(workers)


def noted(folder: Path) -> dict[tuple[int, int], dict[int, list[str]]]:
    """Return what the ranks noted: (epoch, step) -> rank -> hashes."""
    found: dict[tuple[int, int], dict[int, list[str]]] = {}
    for rank in range(2):
        for line in (folder / f"log{rank}").read_text().splitlines(keepends=True):
            epoch, step, of, *rest = line.split()
            assert int(of) == rank
            if line.endswith("\n"):  # not cut off by the kill
                found.setdefault((int(epoch), int(step)), {})[rank] = rest
    return found


def global_step(kind: str, parts: dict[int, list[str]]) -> list[str]:
    """Put the pieces of a step together in the order of their positions."""
    if kind == "global batches":
        return parts[0] + parts[1]
    together = [None] * (len(parts[0]) + len(parts.get(1, [])))
    together[::2], together[1::2] = parts[0], parts.get(1, [])  # type: ignore[assignment]
    return together  # type: ignore[return-value]


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, list[list[list[str]]]]:
    """By kind: the hashes of each step of each epoch, by one process without workers."""
    found = {}
    for kind in ("global batches", "interleaved"):
        loader = make_loader(kind, 0, 1, 0)
        found[kind] = [[hashes(batch) for batch in loader] for _ in range(EPOCHS + 1)]
        assert all(len(epoch) == STEPS for epoch in found[kind])
    return found


@pytest.mark.parametrize(
    "draw", [pytest.param(0, marks=pytest.mark.interpreter), *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2))]
)
def test_two_killed_ranks_go_on_as_one(draw: int, uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    drawn = random.Random(f"kill {draw}")
    kind = ["global batches", "interleaved", "global batches"][draw]
    num_workers = [1, 2, 2][draw]
    epoch, step = drawn.randrange(EPOCHS - 1), drawn.randrange(STEPS)
    print(f"{kind=} {num_workers=} {epoch=} {step=}")
    train_until_killed(tmp_path, kind, num_workers, epoch, step)
    expected = uninterrupted[kind]
    before = noted(tmp_path)
    for (of_epoch, of_step), parts in before.items():
        if len(parts) == 2:
            assert global_step(kind, parts) == expected[of_epoch][of_step]
    state = json.loads((tmp_path / "state").read_text())
    reached = state["epoch"], min(state["position"], LENGTH) // GLOBAL_BATCH
    reached = (reached[0], STEPS) if state["position"] >= LENGTH else reached
    assert reached >= (epoch, step + 1)
    assert (reached[0], reached[1] - 1) in before
    for resumed_workers in (0, 1, 3):
        loader = make_loader(kind, 0, 1, resumed_workers)
        loader.load_state_dict(dict(state))
        assert [hashes(batch) for batch in loader] == expected[reached[0]][reached[1] :], resumed_workers
        assert [hashes(batch) for batch in loader] == expected[reached[0] + 1], resumed_workers


# --- Many steps, in one process --------------------------------------------------------------------------------------


class Case:
    """A training of several ranks, each with a loader of its own in this process.

    Args:
        batches: made by DistributedBatchSampler; else by DistributedSampler.
        length: of the dataset.
        global_batch: samples of a step.
        shared: further arguments of the sampler.
    """

    def __init__(self, batches: bool, length: int, global_batch: int, shared: dict[str, Any]) -> None:
        self.batches, self.length, self.global_batch, self.shared = batches, length, global_batch, shared

    def __repr__(self) -> str:
        return f"Case({self.batches}, {self.length}, {self.global_batch}, {self.shared})"

    def loaders(self, world_size: int, **options: Any) -> list[fastload.DataLoader[Any]]:
        dataset = Noisy(self.length)
        if self.batches:
            samplers = [
                fastload.DistributedBatchSampler(
                    dataset, self.global_batch, rank=rank, world_size=world_size, **self.shared
                )
                for rank in range(world_size)
            ]
            return [fastload.DataLoader(dataset, batch_sampler=sampler, **options) for sampler in samplers]
        return [
            fastload.DataLoader(
                dataset,
                self.global_batch // world_size,
                sampler=fastload.DistributedSampler(dataset, world_size, rank, **self.shared),
                **options,
            )
            for rank in range(world_size)
        ]


def steps(case: Case, loaders: list[fastload.DataLoader[Any]]) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    """Yield each step's hashes, in the order of positions, and the state after it of each rank that has a part."""
    iterators: list[Any] = [iter(loader) for loader in loaders]
    while True:
        parts: dict[int, list[str]] = {}
        for rank, iterator in enumerate(iterators):
            batch = next(iterator, None)
            if batch is not None:
                parts[rank] = hashes(batch)
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
    shared: dict[str, Any] = {"seed": draw(st.integers(-(2**63), 2**63 - 1)), "tail": draw(st.sampled_from(TAILS))}
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


TAILS = ["drop", "short", "pad"]


@pytest.mark.thorough
@given(
    case=cases(),
    before=st.sampled_from([1, 2, 4]),
    after=st.sampled_from([1, 2, 4]),
    epoch=st.integers(0, 3),
    place=st.integers(0, 12),
    num_workers=st.sampled_from([0] * 14 + [1, 3]),
)
@example(Case(True, 30, 8, {"seed": 1, "tail": "pad"}), 4, 1, 1, 3, 0)
@example(Case(False, 30, 8, {"seed": 1, "tail": "pad"}), 4, 2, 1, 3, 0)
@example(Case(True, 3, 8, {"seed": 1, "tail": "short"}), 4, 1, 0, 1, 0)
def test_any_rest_of_an_epoch_is_the_same_on_any_ranks_and_workers(case, before, after, epoch, place, num_workers):
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
    assert [samples for samples, _ in steps(case, resumed)] == rest
    assert [samples for samples, _ in steps(case, resumed)] == following


@given(case=cases(), place=st.integers(0, 12), again=st.integers(0, 12))
def test_a_resumed_epoch_may_be_resumed_once_more(case: Case, place: int, again: int) -> None:
    expected = list(steps(case, case.loaders(2)))
    if not expected:
        return
    place %= len(expected)
    first = case.loaders(2)
    for loader in first:
        loader.load_state_dict(expected[place][1][0])
    rest = list(steps(case, first))
    assert [state for _, state in rest] == [state for _, state in expected[place + 1 :]]
    if rest:
        again %= len(rest)
        second = case.loaders(2)
        for loader in second:
            loader.load_state_dict(rest[again][1][0])
        assert [samples for samples, _ in steps(case, second)] == [samples for samples, _ in rest[again + 1 :]]


@pytest.mark.parametrize("place", [0, 4, 8])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_may_be_loaded_in_the_middle_of_another_iteration(place: int, persistent: bool) -> None:
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


CASE = Case(True, 40, 4, {"seed": 5})


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["keyed", "interleaved", "global batches"])
def test_an_epoch_that_has_begun_is_not_changed_by_setting_another(kind: str, num_workers: int) -> None:
    """Lightning sets it after iter(): neither the order alone may follow, nor only without workers."""

    def make() -> fastload.DataLoader[Any]:
        if kind == "keyed":
            return fastload.DataLoader(Noisy(LENGTH), 8, shuffle=True, seed=7, num_workers=num_workers)
        return make_loader(kind, 0, 1, num_workers)

    whole = make()
    expected = [[hashes(batch) for batch in whole] for _ in range(6)]
    loader = make()
    begun = iter(loader)
    loader.set_epoch(5)
    assert [hashes(batch) for batch in begun] == expected[0]
    assert [hashes(batch) for batch in loader] == expected[5]
