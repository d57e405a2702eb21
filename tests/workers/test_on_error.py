"""``on_error``: samples that cannot be loaded are raised with their names, left out, or replaced."""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from determinism_fakes import Drawing, Sample, batches, samples
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.datasets import Made, Sized
from ranks import run_ranks
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

import fastload
from fastload import ConfigError, DataLoader, DatasetError, DistributedBatchSampler, WorkerDied, replay
from fastload.keys.preserving import preserved_global_generators
from fastload.keys.seeding import SAMPLE, Keys, seed_global_generators
from fastload.run.exit_report import ExitReport

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


def without_failing(found: list[list[list[Sample]]]) -> list[list[list[Sample]]]:
    left = [[[row for row in batch if row[0] not in FAILING] for batch in epoch] for epoch in found]
    return [[batch for batch in epoch if batch] for epoch in left]


# --- Leaving out and replacing ---------------------------------------------------------------------------------------


@everywhere
def test_what_is_left_by_skip_is_what_it_is_in_a_dataset_without_errors(way):
    expected = without_failing(passes(loader_of(dataset=Drawing())))
    loader = loader_of(way, on_error="skip")
    assert passes(loader) == expected
    assert loader.statistics().failed_samples == 2 * len(FAILING)
    assert loader.statistics().samples == 2 * (53 - len(FAILING))
    assert loader.statistics().batches == sum(map(len, expected))
    found = loader.failed_samples()
    assert [failed.epoch for failed in found] == [0] * len(FAILING) + [1] * len(FAILING)
    assert {failed.index for failed in found[: len(FAILING)]} == FAILING
    assert {(failed.error, failed.substitute) for failed in found} == {("OSError", None)}
    assert {failed.message for failed in found} == {f"cannot read {index}" for index in FAILING}


@everywhere
def test_a_replaced_sample_is_another_one_with_the_randomness_of_the_first(way):
    intact = passes(loader_of(dataset=Drawing()))
    loader = loader_of(way, on_error="replace")
    found = passes(loader)
    instead = {(failed.epoch, failed.index): failed.substitute for failed in loader.failed_samples()}
    assert instead.keys() == {(epoch, index) for epoch in range(2) for index in FAILING}
    assert not FAILING & set(instead.values())
    expected = [
        [
            [sample_of(instead[epoch, row[0]], epoch, row[0]) if row[0] in FAILING else row for row in batch]
            for batch in batches_of_epoch
        ]
        for epoch, batches_of_epoch in enumerate(intact)
    ]
    assert found == expected
    assert loader.statistics().samples == 2 * 53


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


@settings(max_examples=25)
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


def test_few_failures_do_not_make_layouts_be_given_up():
    loader = loader_of("processes", batch_size=4, shuffle=False, on_error="skip")
    passes(loader, 3)
    reasons = loader.statistics().without_layout_reason
    assert set(reasons) <= {"samples were left out", "samples of one batch differ, or a new shape"}
    assert reasons["samples were left out"] >= 3 * 4
    assert loader.statistics().batches > sum(reasons.values())


def test_the_order_of_completion_does_not_matter_to_what_is_left():
    found = passes(loader_of("processes", on_error="skip", in_order=False))
    expected = without_failing(passes(loader_of(dataset=Drawing())))
    assert [sorted(epoch) for epoch in found] == [sorted(epoch) for epoch in expected]


def test_samples_that_cannot_be_sent_are_counted_once_when_their_batch_is_loaded_again():
    loader = DataLoader(Made(20, unsendable), 4, num_workers=2, on_error="skip", collate_fn=None)
    found = torch.cat(list(loader)).tolist()
    loader.close()
    assert found == [index for index in range(20) if index % 7 != 3]
    assert [failed.index for failed in loader.failed_samples()] == [3, 10, 17]


def unsendable(index: int) -> Any:
    """Samples that cannot be pickled, though their batch can."""
    if index % 7 == 3:
        raise ValueError("no")
    return Local(index)


class Local(int):
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


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
    def images(failing: frozenset[int], on_error: str, **way: Any) -> dict[int, torch.Tensor]:
        def image_of(index: int) -> Any:
            if index in failing:
                raise ValueError
            return torch.full((3, 8, 8), float(index)) + torch.arange(8.0) / 8, index

        options = {"batch_transform": fastload.transforms.RandomCrop(8, padding=4), "on_error": on_error, **way}
        loader: Any = DataLoader(Made(23, image_of), 5, shuffle=True, seed=1, **options)
        found = {int(index): image for batch, indices in loader for image, index in zip(batch, indices, strict=True)}
        loader.close()
        return found

    whole = images(frozenset(), "raise")
    for way in ({}, {"num_workers": 2}):
        left = images(frozenset({2, 9, 10}), "skip", **way)
        assert left.keys() == whole.keys() - {2, 9, 10}
        assert all(torch.equal(image, whole[index]) for index, image in left.items())


# --- Passing over, and going on --------------------------------------------------------------------------------------


# "inline" goes on with threads, the others without workers.
@pytest.mark.parametrize("way", ["inline", "moved", "moved inline", "kept, small chunks"])
@pytest.mark.parametrize(
    ("on_error", "shuffle", "seed"),
    [("skip", True, 3), ("skip", False, 3), ("skip", False, None), ("replace", True, 3)],
)
def test_a_state_of_any_step_goes_on_behind_batches_that_were_not_given_out(way, on_error, shuffle, seed):
    dataset = Faulty(frozenset({*range(4), *range(16, 28), 33}))
    options = {"dataset": dataset, "batch_size": 4, "shuffle": shuffle, "on_error": on_error, "seed": seed}
    options["seeding"] = "sample"
    whole = [row[0] for batch in batches(loader_of(way, **options)) for row in batch]
    loader = loader_of(way, **options)
    given_out: list[int] = []
    for batch in loader:
        given_out += [row[0] for row in samples(batch)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        resumed = loader_of("threads" if way == "inline" else "inline", **options)
        resumed.load_state_dict(state)
        assert given_out + [row[0] for one in batches(resumed) for row in one] == whole
        resumed.close()
    loader.close()


def test_any_number_of_ranks_gives_the_same_global_batches(tmp_path):
    def steps(rank: int, world_size: int) -> list[list[Sample]]:
        sampler = DistributedBatchSampler(Faulty(), 8, seed=2, rank=rank, world_size=world_size, tail="pad")
        loader = DataLoader(Faulty(), batch_sampler=sampler, num_workers=2, on_error="replace")
        found = batches(loader) + batches(loader)
        loader.close()
        return found

    alone = steps(0, 1)
    assert all(len(batch) == 8 for batch in alone)
    first, second = run_ranks(lambda rank: steps(rank, 2), tmp_path)
    assert [one + other for one, other in zip(first, second, strict=True)] == alone


def test_replay_gives_a_replaced_sample_again_and_says_that_one_was_left_out():
    order = [row[0] for batch in batches(loader_of(dataset=Drawing())) for row in batch]
    for dataset in (Faulty(), FaultyInBatches()):
        loader = loader_of("processes", dataset, on_error="replace")
        rows = [row for batch in batches(loader) for row in batch]
        loader.close()
        for index, row in zip(order, rows, strict=True):
            *numbers, pair = replay(loader, 0, index)
            assert (*numbers, tuple(pair.tolist())) == row
        skipping = loader_of(dataset=dataset, on_error="skip")
        for index in FAILING:
            with pytest.raises(DatasetError, match=rf"left sample {index} out, .*OSError: cannot read {index}"):
                replay(skipping, 0, index)


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
        assert "\n  index 0 (OSError: cannot read 0): " in str(error.value)
        # As behind any error of the dataset's, the next batch comes.
        with pytest.raises(DatasetError, match="6 samples"):
            next(iterator)
        assert len(next(iterator)[0]) == 4
    loader.close()
    assert len(loader.failed_samples()) == 2


@pytest.mark.parametrize("way", ["inline", "processes", "threads"])
def test_passes_at_the_same_time_have_limits_of_their_own(way):
    loader = loader_of(way, on_error="skip", max_errors=len(FAILING))
    first, second = zip(*zip(iter(loader), iter(loader), strict=True), strict=True)
    assert sum(len(batch[0]) for batch in first) == sum(len(batch[0]) for batch in second) == 53 - len(FAILING)
    assert loader.statistics().failed_samples == 2 * len(FAILING)
    assert {failed.epoch for failed in loader.failed_samples()} == {0, 1}
    loader.close()


@pytest.mark.parametrize("way", ["inline", "processes", "threads"])
def test_where_all_substitutes_fail_the_first_error_is_raised(way):
    loader = loader_of(way, Faulty(frozenset(range(53))), on_error="replace", shuffle=False)
    with pytest.raises(OSError, match="cannot read 0") as error:
        next(iter(loader))
    loader.close()
    assert error.value.__notes__ == [
        "at index 0 of the dataset",
        "on_error='replace' tried up to 8 other samples in its place; all failed",
    ]


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Takes no note, and no other attribute."""

    text: str


FROZEN = {index: Frozen(f"cannot read {index}") for index in range(53)}


@pytest.mark.parametrize("way", ["inline", "processes", "threads", "own collation"])
@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_exceptions_that_cannot_be_changed_are_raised_as_they_are(way, on_error):
    loader = loader_of(way, Faulty(raises=FROZEN), on_error=on_error, shuffle=False)
    with pytest.raises(Frozen, match="cannot read 0"):
        next(iter(loader))
    loader.close()


@pytest.mark.parametrize("way", ["inline", "processes"])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_stop_iteration_and_errors_of_collation_are_no_failed_samples(way, on_error):
    def refuse(rows: list[Any]) -> Any:
        raise ValueError("not these")

    loader = loader_of(way, Faulty(raises={6: StopIteration()}), on_error=on_error, shuffle=False)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(DatasetError, match="StopIteration"):
        next(iterator)
    loader.close()
    loader = loader_of(way, on_error=on_error, collate_fn=refuse)
    with pytest.raises(ValueError, match="not these"):
        next(iter(loader))
    loader.close()


def test_an_interrupt_is_no_failed_sample():
    iterator = iter(loader_of(dataset=Faulty(raises={7: KeyboardInterrupt()}), on_error="skip", shuffle=False))
    next(iterator)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [row[0] for row in samples(next(iterator))] == [10]


def test_a_worker_that_dies_is_an_error_and_the_pass_can_be_gone_on_with(tmp_path):
    expected = batches(loader_of(on_error="skip", shuffle=False))

    def killed_once(index: int) -> Any:
        done = tmp_path / "killed"
        if index == 30 and not done.exists():
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Faulty()[index]

    loader = loader_of("processes", Made(53, killed_once), on_error="skip", shuffle=False)
    found = []
    with pytest.raises(WorkerDied):
        for batch in loader:
            found.append(samples(batch))
    loader.load_state_dict(loader.state_dict())
    assert found + batches(loader) == expected
    loader.close()


@pytest.mark.parametrize("way", ["inline", "processes", "threads", "own collation"])
def test_raise_names_the_index_and_leaves_class_and_message_as_they_are(way):
    loader = loader_of(way, shuffle=False, batch_size=20)
    with pytest.raises(OSError, match="cannot read 0") as error:
        next(iter(loader))
    loader.close()
    assert str(error.value).rstrip().endswith("cannot read 0\nat all")
    assert error.value.__notes__ == ["at index 0 of the dataset"]


def test_raise_names_the_index_without_batches_and_the_indices_of_a_batch_loaded_at_once():
    with pytest.raises(OSError) as error:
        list(DataLoader(Faulty(frozenset({2})), batch_size=None))
    assert error.value.__notes__ == ["at index 2 of the dataset"]
    with pytest.raises(OSError) as error:
        list(DataLoader(FaultyInBatches(frozenset({2})), batch_size=3))
    assert error.value.__notes__ == ["in __getitems__ of the indices [0, 1, 2]"]


# --- Where substitutes come from -------------------------------------------------------------------------------------


class Choosing(Sized):
    """A sampler of the user's, which says what it chooses from."""

    def __init__(self, indices: Any) -> None:
        super().__init__(len(indices))
        self.indices = indices

    def __iter__(self) -> Any:
        return iter(self.indices)


class Secretive(Sized):
    def __iter__(self) -> Any:
        return iter(range(5))


ALLOWED = [0, 3, 4, 5, 11, 12, 20]
SAMPLERS: dict[str, Callable[[], Any]] = {
    "subset": lambda: SubsetRandomSampler(ALLOWED),
    "list": lambda: ALLOWED,
    "array": lambda: np.array(ALLOWED),
    "own": lambda: Choosing(np.array(ALLOWED)),
    "weights": lambda: WeightedRandomSampler([float(index in ALLOWED) for index in range(53)], 40),
    "our weights": lambda: fastload.DistributedSampler(
        range(53), 1, 0, weights=[float(index in ALLOWED) for index in range(53)], num_draws=40
    ),
    "batches": lambda: BatchSampler(SubsetRandomSampler(ALLOWED), 3, False),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_substitutes_come_from_the_indices_that_the_sampler_gives(name):
    for epoch_seed in range(4):
        way = (
            {"batch_sampler": SAMPLERS[name]()} if name == "batches" else {"sampler": SAMPLERS[name](), "batch_size": 3}
        )
        loader = DataLoader(Faulty(), seed=epoch_seed, on_error="replace", **way)
        found = {row[0] for batch in batches(loader) for row in batch}
        assert found <= {4, 5, 20}
        assert loader.statistics().failed_samples > 0


def test_a_sampler_over_a_part_of_the_dataset_gives_substitutes_of_that_part():
    loader = DataLoader(Faulty(), 3, sampler=RandomSampler(range(5)), on_error="replace")
    assert {row[0] for batch in batches(loader) for row in batch} <= {1, 2, 4}
    subset: Any = Subset(Faulty(), ALLOWED)
    loader = DataLoader(subset, 3, shuffle=True, on_error="replace")
    assert {row[0] for batch in batches(loader) for row in batch} <= {4, 5, 20}


class SubclassedSampler(SequentialSampler):
    def __iter__(self) -> Any:
        return iter(range(5))


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": Secretive(5)},
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


class Named:
    """A dataset whose indices are strings."""

    def __getitem__(self, name: str) -> str:
        if name == "bad":
            raise KeyError(name)
        return name

    def __len__(self) -> int:
        return 3


def test_keys_that_are_listed_can_stand_in_for_each_other():
    loader: Any = DataLoader(Named(), 3, sampler=["good", "bad", "better"], seed=5, on_error="replace")  # type: ignore[arg-type]
    (batch,) = loader
    (failed,) = loader.failed_samples()
    assert (failed.index, failed.error) == ("bad", "KeyError")
    assert batch == ["good", failed.substitute, "better"]
    assert failed.substitute in ("good", "better")


# --- Telling ---------------------------------------------------------------------------------------------------------


def test_explain_and_the_report_at_the_end_say_what_failed(capsys):
    loader = loader_of("processes", on_error="replace", max_errors=9)
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


# --- Real files ------------------------------------------------------------------------------------------------------


BROKEN = {4: "truncated", 9: "empty", 17: "gone"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 JPEGs of two classes, of which one ends in the middle, one is empty and one is deleted after the listing."""
    from PIL import Image

    root: Path = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(0)
    for number in range(24):
        place = root / f"class {number // 12}"
        place.mkdir(exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (60, 50, 3), dtype=np.uint8)).save(place / f"{number:02}.jpg")
    cut = root / "class 0" / "04.jpg"
    cut.write_bytes(cut.read_bytes()[:2000])
    (root / "class 0" / "09.jpg").write_bytes(b"")
    return root


def image_folder(root: Path) -> Any:
    from torchvision import datasets
    from torchvision import transforms as v1

    chain = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()]
    dataset = datasets.ImageFolder(root, v1.Compose(chain))
    dataset.samples[17] = (str(root / "class 1" / "never.jpg"), 1)
    return dataset


@pytest.mark.parametrize(
    ("fuse", "way"),
    [
        (False, "inline"),
        (False, "threads"),
        (True, "processes"),
        (True, "own collation"),
    ],
)
def test_corrupt_files_are_left_out_or_replaced_and_the_others_are_as_ever(folder, way, fuse):
    dataset = image_folder(folder)
    sound = [index for index in range(24) if index not in BROKEN]
    alone: Any = DataLoader(dataset, None, sampler=sound, seed=3)
    plain: Any = DataLoader(Subset(dataset, sound), 1, fuse=fuse)
    assert len(list(alone)) == len(list(plain)) == 21
    options = {**WAYS[way], "seed": 3, "fuse": fuse}
    skipping: Any = DataLoader(dataset, 4, on_error="skip", **options)
    replacing: Any = DataLoader(dataset, 4, on_error="replace", **options)
    for epoch in range(2):
        left, whole = list(skipping), list(replacing)
        assert [len(images) for images, _ in left] == [4, 3, 3, 4, 3, 4]
        assert [len(images) for images, _ in whole] == [4] * 6
        images, targets = (torch.cat(parts) for parts in zip(*whole, strict=True))
        assert torch.equal(torch.cat([images for images, _ in left]), images[sound])
        assert torch.equal(torch.cat([targets for _, targets in left]), targets[sound])
        for index in range(24):
            expected, target = replay(replacing, epoch, index)
            assert torch.equal(images[index], expected)
            assert int(targets[index]) == target
        for loader in (skipping, replacing):
            last = loader.failed_samples()[-3:]
            assert [failed.index for failed in last] == list(BROKEN)
            assert [failed.file for failed in last] == [dataset.samples[index][0] for index in BROKEN]
            assert [failed.error for failed in last] == ["OSError", "UnidentifiedImageError", "FileNotFoundError"]
    for loader in (skipping, replacing):
        assert loader.statistics().failed_samples == 6
        loader.close()


@pytest.mark.parametrize("way", ["inline", "processes", "own collation"])
@pytest.mark.parametrize("fuse", [False, True], ids=["plain", "fused"])
def test_raise_names_the_file_also_inside_of_subsets_and_concatenations(folder, way, fuse):
    dataset = image_folder(folder)
    both: Any = ConcatDataset([Subset(dataset, [0, 1]), Subset(dataset, [2, 9])])
    nested: Any = Subset(Subset(dataset, [0, 1, 2, 9]), range(4))
    loader: Any = DataLoader(nested if fuse else both, 4, fuse=fuse, **WAYS[way])
    from PIL import UnidentifiedImageError

    with pytest.raises(UnidentifiedImageError) as error:
        list(loader)
    loader.close()
    text = str(error.value) + "".join(getattr(error.value, "__notes__", ()))
    assert dataset.samples[9][0] in text
    assert "at index 3" in text


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
