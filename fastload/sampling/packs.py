"""Packs of samples by best fit, in the native library and in Python, the reference. Pure."""

from __future__ import annotations

import bisect
from typing import Any, TypeAlias

import numpy as np
import torch

from .. import native
from ..errors import ConfigError

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]


def best_fit(lengths: Numbers, room: int, most: int) -> tuple[Numbers, int]:
    """Return the pack of each sample, numbered as they are opened, and how many packs there are.

    The samples come in their order. Each goes into the open pack with the least space that is enough, of several into
    the one that came to have this space last; and opens a new pack where none is enough. Cost: 50 ns a sample with the
    native library, 1 to 2 µs without.

    Args:
        lengths: [number of samples], int32, each in 1..room.
        room: of a pack.
        most: samples of a pack.

    Raises:
        ValueError: a length is outside.
    """
    if len(lengths) and not 1 <= lengths.min() <= lengths.max() <= room:
        raise ValueError(f"lengths must be in 1..{room}, got {lengths.min()} to {lengths.max()}")
    if not native.available():
        return by_python(lengths, room, most)
    packs = np.array(lengths, dtype=np.int32, order="C")
    bits = np.zeros(room // 64 + room // 4096 + 2, dtype=np.uint64)
    links = np.empty(room + 1 + 2 * len(packs), dtype=np.int32)
    buffers = bits.ctypes.data, links.ctypes.data
    return packs, native.library.best_fit(packs.ctypes.data, len(packs), room, most, *buffers)


def as_lengths(values: Any, number: int, what: str, least: int = 1) -> Numbers:
    """Return so many lengths as int32, without a copy of an array of these; ``what``: of what, for errors.

    Raises:
        ConfigError: they are others than integers of at least ``least``.
    """
    try:
        found = values.numpy(force=True) if isinstance(values, torch.Tensor) else np.asarray(values)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape != (number,) or (number and not np.issubdtype(found.dtype, np.integer)):
        raise ConfigError(
            f"lengths must be {number} integers, {what}, got {type(values).__name__} of shape {found.shape} and "
            f"{found.dtype}"
        )
    if number and not least <= found.min() <= found.max() < 1 << 31:
        wrong = int(np.flatnonzero((found < least) | (found >= 1 << 31))[0])
        raise ConfigError(
            f"lengths must be from {least} to 2**31 - 1, {what}, got {found[wrong]} in place {wrong}; leave samples "
            "without tokens out: torch.utils.data.Subset(dataset, numpy.flatnonzero(lengths))"
        )
    return found.astype(np.int32, copy=False)


def by_python(lengths: Numbers, room: int, most: int) -> tuple[Numbers, int]:
    """Return what :func:`best_fit` returns."""
    spaces: list[int] = []  # that some open pack has, sorted
    open_packs: dict[int, list[int]] = {}
    counts: list[int] = []
    packs = []
    for length in lengths.tolist():
        place = bisect.bisect_left(spaces, length)
        if place == len(spaces):
            pack, space = len(counts), room
            counts.append(0)
        else:
            space = spaces[place]
            pack = open_packs[space].pop()
            if not open_packs[space]:
                del spaces[place]
        packs.append(pack)
        counts[pack] += 1
        space -= length
        if counts[pack] < most and space > 0:
            stack = open_packs.setdefault(space, [])
            if not stack:
                bisect.insort(spaces, space)
            stack.append(pack)
    return np.array(packs, dtype=np.int32), len(counts)
