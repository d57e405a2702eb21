"""``on_error=fastload.retry(...)``: errors that pass leave no trace in the samples; others are raised or treated."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest
import torch
from kit.datasets import Sized

import fastload
from fastload.errors import ConfigError


class Flaky(Sized):
    """Some samples fail their first times, after they have drawn random numbers."""

    def __init__(self, failures: dict[int, int]) -> None:
        super().__init__(12)
        self.failures = failures
        self.calls: Counter[int] = Counter()

    def __getitem__(self, index: int) -> Any:
        drawn = torch.rand(())
        self.calls[index] += 1
        if self.calls[index] <= self.failures.get(index, 0):
            raise ConnectionError(f"attempt {self.calls[index]}")
        return index, drawn, torch.rand(())


def loaded(dataset: Any, on_error: Any, **arguments: Any) -> list[Any]:
    loader = fastload.DataLoader(dataset, 4, seed=1, shuffle=True, on_error=on_error, **arguments)
    return [[part.tolist() for part in batch] for batch in loader]


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_a_sample_that_is_loaded_again_has_its_own_random_numbers(arguments: Any) -> None:
    flaky = Flaky({2: 1, 5: 2, 11: 2})
    assert loaded(flaky, fastload.retry(wait=0), **arguments) == loaded(Flaky({}), "raise")


def test_after_the_last_attempt_the_last_error_is_raised_or_the_sample_is_treated_as_said() -> None:
    dataset = Flaky({5: 100})
    with pytest.raises(ConnectionError, match="attempt 4") as caught:
        loaded(dataset, fastload.retry(4, 0))
    assert dataset.calls[5] == 4
    assert any("loaded it 4 times" in note for note in caught.value.__notes__)
    assert any("at index 5" in note for note in caught.value.__notes__)
    for then in ("skip", "replace"):
        again: Any = pickle.loads(pickle.dumps(fastload.retry(3, 0, then=then)))
        assert repr(again) == f"fastload.retry(attempts=3, wait=0, then={then!r})"
        assert loaded(Flaky({5: 100, 3: 1}), again) == loaded(Flaky({5: 100}), then)


def test_the_waits_double_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("fastload.workers.substitutes.time.sleep", waited.append)
    loaded(Flaky({5: 3}), fastload.retry(4, 0.25))
    assert waited == [0.25, 0.5, 1.0]
    assert fastload.retry(5, 20).waits() == [20, 40, 60, 60]
    assert "tried again after 0.1, 0.2 s" in fastload.DataLoader(Flaky({}), on_error=fastload.retry()).explain()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"attempts": 1}, "attempts"), ({"attempts": 21}, "attempts"), ({"wait": -1}, "wait"), ({"then": "stop"}, "then")],
)
def test_other_values_are_errors(arguments: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words} must be"):
        fastload.retry(**arguments)
