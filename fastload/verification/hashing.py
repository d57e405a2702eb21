"""Hashes of batches and samples, leaf by leaf, so that the first leaf that differs can be named.

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
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np
import torch

PICKLED = "pickled "
"""Prefix of the kind of a leaf that was hashed by its pickle."""


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a batch or a sample: a tensor, an image, a number."""

    path: str
    """As in Python: ``[0]``, ``['image']``, ``.boxes``; empty for the batch or sample itself."""
    kind: str
    """Type, dtype and shape."""
    digest: bytes


Hashes = tuple[Leaf, ...]
"""The leaves of a batch, or of a sample."""


def hashed(value: object) -> Hashes:
    """Return the leaves of a batch or a sample in order; empty containers are leaves."""
    found = [(path, *_content_of(inner)) for path, inner in _leaves(value, "", ())]
    return tuple(Leaf(path, kind, hashlib.blake2b(content, digest_size=16).digest()) for path, kind, content in found)


def digest_of(value: object) -> bytes:
    """Return the hash of a value: of its structure and all its leaves."""
    whole = hashlib.blake2b(digest_size=16)
    for leaf in hashed(value):
        whole.update(f"{leaf.path}\0{leaf.kind}\0".encode() + leaf.digest)
    return whole.digest()


def _leaves(value: object, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, object]]:
    """Yield path and value of each leaf."""
    if id(value) in above:
        yield path, "a container that contains itself"
        return
    above = (*above, id(value))
    children: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        children = [(f"[{key!r}]", inner) for key, inner in value.items()]
    elif isinstance(value, (list, tuple)):
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
        yield from _leaves(inner, path + step, above)


def _is_plain_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested


def _content_of_tensor(value: torch.Tensor) -> tuple[str, bytes]:
    kind = f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    # Tensors of torchvision carry a format or a canvas size.
    extra = sorted((name, repr(held)) for name, held in getattr(value, "__dict__", {}).items())
    plain = value.detach().as_subclass(torch.Tensor).cpu().resolve_conj().resolve_neg()
    content = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return kind + (f" {extra}" if extra else ""), content


def _content_of(value: object) -> tuple[str, Any]:
    name = type(value).__qualname__
    if isinstance(value, float):
        return name, struct.pack("<d", value)  # NaN equals itself here, and 0.0 is not -0.0
    if isinstance(value, str):
        return name, value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return name, bytes(value)
    if _is_plain_tensor(value):
        return _content_of_tensor(value)
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
