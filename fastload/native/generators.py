"""Seed ``random``, NumPy and torch quickly: the native library computes their states and writes them to memory.

Each step leaves the generators as seeding them with the next sample's key does; keys are hashes of a prefix and ids.

NOTE [Where states are]: NumPy publishes the address of a bit generator's state. That of a ``random.Random`` follows the
object's header, a ``RandomState`` has a second Gaussian somewhere in itself, and torch's generator, whose ``set_state``
takes 0.5 µs and displaces half of a first-level cache, has its state near its beginning. :func:`_offsets` finds them in
other objects, within their sizes. Nothing is written unless the memory agrees with ``getstate()`` and ``get_state()``;
and :mod:`fastload.keys.seeding` compares the installed states with slow seeding before it changes a generator of the
user's. In versions where they differ, seeding is slow.
"""

from __future__ import annotations

import array
import ctypes
import functools
import random
import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .. import native
from ..base import overrides

# The 624 words of a Mersenne Twister, and its place among them.
_STATE_BYTES = 2500
_WORDS = struct.Struct("<625I")
# In the argument of torch's set_state: the offset of a 32-bit Gaussian and its flag.
_TORCH_FLOAT = 5048
# In memory: the offset of the first of two Gaussians from the seed.
_TORCH_GAUSS = 2520
_MARK = 0x9E3779B97F4A7C15
_ENDLESS = 2**63 - 1


class _States(ctypes.Structure):
    """``struct states`` of generators.c."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("random", "numpy", "gauss", "torch", "interpreter", "first_thread", "next_thread")
    ]


class _Run(ctypes.Structure):
    """``struct run`` of generators.c."""

    _fields_ = [
        ("states", ctypes.POINTER(_States)),
        ("room", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("first", "stride", "num", "done")),
        ("prefix", ctypes.c_uint8 * 32),
    ]


@functools.cache
def unavailable_reason() -> str | None:
    """Return why states cannot be copied into place; None if they can, as far as reading them shows."""
    found = _offsets()
    return found if isinstance(found, str) else None


@functools.cache
def _offsets() -> tuple[int, int, int] | str:
    """Return where states are, or why that is not known. See NOTE [Where states are].

    They are offsets in bytes: of the state of a ``random.Random`` and of the Gaussian of a ``RandomState``, from their
    ``id()``; and of the state of a ``torch.Generator``, from its ``_cdata``.
    """
    if not overrides.ON:
        return f"{overrides.VARIABLE}=0"
    if not native.available():
        return f"the native library cannot be used: {native.unavailable_reason()}"
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "this Python has no GIL, or is not CPython"
    if sys.byteorder != "little":
        return "this processor is big-endian"
    try:
        offsets = _random_offset(), _gauss_offset(), _torch_offset()
    except Exception as error:  # other versions may raise anything
        return f"finding the states of Python's, NumPy's or torch's generators failed: {error!r}"
    if None in offsets:
        return "the states of Python's, NumPy's or torch's generators are not laid out as in the known versions"
    return offsets  # type: ignore[return-value]  # none is None


def _random_offset() -> int | None:
    probe = random.Random(1)
    offset = object.__basicsize__
    size = random.Random.__base__.__basicsize__  # type: ignore[union-attr]  # it has one
    words = probe.getstate()[1]
    if size < offset + _STATE_BYTES or len(words) != 625:
        return None
    return offset if _at(id(probe) + offset, _STATE_BYTES) == _WORDS.pack(words[-1], *words[:-1]) else None


def _gauss_offset() -> int | None:
    probe: Any = np.random.RandomState(1)
    _, words, place, *_ = probe.get_state(legacy=True)
    if _at(probe._bit_generator.ctypes.state_address, _STATE_BYTES) != _WORDS.pack(*words, place):
        return None
    mark = 0.123456789012345678
    memories = []
    for kept in (0, 1):
        probe.set_state(("MT19937", words, place, kept, mark))
        memories.append(_at(id(probe), np.random.RandomState.__basicsize__))
    found = memories[1].find(struct.pack("<d", mark)) - 8
    if found < 0 or [memory[found : found + 4] for memory in memories] != [struct.pack("<i", kept) for kept in (0, 1)]:
        return None
    # No other byte depends on it.
    return found if sum(one != other for one, other in zip(*memories, strict=True)) == 1 else None


def _torch_offset() -> int | None:
    probe: Any = torch.Generator().manual_seed(_MARK)
    state = probe.get_state()
    words = state[24 : 24 + 8 * 624].view(torch.int64).to(torch.int32).numpy().tobytes()
    # All reads are within the object, since the 624 words follow the seed.
    mark = struct.pack("<Q", _MARK)
    found = next((place for place in range(16, 256, 8) if _at(probe._cdata + place, 8) == mark), None)
    if found is None or _at(probe._cdata + found + 8, 5) != struct.pack("<i?", 1, True):
        return None
    if _at(probe._cdata + found + 16, 4 + len(words)) != bytes(4) + words:
        return None
    torch.randn(1, generator=probe, device="cpu")  # computes two and keeps one
    state = probe.get_state()
    state[_TORCH_FLOAT : _TORCH_FLOAT + 5] = torch.tensor(
        [*struct.pack("<f?", 0.25, True)], dtype=torch.uint8, device="cpu"
    )
    probe.set_state(state)
    kept = struct.pack("<f?", 0.25, True), state[24 + 8 * 625 : 24 + 8 * 626].numpy().tobytes() + b"\1"
    places = found + _TORCH_GAUSS, found + _TORCH_GAUSS + 8
    agree = all(_at(probe._cdata + place, len(one)) == one for place, one in zip(places, kept, strict=True))
    return found if agree else None


def _at(address: int, num_bytes: int) -> bytes:
    return ctypes.string_at(address, num_bytes)


class States:
    """The memory of the states of exactly a ``random.Random``, a ``RandomState`` of an ``MT19937``, a CPU generator.

    For one thread at a time. The caller keeps the generators alive. A RuntimeError where :func:`unavailable_reason` has
    a reason.
    """

    def __init__(self, for_random: random.Random, for_numpy: np.random.RandomState, for_torch: Any) -> None:
        offsets = _offsets()
        if isinstance(offsets, str):
            raise RuntimeError(offsets)
        self.bits: Any = for_numpy._bit_generator
        """NumPy's bit generator. After ``np.random.set_bit_generator()`` the state is elsewhere."""
        kinds = type(for_random), type(for_numpy), type(self.bits)
        if kinds != (random.Random, np.random.RandomState, np.random.MT19937):
            raise TypeError(f"generators must be a random.Random and a RandomState of an MT19937, got {kinds}")
        self.lock = self.bits.lock
        """Lock for reading and writing states: NumPy releases the GIL while it draws many numbers."""
        python = ctypes.pythonapi
        python.PyInterpreterState_Get.restype = ctypes.c_void_p
        self.places = _States(
            random=id(for_random) + offsets[0],
            numpy=self.bits.ctypes.state_address,
            gauss=id(for_numpy) + offsets[1],
            torch=for_torch._cdata + offsets[2],
            interpreter=python.PyInterpreterState_Get(),
            first_thread=ctypes.cast(python.PyInterpreterState_ThreadHead, ctypes.c_void_p),
            next_thread=ctypes.cast(python.PyThreadState_Next, ctypes.c_void_p),
        )
        """The addresses of the states."""


class Run:
    """Seeds generators for one sample after the other; for one thread at a time.

    ``step(handle)`` installs the states of the next sample, except ``random``'s second Gaussian. It returns 0; -1 if
    there is no next sample; 1 if nothing was done because there are other threads: then ``step_locked(handle)`` must be
    called, with the states' lock held.
    """

    def __init__(self, states: States) -> None:
        self.states = states
        self._room = np.empty(_function("room")(), dtype=np.uint8)
        self._run = _Run(states=ctypes.pointer(states.places), room=self._room.ctypes.data)
        self.step, self.step_locked, self.handle = _function("next"), _function("next_locked"), ctypes.byref(self._run)
        _function("prepare")(self.handle)
        self._ids: Any = None

    def begin(self, prefix: bytes, ids: Sequence[int]) -> bool:
        """Begin with a first sample; return False if an id needs more than 64 bits: nothing can be seeded then.

        A key is the hash of the prefix, 32 bytes, and an id. ``ids``: a list, or a range, whose end is ignored.
        """
        run = self._run
        if type(ids) is range:
            if max(abs(ids.start), abs(ids.step)) >= 2**62:
                return False
            run.ids, run.first, run.stride, run.num = None, ids.start, ids.step, _ENDLESS
        else:
            try:
                self._ids = array.array("q", ids)
            except OverflowError:
                return False
            run.ids, run.num = self._ids.buffer_info()
        ctypes.memmove(run.prefix, prefix, len(run.prefix))
        run.done = 0
        return True

    def left(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the ids, of those passed to :meth:`begin`, that were not used for a step."""
        run = self._run
        if type(ids) is range:
            return range(run.first + run.done * run.stride, _ENDLESS, run.stride)
        return ids[run.done :]


@functools.cache
def _function(name: str) -> Any:
    """Return a function of generators.c that keeps the GIL, so that no other thread draws from ``random`` meanwhile."""
    # The types of arguments are not declared: converting them would take longer than a step.
    return ctypes.PyDLL(str(native.LIBRARY))[f"fastload_generators_{name}"]


def read(states: States) -> Any:
    """Return the states, except ``random``'s second Gaussian."""
    memory = ctypes.create_string_buffer(_function("bytes")())
    with states.lock:
        _function("read")(ctypes.byref(states.places), memory)
    return memory


def write(states: States, memory: Any) -> None:
    """Write the states that :func:`read` has returned."""
    with states.lock:
        _function("write")(ctypes.byref(states.places), memory)
