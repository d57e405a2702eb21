"""``on_error``: samples that cannot be loaded are raised with their names, left out, or replaced."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from determinism_fakes import Drawing, Sample, batches, samples
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.comparison import difference
from kit.datasets import Made, Sized
from kit.resuming import assert_resumes
from kit.transforms import Shifted
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torchvision import datasets
from torchvision import transforms as v1

import fastload
from fastload import ConfigError, DataLoader, DatasetError, DistributedBatchSampler, replay
from fastload.keys.preserving import preserved_global_generators
from fastload.keys.seeding import SAMPLE, Keys, seed_global_generators
from fastload.run.exit_report import ExitReport
from fastload.workers.on_error import ATTEMPTS, ErrorPolicy, file_of, name_sample

WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 3, "worker_method": "thread"},
    "kept, small chunks": {"num_workers": 2, "persistent_workers": True, "chunk_size": 2},
    "whole batches": {"num_workers": 2, "chunk_size": "batch"},
    "threads of processes": {"num_workers": 2, "worker_threads": 3},
    "forkserver": {"num_workers": 1, "multiprocessing_context": "forkserver"},
    "moved": {"num_workers": 2, "device": "cpu"},
    "moved inline": {"device": "cpu", "prefetch_to_device": 3},
    "as completed": {"num_workers": 2, "in_order": False},
    "own collation": {"num_workers": 2, "collate_fn": lambda rows: default_collate(rows)},
    "own collation, inline": {"collate_fn": lambda rows: default_collate(rows)},
}
everywhere = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way == "forkserver")) for way in WAYS]
)
FAILING = frozenset({0, 3, 11, 12, 13, 14, 40, 52})


class Faulty(Drawing):
    """Fails at some indices, after it has drawn; at others it raises what it is given."""

    def __init__(self, failing: frozenset[int] = FAILING, length: int = 53, raises: Any = None) -> None:
        super().__init__(length)
        self.failing = failing
        self.raises = raises or {}

    def __getitem__(self, index: int) -> Any:
        if index in self.raises:
            raise self.raises[index]
        made = super().__getitem__(index)
        if index in self.failing:
            raise OSError(f"cannot read {index}\nat all")
        return made


class FaultyInBatches(Faulty):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def loader_of(way: str = "inline", dataset: Any = None, batch_size: int = 5, **options: Any) -> Any:
    dataset = Faulty() if dataset is None else dataset
    return DataLoader(dataset, batch_size, **{"shuffle": True, "seed": 3, **WAYS[way], **options})


def passes(loader: Any, number: int = 2) -> list[list[list[Sample]]]:
    found = [batches(loader) for _ in range(number)]
    loader.close()
    return found


def sample_of(index: int, epoch: int, key_of: int, seed: int = 3) -> Sample:
    """Return a sample as it is with the randomness of another."""
    with preserved_global_generators():
        seed_global_generators(Keys(seed, epoch, SAMPLE).key(key_of))
        return samples(default_collate([Drawing()[index]]))[0]


# --- Leaving out and replacing ---------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_what_fails_is_left_out_or_is_another_sample_with_the_randomness_of_the_first(way, on_error):
    def treated(row: Sample, epoch: int) -> list[Sample]:
        if row[0] not in FAILING:
            return [row]
        return [] if on_error == "skip" else [sample_of(instead[epoch, row[0]], epoch, row[0])]

    loader = loader_of(way, on_error=on_error)
    found = passes(loader)
    failures = loader.failed_samples()
    instead = {(failed.epoch, failed.index): failed.substitute for failed in failures}
    assert instead.keys() == {(epoch, index) for epoch in range(2) for index in FAILING}
    assert (set(instead.values()) == {None}) == (on_error == "skip")
    assert {(failed.error, failed.message) for failed in failures} == {
        ("OSError", f"cannot read {index}") for index in FAILING
    }
    intact = passes(loader_of(dataset=Drawing()))
    expected = [
        [[one for row in batch for one in treated(row, epoch)] for batch in intact[epoch]] for epoch in range(2)
    ]
    expected = [[batch for batch in epoch if batch] for epoch in expected]
    if not loader.in_order:
        found, expected = ([sorted(epoch) for epoch in both] for both in (found, expected))
    assert found == expected
    told = loader.statistics()
    assert (told.failed_samples, told.batches) == (2 * len(FAILING), sum(map(len, expected)))
    assert told.samples == 2 * (53 - len(FAILING) * (on_error == "skip"))


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_datasets_that_load_batches_are_asked_for_single_samples_behind_an_error(on_error):
    ways = [{}, {"num_workers": 2}, {"num_workers": 1, "worker_method": "thread"}]
    inline, *others = [loader_of(dataset=FaultyInBatches(), on_error=on_error, **way) for way in ways]
    found = passes(inline)
    assert [passes(other) for other in others] == [found, found]
    assert sum(len(batch) for batch in found[0]) == 53 - (len(FAILING) if on_error == "skip" else 0)
    assert inline.statistics().failed_samples == 2 * len(FAILING)
    # Where nothing fails, the batch is still loaded at once, with the randomness of its first sample.
    intact = passes(loader_of(dataset=FaultyInBatches(frozenset())))
    for mine, theirs in zip(found[0], intact[0], strict=on_error == "replace"):
        assert (mine == theirs) == (not FAILING & {row[0] for row in theirs})


@settings(max_examples=12)
@given(
    failing=st.frozensets(st.integers(0, 19), max_size=20),
    batch_size=st.integers(1, 9),
    chunk_size=st.integers(1, 9),
    drop_last=st.booleans(),
    num_workers=st.integers(0, 2),
)
def test_any_set_of_failures_is_left_out_of_any_batches(failing, batch_size, chunk_size, drop_last, num_workers):
    options = {"shuffle": False, "drop_last": drop_last, "seed": None}
    whole = loader_of(dataset=Drawing(20), batch_size=batch_size, **options)
    indices = [[row[0] for row in batch] for batch in batches(whole)]
    left = [[index for index in batch if index not in failing] for batch in indices]
    dataset = Faulty(failing, 20)
    workers = {"num_workers": num_workers, "worker_method": "thread", "chunk_size": chunk_size} if num_workers else {}
    loader = loader_of(dataset=dataset, batch_size=batch_size, on_error="skip", **options, **workers)
    for _ in range(2):
        assert [[row[0] for row in batch] for batch in batches(loader)] == [batch for batch in left if batch]
    assert loader.statistics().failed_samples == 2 * len(failing & {index for batch in indices for index in batch})
    loader.close()


class Local(int):
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def unsendable(index: int) -> Any:
    """Samples that cannot be pickled, though their batch can."""
    if index % 7 == 3:
        raise ValueError("no")
    return Local(index)


def test_samples_that_cannot_be_sent_are_counted_once_when_their_batch_is_loaded_again():
    loader = DataLoader(Made(20, unsendable), 4, num_workers=2, on_error="skip", collate_fn=None)
    found = torch.cat(list(loader)).tolist()
    loader.close()
    assert found == [index for index in range(20) if index % 7 != 3]
    assert [failed.index for failed in loader.failed_samples()] == [3, 10, 17]


def many_lost(index: int) -> Any:
    """Half of the samples fail, and say a lot; neither these words nor the others' bytes have room in a packet."""
    if index % 2:
        raise OSError("x" * 200 + str(index))
    return torch.full((100,), float(index))


@pytest.mark.parametrize("transport", ["", "pipes"])
def test_many_failures_of_a_chunk_come_home_beside_its_other_samples(transport, monkeypatch):
    monkeypatch.setenv("FASTLOAD_TRANSPORT", transport)
    loader = DataLoader(Made(400, many_lost), 400, num_workers=1, chunk_size="batch", on_error="skip", max_errors=200)
    (batch,) = loader
    loader.close()
    assert batch[:, 0].tolist() == list(range(0, 400, 2))
    assert [failed.index for failed in loader.failed_samples()] == list(range(1, 400, 2))


def test_a_batch_transform_draws_for_the_samples_that_are_left_what_it_would_have_drawn():
    def images(failing: frozenset[int], **options: Any) -> dict[int, float]:
        def image_of(index: int) -> Any:
            if index in failing:
                raise ValueError
            return torch.zeros(3, 2, 2), index

        loader: Any = DataLoader(Made(23, image_of), 5, shuffle=True, seed=1, batch_transform=Shifted(), **options)
        found = {int(index): float(one.flatten()[0]) for batch in loader for one, index in zip(*batch, strict=True)}
        loader.close()
        return found

    whole = images(frozenset())
    for way in ({}, {"num_workers": 2}):
        left = images(frozenset({2, 9, 10}), on_error="skip", **way)
        assert left == {index: drawn for index, drawn in whole.items() if index not in (2, 9, 10)}


def fails_before_it_draws(index: int) -> Any:
    if index in (3, 4, 11):
        raise ValueError(index)
    return index, torch.rand(()).item(), random.random()


def none_in_place(index: int) -> Any:
    return None if index in (3, 4, 11) else fails_before_it_draws(index)


def without_none(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample is not None])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_left_out_leave_torchs_random_streams_to_the_others(num_workers):
    def seen(kind: Any, dataset: Any, **options: Any) -> list[Any]:
        torch.manual_seed(3)
        random.seed(3)
        return [[part.tolist() for part in batch] for batch in kind(dataset, 4, num_workers=num_workers, **options)]

    expected = seen(torch.utils.data.DataLoader, Made(20, none_in_place), collate_fn=without_none)
    assert seen(DataLoader, Made(20, fails_before_it_draws), on_error="skip") == expected


# --- Passing over, and going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "later", "on_error", "seed", "steps"),
    [
        ("inline", "threads", "skip", 3, (0, 3, 9)),
        ("inline", "inline", "skip", None, range(10)),
        ("inline", "inline", "replace", 3, range(10)),
        ("moved inline", "inline", "skip", 3, range(10)),
        ("kept, small chunks", "moved", "skip", 3, (1, 5)),
    ],
)
def test_a_state_goes_on_behind_batches_that_were_not_given_out(way, later, on_error, seed, steps):
    dataset = Faulty(frozenset({*range(4), *range(16, 28), 33}))
    options = {"dataset": dataset, "batch_size": 4, "on_error": on_error, "seed": seed, "seeding": "sample"}
    options["shuffle"] = on_error == "replace"
    # Without a seed the draws are others, and the indices the same.
    rows = (lambda loader: [[row[:1] for row in one] for one in batches(loader)]) if seed is None else batches
    make, other = (functools.partial(loader_of, name, **options) for name in (way, later))
    assert_resumes(make, ((0, step) for step in steps), other, rows)


def test_any_number_of_ranks_gives_the_same_global_batches():
    def steps(rank: int, world_size: int) -> list[list[Sample]]:
        sampler = DistributedBatchSampler(Faulty(), 8, seed=2, rank=rank, world_size=world_size, tail="pad")
        return passes(DataLoader(Faulty(), batch_sampler=sampler, num_workers=rank, on_error="replace"))[1]

    alone = steps(0, 1)
    assert all(len(batch) == 8 for batch in alone)
    assert [one + other for one, other in zip(steps(0, 2), steps(1, 2), strict=True)] == alone


def test_replay_gives_a_replaced_sample_again_and_says_that_one_was_left_out():
    order = [row[0] for batch in batches(loader_of(dataset=Drawing())) for row in batch]
    for dataset in (Faulty(), FaultyInBatches()):
        loader = loader_of(dataset=dataset, on_error="replace")
        rows = [row for batch in batches(loader) for row in batch]
        for index, row in zip(order, rows, strict=True):
            *numbers, pair = replay(loader, 0, index)
            assert (*numbers, tuple(pair.tolist())) == row
        with pytest.raises(DatasetError, match=r"left sample 3 out, .*OSError: cannot read 3"):
            replay(loader_of(dataset=dataset, on_error="skip"), 0, 3)


# --- Limits and errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["inline", "processes", "moved", "own collation"])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_more_failures_than_allowed_are_an_error_in_their_place_in_each_epoch(way, on_error):
    loader = loader_of(way, batch_size=4, shuffle=False, on_error=on_error, max_errors=2)
    for epoch in range(2):
        iterator = iter(loader)
        for first in (0, 4):
            assert all(first <= row[0] or on_error == "replace" for row in samples(next(iterator)))
        with pytest.raises(DatasetError, match=rf"3 samples of epoch {epoch} .*max_errors=2") as error:
            next(iterator)
        assert re.findall(r"\n  index (\d+) \(OSError: cannot read \d+\): ", str(error.value)) == ["0", "3", "11"]
        # As behind any error of the dataset's, the next batch comes.
        with pytest.raises(DatasetError, match="6 samples") as error:
            next(iterator)
        assert str(error.value).count("\n  index ") == 5
        assert len(next(iterator)[0]) == 4
    loader.close()
    assert len(loader.failed_samples()) == 2


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_the_first_line_of_what_an_error_says_is_kept():
    texts = ("one\ntwo", "\n one\ntwo", "", "x" * 999)
    errors = [*map(ValueError, texts), ValueError(), Silent()]
    loader = loader_of(dataset=Faulty(frozenset(), 9, dict(enumerate(errors))), on_error="skip", shuffle=False)
    assert len(passes(loader, 1)[0]) == 1
    kept = [(failed.error, failed.message) for failed in loader.failed_samples()]
    assert [message for _, message in kept] == ["one", "one", "", "x" * 200, "", "str() of it raised RuntimeError"]
    assert [error for error, _ in kept] == ["ValueError"] * 5 + ["Silent"]


@pytest.mark.parametrize("way", ["inline", "processes"])
def test_passes_at_the_same_time_have_limits_of_their_own(way):
    loader = loader_of(way, on_error="skip", max_errors=len(FAILING))
    assert sum(len(first[0]) + len(second[0]) for first, second in zip(iter(loader), iter(loader), strict=True)) == 90
    assert loader.statistics().failed_samples == 2 * len(FAILING)
    assert {failed.epoch for failed in loader.failed_samples()} == {0, 1}
    loader.close()


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Takes no note, and no other attribute."""

    text: str


ALL_FAIL = Faulty(frozenset(range(53)))
ALL_FROZEN = Faulty(raises={index: Frozen(f"cannot read {index}") for index in range(53)})
RAISED: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "raise": (ALL_FAIL, {"batch_size": 20}, ["at index 0 of the dataset"]),
    "no batches": (ALL_FAIL, {"batch_size": None}, ["at index 0 of the dataset"]),
    "at once": (FaultyInBatches(), {"batch_size": 3}, ["in __getitems__ of the indices [0, 1, 2]"]),
    "all substitutes fail": (
        ALL_FAIL,
        {"on_error": "replace"},
        ["at index 0 of the dataset", "on_error='replace' tried up to 8 other samples in its place; all failed"],
    ),
    "cannot be changed": (ALL_FROZEN, {}, []),
    "cannot be changed, nor replaced": (ALL_FROZEN, {"on_error": "replace"}, []),
}


@pytest.mark.parametrize("case", RAISED)
@pytest.mark.parametrize("way", ["inline", "processes", "threads", "own collation"])
def test_what_is_raised_keeps_its_class_and_message_and_names_the_index(way, case):
    dataset, options, notes = RAISED[case]
    if options.get("batch_size", 1) is None and "collate_fn" in WAYS[way]:
        pytest.skip("there is nothing to collate")
    loader = loader_of(way, dataset, shuffle=False, **options)
    with pytest.raises(Frozen if dataset is ALL_FROZEN else OSError, match="cannot read 0") as error:
        next(iter(loader))
    loader.close()
    if dataset is not ALL_FROZEN:
        assert str(error.value).rstrip().endswith("cannot read 0\nat all")
        assert error.value.__notes__ == notes


def refuse(rows: list[Any]) -> Any:
    raise ValueError("not these")


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize(
    ("raised", "error", "way"),
    [
        (StopIteration(), DatasetError, "inline"),
        (StopIteration(), DatasetError, "processes"),
        (KeyboardInterrupt(), KeyboardInterrupt, "inline"),
        (None, ValueError, "inline"),
        (None, ValueError, "processes"),
    ],
)
def test_an_end_an_interrupt_and_an_error_of_collation_are_no_failed_samples(raised, error, way, on_error):
    options = {} if raised else {"collate_fn": refuse}
    dataset = Faulty(frozenset(), raises={2: raised} if raised else {})
    loader = loader_of(way, dataset, on_error=on_error, shuffle=False, **options)
    with pytest.raises(error):
        next(iter(loader))
    assert loader.failed_samples() == []
    loader.close()


# --- Where substitutes come from -------------------------------------------------------------------------------------


class Iterating(Sized):
    """A sampler of the user's, which may say what it chooses from by an attribute ``indices``."""

    def __init__(self, given: Any, **said: Any) -> None:
        super().__init__(len(given))
        self.given = given
        vars(self).update(said)

    def __iter__(self) -> Any:
        return iter(self.given)


class SubclassedSampler(SequentialSampler):
    def __iter__(self) -> Any:
        return iter(range(5))


ALLOWED = [0, 3, 4, 5, 11, 12, 20]
WEIGHTS = [float(index in ALLOWED) for index in range(53)]
SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "subset": lambda: {"sampler": SubsetRandomSampler(ALLOWED)},
    "list": lambda: {"sampler": ALLOWED},
    "array": lambda: {"sampler": np.array(ALLOWED)},
    "own": lambda: {"sampler": Iterating(ALLOWED, indices=np.array(ALLOWED))},
    "weights": lambda: {"sampler": WeightedRandomSampler(WEIGHTS, 40)},
    "our weights": lambda: {
        "sampler": fastload.DistributedSampler(range(53), 1, 0, weights=WEIGHTS, num_draws=40),
    },
    "batches": lambda: {"batch_sampler": BatchSampler(SubsetRandomSampler(ALLOWED), 3, False), "batch_size": 1},
    "a part": lambda: {"sampler": RandomSampler(range(6))},
    "a subset": lambda: {"dataset": Subset(Faulty(), ALLOWED), "shuffle": True},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_substitutes_come_from_the_indices_that_the_sampler_gives(name):
    for seed in range(4):
        options = {"dataset": Faulty(), "batch_size": 3, **SAMPLERS[name]()}
        loader = DataLoader(seed=seed, on_error="replace", **options)
        found = {row[0] for batch in batches(loader) for row in batch}
        assert found <= ({1, 2, 4, 5} if name == "a part" else {4, 5, 20})
        assert loader.statistics().failed_samples > 0


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": Iterating(range(5))},
        {"sampler": SubclassedSampler(range(53))},
        {"batch_sampler": [[0, 1], [2, 3]]},
        {"sampler": SubsetRandomSampler(["a", "b"])},  # type: ignore[list-item]
    ],
    ids=["unknown", "subclass", "list of batches", "keys"],
)
def test_a_sampler_that_does_not_say_what_it_gives_is_refused_with_replace_and_taken_with_skip(options):
    with pytest.raises(ConfigError, match=r"on_error='replace' must know which indices .*Subset"):
        DataLoader(Faulty(), on_error="replace", **options)
    DataLoader(Faulty(), on_error="skip", **options)


@given(
    seed=st.integers(-(2**127), 2**127 - 1),
    epoch=st.integers(0, 1000),
    sample_id=st.integers(0, 2**70),
    length=st.integers(1, 30),
    data=st.data(),
)
def test_substitutes_are_other_indices_each_once_and_a_function_of_the_key(seed, epoch, sample_id, length, data):
    index = data.draw(st.integers(0, length - 1))
    error_policy = ErrorPolicy(candidates=range(length), seed=seed)
    found = list(error_policy.substitutes(index, epoch, sample_id))
    assert found == list(error_policy.substitutes(index, epoch, sample_id))
    assert len(set(found)) == len(found) <= ATTEMPTS
    assert set(found) <= set(range(length)) - {index}
    assert (length == 1) == (found == [])
    array = ErrorPolicy(candidates=np.arange(length), seed=seed)
    assert [(type(one), one) for one in array.substitutes(index, epoch, sample_id)] == [(int, one) for one in found]


def test_substitutes_are_pinned():
    """Else a resumed run would go on with others."""
    error_policy = ErrorPolicy(candidates=range(1000), seed=1)
    assert list(error_policy.substitutes(5, 2, 5)) == [993, 815, 608, 764, 90, 702, 275, 280]
    assert list(ErrorPolicy(candidates=[], seed=0).substitutes(0, 0, 0)) == []


def test_keys_that_are_listed_can_stand_in_for_each_other():
    def named(name: str) -> str:
        return {"good": "good", "better": "better"}[name]

    loader: Any = DataLoader(Made(3, named), 3, sampler=["good", "bad", "better"], seed=5, on_error="replace")  # type: ignore[arg-type]
    (batch,) = loader
    (failed,) = loader.failed_samples()
    assert (failed.index, failed.error) == ("bad", "KeyError")
    assert batch == ["good", failed.substitute, "better"]
    assert failed.substitute in ("good", "better")


# --- Telling ---------------------------------------------------------------------------------------------------------


def test_explain_and_the_report_at_the_end_say_what_failed(capsys):
    loader = loader_of(on_error="replace", max_errors=9)
    assert "on error    samples that cannot be loaded are replaced" in loader.explain()
    assert "so far; the last" not in loader.explain()
    passes(loader, 1)
    last = loader.failed_samples()[-1]
    assert "failed      8 samples so far; the last 5:" in loader.explain()
    assert str(last) in loader.explain()
    assert "on error" not in loader_of().explain()
    report = ExitReport()
    report.iterating(loader)
    report.print_lines()
    told = capsys.readouterr().err.splitlines()
    assert told[1] == "fastload: 8 samples could not be loaded; the last:"
    assert told[-1] == f"fastload:   {last}"
    assert len(told) == 7


# --- Files -----------------------------------------------------------------------------------------------------------


class Files(Sized):
    """As ImageFolder has them."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__(length)
        self.samples = [(f"{name}/{index}.jpg", 0) for index in range(length)]


class Broken:
    @property
    def samples(self) -> Any:
        raise RuntimeError("not today")


BOTH: Any = ConcatDataset([Files("a", 3), Subset(Files("b", 5), [4, 2])])


@pytest.mark.parametrize(
    ("dataset", "index", "file"),
    [
        *((BOTH, index, f"a/{index}.jpg") for index in range(3)),
        (BOTH, 3, "b/4.jpg"),
        (BOTH, -1, "b/2.jpg"),
        (Subset(BOTH, [3]), 0, "b/4.jpg"),
        (SimpleNamespace(imgs=[(Path("x.png"), 1)]), 0, "x.png"),
        (SimpleNamespace(imgs=[(Path("x.png"), 1)]), 1, None),
        (Broken(), 0, None),
        (SimpleNamespace(samples=[(1, 2), "text"]), 0, None),
        (SimpleNamespace(samples=[(1, 2), "text"]), 1, None),
        ([1, 2], 0, None),
    ],
)
def test_files_are_found_through_subsets_and_concatenations_and_anything_else_is_none(dataset, index, file):
    assert file_of(dataset, index) == file
    error = ValueError("bad")
    for _ in range(2):  # as one that is raised again
        name_sample(error, dataset, np.int64(index))
    assert error.__notes__ == [f"at index {index} of the dataset" + (f": {file}" if file else "")]


BROKEN = {4: "OSError", 9: "UnidentifiedImageError", 17: "FileNotFoundError"}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """24 JPEGs of two classes, of which one ends in the middle, one is empty and one is deleted after the listing."""
    root: Path = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(0)
    for number in range(24):
        place = root / f"class {number // 12}"
        place.mkdir(exist_ok=True)
        PIL.Image.fromarray(noise.integers(0, 256, (60, 50, 3), dtype=np.uint8)).save(place / f"{number:02}.jpg")
    chain = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()]
    dataset = datasets.ImageFolder(root, v1.Compose(chain))
    cut, empty, gone = (Path(dataset.samples[index][0]) for index in BROKEN)
    cut.write_bytes(cut.read_bytes()[:2000])
    empty.write_bytes(b"")
    gone.unlink()
    return dataset


@pytest.mark.parametrize(("fuse", "way"), [(False, "inline"), (True, "processes"), (True, "own collation, inline")])
def test_corrupt_files_are_left_out_or_replaced_and_the_others_are_as_ever(images, way, fuse):
    sound = [index for index in range(24) if index not in BROKEN]
    options = {**WAYS[way], "seed": 3, "fuse": fuse}
    skipping, replacing = (DataLoader(images, 4, on_error=on_error, **options) for on_error in ("skip", "replace"))
    for epoch in range(2):
        left, whole = list(skipping), list(replacing)
        assert [len(batch) for batch, _ in left] == [4, 3, 3, 4, 3, 4]
        replayed = default_collate([replay(replacing, epoch, index) for index in range(24)])
        for found, rows in ((whole, list(range(24))), (left, sound)):
            together = [torch.cat(part) for part in zip(*found, strict=True)]
            assert difference(together, [one[rows] for one in replayed]) is None
    broken = [(index, images.samples[index][0], error) for index, error in BROKEN.items()]
    for loader in (skipping, replacing):
        assert [(one.index, one.file, one.error) for one in loader.failed_samples()] == broken * 2
        assert loader.statistics().failed_samples == 6
        loader.close()


@pytest.mark.parametrize("fuse", [False, True])
def test_an_error_names_the_index_in_the_loaders_dataset_and_the_file(images, fuse):
    with pytest.raises(OSError) as caught:
        list(DataLoader(Subset(images, [0, 4]), 1, seed=3, fuse=fuse))
    assert caught.value.__notes__ == [f"at index 1 of the dataset: {images.samples[4][0]}"]
