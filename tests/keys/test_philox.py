"""Words as a function of key, id and purpose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.keys.philox import SampleWords, philox4x32, to_unit

# From the known answers that come with Random123: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]

KEY = bytes(range(16))

PINNED = [
    "4326089a 0a00a498 2313bd38 86f9940b 9f7baecd",
    "a7d56e8a 347cb116 4b1616d5 0570742d 4ea85461",
    "95cf1e04 e6e1c0ec af03cb41 01b55b81 c665256f",
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_words_are_those_of_the_reference(counter, key, words):
    found = philox4x32(np.array([counter], dtype=np.uint64), key)
    assert " ".join(f"{word:08x}" for word in found[0]) == words


# Never change these: they say that next year's parameters are this year's.
def test_words_of_samples_are_the_pinned_ones():
    found = SampleWords(KEY, np.array([0, 1, 2**40]), 3).words(5)
    assert [" ".join(f"{word:08x}" for word in row) for row in found] == PINNED


@given(ids=st.lists(st.integers(0, 2**62), min_size=1, max_size=20), num_words=st.integers(1, 9))
def test_a_samples_words_depend_on_nothing_but_its_id(ids, num_words):
    together = SampleWords(KEY, np.array(ids), 1).words(num_words)
    assert together.shape == (len(ids), num_words)
    assert together.dtype == np.uint32
    for row, sample in zip(together, ids, strict=True):
        alone = SampleWords(KEY, np.array([sample]), 1).words(12)
        assert row.tolist() == alone[0, :num_words].tolist()


def test_other_ids_keys_and_purposes_have_other_words():
    ids = np.array([0, 1, 2**32, 2**33])
    seen = [
        tuple(row)
        for key in (KEY, KEY[::-1])
        for purpose in (0, 1, 2**32 - 1)
        for row in SampleWords(key, ids, purpose).words(4).tolist()
    ]
    assert len(set(seen)) == len(seen)


def test_uniform_numbers_stay_below_one():
    lowest, highest = np.uint32([0]), np.uint32([0xFFFFFFFF])
    assert to_unit(lowest, lowest) == 0.0
    assert to_unit(highest, highest) == 1 - 2.0**-53
    assert to_unit(np.uint32([1 << 31]), lowest) == 0.5
