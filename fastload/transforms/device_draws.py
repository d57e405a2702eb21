"""The order and the draws of an epoch on CUDA: computed there, and the same numbers as the host's.

::

    seed, epoch ─> EpochState (on the device) ─order─> rows [n] ─drawn─> parameters [n] of each transform

In: the key of an epoch, and which rows are next. Out: their indices into the dataset, and the parameters of
transforms. Nothing is computed or kept on the host for each sample. In a CUDA graph what is next lies in the device's
memory and is advanced there, so that each replay goes on where the last one ended.

Transforms whose ``draw`` asks for uniform numbers, integers, flags and orders of a few elements alone, and stores them
as they come, can be drawn for: ``Transform.draws_on_device`` says so. Their ``draw`` runs as ever, once for a batch,
with a stream that notes what is asked for. What is computed from draws (logarithms, sizes of boxes, matrices, sums) is
left to the host, whose functions round in ways of their own.

Which samples were chosen (``rows``) is not among these parameters: the host would wait for it. Such transforms change
all images, and take the results for those that were chosen.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..sampling.order import Permutation
from . import fused
from .base import Transform
from .draws import Draws, Planned, PlannedStream

_BLOCK = 256
# Nothing may be joined: products and sums are rounded as the host's are.
_OPTIONS = {"enable_fp_fusion": False}


def available(device: torch.device) -> bool:
    """Return whether the kernels run on a device: see ``fused.available``."""
    return fused.available(device)


def draws_there(transform: Transform | None) -> bool:
    """Return whether all that a transform draws can be drawn on the device."""
    members = [] if transform is None else transform.modules()
    return all(_is_drawn_there(type(one)) for one in members if not isinstance(one, nn.ModuleList))


def _is_drawn_there(kind: type) -> bool:
    """Whether the class that draws says so itself: one derived from it may draw something else."""
    for base in kind.__mro__:
        if not vars(base).keys().isdisjoint(("draws_on_device", "draw", "draw_for", "forward")):
            return bool(vars(base).get("draws_on_device", False))
    return False


class EpochState:
    """What is next in an epoch, in the device's memory.

    Args:
        permutation: an order of the dataset, of any epoch.
        device: where the numbers are made.

    Ownership: used on one stream; all methods only queue work.
    """

    def __init__(self, permutation: Permutation, device: torch.device) -> None:
        self.device = device
        self._length = permutation.length
        self._network = *permutation.bits, len(permutation.round_keys)
        # Row, first position, stride, key of the draws, keys of the order's rounds: see the kernels.
        self.state = torch.empty(4 + self._network[2], dtype=torch.int64, device=device)
        self._row = self.state[:1]
        self._advanced = False
        """Whether the device has counted rows: not where the host says which ones are next."""

    def begin(self, permutation: Permutation, key: bytes, first: int = 0, stride: int = 1) -> None:
        """Begin an epoch with its order, the key of its draws, and the positions of its rows; copies 224 bytes at most.

        Row j is at position ``first + stride * j``.
        """
        numbers = [0, first, stride, int.from_bytes(key[:8], "little", signed=True)]
        words = np.concatenate([np.array(numbers, dtype=np.int64), permutation.round_keys.view(np.int64)])
        held = torch.from_numpy(words)
        if self.device.type == "cuda":
            held = held.pin_memory()  # torch keeps it until the copy is done
        self.state.copy_(held, non_blocking=True)
        self._advanced = False

    def rows(self, start: int, count: int) -> Tensor:
        """Return [count], int64: the dataset's indices at these rows."""
        if self._advanced:
            self._row.zero_()
            self._advanced = False
        out = torch.empty(count, dtype=torch.int64, device=self.device)
        self._queue(out, start)
        return out

    def queue_rows(self, out: Tensor) -> None:
        """Fill [n], int64, with the next n indices, and advance the device; what a CUDA graph may capture.

        The host is not told of a replay: call :meth:`begin` before :meth:`rows` afterwards.
        """
        self._advanced = True  # first, whatever interrupts this
        self._queue(out, 0)
        self._row.add_(len(out))

    def _queue(self, out: Tensor, start: int) -> None:
        count = len(out)
        with torch.cuda.device_of(out):
            config = *self._network, _BLOCK
            _kernels().order[(-(-count // _BLOCK),)](out, self.state, start, count, self._length, config, **_OPTIONS)

    def draws(self, rows: Tensor) -> DeviceDraws:
        """Return the draws of the samples at some rows."""
        return DeviceDraws(self, rows)


class _Wanted(NamedTuple):
    draw: tuple[int, int, int, int, float, float]
    out: Tensor


class DeviceDraws(Draws):
    """The draws of a batch whose rows were made on a device: parameters are tensors of that device."""

    def __init__(self, state: EpochState, rows: Tensor) -> None:
        super().__init__(b"", np.empty(0, dtype=np.int64))
        self._state = state
        self._rows = rows
        self._wanted: list[_Wanted] = []

    def __len__(self) -> int:
        return len(self._rows)

    def stream(self, purpose: str) -> PlannedStream:
        return PlannedStream(self, self.purpose_of(purpose), self._note)

    def _note(self, planned: Planned, dtype: torch.dtype) -> Tensor:
        shape = (len(self),) if planned.width is None else (len(self), planned.width)
        out = torch.empty(shape, dtype=dtype, device=self._rows.device)
        stored = out.view(torch.uint8) if dtype == torch.bool else out
        if planned.width != 0:
            self._wanted.append(_Wanted((planned.kind, *planned.place, *planned.limits), stored))
        return out

    def finished(self, params: Any) -> Any:
        """Return the parameters that were noted; now they are drawn, in one launch."""
        wanted, self._wanted = self._wanted, []
        if wanted:
            count = len(self)
            draws, outs = tuple(one.draw for one in wanted), tuple(one.out for one in wanted)
            with torch.cuda.device_of(self._rows):
                _kernels().drawn[(-(-count // _BLOCK),)](
                    self._rows, outs, self._state.state, count, draws, _BLOCK, **_OPTIONS
                )
        return params


def _kernels() -> Any:
    return fused.kernels().draws
