"""Loaders inside of loaders."""

from __future__ import annotations

import fault_kinds as kinds
import torch
from fault_tools import Numbers, batches_of, loader_of, numbers, outcomes
from kit.datasets import Made


@kinds.everywhere
def test_workers_may_have_worker_threads_and_threads_worker_processes(kind):
    inner = [kinds.THREAD, *([] if kind.processes else [kinds.PACKETS])]
    for other in inner:

        def load(index: int, other: kinds.Kind = other) -> torch.Tensor:
            (batch,) = loader_of(Numbers(2), batch_size=2, **other.options(1))
            assert numbers(batch) == [0, 1]
            return torch.full((2, 2), index)

        assert outcomes(iter(loader_of(Made(2, load), batch_size=1, **kind.options()))) == batches_of(2, 1)
