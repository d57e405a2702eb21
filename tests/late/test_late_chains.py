"""Chains of calls at random, on one image and in series of samples: what they give equals what Pillow's images give.

``FASTLOAD_CHAINS=5000`` makes that many of each kind instead of the few of the quick tests.
"""

from __future__ import annotations

import os

import pytest
from chains import Sample, Steps, files, outcomes_of, outcomes_of_series, samples, steps
from comparing import assert_equal, opened, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload.late import LateSamples

pytestmark = pytest.mark.usefixtures("as_in_a_worker")

COUNT = int(os.environ.get("FASTLOAD_CHAINS", "0"))


@settings(max_examples=COUNT or 200)
@given(st.integers(0, len(files()) - 1), steps(7))
def test_any_chain_of_calls_gives_what_it_gives_with_pillows_own_images(place: int, steps: Steps) -> None:
    assert_equal(lambda: outcomes_of(opened(files()[place]), steps))


@settings(max_examples=COUNT or 70)
@given(samples())
def test_any_series_of_samples_that_keep_images_and_fail_gives_what_it_gives_with_pillows_own(
    series: list[Sample],
) -> None:
    LateSamples.outlived.clear()  # as in a process that has made no samples
    late, plain = (outcome(lambda late=late: outcomes_of_series(series, late=late), late=False) for late in (1, 0))
    assert late == plain
