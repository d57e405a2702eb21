"""Resident data inside of a loader: the batches, orders, states and parameters that there are without it."""

from __future__ import annotations

import functools
import gc
import pickle
import random
import re
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import kit.ways
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.comparison import difference
from kit.datasets import Made, Stream
from kit.generators import generator_states
from kit.outcomes import outcomes
from kit.resuming import assert_resumes
from kit.transforms import Shifted
from kit.ways import USUAL as WAYS
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

import fastload
from fastload import ConfigError, DataLoader, DistributedSampler
from fastload import transforms as T
from fastload.device.columns import rows_of
from fastload.transforms.base import Params, Transform

LENGTH = 37
PLACES: dict[str, dict[str, Any]] = {
    "host": {"resident": "host"},
    "device": {"resident": "device", "device": "cpu"},
    "auto": {"resident": "auto"},
}


class Images(Dataset[Any]):
    """Images that tell their index, and are read slowly enough to count."""

    def __init__(self, length: int = LENGTH) -> None:
        self.images = torch.arange(length * 3 * 6 * 6).reshape(length, 3, 6, 6).to(torch.uint8)
        self.num_read = 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int, str]:
        self.num_read += 1
        return self.images[index], index, f"image {index}"


class Raising(Transform):
    """Raises an error for the image of a sample, once."""

    def __init__(self, index: int, error: BaseException) -> None:
        super().__init__()
        self.errors = {index * 108 % 256: error}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        for value in images[:, 0, 0, 0].tolist():
            if value in self.errors:
                raise self.errors.pop(value)
        return images


Raising.__module__ = "fastload.transforms.raising"  # else it would be given one batch at a time


def augmentation() -> Any:
    return T.Compose([T.RandomCrop(6, padding=2), T.RandomHorizontalFlip(), T.ToNormalized([0.4] * 3, [0.2] * 3)])


def plain(batch: Any) -> Any:
    return [part.tolist() if isinstance(part, Tensor) else list(part) for part in batch]


def epochs(loader: DataLoader[Any], number: int = 2) -> list[Any]:
    return [[plain(batch) for batch in loader] for _ in range(number)]


ORDERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "seeded": {"shuffle": True, "seed": 3},
    "torch's": {"shuffle": True},
    "torch's seeding": {"shuffle": True, "seeding": "torch"},
    "short": {"seed": 3, "drop_last": True},
}


@pytest.mark.parametrize(
    ("place", "way", "order"),
    [
        # Who reads the data is no concern of where they lie, nor of the order, but for its seeds.
        *((place, "inline", order) for place in ("host", "device") for order in ORDERS),
        *(
            (place, way, order)
            for place, way in zip(("host", "auto"), ("processes", "threads"), strict=True)
            for order in ("seeded", "torch's", "torch's seeding")
        ),
        ("host", "kept", "torch's"),
    ],
)
def test_batches_are_those_without_it(place, way, order):
    found = []
    for resident in (PLACES[place], {}):
        torch.manual_seed(11)
        options = {**ORDERS[order], **WAYS[way], **resident}
        with closing(DataLoader(Images(), 5, batch_transform=augmentation(), **options)) as loader:
            found.append(epochs(loader, 3))
    assert found[0] == found[1]


@pytest.mark.parametrize(("first", "later"), [("host", "host"), ("host", None), (None, "host")])
@pytest.mark.parametrize("order", ["seeded", "a generator"])
def test_a_state_goes_on_where_the_user_was(first, later, order):
    def make(resident: str | None) -> DataLoader[Any]:
        generator = None if order == "seeded" else torch.Generator().manual_seed(7)
        seeds: Any = {"seed": None if generator else 3, "generator": generator, "seeding": "sample"}
        return DataLoader(Images(), 5, shuffle=True, batch_transform=Shifted(), resident=resident, **seeds)

    make_first, make_later = (functools.partial(make, resident) for resident in (first, later))
    assert_resumes(make_first, [(0, 1), (0, 8)], make_later, lambda loader: epochs(loader, 1)[0])


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 30),
    batch_size=st.integers(1, 9),
    at_once=st.integers(1, 40),
    mixing=st.booleans(),
    tail=st.sampled_from(["drop", "pad", "short"]),
    ranks=st.integers(1, 3),
)
def test_how_many_batches_are_transformed_at_once_changes_nothing(length, batch_size, at_once, mixing, tail, ranks):
    members = [T.RandomCrop(6, padding=1), T.ToDtype(torch.float32, scale=True)]
    transform = T.Compose([*members, T.MixUp(num_classes=length)] if mixing else members)
    images = TensorDataset(Images(length).images, torch.arange(length))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastload.engine.resident_source._AT_ONCE_ON_HOST", at_once * (3 * 6 * 6 + 8))
        for rank in range(ranks):
            found = []
            for resident in (None, "host"):
                sampler = DistributedSampler(images, ranks, rank, seed=5, tail=tail)
                loader = DataLoader(images, batch_size, sampler=sampler, batch_transform=transform, resident=resident)
                found.append(epochs(loader))
            assert found[0] == found[1]


@pytest.mark.parametrize("way", WAYS)
def test_a_dataset_is_read_once(way, tmp_path):
    class Counted(Images):
        def __getitem__(self, index: int) -> tuple[Tensor, int, str]:
            with open(tmp_path / str(index), "a") as file:
                file.write(".")
            return super().__getitem__(index)

    loader = DataLoader(Counted(100), 5, shuffle=True, seed=1, resident="host", **WAYS[way])
    epochs(loader, 3)
    loader.close()
    times = [len((tmp_path / str(index)).read_text()) for index in range(100)]
    assert sorted(times)[:84] == [1] * 84, "and sixteen twice more, to see whether the dataset is random"
    assert max(times) == 3


@pytest.mark.filterwarnings("ignore:Warning. converting a masked element to nan:UserWarning")
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays:UserWarning")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_masked_values_are_loaded_anew_as_torch_makes_them():
    samples = list(np.ma.array(np.arange(8.0), mask=[False, True] * 4))
    expected = list(torch.utils.data.DataLoader(samples, 4))
    with pytest.warns(UserWarning, match="the dataset is loaded anew in each epoch: samples have masked"):
        found = list(DataLoader(samples, 4, resident="host"))
    assert str(found) == str(expected)


def test_what_is_resident_can_be_asked():
    loader = DataLoader(Images(), 5, resident="host", num_workers=2)
    assert loader.statistics().resident is None
    assert "read once, when the first iteration begins" in loader.explain()
    epochs(loader, 1)
    statistics = loader.statistics()
    assert (statistics.resident, statistics.batches, statistics.samples) == ("cpu", 8, LENGTH)
    assert statistics.resident_bytes > LENGTH * (108 + 8)
    assert f"resident    {LENGTH} samples on the host" in loader.explain()
    loader.close()
    assert loader.statistics().resident is None
    assert len(epochs(loader, 1)[0]) == 8


def test_a_dataset_of_another_length_is_read_again():
    dataset = Images(10)
    loader = DataLoader(dataset, 5, resident="host")
    assert len(epochs(loader, 1)[0]) == 2
    dataset.images = Images(10).images + 1
    assert epochs(loader, 1) != epochs(DataLoader(dataset, 5), 1), "until then it is what it was"
    dataset.images = Images(20).images
    assert epochs(loader, 1) == epochs(DataLoader(dataset, 5), 1)


def test_a_copy_of_a_loader_reads_for_itself_and_iterations_may_overlap():
    loader = DataLoader(Images(), 5, shuffle=True, seed=1, resident="host", batch_transform=Shifted())
    first, second = iter(loader), iter(loader)
    one = [plain(batch) for batch in first]
    other = [plain(batch) for batch in second]
    loader.set_epoch(0)
    assert epochs(loader) == [one, other]
    again = pickle.loads(pickle.dumps(loader))
    again.set_epoch(0)
    assert epochs(again) == [one, other]


@pytest.mark.parametrize("resident", [None, "host"])
def test_images_are_turned_every_other_epoch(resident):
    images = torch.arange(40 * 2 * 2).reshape(40, 1, 2, 2).float()
    dataset = TensorDataset(images, torch.arange(40))
    loader = DataLoader(dataset, 8, shuffle=True, seed=4, batch_transform=T.AlternatingFlip(), resident=resident)
    turned = []
    for _ in range(4):
        found, labels = (torch.cat(part) for part in zip(*loader, strict=True))
        is_turned = (found != images[labels]).flatten(1).any(1)
        assert torch.equal(torch.where(is_turned[:, None, None, None], found.flip(-1), found), images[labels])
        turned.append(set(labels[is_turned].tolist()))
    assert turned[:2] == turned[2:]
    assert turned[0] == set(range(40)) - turned[1]
    assert 5 < len(turned[0]) < 35


def test_results_that_are_larger_than_the_data_are_made_fewer_at_once(monkeypatch):
    monkeypatch.setattr("fastload.engine.resident_source._AT_ONCE_ON_HOST", 1 << 16)
    dataset = TensorDataset(torch.zeros(400, 1, 4, 4, dtype=torch.uint8))
    loader = DataLoader(dataset, 2, batch_transform=T.Resize(32), resident="host")
    for (images,) in loader:
        assert images.untyped_storage().nbytes() <= 1 << 16


def test_close_lets_go_of_the_data_also_where_somebody_holds_the_iterator():
    for stop in (1, 8, 9):
        loader = DataLoader(Images(), 5, batch_transform=augmentation(), resident="host")
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator, None)
        kept = weakref.ref(loader._runtime.resident.columns.tensors()[0])
        gc.disable()
        try:
            loader.close()
            assert kept() is None
        finally:
            gc.enable()
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"resident": "host"}, {"device": "cpu"}], ids=str)
def test_batches_are_pinned_behind_their_transform_unless_the_device_stage_copies(monkeypatch, options):
    pinned = []
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda *_: torch.device("cpu"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # torch 2.6 asks this
    monkeypatch.setattr(
        "fastload.base.compat.pin_memory", lambda batch, device=None: pinned.append(plain(batch)) or batch
    )
    loader = DataLoader(Images(), 5, pin_memory=True, batch_transform=augmentation(), **options)
    given = [plain(batch) for batch in loader]
    assert pinned == ([] if "device" in options else given)
    loader.close()


@pytest.mark.parametrize("tail", ["drop", "pad", "short"])
def test_a_sample_is_replayed_with_what_the_batch_transform_did(tail):
    dataset = TensorDataset(Images().images, torch.arange(LENGTH))
    sampler = DistributedSampler(dataset, 2, 1, seed=3, tail=tail)
    loader = DataLoader(dataset, 5, sampler=sampler, batch_transform=augmentation(), resident="host")
    for epoch in range(2):
        for step, (images, labels) in enumerate(loader):
            for row, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
                position = 1 + 2 * (5 * step + row)
                found = fastload.replay(loader, epoch, label, position=position, transformed=True)
                assert torch.equal(found[0][0], image)
                assert found[1].tolist() == [label]


@pytest.mark.parametrize("num_at_once", [1, 8])
def test_an_error_takes_the_place_of_its_batch_only(num_at_once, monkeypatch):
    """An index that is not there, or that is none; an empty batch; an image that the transform refuses."""
    outside, none = [99, -38, 10**12], ["a", 0.5, True, [1, 2], (0, 1)]
    monkeypatch.setattr("fastload.engine.resident_source._AT_ONCE_ON_HOST", num_at_once * 200)
    batches = [[0], *([0, index] for index in outside), [1], *([index] for index in none), [], [7], [2]]
    transform = Raising(7, ValueError("image 7"))
    loader = DataLoader(Images(), batch_sampler=batches, batch_transform=transform, resident="host")
    seen = outcomes(iter(loader), lambda batch: batch[1].tolist())
    kinds = [one if isinstance(one, list) else type(one) for one in seen]
    errors = [IndexError] * len(outside), [ConfigError] * len(none)
    assert kinds == [[0], *errors[0], [1], *errors[1], IndexError, ValueError, [2]]
    for index, error in zip(outside, seen[1:], strict=False):
        assert f"index {index} is out of range: the dataset has {LENGTH} samples" in str(error)
    assert all("resident needs a sampler that gives integers" in str(one) for one in seen if type(one) is ConfigError)
    assert loader.statistics().batches == 3


def test_indices_of_any_kind_are_found_as_in_a_sequence():
    def found(resident: str | None) -> list[Any]:
        batches: Any = [[3, -37], (1, 2), torch.tensor([0, -1]), iter([4]), [torch.tensor(5)], np.array([6])]
        dataset = TensorDataset(Images().images, torch.arange(LENGTH))
        return epochs(DataLoader(dataset, batch_sampler=batches, resident=resident), 1)

    assert found("host") == found(None)


@pytest.mark.parametrize("at", [0, 12, 36])
@pytest.mark.parametrize("where", ["transform", "rows_of"])
def test_an_interrupt_loses_nothing(monkeypatch, where, at):
    monkeypatch.setattr("fastload.engine.resident_source._AT_ONCE_ON_HOST", 2000)
    interrupt = Raising(at, KeyboardInterrupt())
    loader = DataLoader(Images(), 5, batch_transform=interrupt if where == "transform" else None, resident="host")
    if where == "rows_of":

        def interrupting(indices: Any, length: int) -> Any:
            interrupt.transform(Images().images[indices], {})
            return rows_of(indices, length)

        monkeypatch.setattr("fastload.engine.resident_source.rows_of", interrupting)
    seen = outcomes(iter(loader), lambda batch: batch[1].tolist(), KeyboardInterrupt)
    assert [index for one in seen if isinstance(one, list) for index in one] == list(range(LENGTH))
    assert sum(isinstance(one, KeyboardInterrupt) for one in seen) == 1


@pytest.mark.parametrize("place", PLACES)
def test_parts_that_stay_on_the_host_channels_last_and_fixed_places_hold(place):
    options = {**PLACES[place], "device": "cpu", "channels_last": True, "keep_on_host": (1, "2")}
    fixed = {"fixed_buffers": True, "drop_last": True} if place == "device" else {}
    pointers = []
    for images, labels, names in DataLoader(Images(), 5, **options, **fixed):
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images, Images().images[labels])
        assert list(names) == [f"image {label}" for label in labels]
        pointers.append(images.data_ptr())
    assert len(set(pointers)) == 4 or not fixed


# --- What cannot reside, and what can --------------------------------------------------------------------------------


def bad(index: int) -> int:
    if index == 3:
        raise ValueError("sample 3 is bad")
    return index


class Marked(Tensor):
    pass


READ_ONCE = "read once, for resident='host'"
ANEW = "differed when it was read again"
ALIKE = "one shape and dtype, and samples 1000 to 1019 differ from the first"
REFUSED: dict[str, tuple[int, Callable[[int], Any], Any, str]] = {
    "draws of random": (37, lambda index: random.random(), ConfigError, ANEW),
    "draws of NumPy": (37, lambda index: np.random.rand(), ConfigError, ANEW),
    "draws of torch": (37, lambda index: torch.rand(()), ConfigError, ANEW),
    "draws that do not show": (37, lambda index: torch.rand(()) * 0, ConfigError, "draws random numbers for sample 0"),
    "an error": (37, bad, ValueError, rf"(?s)sample 3 is bad.*{READ_ONCE}"),
    "shapes": (2000, lambda index: torch.zeros(2 + (index >= 1000)), ConfigError, ALIKE),
    "shapes that would be broadcast": (2000, lambda index: torch.zeros(2 - (index >= 1000)), ConfigError, ALIKE),
    "dtypes": (2000, lambda index: 0.5 if index >= 1000 else 1, ConfigError, ALIKE),
    "text behind numbers": (2000, lambda index: "a" if index >= 1000 else 1, ConfigError, f"{ALIKE}: strings"),
    "numbers behind text": (2000, lambda index: 1 if index >= 1000 else "a", ConfigError, f"{ALIKE}: a tensor"),
    "a class of tensors": (
        37,
        lambda index: {"x": torch.zeros(2).as_subclass(Marked)},
        ConfigError,
        "dense tensors or strings, but 'x' of a batch is of type Marked",
    ),
    "shapes in a batch": (
        2000,
        lambda index: torch.zeros(2 + (index >= 1010)),
        RuntimeError,
        rf"(?s)stack expects each tensor to be equal size.*{READ_ONCE}",
    ),
    "names": (37, lambda index: {"cat" if index < 20 else "dog": index}, ConfigError, "made of 'dog', not of 'cat'"),
}


@pytest.mark.parametrize(
    ("case", "way"),
    [
        *((case, "inline") for case in REFUSED),
        ("draws of torch", "processes"),
        ("draws of NumPy", "threads"),
        ("draws that do not show", "processes"),
        ("an error", "processes"),
    ],
)
def test_a_dataset_that_cannot_reside_is_refused_and_nothing_has_changed(case, way):
    length, make, error, words = REFUSED[case]
    loader = DataLoader(Made(length, make), 5, shuffle=case.startswith("draws"), resident="host", **WAYS[way])

    before = generator_states(), str(loader.state_dict())
    with pytest.raises(error) as caught:
        iter(loader)
    assert re.search(words, "".join([str(caught.value), *getattr(caught.value, "__notes__", ())]))
    assert (generator_states(), str(loader.state_dict())) == before
    loader.close()


def test_a_dataset_that_is_too_large_is_an_error_with_the_sizes_or_is_not_resident(monkeypatch):
    monkeypatch.setattr("fastload.device.columns.free_on", lambda device: 5000)
    with pytest.raises(
        ConfigError, match=r"resident='host': 37 samples take .* KiB, and 4.9 KiB are free on the host. .*'auto'"
    ):
        iter(DataLoader(Images(), 5, resident="host"))
    with pytest.raises(ConfigError, match="37 samples take"):  # the first is not like the others
        iter(DataLoader(Made(37, lambda index: "x" * index * 100), 5, resident="host"))
    loader = DataLoader(Images(), 5, resident="auto", seed=1)
    assert epochs(loader) == epochs(DataLoader(Images(), 5, seed=1))
    assert loader.statistics().resident is None
    assert "resident    no: the dataset is loaded anew in each epoch; 37 samples take" in loader.explain()
    used_without_a_copy = TensorDataset(torch.zeros(100, 3, 8, 8))
    assert len(epochs(DataLoader(used_without_a_copy, 5, resident="host"), 1)[0]) == 20


def test_ranks_of_a_machine_share_its_memory_and_what_is_not_asked_for_takes_half(monkeypatch):
    monkeypatch.setattr("fastload.device.columns.free_on", lambda device: 1000)
    asked, chosen = (DataLoader(Made(100, int), 5, resident=resident) for resident in ("host", "auto"))
    assert torch.equal(torch.cat(list(chosen)), torch.cat(list(asked)))
    assert [loader.statistics().resident for loader in (asked, chosen)] == ["cpu", None]
    assert "half of which may be used" in chosen.explain()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="250 bytes are free"):
        iter(DataLoader(Made(100, int), 5, resident="host"))


class InBatches(Images):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def seeds_itself(index: int) -> Tensor:
    torch.manual_seed(index)
    return torch.rand(())


class Pair(NamedTuple):
    image: Tensor
    label: int


def nested(index: int) -> Any:
    image = torch.full((3, 2, 2), index, dtype=torch.uint8)
    return {"pair": Pair(image, index), "name": f"sample {index}", "rest": (float(index), b"raw", [image + 1])}


def in_two_orders(index: int) -> dict[str, int]:
    items = [("a", index), ("b", -index)]
    return dict(items[:: 1 - index % 2 * 2])


@pytest.mark.parametrize(
    "dataset",
    [
        InBatches(),
        Made(37, seeds_itself),
        Made(37, in_two_orders),
        Images(0),
        Subset(Images(), [5, 3, 3]),
        [1.5, 2.5, 3.5],
        ["a", "b", "c"],
        Made(37, nested),
        [float("nan"), 1.0],
    ],
    ids=["in batches", "seeds itself", "dicts of two orders", "empty", "subset", "numbers", "strings", "nested", "nan"],
)
def test_datasets_of_other_kinds_reside_as_well(dataset):
    found, expected = (list(DataLoader(dataset, 2, resident=which)) for which in ("host", None))
    assert difference(found, expected) is None


class Opened(Images):
    """Has its data only where worker_init_fn has opened it."""

    opened: Any = None

    def __getitem__(self, index: int) -> Any:
        return self.opened[index]


def open_in_worker(_: int) -> None:
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.opened = list(range(LENGTH))


@pytest.mark.parametrize("way", ["processes", "threads", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_what_worker_init_fn_opens_is_there_when_the_dataset_is_read(way):
    loader = DataLoader(Opened(), 5, worker_init_fn=open_in_worker, resident="host", **kit.ways.WAYS[way])
    assert [batch.tolist() for batch in loader][-1] == [35, 36]
    loader.close()


def test_a_sampler_that_looks_at_the_loop_is_asked_as_without_it():
    done = [0]
    sampler: Any = Stream(lambda: (list(done) for _ in range(6)))
    for batch in DataLoader(Images(), batch_sampler=sampler, resident="host"):
        assert batch[1].tolist() == done
        done[0] += 1
    assert done == [6]


# --- Parameters and replay -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resident", "way"), [("host", "inline"), (None, "inline"), (None, "processes")])
def test_the_parameters_of_each_batch_can_be_had_back(resident, way):
    images_of = Images().images
    transform = T.Compose([T.RandomCrop(6, padding=2), T.RandomHorizontalFlip(), T.ColorJitter(0.4)])
    options = {"shuffle": True, "seed": 4, "batch_transform": transform, "resident": resident, **WAYS[way]}
    loader = DataLoader(TensorDataset(images_of, torch.arange(LENGTH)), 5, **options)
    with pytest.raises(ConfigError, match="has not returned one yet"):
        _ = loader.batch_params
    for images, labels in loader:
        params = loader.batch_params
        assert len(params["RandomCrop"]["top"]) == len(images)
        assert torch.equal(transform(images_of[labels], params=params), images)
    loader.close()


def params_of_a_function() -> Any:
    loader = DataLoader(Images(), 5, batch_transform=lambda batch: batch)
    next(iter(loader))
    return loader.batch_params


def replayed(transform: Any, **options: Any) -> Any:
    dataset = TensorDataset(Images().images.float(), torch.arange(LENGTH))
    loader = DataLoader(dataset, 5, seed=1, batch_transform=transform, **options)
    return fastload.replay(loader, 0, 3, transformed=True)


def doubled(samples: list[Any]) -> Any:
    return torch.stack([image for image, *_ in samples]).repeat_interleave(2, 0)


def alternated(**options: Any) -> Any:
    dataset = TensorDataset(torch.zeros(9, 1, 2, 2))
    return next(iter(DataLoader(dataset, 3, batch_transform=T.AlternatingFlip(), **options)))


BY_INDEX = "named by their index"
ALONE = "changes each sample by itself"
REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "parameters of a function": (params_of_a_function, "return_params=True"),
    "replay of mixed samples": (lambda: replayed(T.MixUp(num_classes=LENGTH)), ALONE),
    "replay by no transform": (lambda: replayed(None), ALONE),
    "replay by a function": (lambda: replayed(lambda batch: batch), ALONE),
    "replay of two images": (lambda: replayed(augmentation(), collate_fn=doubled), "collate_fn makes 2 of sample 3"),
    "alternating without a seed": (alternated, BY_INDEX),
    "alternating in a torch's order": (lambda: alternated(shuffle=True), BY_INDEX),
    "alternating by a user's sampler": (lambda: alternated(seed=1, sampler=[1, 2, 3]), BY_INDEX),
    "alternating outside": (lambda: T.AlternatingFlip()(torch.zeros(2, 1, 3, 3)), BY_INDEX),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_parameters_are_not_known_of_is_refused(case):
    call, words = REFUSALS[case]
    with pytest.raises(ConfigError, match=words):
        call()
