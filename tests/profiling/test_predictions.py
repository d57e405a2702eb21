"""``benchmarks.profiling.predictions`` counts what it should."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def predictions(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from benchmarks.profiling import predictions as module

    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)


def test_only_pairs_with_an_effect_count(predictions):
    def pair(effect, observed, predicted):
        return predictions.Pair("reads", "1 x 2", "2 x 2", effect, observed, predicted)

    pairs = [pair(-0.5, 10.0, 11.0), pair(0.3, 10.0, 10.0), pair(0.25, 10.0, None), pair(0.1, 10.0, 20.0)]
    assert predictions.summary(pairs) == (
        "3 pairs with an effect of 20%: median error 5.0%, p90 9.0%, largest 10.0%, abstained 33%"
    )
    assert predictions.summary(pairs[2:]) == "1 pairs with an effect of 20%, 0 predictions"
