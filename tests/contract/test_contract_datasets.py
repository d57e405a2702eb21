"""Datasets of every make: with ``__getitems__``, torch's own, plain containers, with shared state."""

from typing import Any

import pytest
import torch
from contract_datasets import (
    Batched,
    BatchedAsTensor,
    BatchedAsTuple,
    BatchedFailing,
    BatchedNot,
    ByKey,
    Counted,
    Images,
    Indices,
    LengthRaises,
    Shards,
    Squares,
    Stateful,
    WithoutLength,
    identity,
)
from contract_harness import (
    INLINE,
    TWO,
    TWO_PERSISTENT,
    assert_same_as_torch,
    each_kind,
    epochs,
    everywhere,
    generator,
    outcome,
    several,
    with_workers,
    without_messages,
)
from contract_samples import SamplesOfKind
from torch.utils.data import ChainDataset, ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, random_split


class _NestedSubset(Subset):
    """A subclass of Subset with samples and batches of its own."""

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[index]], "mine"

    def __getitems__(self, indices: Any) -> Any:
        return [(sample, "mine, batched") for sample in (self.dataset[self.indices[index]] for index in indices)]


class _SubsetWithAttribute(Subset):
    """A subclass of Subset that changes nothing of its methods."""


class _WithGetattr(Dataset):
    """Answers every unknown name by its inner dataset, as wrappers do."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class _NoDataset:
    """Has the two methods and no base class."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return index, [index] * 2


class _Slots(Dataset):
    """Keeps no ``__dict__`` items of its own."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = [3, 2, 1]

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.values[index]


def _batched_attribute() -> Any:
    # torch looks the method up on the object, not on its class.
    dataset = Indices(6)
    dataset.__getitems__ = lambda indices: [-index for index in indices]  # type: ignore[attr-defined]
    return dataset


DATASETS: dict[str, Any] = {
    "list": lambda: [3, 1, 4, 1, 5, 9],
    "list of pairs": lambda: [(torch.ones(2) * index, index) for index in range(7)],
    "tuple": lambda: (3, 1, 4),
    "range": lambda: range(3, 9),
    "text": lambda: "abcdefg",
    "bytes": lambda: b"abcdefg",
    "dict with int keys": lambda: {0: "a", 1: "b", 2: "c"},
    "tensor": lambda: torch.arange(14).reshape(7, 2),
    "array": lambda: torch.arange(14).reshape(7, 2).numpy(),
    "one-dimensional array": lambda: torch.arange(7).numpy(),
    "no subclass of Dataset": lambda: _NoDataset(),
    "slots": lambda: _Slots(),
    "getattr": lambda: _WithGetattr(Squares(7)),
    "getattr to a batched one": lambda: _WithGetattr(Batched(7)),
    "batched": lambda: Batched(10),
    "batched, as a tuple": lambda: BatchedAsTuple(10),
    "batched, as a tensor": lambda: BatchedAsTensor(10),
    "batched, one too many": lambda: Batched(10, extra=1),
    "batched, one too few": lambda: Batched(10, extra=-1),
    "batched, none": lambda: Batched(10, extra=-10),
    "batched, None": lambda: BatchedNot(10),
    "batched, failing": lambda: BatchedFailing(10),
    "batched by an attribute": lambda: _batched_attribute(),
    "subset": lambda: Subset(Squares(20), [3, 1, 4, 15, 9]),
    "subset of a tensor of indices": lambda: Subset(Squares(20), torch.tensor([3, 1, 4])),  # type: ignore[arg-type]
    "subset of a range": lambda: Subset(Squares(20), range(2, 12, 3)),
    "subset of keys": lambda: Subset(ByKey(), ["a", (1, 2), None, "b"]),  # type: ignore[list-item]
    "subset with repetitions": lambda: Subset(Squares(20), [1, 1, 1, 2]),
    "subset of a subset": lambda: Subset(Subset(Squares(20), [10, 11, 12, 13, 14]), [4, 2, 0]),
    "subset of a batched one": lambda: Subset(Batched(20), [3, 1, 4, 15, 9]),
    "subset of a subset of a batched one": lambda: Subset(Subset(Batched(20), [9, 8, 7, 6]), [3, 1, 0]),
    "subset of a list": lambda: Subset([5, 6, 7, 8], [3, 0]),  # type: ignore[arg-type]
    "subset out of range": lambda: Subset([5, 6, 7, 8], [3, 0, 9, 1]),  # type: ignore[arg-type]
    "subclass of subset": lambda: _NestedSubset(Squares(20), [3, 1, 4]),
    "subset of a subclass of subset": lambda: Subset(_NestedSubset(Squares(20), [3, 1, 4]), [2, 1]),
    "subclass of subset without methods": lambda: _SubsetWithAttribute(Squares(20), [3, 1, 4]),
    "concatenation": lambda: ConcatDataset([Squares(3), Squares(2), Squares(4)]),
    "concatenation by plus": lambda: Squares(3) + Squares(2),
    "concatenation of subsets": lambda: ConcatDataset([Subset(Squares(9), [8, 7]), Subset(Squares(9), [1])]),
    "subset of a concatenation": lambda: Subset(ConcatDataset([Squares(3), Squares(4)]), [6, 2, 3]),
    "tensors": lambda: TensorDataset(torch.arange(14).reshape(7, 2), torch.arange(7.0)),
    "one tensor": lambda: TensorDataset(torch.arange(14).reshape(7, 2)),
    "subset of tensors": lambda: Subset(TensorDataset(torch.arange(14).reshape(7, 2), torch.arange(7.0)), [6, 0, 2]),
    "tensors of no dimension": lambda: TensorDataset(torch.arange(5), torch.arange(5, dtype=torch.float16)),
    "tensors that require a gradient": lambda: TensorDataset(torch.ones(4, 2, requires_grad=True)),
    "stack, tuple": lambda: StackDataset(Squares(4), Indices(4)),
    "stack, dict": lambda: StackDataset(image=Squares(4), label=Indices(4)),
    "stack of batched ones": lambda: StackDataset(Batched(6), Batched(6)),
    "stack of a batched and another one": lambda: StackDataset(Batched(6), Indices(6)),
    "split": lambda: random_split(Squares(10), [7, 3], generator=generator())[0],
    "split by shares": lambda: random_split(Squares(10), [0.5, 0.3, 0.2])[1],
    "length that raises": lambda: LengthRaises(),
    "without a length": lambda: WithoutLength(),
}


@each_kind
@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_gives_the_same_batches(name, workers):
    def case(load):
        loader = load(DATASETS[name](), batch_size=3)
        if "length" in name:
            # Where torch's workers read ahead iter() fails; without workers next() does.
            return outcome(lambda: next(iter(loader)))
        return epochs(loader)

    if "gradient" in name:
        assert_same_as_torch(case, workers, or_reference=INLINE if workers.threads else None, view=without_messages)
    else:
        # torch's errors, and what a batched dataset is asked for, are others with workers.
        differs = "batched" in name or "out of range" in name
        assert_same_as_torch(case, workers, reference=None if differs else INLINE)


@each_kind
@pytest.mark.parametrize(
    "name",
    [
        "batched",
        "batched, as a tuple",
        "batched, one too few",
        "batched, one too many",
        "subset",
        "subset of a batched one",
        "subclass of subset",
        "stack of batched ones",
        "tensors",
        "list",
    ],
)
def test_a_dataset_gives_the_same_samples_to_a_collate_function(name, workers):
    def case(load):
        dataset = DATASETS[name]()
        shuffled = load(dataset, batch_size=3, shuffle=True, generator=generator(), collate_fn=identity)
        return epochs(shuffled), epochs(load(dataset, batch_size=None))

    assert_same_as_torch(case, workers)


@each_kind
def test_a_dataset_without_a_length_with_a_sampler(workers):
    def case(load):
        return epochs(load(WithoutLength(), batch_size=2, sampler=[10**6, 3, 10**12]))

    assert_same_as_torch(case, workers)


@everywhere
def test_every_sample_is_asked_for_exactly_once_an_epoch(workers):
    def case(load):
        dataset = Counted(23)
        loader = load(dataset, batch_size=4, shuffle=True, generator=generator())
        return [[epochs(loader), dataset.counts.clone()] for _ in range(3)]

    assert_same_as_torch(case, workers)


@each_kind
@pytest.mark.parametrize(
    "arguments", [{"batch_size": None}, {"batch_size": 4, "collate_fn": identity}], ids=["samples", "batches"]
)
def test_every_sample_is_asked_for_exactly_once_whatever_the_unit(arguments, workers):
    def case(load):
        dataset = Counted(11)
        return epochs(load(dataset, **arguments)), dataset.counts

    assert_same_as_torch(case, workers)


@several
def test_samples_that_do_not_fit_the_first_ones_are_still_asked_for_once(workers):
    # What was learnt from the first samples must not cost a second reading of those that differ.
    class Ragged(Counted):
        def __getitem__(self, index: int) -> Any:
            self.counts[index] += 1
            return torch.full((2 + index // 8,), index)

    def case(load):
        dataset = Ragged(32)
        return epochs(load(dataset, batch_size=4), 2), dataset.counts

    assert_same_as_torch(case, workers)


@with_workers(INLINE, TWO, TWO_PERSISTENT)
def test_the_main_process_keeps_its_own_copy_of_the_dataset(workers):
    def case(load):
        dataset = Stateful()
        seen = epochs(load(dataset, batch_size=2), 2)
        return seen, dataset.made

    assert_same_as_torch(case, workers)


@with_workers(INLINE, TWO)
def test_changes_of_the_dataset_between_epochs_are_seen_by_new_workers(workers):
    def case(load):
        items = [1, 2, 3, 4]
        loader = load(items, batch_size=2)
        seen = epochs(loader)
        items[1] = 100
        items.append(5)
        return seen, epochs(loader)

    assert_same_as_torch(case, workers)


def test_changes_of_the_dataset_between_epochs_are_not_seen_by_persistent_workers():
    def case(load):
        items = [1, 2, 3, 4]
        loader = load(items, batch_size=2)
        seen = epochs(loader)
        items[1] = 100
        return seen, epochs(loader)

    assert_same_as_torch(case, TWO_PERSISTENT)


@each_kind
def test_a_dataset_of_a_class_that_cannot_be_pickled(workers):
    def case(load):
        class Local(Dataset):
            def __init__(self):
                self.function = lambda index: index * 2

            def __len__(self):
                return 5

            def __getitem__(self, index):
                return self.function(index)

        return epochs(load(Local(), batch_size=2))

    assert_same_as_torch(case, workers)


@each_kind
def test_two_loaders_share_a_dataset(workers):
    def case(load):
        dataset = SamplesOfKind("tuple_of_two")
        loaders = [load(dataset, batch_size=2), load(dataset, batch_size=3)]
        return [batches for _ in range(2) for batches in zip(*loaders, strict=False)]

    assert_same_as_torch(case, workers)


@each_kind
def test_a_loader_inside_a_dataset(workers):
    class Inner(Dataset):
        """Makes each sample by a loader of its own without workers, since workers may not have children."""

        def __init__(self, loader_class: Any) -> None:
            self.loader_class = loader_class

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return list(self.loader_class(Images(4, 2), batch_size=2))[index % 2]

    def case(load):
        return epochs(load(Inner(load.loader_class), batch_size=None))

    assert_same_as_torch(case, workers)


def test_a_subclass_of_subset_with_one_method_only_is_refused_as_by_torch():
    class Half(Subset):
        def __getitem__(self, index: Any) -> Any:
            return "mine"

    def case(load):
        return outcome(lambda: epochs(load(Half(Squares(4), [1, 2]))))

    assert_same_as_torch(case)


def test_chained_streams():
    def case(load):
        return epochs(load(ChainDataset([Shards(4), Shards(3)]), batch_size=3), 2)

    assert_same_as_torch(case, TWO)
