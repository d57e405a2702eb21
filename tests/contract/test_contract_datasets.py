"""Datasets of every make: with ``__getitems__``, torch's own, plain containers, with shared state."""

from typing import Any

import contract_datasets as data
import contract_pipelines as pipelines
import contract_ways as ways
import pytest
import torch
from contract_harness import as_in_torch, assert_same_as_torch, epochs, generator, outcome, without_messages
from kit.datasets import Made, Sized
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, random_split


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
    dataset = data.Indices(6)
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
    "getattr": lambda: _WithGetattr(data.Squares(7)),
    "getattr to a batched one": lambda: _WithGetattr(data.Batched(7)),
    "batched": lambda: data.Batched(10),
    "batched, as a tuple": lambda: data.Batched(10, answer=tuple),
    "batched, as a tensor": lambda: data.Batched(
        10, answer=lambda samples: 2 * torch.stack([sample[0] for sample in samples])
    ),
    "batched, one too many": lambda: data.Batched(10, extra=1),
    "batched, one too few": lambda: data.Batched(10, extra=-1),
    "batched, none": lambda: data.Batched(10, extra=-10),
    "batched, None": lambda: data.BatchedNot(10),
    "batched, giving None": lambda: data.Batched(10, answer=lambda samples: None),
    "batched, failing": lambda: data.Batched(10, answer=data.without_4),
    "batched by an attribute": lambda: _batched_attribute(),
    "subset": lambda: Subset(data.Squares(20), [3, 1, 4, 15, 9]),
    "subset of a tensor of indices": lambda: Subset(data.Squares(20), torch.tensor([3, 1, 4])),  # type: ignore[arg-type]
    "subset of a range": lambda: Subset(data.Squares(20), range(2, 12, 3)),
    "subset of keys": lambda: Subset(data.ByKey(), ["a", (1, 2), None, "b"]),  # type: ignore[list-item]
    "subset with repetitions": lambda: Subset(data.Squares(20), [1, 1, 1, 2]),
    "subset of a subset": lambda: Subset(Subset(data.Squares(20), [10, 11, 12, 13, 14]), [4, 2, 0]),
    "subset of a batched one": lambda: Subset(data.Batched(20), [3, 1, 4, 15, 9]),
    "subset of a subset of a batched one": lambda: Subset(Subset(data.Batched(20), [9, 8, 7, 6]), [3, 1, 0]),
    "subset of a list": lambda: Subset([5, 6, 7, 8], [3, 0]),  # type: ignore[arg-type]
    "subset out of range": lambda: Subset([5, 6, 7, 8], [3, 0, 9, 1]),  # type: ignore[arg-type]
    "subclass of subset": lambda: _NestedSubset(data.Squares(20), [3, 1, 4]),
    "subset of a subclass of subset": lambda: Subset(_NestedSubset(data.Squares(20), [3, 1, 4]), [2, 1]),
    "subclass of subset without methods": lambda: _SubsetWithAttribute(data.Squares(20), [3, 1, 4]),
    "concatenation": lambda: ConcatDataset([data.Squares(3), data.Squares(2), data.Squares(4)]),
    "concatenation by plus": lambda: data.Squares(3) + data.Squares(2),
    "concatenation of subsets": lambda: ConcatDataset([Subset(data.Squares(9), [8, 7]), Subset(data.Squares(9), [1])]),
    "subset of a concatenation": lambda: Subset(ConcatDataset([data.Squares(3), data.Squares(4)]), [6, 2, 3]),
    "tensors": lambda: TensorDataset(torch.arange(14).reshape(7, 2), torch.arange(7.0)),
    "one tensor": lambda: TensorDataset(torch.arange(14).reshape(7, 2)),
    "subset of tensors": lambda: Subset(TensorDataset(torch.arange(14).reshape(7, 2), torch.arange(7.0)), [6, 0, 2]),
    "tensors of no dimension": lambda: TensorDataset(torch.arange(5), torch.arange(5, dtype=torch.float16)),
    "tensors that require a gradient": lambda: TensorDataset(torch.ones(4, 2, requires_grad=True)),
    "stack, tuple": lambda: StackDataset(data.Squares(4), data.Indices(4)),
    "stack, dict": lambda: StackDataset(image=data.Squares(4), label=data.Indices(4)),
    "stack of batched ones": lambda: StackDataset(data.Batched(6), data.Batched(6)),
    "stack of a batched and another one": lambda: StackDataset(data.Batched(6), data.Indices(6)),
    "split": lambda: random_split(data.Squares(10), [7, 3], generator=generator())[0],
    "split by shares": lambda: random_split(data.Squares(10), [0.5, 0.3, 0.2])[1],
    "length that raises": lambda: data.LengthRaises(),
    "without a length": lambda: data.WithoutLength(),
}


@ways.each_kind
@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_gives_the_same_batches(name, workers):
    def case(load):
        loader = load(DATASETS[name](), batch_size=3)
        if "length" in name:
            # Where torch's workers read ahead iter() fails; without workers next() does.
            return outcome(lambda: next(iter(loader)))
        return epochs(loader)

    if "gradient" in name:
        assert_same_as_torch(
            case, workers, or_reference=ways.INLINE if workers.threads else None, view=without_messages
        )
    else:
        # torch's errors, and what a batched dataset is asked for, are others with workers.
        differs = "batched" in name or "out of range" in name
        assert_same_as_torch(case, workers, reference=None if differs else ways.INLINE)


@as_in_torch(ways.each_kind)
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
def test_a_dataset_gives_the_same_samples_to_a_collate_function(load, name):
    dataset = DATASETS[name]()
    shuffled = load(dataset, batch_size=3, shuffle=True, generator=generator(), collate_fn=data.identity)
    return epochs(shuffled), epochs(load(dataset, batch_size=None))


@as_in_torch(ways.everywhere)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"batch_size": None}, {"collate_fn": data.identity}],
    ids=["collated", "samples", "as they are"],
)
def test_every_sample_is_asked_for_exactly_once_an_epoch(load, arguments):
    dataset = data.Counted(23)
    loader = load(dataset, **{"batch_size": 4, **arguments}, shuffle=True, generator=generator())
    return [[epochs(loader), dataset.counts.clone()] for _ in range(3)]


@as_in_torch(ways.several)
def test_samples_that_do_not_fit_the_first_ones_are_still_asked_for_once(load):
    # What was learnt from the first samples must not cost a second reading of those that differ.
    class Ragged(data.Counted):
        def __getitem__(self, index: int) -> Any:
            self.counts[index] += 1
            return torch.full((2 + index // 8,), index)

    dataset = Ragged(32)
    return epochs(load(dataset, batch_size=4), 2), dataset.counts


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_PERSISTENT))
def test_the_main_process_keeps_its_own_copy_of_the_dataset(load):
    dataset = pipelines.Counted()
    seen = epochs(load(dataset, batch_size=2), 2)
    return seen, dataset.accesses


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_PERSISTENT))
def test_changes_of_the_dataset_between_epochs_are_seen_by_new_workers_and_not_by_persistent_ones(load):
    items = [1, 2, 3, 4]
    loader = load(items, batch_size=2)
    seen = epochs(loader)
    items[1] = 100
    items.append(5)
    return seen, epochs(loader)


@as_in_torch(ways.each_kind)
def test_a_dataset_of_a_class_that_cannot_be_pickled(load):
    class Local(Sized):
        function = staticmethod(lambda index: index * 2)

        def __getitem__(self, index):
            return self.function(index)

    return epochs(load(Local(5), batch_size=2))


@as_in_torch(ways.each_kind)
def test_a_loader_inside_a_dataset(load):
    def inner(index: int) -> Any:
        """A loader of its own without workers, since workers may not have children."""
        return list(load.loader_class(data.Images(4, 2), batch_size=2))[index % 2]

    return epochs(load(Made(3, inner), batch_size=None))


@as_in_torch
def test_a_subclass_of_subset_with_one_method_only_is_refused_as_by_torch(load):
    class Half(Subset):
        def __getitem__(self, index: Any) -> Any:
            return "mine"

    return outcome(lambda: epochs(load(Half(data.Squares(4), [1, 2]))))
