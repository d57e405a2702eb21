"""Medians and their intervals."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.tune.intervals import median_interval

VALUES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40)


@given(VALUES)
def test_the_interval_holds_the_median_and_lies_among_the_values(values):
    found = median_interval(values)
    assert found.value == statistics.median(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


@given(VALUES, st.floats(0.1, 10))
def test_it_does_not_depend_on_the_order(values, factor):
    assert median_interval(values) == median_interval(values[::-1])


@pytest.mark.parametrize(("number", "place"), [(1, 0), (5, 0), (6, 0), (9, 1), (15, 3), (30, 9)])
def test_so_many_values_are_left_out_at_each_end(number, place):
    # As tables of the sign test have it, for 95 %.
    values = [float(one) for one in range(number)]
    found = median_interval(values)
    assert (found.low, found.high) == (place, number - 1 - place)


def test_it_holds_the_true_median_as_often_as_it_says():
    draw = random.Random(0)
    held = 0
    for _ in range(400):
        found = median_interval([draw.lognormvariate(0, 1) for _ in range(12)])
        held += found.low <= 1.0 <= found.high
    assert held >= 0.93 * 400


def test_of_nothing_there_is_no_median():
    with pytest.raises(ValueError, match="no values"):
        median_interval([])
