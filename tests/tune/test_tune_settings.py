"""What is tried, and how it is written down."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from present_setting import PRESENT

from fastload.tune.settings import STAGES, Machine, as_call, as_options, candidates

SETTINGS = st.builds(
    lambda number, **others: PRESENT.having(num_workers=number, **others),
    st.integers(0, 8),
    worker_method=st.sampled_from(["multiprocessing", "thread"]),
    fuse=st.sampled_from([False, True, "auto"]),
    seeding=st.sampled_from(["sample", "torch"]),
    chunk_size=st.sampled_from([None, "batch", 3]),
    resident=st.sampled_from([None, "host"]),
)


@given(SETTINGS, st.integers(1, 64))
def test_each_candidate_is_another_setting_and_comes_once(best, processors):
    for stage in STAGES:
        found = candidates(stage, best, Machine(processors=processors))
        assert best not in found
        assert len({*found}) == len(found)
        for one in found:
            assert (one.prefetch_factor is None) == (one.num_workers == 0)
            if best.num_workers:
                assert one.num_workers, "without workers nothing is loaded beside the training step"


@given(SETTINGS, SETTINGS)
def test_the_line_to_paste_makes_the_setting_of_the_present_one(present, wanted):
    changes = wanted.changes(present)
    call = ast.parse(as_call(changes).replace("..., ", "").replace("...", "")).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    read = {one.arg: ast.literal_eval(one.value) for one in call.value.keywords if one.arg is not None}
    assert read == changes
    assert present.having(**read) == wanted


def test_all_that_was_asked_for_is_tried():
    seen = {
        name
        for stage in STAGES
        for one in candidates(stage, PRESENT, Machine(processors=2))
        for name in one.changes(PRESENT)
    }
    assert seen == {
        "num_workers",
        "worker_method",
        "prefetch_factor",
        "fuse",
        "seeding",
        "chunk_size",
        "resident",
    }


def test_a_loader_without_workers_is_tried_with_some_of_each_kind():
    inline = PRESENT.having(num_workers=0)
    words = [one.in_words(inline) for one in candidates(STAGES[1], inline, Machine(processors=4))]
    assert words == ["4 threads", "4 processes"]


def test_what_is_left_out_is_not_tried():
    machine = Machine(processors=2, left_out=frozenset({("fuse", True), ("resident", "host")}))
    found = candidates(STAGES[0], PRESENT, machine)
    assert [one.changes(PRESENT) for one in found] == [{"fuse": "auto"}, {"seeding": "torch"}]


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"worker_method": "thread", "fuse": True}, "--worker-method=thread --fuse"),
        ({"fuse": False, "chunk_size": 4}, "--fuse=false --chunk-size=4"),
        ({"num_workers": 4, "fuse": True}, None),
        ({"chunk_size": None}, None),
    ],
)
def test_options_of_fastload_run_are_given_where_there_are_some_for_all(changes, options):
    assert as_options(changes) == options
