"""What a CUDA graph does, in Triton's interpreter: replay k is what the k-th batch of the epoch is without a graph."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastload.sampling.order import Keyed
from fastload.transforms import device_draws, fused
from fastload.transforms.compose import Compose
from fastload.transforms.crop import RandomCrop, RandomHorizontalFlip
from fastload.transforms.device_draws import EpochState
from fastload.transforms.draws import Draws
from fastload.transforms.jitter import ColorJitter, RandomGrayscale
from fastload.transforms.values import ToNormalized

LENGTH, SIZE, KEYS = 100, 16, (bytes(range(16)), bytes(range(16, 32)))
ORDER = Keyed(LENGTH, 7)
IMAGES = torch.randint(0, 256, (LENGTH, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
CHAINS = {
    "moved": [RandomCrop(6, 1, padding_mode="reflect"), RandomHorizontalFlip(), ToNormalized([0.4], [0.3])],
    "coloured": [RandomHorizontalFlip(), ColorJitter(0.4, 0.4, hue=0.1), RandomGrayscale(0.5)],
}


class Capture(TorchDispatchMode):
    """Notes launches of kernels and torch's operations with their tensors, and does the same again, as a graph does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._calls: list[Callable[[], Any]] = []
        self._captures = self._launching = False
        for module in (device_draws, fused):
            kernels = module._kernels()
            noted = {name: _Noted(kernel, self) for name, kernel in vars(kernels).items() if name != "TYPES"}
            stands = SimpleNamespace(TYPES=getattr(kernels, "TYPES", None), **noted)
            monkeypatch.setattr(module, "_kernels", lambda stands=stands: stands)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if self._launching or func is torch.ops.aten.empty.memory_format:
            return made
        changes = func._schema.is_mutable

        def again() -> None:
            found = func(*args, **(kwargs or {}))
            if not changes and isinstance(made, torch.Tensor) and found.data_ptr() != made.data_ptr():
                made.copy_(found)

        self._calls.append(again)
        return made

    def launch(self, call: Callable[[], Any]) -> None:
        """Launch a kernel, and note it while something is captured."""
        if not self._captures:
            call()
            return
        self._launching = True
        try:
            call()
        finally:
            self._launching = False
        self._calls.append(call)

    def __enter__(self) -> Any:
        self._captures = True
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._captures = False
        super().__exit__(*raised)

    def replay(self) -> None:
        for call in self._calls:
            call()


class _Noted:
    """A kernel whose launches are noted while something is captured."""

    def __init__(self, kernel: Any, capture: Capture) -> None:
        self._kernel = kernel
        self._capture = capture

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self._capture.launch(lambda: self._kernel[grid](*args, **kwargs))


@pytest.mark.slow  # the interpreter takes its time
@pytest.mark.parametrize("name", CHAINS)
def test_replay_k_of_what_was_captured_is_eager_call_k(on_cpu, monkeypatch, name):
    chain = Compose(CHAINS[name])
    state, rows = EpochState(ORDER.of(0), torch.device("cpu")), torch.empty(SIZE, dtype=torch.int64)
    state.begin(ORDER.of(0), KEYS[0])
    capture = Capture(monkeypatch)
    with capture:
        state.queue_rows(rows)
        made = chain(IMAGES.index_select(0, rows), draws=state.draws(rows))
    num_launches = len(on_cpu)
    for epoch, key in enumerate(KEYS):
        state.begin(ORDER.of(epoch), key)
        for batch in range(3):
            capture.replay()
            indices = ORDER.at(epoch, np.arange(batch * SIZE, (batch + 1) * SIZE))
            assert np.array_equal(rows.numpy(), indices)
            expected = chain(IMAGES[torch.from_numpy(indices)], draws=Draws(key, indices))
            assert torch.equal(made, expected), (epoch, batch)
    # Those of a batch, again in each replay and each eager call, which draws on the host.
    drawing = on_cpu[:num_launches].count("order") + on_cpu[:num_launches].count("drawn")
    assert drawing == 2
    assert len(on_cpu) == num_launches * 7 + (num_launches - drawing) * 6
