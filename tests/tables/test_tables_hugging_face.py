"""Batches of Hugging Face datasets are those of `datasets` and torch's DataLoader, bit for bit."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from kit.comparison import difference
from kit.outcomes import outcomes
from kit.resuming import assert_resumes
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset
from torch_settings import default_device

import fastload
from fastload import native
from fastload.tables import OVERRIDES, is_table
from fastload.tables.arrow import ArrowColumn, Unreadable
from fastload.tables.hugging_face import TableReader

pa = pytest.importorskip("pyarrow")
datasets = pytest.importorskip("datasets", minversion="4.0", reason="datasets is older than 4.0, which has List")

NUMBERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 2**8 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float16": st.floats(width=16),
    "float32": st.floats(width=32),
    "float64": st.floats(width=64),
}
LISTS = [(pa.list_, 0, 3), (pa.list_, 1, 3), (pa.large_list, 1, 3), (pa.large_list, 2, 2)]
LISTS += [(lambda number: pa.list_(number, 2), 2, 2)]
"""Kinds of lists, and the least and most of their lengths. Of rows without numbers `datasets` reads the batch."""


@st.composite
def columns(draw: Any, length: int) -> pa.ChunkedArray:
    """Draw a column in any chunks, some of which are slices of others."""
    # The last two have the types that NumPy's format has: its rows are views where they are not stacked.
    name = draw(st.sampled_from(["text", "bool", *sorted(NUMBERS), *["int64", "float32"] * 3]))
    if name not in NUMBERS:
        is_text = name == "text"
        kind = pa.string() if is_text else pa.bool_()
        values = [f"text {row}" if is_text else row % 3 == 0 for row in range(length)]
    else:
        kind = pa.float16() if name == "float16" else pa.type_for_alias(name)
        element = NUMBERS[name].map(np.float16) if name == "float16" else NUMBERS[name]
        if draw(st.integers(0, 3)):
            make, least, most = draw(st.sampled_from(LISTS))
            kind, element = make(kind), st.lists(element, min_size=least, max_size=most)
        values = draw(st.lists(element, min_size=length, max_size=length))
        if draw(st.integers(0, 5)) == 0:
            values[draw(st.integers(0, length - 1))] = None
    chunks, start = [], 0
    while start < length:
        stop = draw(st.integers(start, length))
        before, behind = draw(st.integers(0, 1)), draw(st.integers(0, 1))
        whole = pa.array(values[:before] + values[start:stop] + values[:behind], type=kind)
        chunks.append(whole.slice(before, stop - start))
        start = max(stop, start)
        if len(chunks) > 2:
            chunks.append(pa.array(values[start:], type=kind))
            break
    return pa.chunked_array(chunks, type=kind)


@st.composite
def tables(draw: Any) -> Any:
    """Draw a dataset, its columns, order and subset; return it in all formats."""
    length = draw(st.integers(1, 7))
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    dataset = datasets.Dataset(pa.table({name: draw(columns(length)) for name in names}))
    if draw(st.booleans()):
        rows = draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=9))
        dataset = dataset.select(rows)
    wanted = draw(st.one_of(st.none(), st.lists(st.sampled_from(names), min_size=1, unique=True)))
    outputs_all = draw(st.booleans())
    found: list[Any] = [dataset.with_format(form, wanted, outputs_all) for form in ("python", "numpy", "torch")]
    if draw(st.integers(0, 5)) == 0:
        rows = draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=9))
        found = [Subset(one, rows) for one in found]
    return found


def as_they_are(samples: Any) -> Any:
    return samples


COLLATE_FN = st.sampled_from([None, as_they_are])


def last_line(error: Exception) -> tuple[type, str]:
    """Return what an error says, in a worker or here."""
    said = str(error).splitlines()[-1].removeprefix(f"{type(error).__name__}: ")
    # Of samples of unequal lengths torch's workers say one or the other.
    unequal = said.startswith(("stack expects each tensor to be equal size", "Trying to resize storage"))
    return type(error), "unequal" if unequal else said


def assert_equal_to_torch(dataset: Any, **settings: Any) -> None:
    """Check all batches, or the type and last line of an error, and torch's generator behind them."""
    note(f"{dataset} {getattr(dataset, '_data', None)} {getattr(dataset, 'format', None)}")
    seen: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy tells of floats that overflow, where `datasets` converts them too
        for kind in (fastload.DataLoader, TorchDataLoader):
            torch.manual_seed(11)
            found = outcomes(iter(kind(dataset, **settings)))
            seen.append(
                ([last_line(one) if isinstance(one, Exception) else one for one in found], torch.get_rng_state())
            )
    assert difference(*seen) is None


@settings(max_examples=20)
@given(tables(), st.integers(1, 4), COLLATE_FN, st.booleans())
def test_batches_are_those_of_torchs_loader(formats, batch_size, collate_fn, shuffle):
    for dataset in formats:
        assert_equal_to_torch(dataset, batch_size=batch_size, collate_fn=collate_fn, shuffle=shuffle)


@settings(max_examples=20)
@given(tables(), st.lists(st.integers(-9, 9), min_size=1, max_size=4), COLLATE_FN)
def test_any_indices_give_the_same_batch_or_the_same_error(formats, indices, collate_fn):
    for dataset in formats:
        assert_equal_to_torch(dataset, batch_sampler=[indices], collate_fn=collate_fn)


def stay(worker_id: int) -> None:
    """With an init function there are workers, also for tables in memory."""


@settings(max_examples=4)
@given(tables(), st.integers(1, 4), st.sampled_from([None, stay]))
def test_workers_give_the_same_batches(formats, batch_size, worker_init_fn):
    for dataset in formats:
        assert_equal_to_torch(dataset, batch_size=batch_size, num_workers=1, worker_init_fn=worker_init_fn)


def tokens(num_rows: int = 48, form: str | None = "torch", **features: Any) -> datasets.Dataset:
    rows = {"ids": [[row, 2 * row, 3] for row in range(num_rows)], "label": [row % 2 for row in range(num_rows)]}
    types = {"ids": datasets.List(datasets.Value("int32")), "label": datasets.Value("int8")}
    return datasets.Dataset.from_dict(
        rows | features, features=None if features else datasets.Features(types)
    ).with_format(form)


@pytest.fixture
def mapped(tmp_path) -> datasets.Dataset:
    """A dataset in mapped files, two of them, in another order than there."""
    tokens().save_to_disk(tmp_path / "dataset", num_shards=2)
    return datasets.load_from_disk(tmp_path / "dataset").shuffle(seed=1)


@pytest.mark.parametrize("form", ["torch", "numpy"])
@pytest.mark.parametrize("collate_fn", [None, as_they_are])
def test_batches_are_no_views_of_the_file(mapped, form, collate_fn):
    before = mapped.with_format(None)[:]
    for batch in fastload.DataLoader(mapped.with_format(form), batch_size=8, collate_fn=collate_fn):
        for sample in batch if collate_fn else [batch]:
            sample["ids"][:] = 7  # a mapped file would end the process here
    assert mapped.with_format(None)[:] == before


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_a_shuffled_dataset_in_files_is_read_here(mapped, form):
    mapped = mapped.with_format(form)
    reader = TableReader(mapped)
    rows = [5, 0, 47, 5]
    expected = mapped.__getitems__(rows)
    assert difference(reader.read(rows).samples(), expected) is None
    assert difference(reader.read(rows).batch(), torch.utils.data.default_collate(expected)) is None
    ragged = datasets.Dataset.from_dict({"ids": [[7], [1, 2, 3], [5, 6]]}).with_format(form)
    assert difference(TableReader(ragged).read([2, 0, 1]).samples(), ragged.__getitems__([2, 0, 1])) is None


@pytest.mark.parametrize("other", [["a", "b"] * 24, [None, 1] * 24, [[[1], []]] * 48, [True] * 48, [{"x": 1}] * 48])
def test_other_columns_are_left_to_datasets_and_tokens_are_not(other):
    loaded = TableReader(tokens(other=other)).read([3, 1])
    assert (loaded is None) == (None in other)  # where there are nulls, all columns are
    assert loaded is None or list(loaded.numbers()) == ["ids", "label"]


CHANGES: dict[str, Callable[[datasets.Dataset, pytest.MonkeyPatch], object]] = {
    "a subclass": lambda dataset, _: setattr(dataset, "__class__", type("Derived", (datasets.Dataset,), {})),
    "no native library": lambda _, patch: patch.setattr(OVERRIDES[0], "needs", lambda: "it is not built"),
    "a transform": lambda dataset, _: dataset.set_transform(lambda batch: batch),
    "arguments": lambda dataset, _: dataset.set_format("torch", dtype=torch.float64),
    "arrow": lambda dataset, _: dataset.set_format("arrow"),
    "pandas": lambda dataset, _: dataset.set_format("pandas"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_known_is_left_to_datasets(change, monkeypatch):
    dataset = tokens()
    assert is_table(dataset)
    CHANGES[change](dataset, monkeypatch)
    assert not is_table(dataset) or TableReader(dataset).read([0, 1]) is None


@pytest.mark.parametrize("first", ["meta", "cpu"])
def test_on_another_default_device_datasets_makes_tensors_and_memory_is_read_on_the_host(first):
    dataset, rows = tokens().with_format("torch"), [0, 1]
    reader = TableReader(dataset)
    with default_device(first):
        assert (reader.read(rows) is None) == (first == "meta")
        column = ArrowColumn(dataset.data.column("ids"))
    with default_device("meta"):
        assert reader.read(rows) is None
        numbers, _ = column.take(torch.tensor([1], device="cpu"))
    assert numbers.tolist() == dataset.with_format(None)[1]["ids"]
    assert difference(reader.read(rows).samples(), dataset.__getitems__(rows)) is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_version_of_datasets_with_other_types_reads_its_columns_itself(num_workers, monkeypatch):
    def format_batch(self: Any, table: pa.Table) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(table[name].to_pylist(), dtype=torch.int32) for name in table.column_names}

    monkeypatch.setattr("datasets.formatting.torch_formatter.TorchFormatter.format_batch", format_batch)
    batches = list(fastload.DataLoader(tokens(), batch_size=8, num_workers=num_workers))
    assert [batch["ids"].dtype for batch in batches] == [torch.int32] * 6


@pytest.mark.parametrize("rows", [[1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0]]])
def test_rows_in_torchs_format_may_be_changed_in_place_by_what_requires_grad(rows):
    dataset = datasets.Dataset.from_dict({"f": rows}).with_format("torch")
    row = next(iter(fastload.DataLoader(dataset, batch_size=2, collate_fn=as_they_are)))[0]["f"]
    weight = torch.ones(row.shape, requires_grad=True)
    expected = row.clone()
    row.mul_(weight)
    row.sum().backward()
    assert torch.equal(weight.grad, expected)


def test_rows_of_unequal_lengths_are_pickled_without_the_others():
    dataset = datasets.Dataset.from_dict({"ids": [[1] * 1000, [2], [3] * 5]}).with_format("torch")
    rows = next(iter(fastload.DataLoader(dataset, batch_size=3, collate_fn=as_they_are)))
    assert [row["ids"].untyped_storage().nbytes() for row in rows] == [8000, 8, 40]
    assert len(pickle.dumps(rows[1]["ids"])) < 1000


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_goes_on_where_its_state_was_saved(mapped, num_workers):
    def make() -> Any:
        return fastload.DataLoader(mapped, batch_size=8, num_workers=num_workers, shuffle=True, seed=3)

    assert_resumes(make, [(0, 1)], view=lambda loader: [batch["ids"].tolist() for batch in loader])


def test_a_format_that_is_set_in_the_middle_counts_from_then_on():
    dataset = tokens()
    batches = iter(fastload.DataLoader(dataset, batch_size=4))
    assert next(batches)["ids"].shape == (4, 3)
    dataset.set_format("numpy", columns=["label"])
    assert list(next(batches)) == ["label"]
    dataset.set_transform(lambda batch: {"size": [len(row) for row in batch["ids"]]})
    assert next(batches)["size"].tolist() == [3] * 4


@pytest.mark.parametrize(
    ("kind", "persistent_workers"),
    [(TorchDataLoader, False), (fastload.DataLoader, False), (fastload.DataLoader, True)],
)
def test_in_place_of_workers_a_dataset_is_read_as_it_was_when_the_epoch_began(kind, persistent_workers):
    dataset = tokens()
    subset = Subset(dataset, range(40))
    for read in (dataset, subset):
        dataset.set_format("torch")
        loader = kind(read, batch_size=16, num_workers=1, persistent_workers=persistent_workers)
        batches = iter(loader)
        assert set(next(batches)) == {"ids", "label"}
        dataset.set_format("torch", columns=["label"])
        assert [set(batch) for batch in batches] == [{"ids", "label"}] * 2
        assert [set(batch) for batch in loader] == [{"label"}] * 3


def test_tables_in_memory_need_no_workers_and_cold_ones_have_them(mapped, monkeypatch):
    loader = fastload.DataLoader(mapped, batch_size=8, num_workers=2, shuffle=True, seed=3)
    batches = iter(loader)
    assert not batches.source.workers
    assert "inside next()" in loader.explain()
    here = list(batches)
    monkeypatch.setattr("fastload.tables.hugging_face.is_resident", lambda spans: False)
    batches = iter(loader)
    assert len(batches.source.workers) == 2
    assert difference(list(batches), here) is not None, "the next epoch"
    again = fastload.DataLoader(mapped, batch_size=8, num_workers=2, shuffle=True, seed=3)
    assert difference(list(again), here) is None


needs_library = pytest.mark.skipif(native.unavailable_reason() is not None, reason="the native library reads them")


@needs_library
@pytest.mark.parametrize("row", [-1, 5, 2**62, -(2**63)])
def test_rows_that_are_not_there_are_refused(row):
    column = ArrowColumn(pa.chunked_array([[1, 2], [3, 4, 5]]))
    with pytest.raises(Unreadable):
        column.take(torch.tensor([0, row]))


@needs_library
@pytest.mark.parametrize("chunk", [[1, None], [[1], None], [[1], [None]]])
def test_only_chunks_with_nulls_are_refused(chunk):
    whole = pa.array(chunk[:1])
    column = ArrowColumn(pa.chunked_array([whole, pa.array(chunk, type=whole.type)]))
    assert column.take(torch.tensor([0, 0]))[0].tolist() == [1, 1]
    with pytest.raises(Unreadable):
        column.take(torch.tensor([0, 1]))


@needs_library
@pytest.mark.parametrize("offsets", [[0, 9, 2], [0, -1, 2], [2, 1, 2], [0, -(2**31), 2]])
def test_damaged_offsets_are_refused(offsets):
    values = pa.array([1, 2, 3], type=pa.int16())
    buffers = [None, pa.py_buffer(np.array(offsets, dtype=np.int32))]
    column = ArrowColumn(
        pa.chunked_array([pa.ListArray.from_buffers(pa.list_(pa.int16()), 2, buffers, children=[values])])
    )
    with pytest.raises(Unreadable, match="damaged"):
        column.take(torch.tensor([0, 1]))
