"""Views of one tensor sent to spawned processes."""

from __future__ import annotations

import pytest
from scripts import PARALLELISM, run

pytestmark = pytest.mark.slow


@pytest.mark.thorough
def test_views_of_one_tensor_are_sent_and_loaded_and_duplicate_descriptors_are_still_rejected() -> None:
    said = dict(line.split(": ", 1) for line in run(PARALLELISM / "shared_views.py").splitlines())
    assert said == {
        "pieces": "9",
        "pieces of one tensor": "arrived: sum 8778, 1064 bytes mapped",
        "their deepcopy": "arrived: sum 8778, 1064 bytes mapped",
        "one piece alone": "arrived: sum 120, 1064 bytes mapped",
        "a clone of it": "arrived: sum 120, 128 bytes mapped",
        "one descriptor, twice": "ValueError: bad value(s) in fds_to_keep",
        "torch's loader": "loaded: sum 8778",
        "fastload's loader": "loaded: sum 8778",
    }
