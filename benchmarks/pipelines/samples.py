"""Whether two loaders give the same batches: types, shapes and every bit."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

Print = tuple[str, str, list[str]]
"""Where in the batch a value is, its type with its shape, and a digest of it or of each of its rows."""


def prints_of(value: Any, place: str = "batch") -> list[Print]:
    """Return the prints of everything in a batch."""
    kind = type(value).__qualname__
    if isinstance(value, torch.Tensor):
        rows = value.as_subclass(torch.Tensor).contiguous().numpy()
        return [(place, f"{kind} {value.dtype} {tuple(value.shape)}", _digests(rows))]
    if isinstance(value, np.ndarray):
        return [(place, f"{kind} {value.dtype} {value.shape}", _digests(np.ascontiguousarray(value)))]
    if isinstance(value, Image.Image):
        return [(place, f"{kind} {value.mode} {value.size} {sorted(value.info)}", [_digest(value.tobytes())])]
    found: list[Print] = []
    if isinstance(value, Mapping):
        found.append((place, f"{kind} {list(value)}", []))
        for key, item in value.items():
            found.extend(prints_of(item, f"{place}[{key!r}]"))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        found.append((place, f"{kind} of {len(value)}", []))
        for number, item in enumerate(value):
            found.extend(prints_of(item, f"{place}[{number}]"))
    else:
        found.append((place, kind, [_digest(repr(value).encode())]))
    return found


def _digests(rows: "np.ndarray[Any, Any]") -> list[str]:
    if rows.ndim < 2:
        return [_digest(rows.tobytes())]
    return [_digest(row.tobytes()) for row in rows]


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def difference(ours: Sequence[Sequence[Print]], theirs: Sequence[Sequence[Print]]) -> str | None:
    """Return in words how the batches differ, None if they do not."""
    if len(ours) != len(theirs):
        return f"{len(ours)} batches, not {len(theirs)}"
    differing = [number for number, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
    if not differing:
        return None
    our, their = ours[differing[0]], theirs[differing[0]]
    text = f"{len(differing)} of {len(ours)} batches; first number {differing[0]}: "
    for (place, kind, digests), (other_place, other_kind, other_digests) in zip(our, their, strict=False):
        if (place, kind) != (other_place, other_kind):
            return f"{text}{place} is {kind}, not {other_kind}"
        rows = [row for row, pair in enumerate(zip(digests, other_digests, strict=True)) if pair[0] != pair[1]]
        if rows:
            return f"{text}{place} ({kind}) differs in {len(rows)} of {len(digests)} rows"
    return f"{text}{len(our)} values, not {len(their)}"
