"""What default collation and default conversion make of every kind of sample."""

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import contract_ways as ways
import numpy as np
import pytest
import torch
from contract_datasets import Images, identity
from contract_harness import (
    Case,
    Raised,
    as_in_torch,
    assert_same_as_torch,
    consume,
    epochs,
    generator,
    outcome,
    run_case,
    without_messages,
)
from contract_samples import (
    CHANGED_BY_TORCH_WHEN_RAW,
    DEPENDS_ON_WORKERS,
    FAILS_IN_TORCHS_WORKERS,
    HANGS_TORCH_WHEN_COLLATED,
    HANGS_TORCH_WHEN_RAW,
    MIXED_DTYPES,
    SAMPLES,
    SamplesOfKind,
    SamplesOfManyKinds,
)
from kit.comparison import difference
from kit.datasets import Made, Sized
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

import fastload
from fastload.buffers.layout import learn


def _batches(name: str) -> str:
    """Return how batches of a kind come from workers: as "rows" of one layout, "whole" or as it happens ("other")."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = [SAMPLES[name](index) for index in range(6)]
        layouts = [learn(sample) for sample in samples]
        collates = not isinstance(outcome(default_collate, samples), Raised)
    if name in DEPENDS_ON_WORKERS | FAILS_IN_TORCHS_WORKERS | MIXED_DTYPES:
        return "other"
    if all(isinstance(layout, str) for layout in layouts):
        return "whole"
    return "rows" if collates and all(layout == layouts[0] for layout in layouts) else "other"


COLLATED = [name for name in SAMPLES if name not in HANGS_TORCH_WHEN_COLLATED]
_HOW = {name: _batches(name) for name in COLLATED}
ROWS, WHOLE, OTHERS = ([name for name in COLLATED if _HOW[name] == how] for how in ("rows", "whole", "other"))
# In threads torch's two answers, as in its workers and as without them, are equally right; and so is the second in
# processes, where the first is an accident of collating into shared memory.
TWO_ANSWERS = [name for name in OTHERS if name in (DEPENDS_ON_WORKERS | FAILS_IN_TORCHS_WORKERS) - MIXED_DTYPES]
ONE_ANSWER = [name for name in OTHERS if name not in {*TWO_ANSWERS, *MIXED_DTYPES}]
RAW = [name for name in SAMPLES if name not in HANGS_TORCH_WHEN_RAW | CHANGED_BY_TORCH_WHEN_RAW]


def _together(names: list[str], count: int) -> list[list[str]]:
    return [names[start : start + count] for start in range(0, len(names), count)]


def _by_kind(load: Any, names: list[str], per_kind: int, batch_size: int | None, **arguments: Any) -> dict[str, Any]:
    """Return what a loader gives of each kind, and what comes at the end."""
    dataset = SamplesOfManyKinds(names, per_kind=per_kind)
    outcomes = consume(iter(load(dataset, batch_size=batch_size, **arguments)))
    count = per_kind // (batch_size or 1)
    seen = {name: outcomes[place * count : (place + 1) * count] for place, name in enumerate(names)}
    return {**seen, "end": outcomes[len(names) * count :]}


@as_in_torch
@pytest.mark.parametrize("name", COLLATED)
def test_default_collation_of_every_kind_of_sample(load, name):
    return epochs(load(SamplesOfKind(name), batch_size=3))


@as_in_torch(ways.with_workers(ways.TWO, ways.TWO_THREADS))
@pytest.mark.parametrize(
    ("names", "per_kind"),
    [
        # Eight batches of a kind: more than are under way when its layout is learnt. Four times in a row a loader
        # learns another layout, before it gives layouts up.
        *((names, 24) for names in [*_together(ROWS, 5), *_together(WHOLE, 15)]),
        # Samples that change, or cannot be collated.
        *((names, 6) for names in _together(ONE_ANSWER, 3)),
    ],
    ids=lambda names: names[0] if isinstance(names, list) else "",
)
def test_default_collation_in_workers(load, names, per_kind):
    return _by_kind(load, names, per_kind, 3)


@ways.with_workers(ways.TWO, ways.TWO_THREADS)
@pytest.mark.parametrize("name", TWO_ANSWERS)
def test_default_collation_in_workers_where_torch_has_two_answers(name, workers):
    def case(load):
        return epochs(load(SamplesOfKind(name), batch_size=3))

    two = workers.threads or name in FAILS_IN_TORCHS_WORKERS
    assert_same_as_torch(case, workers, or_reference=ways.INLINE if two else None, view=without_messages)


@as_in_torch(ways.with_workers(ways.TWO, ways.TWO_THREADS), reference=ways.INLINE)
@pytest.mark.parametrize("name", [name for name in OTHERS if name in MIXED_DTYPES])
def test_default_collation_of_mixed_dtypes_does_not_depend_on_the_number_of_workers(load, name):
    # And the dtype is that of torch's main process, which loses no value.
    return epochs(load(SamplesOfKind(name), batch_size=3))


def _assert_same_objects(case: Case, workers: ways.Workers) -> None:
    """Threads hand over the very objects, with the strides and flags that they have in the main process."""
    if workers.threads:
        assert_same_as_torch(case, workers, reference=ways.INLINE, view=without_messages)
    else:
        assert_same_as_torch(case, workers)


@ways.each_kind
@pytest.mark.parametrize(("batch_size", "collate_fn"), [(None, None), (2, identity)], ids=["converted", "as they are"])
# What is not collated has no layout that could settle: many kinds go through one loader.
@pytest.mark.parametrize("names", _together(RAW, 50), ids=lambda names: names[0])
def test_every_kind_of_sample_that_is_not_collated(names, batch_size, collate_fn, workers):
    _assert_same_objects(lambda load: _by_kind(load, names, 4, batch_size, collate_fn=collate_fn), workers)


@as_in_torch(ways.each_kind, or_reference=ways.INLINE, view=without_messages)
@pytest.mark.parametrize(
    ("batch_size", "collate_fn"),
    [(2, identity), (None, identity), (None, None)],
    ids=["batches", "samples", "converted"],
)
@pytest.mark.parametrize("name", sorted(CHANGED_BY_TORCH_WHEN_RAW))
def test_samples_that_torch_changes_on_the_way_arrive_as_they_are_or_as_in_torch(load, name, batch_size, collate_fn):
    return epochs(load(SamplesOfKind(name, 4), batch_size=batch_size, collate_fn=collate_fn))


@pytest.mark.parametrize("workers", [ways.TWO, ways.TWO_THREADS], ids=str)
@pytest.mark.parametrize("name", sorted(HANGS_TORCH_WHEN_RAW))
@pytest.mark.parametrize("batch_size", [3, None])
def test_where_torch_hangs_every_batch_is_that_of_the_main_process_or_an_error(name, batch_size, workers):
    def case(load):
        return consume(iter(load(SamplesOfKind(name, length=4), batch_size=batch_size)))

    actual, expected = (run_case(case, fastload.DataLoader, setting) for setting in (workers, ways.INLINE))
    assert len(actual) == len(expected)
    for place, (seen, wanted) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(seen, Raised) or isinstance(wanted, Raised):
            assert difference(seen, wanted, f"outcome {place}") is None


ORDINARY = [
    name
    for name in SAMPLES
    if name not in DEPENDS_ON_WORKERS | MIXED_DTYPES | HANGS_TORCH_WHEN_COLLATED
    and name not in {"octets_long", "text_long", "tensor_float8_e4m3fn"}
]
"""Kinds whose collation is the same everywhere."""


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_THREADS))
@pytest.mark.parametrize("seed", [1, 2])
def test_kinds_that_change_at_random_batches(load, seed):
    # Long runs of one kind, so that a layout settles, and single batches of another between them.
    usual = SamplesOfManyKinds(["tuple_of_two"], 30)
    chosen = torch.randperm(len(ORDINARY), generator=generator(seed))[:25].tolist()
    other = SamplesOfManyKinds([ORDINARY[place] for place in chosen], 3)
    batches = [list(range(start, start + 3)) for start in range(0, 30, 3)] * 3
    batches += [list(range(30 + 3 * place, 33 + 3 * place)) for place in range(25)]
    order = torch.randperm(len(batches), generator=generator(seed)).tolist()
    return epochs(load(usual + other, batch_sampler=[batches[place] for place in order]))


def _resized(sides: list[int]) -> Made:
    """Images whose side depends on the index, each with its label."""

    def sample(index: int) -> Any:
        side = sides[index]
        return torch.arange(3 * side * side, dtype=torch.uint8).reshape(3, side, side) + index, f"image {index}"

    return Made(len(sides), sample)


SIDES = {
    "progressive resizing": [8] * 12 + [16] * 12 + [24] * 12 + [8] * 3,
    "random batches": torch.randint(4, 9, (20,), generator=generator(5)).repeat_interleave(3).tolist(),
    "one ragged batch": [8] * 13 + [9] + [8] * 16,
}


@as_in_torch(ways.several)
@pytest.mark.parametrize("name", SIDES)
def test_shapes_that_change(load, name):
    return epochs(load(_resized(SIDES[name]), batch_size=3), 2)


class _ChangingByEpoch(Sized):
    """Its samples are of a size, and with it of a dtype, that is in memory that workers share."""

    def __init__(self) -> None:
        super().__init__(6)
        self.size = torch.tensor(2).share_memory_()

    def __getitem__(self, index: int) -> Any:
        size = int(self.size)
        return torch.full((size,), index, dtype=torch.float32 if size < 4 else torch.float64)


@as_in_torch(ways.several)
def test_samples_that_change_from_epoch_to_epoch(load):
    dataset = _ChangingByEpoch()
    loader = load(dataset, batch_size=2)
    seen = []
    for _ in range(3):
        seen.append(consume(iter(loader)))
        dataset.size += 3
    return seen


_DTYPES = [torch.bool, torch.uint8, torch.uint16, torch.uint64, torch.int8, torch.int64]
_DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


@as_in_torch(ways.each_kind, reference=ways.INLINE, view=without_messages)
def test_the_dtype_of_a_batch_of_mixed_dtypes_is_torchs_without_workers(load):
    samples = [torch.arange(3).to(dtype) for pair in itertools.permutations(_DTYPES, 2) for dtype in pair]
    return epochs(load(samples, batch_size=2))


def _large(index: int) -> Any:
    """Samples that hold an array, a text and bytes of about a megabyte each."""
    array = np.full((150_000,), index)
    return {"array": array, "text": f"{index}" * 1_000_000, "bytes": bytes([index]) * 1_500_000}


def _small_and_large(index: int) -> Any:
    """Every third sample is a thousand times larger."""
    return torch.full((1_000_000 if index % 3 == 0 else 1000,), index, dtype=torch.int16)


def _strided_samples() -> list[Any]:
    table = torch.arange(160_000).view(8, -1)
    return [(table.t()[row], table[:, row : row + 300], table[row % 8, ::7]) for row in range(24)]


LARGE: dict[str, tuple[Any, int]] = {
    "a thousand samples": (Images(1000, 3, 8, 8), 1000),
    "20 MiB": (Images(2, 20, 1024, 1024), 1),
    "objects": (Made(3, _large), 2),
    "small and large in turn": (Made(12, _small_and_large), 1),
    "strided views": (_strided_samples(), 3),
}


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize("name", LARGE)
def test_large_samples_and_batches(load, name):
    dataset, batch_size = LARGE[name]
    return epochs(load(dataset, batch_size=batch_size), 2)


@as_in_torch(ways.each_kind)
def test_strided_views_of_large_storages_that_are_not_collated(load):
    # Their elements lie without gaps here.
    batches = list(load(_strided_samples(), batch_size=3, collate_fn=identity))
    return [[[view.contiguous() for view in sample] for sample in batch] for batch in batches]


class _MemoryMapped(Sized):
    """Rows of a memory-mapped file, as they are and as slices."""

    def __init__(self, path: str) -> None:
        super().__init__(8)
        self.rows = np.memmap(path, dtype=np.float32, mode="r", shape=(8, 5))

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], self.rows[index, 1:3], np.array(self.rows[index])


@ways.each_kind
@pytest.mark.parametrize("batch_size", [3, None])
def test_rows_of_a_memory_mapped_file(batch_size, workers, tmp_path):
    path = tmp_path / "rows"
    np.arange(40, dtype=np.float32).tofile(path)
    either = ways.INLINE if workers.threads else None
    dataset = _MemoryMapped(str(path))
    assert_same_as_torch(lambda load: epochs(load(dataset, batch_size=batch_size)), workers, or_reference=either)


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_tensors_of_a_class_that_is_defined_in_a_function(load, batch_size):
    class Local(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

    dataset = Made(8, lambda index: torch.Tensor._make_subclass(Local, torch.full((3,), float(index))))
    return epochs(load(dataset, batch_size=batch_size))


@as_in_torch(ways.with_workers(ways.ONE, ways.TWO_PERSISTENT))
def test_parameters_are_refused_from_the_first_batch_to_the_last(load):
    return consume(iter(load(SamplesOfKind("parameter", 40), batch_size=4)))


# A map of collate functions that the user extends.


class _Graph:
    """An object with a collate function of its own."""

    def __init__(self, edges: torch.Tensor) -> None:
        self.edges = edges


def _graphs(index: int) -> Any:
    return {"graph": _Graph(torch.full((index + 1, 2), index)), "label": index, "image": torch.ones(2) * index}


def _collate_graphs(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.cat([graph.edges for graph in batch])


def _collate_with_graphs(batch: Any) -> Any:
    return collate(batch, collate_fn_map={**default_collate_fn_map, _Graph: _collate_graphs})


def _collate_ints_as_int32(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.tensor(batch, dtype=torch.int32)


def _collate_tensors_padded(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize(
    ("kind", "function"),
    [(int, _collate_ints_as_int32), (torch.Tensor, _collate_tensors_padded)],
    ids=["int", "tensor"],
)
def test_the_users_replacement_in_the_map_of_default_collation_counts(load, kind, function, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, kind, function)
    return epochs(load(SamplesOfKind("ragged_inside_a_dict"), batch_size=2)) + epochs(load([1, 2, 3], batch_size=2))


@as_in_torch(ways.each_kind)
def test_an_entry_that_comes_after_the_loader_was_made_counts(load, monkeypatch):
    loader = load(Made(5, _graphs), batch_size=2)
    before = epochs(loader)
    with monkeypatch.context() as patch:
        patch.setitem(default_collate_fn_map, _Graph, _collate_graphs)
        after = epochs(loader)
    return before, after


# Custom collate functions.


class Packed:
    """A batch class of the user's, with the methods that training code calls."""

    def __init__(self, batch: list[Any]) -> None:
        self.images = torch.stack([sample[0] for sample in batch])
        self.labels = [sample[1] for sample in batch]
        self.pinned = False

    def pin_memory(self) -> "Packed":
        """Note that it was asked to pin itself."""
        self.pinned = True
        return self


def _stacked(batch: Any) -> Any:
    return torch.stack([sample[0] for sample in batch])


def _sharing(batch: Any) -> Any:
    images = _stacked(batch)
    return {"all": images, "first": images[0], "rest": images[:, 1:], "again": images}


def _device_and_strides(batch: Any) -> Any:
    images = _stacked(batch)
    return images.transpose(0, 1), images[:, ::2], images.expand(2, *images.shape), images[0, 0]


def _arrays(batch: Any) -> Any:
    matrix = np.stack([sample[0].numpy() for sample in batch])
    return matrix, matrix.T, matrix[::-1], np.asfortranarray(matrix), np.array(["a", None], dtype=object), matrix[0, 0]


_TYPES = [int, torch.float32, torch.Size([1, 2]), slice(1, 2), Ellipsis, torch.device("cpu"), np.dtype("f4"), len]
# Beside the kinds of samples, which come as they are by test_every_kind_of_sample_that_is_not_collated.
COLLATE_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "a class": Packed,
    "packed sequence": lambda batch: torch.nn.utils.rnn.pack_sequence([sample[0] for sample in batch]),
    "nothing": lambda batch: None,
    "counts": len,
    "types": lambda batch: _TYPES,
    "strides": _device_and_strides,
    "default, then more": lambda batch: [*default_collate(batch), "more"],
    "arrays": _arrays,
    # A value like any other: an exception that is returned is not raised.
    "an exception as value": lambda batch: ValueError,
}


def _collate_by_each_function(batch: Any) -> Any:
    """Call the function whose turn it is: three batches of each."""
    name = list(COLLATE_FUNCTIONS)[int(batch[0][1]) // 9]
    return COLLATE_FUNCTIONS[name](batch)


@ways.each_kind
def test_a_collate_function_may_return_anything(workers):
    def case(load):
        dataset = SamplesOfKind("tuple_of_two", 9 * len(COLLATE_FUNCTIONS))
        outcomes = consume(iter(load(dataset, batch_size=3, collate_fn=_collate_by_each_function)))
        return {name: outcomes[3 * place :][:3] for place, name in enumerate([*COLLATE_FUNCTIONS, "end"])}

    _assert_same_objects(case, workers)


@as_in_torch(ways.each_kind)
def test_what_is_shared_inside_of_a_batch_is_shared_still(load):
    seen = []
    for batch in load(SamplesOfKind("tuple_of_two"), batch_size=3, collate_fn=_sharing):
        batch["all"][0, 0, 0] = -100
        batch["rest"][-1] = 50
        seen.append([batch["again"], batch["first"], batch["all"], batch["rest"]])
    for batch in load(SamplesOfKind("same_dict_twice"), batch_size=2, collate_fn=identity):
        batch[0][0]["new"] = "here"
        seen.append(batch)
    return seen


_DEEP = {"dataset": SamplesOfKind("nested_deeply"), "batch_size": 3}
GIVEN: dict[str, dict[str, Any]] = {
    "without batches": {
        "dataset": SamplesOfKind("dict_plain"),
        "batch_size": None,
        "collate_fn": lambda sample: [sample, "seen"],
    },
    "a map of one's own": {"dataset": Made(5, _graphs), "batch_size": 2, "collate_fn": _collate_with_graphs},
    "default by name": {**_DEEP, "collate_fn": default_collate},
    "default in a partial": {**_DEEP, "collate_fn": functools.partial(default_collate)},
    "conversion by name": {**_DEEP, "batch_size": None, "collate_fn": torch.utils.data.default_convert},
}


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize("name", GIVEN)
def test_a_collate_function_that_is_given(load, name):
    return epochs(load(**GIVEN[name]))


@as_in_torch(ways.each_kind)
def test_a_collate_function_is_called_once_for_a_batch_in_its_samples_order(load):
    calls = torch.zeros(4, dtype=torch.int64).share_memory_()

    def count(batch):
        calls[batch[0] // 3] += 1
        return batch

    return epochs(load(list(range(10)), batch_size=3, collate_fn=count)), calls


@as_in_torch(ways.each_kind)
def test_torchs_default_collate_replaced_in_its_module_does_not_reach_a_loader_made_before(load, monkeypatch):
    loader = load(SamplesOfKind("scalar_int"), batch_size=2)
    with monkeypatch.context() as patch:
        patch.setattr(torch.utils.data._utils.collate, "default_collate", identity)
        later = load(SamplesOfKind("scalar_int"), batch_size=2)
        return [epochs(loader), epochs(later)]
