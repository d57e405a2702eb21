"""The native library draws the words that NumPy's way draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload import native
from fastload.keys import philox
from fastload.keys.philox import SampleWords, to_unit

KEYS = st.binary(min_size=8, max_size=16)


@st.composite
def draws(draw):
    """Return (key, ids, purpose, first_block, repeats)."""
    ids = np.array(draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=21)), dtype=np.int64)
    repeats = None
    if draw(st.booleans()):
        dtype = draw(st.sampled_from([np.int64, np.int32, np.uint64]))
        repeats = np.array([draw(st.integers(0, 2**31 - 1)) for _ in ids], dtype=dtype)
    return draw(KEYS), ids, draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 4000)), repeats


@pytest.fixture(autouse=True, params=[*range(len(native.LEVELS)), None], ids=[*native.LEVELS, "without the library"])
def _level(request, monkeypatch):
    if request.param is None:
        monkeypatch.setattr(philox, "_native", lambda: None)
    else:
        native.library.limit_level(request.param)


@given(drawn=draws(), step=st.integers(1, 3), num_words=st.integers(1, 13), num_units=st.integers(1, 9))
def test_words_and_units_are_those_of_the_reference(drawn, step, num_words, num_units):
    key, ids, purpose, first_block, repeats = drawn
    apart = np.repeat(ids, step)[::step]  # ids may lie apart from each other
    found = SampleWords(key, apart, purpose, first_block, repeats).words(num_words)
    expected = SampleWords(key, ids, purpose, first_block, repeats).reference(num_words)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    units = SampleWords(key, apart, purpose, first_block, repeats).units(num_units)
    words = SampleWords(key, ids, purpose, first_block, repeats).reference(2 * num_units)
    assert units.dtype == np.float64
    assert np.array_equal(units, to_unit(words[:, 0::2], words[:, 1::2]))


def test_more_blocks_than_a_sample_has_are_an_error():
    samples = SampleWords(b"key of 8", np.arange(3), 1, first_block=4096)
    for draw in (samples.words, samples.units):
        with pytest.raises(ValueError, match=r"4096 blocks of words for each purpose, got . words from .*4096"):
            draw(1)
