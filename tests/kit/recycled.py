"""A source of batches in host memory that is written again as soon as it may be."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from fastload.errors import NotReady
from fastload.work import Batch


class Recycled:
    """Batch i is ``{"x": a tensor full of i}``, in one of few host buffers, each used again once its batch is dropped.

    Args:
        number: of batches.
        shape: of each, float32.
        ready: how many are, for who does not wait; else the next is made in the call that asks for it.
        spare: buffers that there are from the start; more are made where they are missing.
        pinned: whether buffers are page-locked.
    """

    def __init__(
        self,
        number: int,
        shape: tuple[int, ...] = (4,),
        *,
        ready: float = math.inf,
        spare: int = 0,
        pinned: bool = False,
    ) -> None:
        self.number = number
        self.shape = shape
        self.ready = ready
        self.pinned = pinned
        self.made = self.buffers = 0
        self.free = [self._buffer() for _ in range(spare)]

    def _buffer(self) -> torch.Tensor:
        self.buffers += 1
        return torch.empty(self.shape, pin_memory=self.pinned)

    def next(self, wait: bool = True) -> Any:
        if not wait:
            if not self.ready:
                raise NotReady
            self.ready -= 1
        if self.made == self.number:
            raise StopIteration
        buffer = self.free.pop() if self.free else self._buffer()
        buffer.fill_(self.made)
        self.made += 1
        batch = buffer.view(self.shape)
        weakref.finalize(batch, self.free.append, buffer)
        return Batch(data={"x": batch})
