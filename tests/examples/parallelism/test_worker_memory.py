"""Python objects are copied into each worker on access; the bytes of an array are not."""

from __future__ import annotations

import re

import pytest
from scripts import PARALLELISM, run
from worker_memory import LETTERS, MIB, NUM

pytestmark = pytest.mark.slow

LINE = re.compile(r"^(a list of strings|one array) +worker \d: RSS +([\d.]+) MiB PSS +([\d.]+) MiB USS +([\d.]+) MiB$")


def test_a_list_is_copied_into_each_worker_and_an_array_stays_shared() -> None:
    own: dict[str, list[float]] = {"a list of strings": [], "one array": []}
    for line in run(PARALLELISM / "worker_memory.py").splitlines():
        if found := LINE.match(line):
            rss, pss, uss = map(float, found.groups()[1:])
            assert rss > pss > uss > 0
            own[found[1]].append(uss)
    size = NUM * LETTERS / MIB  # of the letters alone, 28.6 MiB
    assert [len(workers) for workers in own.values()] == [2, 2]
    assert min(own["a list of strings"]) > max(own["one array"]) + 0.8 * size
