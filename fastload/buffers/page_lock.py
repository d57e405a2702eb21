"""Page-locked slots: memory that a device copies from by itself, while nobody waits.

In: the place and length of a slot's mapping, once for each. Out: the same bytes, page-locked until they are unlocked;
or the reason why not, and then batches are copied through page-locked memory of torch's, one copy more on the host.

NOTE [Who may have page-locked memory]
``tensor.cuda(non_blocking=True)`` returns while the device still reads page-locked memory. torch's own allocator knows
of such a copy and does not give that memory again before it is done; memory that is registered here it does not know.
So a slot that is page-locked never reaches the user: fastload makes the copy and keeps the batch until the event
behind it, and what stays on the host is copied out of the slot (:meth:`~fastload.device.prefetch.Mover.move`).

Such a mapping is unlocked before it is unmapped, and before its pages are given back to the system; and by the process
that locked it, since a child has inherited no device. A worker thread leaves that to the training thread
(:meth:`PageLock.later`): both may wait for the device, and end the recording of a CUDA graph.

NOTE [Page locks and forks]
A page lock belongs to the process that called CUDA. A process that is forked later inherits the mapping and no lock,
and uses the same pages: the mapping is shared, not copied at the first write, or a write after a fork would go to
another page than the one that the device reads. A driver may mark memory that it pins with MADV_DONTFORK, as RDMA's
does: then a child has nothing at these addresses, and reading there ends it. For shared memory that mark protects from
nothing, so it is taken away behind each lock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

# cudaHostRegisterPortable, from CUDA's headers: page-locked for all devices.
_PORTABLE = 1


class Pages:
    """Pages locked by CUDA's runtime, or by ROCm's, for a device with an index: others get no context."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def register(self, address: int, num_bytes: int) -> None:
        """Lock the pages of a mapping. May wait for the device.

        Raises:
            RuntimeError: the system refuses, or the device is not one of CUDA.
        """
        if self._device.type != "cuda":
            raise RuntimeError(f"torch page-locks memory of others for CUDA alone, not for {self._device.type}")
        self._call("cudaHostRegister", address, num_bytes, _PORTABLE)

    def unregister(self, address: int) -> None:
        """Unlock what was locked from this address on. Any thread; may wait for the device.

        Raises:
            RuntimeError: the system refuses.
        """
        self._call("cudaHostUnregister", address)

    def _call(self, name: str, *arguments: int) -> None:
        cudart: Any = torch.cuda.cudart()
        with torch.cuda.device(self._device):  # threads begin at device 0
            code = getattr(cudart, name)(*arguments)
            if int(code) == 0:
                return
            # The runtime raises the error again at its next call, which would be the launch of a kernel of the user's.
            # torch has no function that clears it, so a kernel of ours is launched here.
            try:
                torch.ones(1, device=self._device)
            except RuntimeError:
                pass
            raise RuntimeError(f"{name} failed: {cudart.cudaGetErrorString(code)} ({int(code)})")


def pages_of(device: torch.device) -> Pages | None:
    """Return what locks pages for a device; None for the CPU, to which nothing is copied."""
    return None if device.type == "cpu" else Pages(device)


def page_lock_for(device: torch.device) -> PageLock | None:
    """Return what locks the slots that are copied to a device; None for the CPU, to which nothing is copied."""
    pages = pages_of(device)
    return None if pages is None else PageLock(pages)


class PageLock:
    """Locks the slots of one pool as they are lent, until the system refuses once.

    In a child of the process that made it, it does nothing.
    """

    def __init__(self, pages: Pages) -> None:
        self.used = False
        """Whether anything was ever locked."""
        self.refused: str | None = None
        """Why nothing is locked any more."""
        self._pages = pages
        self._locked: set[int] = set()
        self._left: deque[tuple[int, Callable[[], Any]]] = deque()
        """Mappings that other threads have dropped."""
        self._thread = threading.get_ident()
        """The training loop's: the thread that locked last."""
        self._pid = os.getpid()
        # The modules' names may be gone when an interpreter ends.
        self._getpid = os.getpid
        self._get_ident = threading.get_ident
        self._is_finalizing = sys.is_finalizing

    @property
    def outcome(self) -> bool | None:
        """Whether slots are page-locked; None before the first."""
        return False if self.refused is not None else self.used or None

    def lock(self, address: int, num_bytes: int) -> bool:
        """Lock a mapping, if that can be done, else :attr:`refused` says why not; return whether it was still to do."""
        if self.refused is not None or address in self._locked or self._getpid() != self._pid:
            return False
        before = self.used
        self._thread = self._get_ident()
        self._locked.add(address)  # before it is, for an interrupt may come right behind
        self.used = True
        try:
            self._pages.register(address, num_bytes)
        except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
            self._locked.discard(address)
            self.used = before
            self.refuse(str(error))
        return True

    def refuse(self, reason: str) -> None:
        """Lock nothing any more."""
        self.refused = self.refused or reason

    def unlock(self, address: int) -> None:
        """Unlock a mapping, if it is locked."""
        if address not in self._locked or self._getpid() != self._pid:
            return
        self._locked.discard(address)
        try:
            self._pages.unregister(address)
        except RuntimeError as error:  # the device is lost; its next call raises
            self.refuse(str(error))

    def later(self, address: int, unmap: Callable[[], Any]) -> bool:
        """Return whether a mapping that is dropped waits for :meth:`unlock_left`: it is locked, by another thread.

        ``unmap`` is called once it is unlocked.
        """
        if address not in self._locked or self._get_ident() == self._thread:
            return False
        self._left.append((address, unmap))
        return True

    def unlock_left(self) -> None:
        """Unlock and unmap what other threads have dropped."""
        while self._left:
            address, unmap = self._left.popleft()
            self.unlock(address)
            unmap()

    __del__ = unlock_left

    def keeps(self, address: int) -> bool:
        """Whether a mapping is to be left as it is, since the interpreter ends and a device may still be reading it."""
        return address in self._locked and self._is_finalizing()
