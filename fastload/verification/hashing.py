"""Hashes of samples and batches, leaf by leaf, so that the first leaf that differs can be named.

They (BLAKE2b, 16 bytes) are equal exactly if types, dtypes, shapes and bytes are.

The order of a dictionary counts, that of a set does not. Values of unknown types are hashed by their pickles, and their
kind says so: pickles may differ though the values are equal (the order of a set inside, a cached attribute).

Pure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import numbers
import pickle
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch

PICKLED = "pickled "
"""Prefix of the kind of a leaf that was hashed by its pickle."""


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a sample: a tensor, an image, a number."""

    path: str
    """As in Python: ``[0]``, ``['image']``, ``.boxes``; empty for the sample itself."""
    kind: str
    """Type, dtype and shape."""
    digest: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class BatchHashes:
    """The hashes of a batch."""

    samples: tuple[tuple[Leaf, ...], ...]
    """The leaves of each sample; empty where samples cannot be told apart."""
    whole: tuple[Leaf, ...] = ()
    """The leaves that do not belong to single samples; all of them, where samples cannot be told apart."""

    @property
    def num_samples(self) -> int:
        """Number of samples; 1 where they cannot be told apart."""
        return len(self.samples) or 1


def leaves(value: object, path: str = "") -> Iterator[Leaf]:
    """Yield the leaves of a sample in order; empty containers are leaves."""
    for place, inner in _leaves(value, path, ()):
        yield _leaf(place, inner)


def digest_of(value: object) -> bytes:
    """Return the hash of a value: of its structure and all its leaves."""
    whole = hashlib.blake2b(digest_size=16)
    for leaf in leaves(value):
        whole.update(f"{leaf.path}\0{leaf.kind}\0".encode() + leaf.digest)
    return whole.digest()


def hash_batch(batch: object, *, by_sample: bool) -> BatchHashes:
    """Return the hashes of a batch; ``by_sample``: ``default_collate`` made it, so its samples can be told apart."""
    num_rows = _num_rows(batch) if by_sample else None
    whole, columns = [], []
    for path, value in _leaves(batch, "", (), num_rows):
        column = None if num_rows is None else _rows(path, value, num_rows)
        if column is None:
            whole.append(_leaf(path, value))
        else:
            columns.append(column)
    return BatchHashes(tuple(zip(*columns, strict=True)), tuple(whole))


def _leaves(
    value: object, path: str, above: tuple[int, ...], num_rows: int | None = None
) -> Iterator[tuple[str, object]]:
    """Yield path and value of each leaf; a list of ``num_rows`` strings is one leaf."""
    if id(value) in above:
        yield path, "a container that contains itself"
        return
    above = (*above, id(value))
    children: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        children = [(f"[{key!r}]", inner) for key, inner in value.items()]
    elif isinstance(value, (list, tuple)):
        if num_rows is not None and len(value) == num_rows and all(isinstance(one, (str, bytes)) for one in value):
            yield path, value
            return
        names = getattr(value, "_fields", None)
        children = [(f".{names[i]}" if names else f"[{i}]", inner) for i, inner in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        children = [(f".{one.name}", getattr(value, one.name, None)) for one in dataclasses.fields(value)]
    if not children:
        yield path, value
        return
    if type(value) not in (dict, list):  # their paths show the type
        yield f"{path} type", type(value).__qualname__
    for step, inner in children:
        yield from _leaves(inner, path + step, above, num_rows)


def _num_rows(batch: object) -> int | None:
    for _, value in _leaves(batch, "", ()):
        if isinstance(value, torch.Tensor) and value.ndim:
            return int(value.shape[0])
    if isinstance(batch, (list, tuple)) and batch and all(isinstance(one, (str, bytes)) for one in batch):
        return len(batch)
    return None


def _rows(path: str, value: object, num_rows: int) -> list[Leaf] | None:
    """Return the leaf of each sample in a leaf of a batch; None if it has no rows."""
    if isinstance(value, (list, tuple)) and len(value) == num_rows:
        return [_leaf(path, one) for one in value]
    if not _is_plain_tensor(value) or not value.ndim or value.shape[0] != num_rows:
        return None
    rows = _bytes_of(value).reshape(num_rows, -1) if value.numel() else np.empty((num_rows, 0), np.uint8)
    kind = _kind_of_tensor(value, value.shape[1:])
    return [Leaf(path, kind, hashlib.blake2b(row.tobytes(), digest_size=16).digest()) for row in rows]


def _is_plain_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested


def _kind_of_tensor(value: torch.Tensor, shape: Sequence[int]) -> str:
    kind = f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')} {tuple(shape)}"
    # Tensors of torchvision carry a format or a canvas size.
    extra = sorted((name, repr(held)) for name, held in getattr(value, "__dict__", {}).items())
    return kind + (f" {extra}" if extra else "")


def _bytes_of(value: torch.Tensor) -> Any:
    plain = value.detach().as_subclass(torch.Tensor).cpu().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8).numpy()


def _leaf(path: str, value: object) -> Leaf:
    kind, content = _content_of(value)
    return Leaf(path, kind, hashlib.blake2b(content, digest_size=16).digest())


def _content_of(value: object) -> tuple[str, Any]:
    name = type(value).__qualname__
    if isinstance(value, float):
        return name, struct.pack("<d", value)  # NaN equals itself here, and 0.0 is not -0.0
    if isinstance(value, str):
        return name, value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return name, bytes(value)
    if _is_plain_tensor(value):
        return _kind_of_tensor(value, value.shape), _bytes_of(value).tobytes() if value.numel() else b""
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return f"{name} {value.dtype} {value.shape}", np.ascontiguousarray(value).tobytes()
    if value is None or isinstance(value, numbers.Number):
        return name, repr(value).encode()
    if isinstance(value, (set, frozenset)):
        return name, b"".join(sorted(digest_of(one) for one in value))
    if isinstance(value, (dict, list, tuple)) and not value:
        return name, b""
    images = sys.modules.get("PIL.Image")
    if images is not None and isinstance(value, images.Image):
        palette = value.getpalette() if value.mode in ("P", "PA") else None
        return f"{name} {value.mode} {value.size}", value.tobytes() + repr(palette).encode()
    try:
        return PICKLED + name, pickle.dumps(value, protocol=5)
    except Exception as error:  # whatever the user's class raises
        return f"{PICKLED}{name} (pickling failed: {error}; its repr was compared)", repr(value).encode()
