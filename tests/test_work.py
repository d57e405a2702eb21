"""How batches are cut, and how many there may be at once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.work import (
    CHUNKS_PER_WORKER,
    MAX_CHUNKS,
    ROOMY_CHUNK_NS,
    TARGET_CHUNK_NS,
    choose_chunk_size,
    chunk_bounds,
    slots_in_flight,
)

sizes = st.one_of(st.integers(1, 300), st.integers(1, 10**6))


@given(num_rows=sizes, chunk_size=sizes)
def test_chunks_cover_the_batch_in_order_and_are_nearly_equal(num_rows, chunk_size):
    bounds = chunk_bounds(num_rows, chunk_size)
    assert bounds[0][0] == 0
    assert bounds[-1][1] == num_rows
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(bounds))
    lengths = [stop - start for start, stop in bounds]
    assert min(lengths) >= 1
    assert max(lengths) - min(lengths) <= 1


@given(num_rows=sizes, chunk_size=sizes)
def test_no_chunk_is_larger_than_asked_unless_there_would_be_too_many(num_rows, chunk_size):
    bounds = chunk_bounds(num_rows, chunk_size)
    assert len(bounds) <= MAX_CHUNKS
    largest = max(stop - start for start, stop in bounds)
    if num_rows <= chunk_size * MAX_CHUNKS:
        assert largest <= chunk_size
        assert len(bounds) == -(-num_rows // chunk_size)
    else:
        assert largest == -(-num_rows // MAX_CHUNKS)


def test_a_chunk_as_large_as_the_batch_is_the_batch():
    assert chunk_bounds(7, 7) == chunk_bounds(7, 10**9) == [(0, 7)]


costs = st.one_of(st.none(), st.floats(0, 1e12))


@given(num_rows=sizes, num_workers=st.integers(1, 300), sample_ns=costs)
def test_a_chosen_chunk_has_a_sample_and_fits_the_batch(num_rows, num_workers, sample_ns):
    size = choose_chunk_size(num_rows, num_workers, sample_ns)
    assert 1 <= choose_chunk_size(num_rows, num_workers, sample_ns, awaited=True) <= size <= num_rows


@given(num_rows=sizes, num_workers=st.integers(1, 300), cheap=st.floats(0, 1e12), factor=st.floats(1, 1e6))
def test_chunks_of_dearer_samples_are_not_larger(num_rows, num_workers, cheap, factor):
    dear = choose_chunk_size(num_rows, num_workers, cheap * factor)
    assert dear <= choose_chunk_size(num_rows, num_workers, cheap)


@given(num_rows=sizes, num_workers=st.integers(1, 300))
def test_an_unmeasured_batch_is_cut_fine_enough_that_each_worker_gets_two_chunks(num_rows, num_workers):
    size = choose_chunk_size(num_rows, num_workers, None)
    assert -(-num_rows // size) >= min(num_rows, 2 * num_workers)
    assert choose_chunk_size(num_rows, num_workers + 1, None) <= size


@given(num_rows=sizes, num_workers=st.integers(1, 300), sample_ns=st.floats(1, 1e12))
def test_a_chunk_takes_about_the_time_aimed_at(num_rows, num_workers, sample_ns):
    size = choose_chunk_size(num_rows, num_workers, sample_ns)
    assert size == 1 or size * sample_ns <= ROOMY_CHUNK_NS
    assert size == num_rows or (size + 1) * sample_ns > TARGET_CHUNK_NS
    if size > 1 and size * sample_ns > TARGET_CHUNK_NS:
        assert -(-num_rows // size) >= CHUNKS_PER_WORKER * num_workers


@pytest.mark.parametrize(("num_workers", "prefetch_factor", "slots"), [(0, 0, 0), (1, 1, 1), (2, 2, 4), (8, 4, 32)])
def test_slots_in_flight_are_torchs_bound(num_workers, prefetch_factor, slots):
    assert slots_in_flight(num_workers, prefetch_factor) == slots
