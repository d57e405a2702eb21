"""How batches are cut, and how many there may be at once."""

from __future__ import annotations

from fakes import task
from hypothesis import given
from hypothesis import strategies as st

from fastload.work import (
    CHUNKS_PER_WORKER,
    MAX_CHUNKS,
    ROOMY_CHUNK_NS,
    TARGET_CHUNK_NS,
    choose_chunk_size,
    chunk_bounds,
    tasks_of,
)

sizes = st.one_of(st.integers(1, 300), st.integers(1, 10**6))


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


cuts = st.none() | st.integers(1, 40)


@given(
    batch=st.builds(task, st.integers(0, 9), position=st.integers(0, 99)),
    size=cuts,
    stride=st.integers(1, 4),
    data=st.data(),
)
def test_the_tasks_of_a_batch_are_its_samples_in_order_each_at_its_place(batch, size, stride, data):
    indices = data.draw(st.lists(st.integers(), max_size=40))
    batch = batch._replace(indices=indices, num_rows=len(indices))
    tasks = tasks_of(batch, size, stride)
    assert [index for one in tasks for index in one.indices] == indices
    assert [one.task_id for one in tasks] == list(range(batch.task_id, batch.task_id + len(tasks)))
    assert [one.chunk_id for one in tasks] == list(range(len(tasks)))
    assert all(one.indices == indices[one.row : one.row + len(one.indices)] for one in tasks)
    assert all(one.position == batch.position + stride * one.row for one in tasks)
    shared = {(one.iteration, one.epoch, one.batch_id, one.num_rows, one.slot, one.layout) for one in tasks}
    assert shared == {(batch.iteration, batch.epoch, batch.batch_id, batch.num_rows, batch.slot, batch.layout)}
    if len(tasks) == 1:
        assert tasks == [batch]
    else:
        assert max(len(one.indices) for one in tasks) <= size < len(indices)


costs = st.one_of(st.none(), st.floats(0, 1e12))


@given(num_rows=sizes, num_workers=st.integers(1, 300), sample_ns=costs)
def test_a_chosen_chunk_has_a_sample_and_fits_the_batch(num_rows, num_workers, sample_ns):
    size = choose_chunk_size(num_rows, num_workers, sample_ns)
    assert 1 <= choose_chunk_size(num_rows, num_workers, sample_ns, awaited=True) <= size <= num_rows


@given(num_rows=sizes, num_workers=st.integers(1, 300), sample_ns=st.floats(1, 1e12))
def test_a_chunk_takes_about_the_time_aimed_at(num_rows, num_workers, sample_ns):
    size = choose_chunk_size(num_rows, num_workers, sample_ns)
    assert size == 1 or size * sample_ns <= ROOMY_CHUNK_NS
    assert size == num_rows or (size + 1) * sample_ns > TARGET_CHUNK_NS
    if size > 1 and size * sample_ns > TARGET_CHUNK_NS:
        assert -(-num_rows // size) >= CHUNKS_PER_WORKER * num_workers
