"""``fastload.share``: what it returns is the list, in less memory, in memory that ends with its processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pathlib
import pickle
import random
import resource
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from kit.comparison import difference

import fastload
from fastload.base.share import SharedSequence

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-200, 200),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.text(st.characters(categories=["Cs"]), max_size=3),
    st.binary(),
    st.sampled_from([pathlib.Path("a/b"), pathlib.Path(), np.float32(0.1), np.int8(-3), np.bool_(True), -0.0]),
)
ARRAYS = arrays.arrays(
    st.one_of(arrays.scalar_dtypes(), arrays.array_dtypes(max_size=2)).filter(lambda dtype: dtype.isnative),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
KEYS = st.one_of(
    st.text(max_size=2), st.integers(0, 2), st.booleans(), st.tuples(st.integers(0, 1), st.text(max_size=1))
)
VALUES = st.recursive(
    st.one_of(SCALARS, ARRAYS, ARRAYS.map(np.asfortranarray)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.fixed_dictionaries({"image": st.text(), "box": inner}),
    ),
    max_leaves=8,
)


@pytest.mark.skipif(not pathlib.Path("/proc/self/fd").exists(), reason="the system does not list descriptors")
def test_a_list_takes_one_descriptor_and_gives_it_back():
    descriptors = pathlib.Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    held = [fastload.share([str(number)]) for number in range(20)]
    assert len(list(descriptors.iterdir())) <= before + 20
    assert [one[0] for one in held] == list(map(str, range(20)))
    held.clear()
    assert len(list(descriptors.iterdir())) == before


@pytest.mark.skipif(not pathlib.Path("/proc/self/fd").exists(), reason="the system does not list descriptors")
def test_where_a_process_may_open_no_more_files_it_is_an_os_error_and_each_descriptor_is_closed_once(monkeypatch):
    closed: list[int] = []
    held = fastload.share(["a"])  # what is imported and opened once
    least = os.dup(0)
    os.close(least)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(os, "close", lambda file, close=os.close: closed.append(file) or close(file))
    monkeypatch.setattr(SharedSequence.__del__, "__defaults__", (os.close,))
    resource.setrlimit(resource.RLIMIT_NOFILE, (least + 1, hard))  # one more, and none for its mapping
    try:
        with pytest.raises(OSError, match="Too many open files"):
            fastload.share(["b"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert closed == [least]
    assert held[0] == "a"


@given(st.lists(VALUES, max_size=8))
@settings(max_examples=100)
def test_every_element_has_the_type_and_the_bits_of_the_lists(values: list[Any]) -> None:
    shared = fastload.share(values)
    for found in (shared, [shared[place] for place in range(-len(values), 0)], pickle.loads(pickle.dumps(shared))):
        assert difference(list(found), values) is None


@given(st.lists(st.text(max_size=5), max_size=30), st.slices(30))
def test_it_behaves_as_the_list(values: list[str], cut: slice) -> None:
    shared = fastload.share(values)
    assert shared == values
    assert values == shared
    assert shared == fastload.share(values)
    assert shared != [*values, ""]
    assert len(shared) == len(values)
    assert shared[cut] == values[cut]
    assert list(reversed(shared)) == values[::-1]
    for value in values:
        assert value in shared
        assert shared.index(value) == values.index(value)
        assert shared.count(value) == values.count(value)
    for place in (len(values), -len(values) - 1):
        with pytest.raises(IndexError, match="out of range"):
            shared[place]


def test_indices_of_other_types_and_what_is_no_index() -> None:
    shared = fastload.share(["a", "b"])
    assert shared[np.int64(1)] == shared[True] == "b"
    with pytest.raises(TypeError):
        shared["0"]  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        hash(shared)


def test_lists_of_more_than_a_piece() -> None:
    rng = random.Random(0)
    values = [("ä" * rng.randrange(30) + str(place), place * 1000) for place in range(5000)]
    assert list(fastload.share(values)) == values
    large = [rng.randbytes(1 << 20) for _ in range(9)]
    assert list(fastload.share(large)) == large


@pytest.mark.parametrize(
    ("values", "packed"),
    [
        ([f"/data/train/n{place:08d}.JPEG" for place in range(20_000)], 20_000 * (25 + 8)),
        ([(f"/data/train/n{place:08d}.JPEG", place % 9) for place in range(20_000)], 20_000 * (25 + 8 + 8)),
        ([place if place % 3 else None for place in range(20_000)], 20_000 * 8),
        ([{"file": f"{place:09d}", "box": [1.5, 2.5, 0.5, place]} for place in range(20_000)], 20_000 * (50 + 32)),
        (list(range(20_000)), 20_000 * 2),
        ([place * 0.5 for place in range(20_000)], 20_000 * 8),
    ],
    ids=["paths", "pairs", "mixed", "records", "integers", "floats"],
)
def test_it_takes_little_more_than_its_packed_bytes(values: list[Any], packed: int) -> None:
    assert fastload.share(values).nbytes <= 1.3 * packed


class Name(str):
    """A class derived from a type that is taken."""


def test_values_of_other_classes_are_pickled() -> None:
    values = [Name("x"), {1, 2}, np.datetime64("2020-01-01"), np.array([None, "a"], object), 1 << 70]
    found = list(fastload.share(values))
    assert [type(value) for value in found] == [type(value) for value in values]
    assert repr(found) == repr(values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a", lambda: 1], r"takes what can be pickled, and a function cannot: .*lambda"),
        *((values, r"give it list\(\.\.\.\)") for values in ("text", b"bytes", {"a": 1}, {1, 2})),
    ],
    ids=["function", "text", "bytes", "dict", "set"],
)
def test_what_is_no_list_or_cannot_be_pickled_is_an_error(values: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        fastload.share(values)


def test_changing_a_value_that_was_read_changes_nothing() -> None:
    shared = fastload.share([{"image": np.zeros(3)}])
    shared[0]["image"][:] = 1.0
    shared[0]["other"] = 1
    assert difference(list(shared), [{"image": np.zeros(3)}]) is None


def test_copies_are_the_sequence_itself() -> None:
    shared = fastload.share(["a"])
    assert copy.copy(shared) is copy.deepcopy(shared) is fastload.share(shared) is shared


def test_a_pickle_out_of_band_is_used_in_place() -> None:
    values = [("path", place) for place in range(1000)]
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(fastload.share(values), protocol=5, buffer_callback=buffers.append)
    assert len(data) < 1000
    assert list(pickle.loads(data, buffers=buffers)) == values


def test_it_is_found_without_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.memfd_create", raising=False)
    assert list(fastload.share(["a", "b"])) == ["a", "b"]


def _report(shared: SharedSequence[Any], results: Any) -> None:
    with open("/proc/self/maps") as maps:
        results.put((list(shared), "fastload-share" in maps.read()))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory files")
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_other_processes_map_the_same_memory(method: str) -> None:
    values = [("a", 1), ("b", 2)]
    context: Any = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    process = context.Process(target=_report, args=(fastload.share(values), results))
    process.start()
    assert results.get() == (values, True)
    process.join()
