"""What is noted of results that come from actors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastload import observe
from fastload.work import Kind, WorkItem
from fastload.workers.fetch import Outcome, Result
from fastload.workers.ray.assignment import RemoteTask, Worker
from fastload.workers.ray.results import Results


class Listener:
    def __init__(self) -> None:
        self.noted: list[tuple[Any, ...]] = []

    def carried(self, *arguments: Any) -> None:
        self.noted.append(arguments)


@pytest.mark.parametrize(
    ("kind", "indices", "num_rows", "number"),
    [(Kind.BATCH, 7, 1, 1), (Kind.BATCH, np.arange(4), 4, 4), (Kind.ROWS, [5, 6], 8, 2)],
)
def test_the_profiler_is_told_how_many_samples_a_task_has(monkeypatch, kind, indices, num_rows, number):
    listener: Any = Listener()
    monkeypatch.setattr(observe, "listener", listener)
    item = WorkItem(3, 1, 0, 2, 0, 0, num_rows, 0, kind, 1, 0, indices)
    no_seat: Any = None
    message = Result(3, 1, Outcome.BATCH, 0, None, 10).pickled()
    assert Results(no_seat).take(Worker(1), RemoteTask(item, given_ns=5), message) == (message, None, 0)
    (noted,) = listener.noted
    assert noted[:4] == ((1, 2, 0), 1, number, 5)
    assert noted[5] == 10
