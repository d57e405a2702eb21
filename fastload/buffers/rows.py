"""Rows of a layout that are not written and built as a whole: read as samples, written part by part, or copied.

Buffers are one-dimensional NumPy arrays of uint8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from .layout import Buffer, Dict, Layout, Node, ObjectLeaf, Row, TensorLeaf, tensor_leaves, write_node


def samples_in(
    layout: Layout, buffer: Buffer, num_rows: int, row: int, count: int, objects: Sequence[Sequence[Any]]
) -> list[Any]:
    """Return ``count`` samples from ``row`` on as they were before they were written, sharing the buffer's memory.

    ``num_rows``: of the batch; ``objects``: for each object leaf the objects of these rows only.
    """
    columns = [tensor[row : row + count] for tensor in layout.tensors(buffer, num_rows)]
    samples = []
    for i in range(count):
        leaves = (_original(leaf, column[i]) for leaf, column in zip(layout.leaves, columns, strict=True))
        samples.append(_sample(layout.root, leaves, (column[i] for column in objects)))
    return samples


def _original(leaf: TensorLeaf, value: torch.Tensor) -> Any:
    if leaf.kind is np.ndarray:
        return value.numpy()
    if issubclass(leaf.kind, torch.Tensor):
        return value if leaf.kind is torch.Tensor else value.as_subclass(leaf.kind)
    number: Any = leaf.kind
    return number(value.item())


def _sample(node: Node, leaves: Iterator[Any], objects: Iterator[Any]) -> Any:
    if isinstance(node, TensorLeaf):
        return next(leaves)
    if isinstance(node, ObjectLeaf):
        return next(objects)
    if isinstance(node, Dict):
        return {key: _sample(child, leaves, objects) for key, child in zip(node.keys, node.children, strict=True)}
    children = [_sample(child, leaves, objects) for child in node.children]
    return node.kind(*children) if node.kind not in (list, tuple) else node.kind(children)


def write_column(layout: Layout, place: int, column: Sequence[Any], rows: list[torch.Tensor]) -> list[Sequence[Any]]:
    """Write one part of samples that are dicts, lists or tuples, at ``place`` in each; see ``Layout.write_into``."""
    root = layout.root
    assert isinstance(root, Dict | Row)
    before = sum(len(tensor_leaves(child)) for child in root.children[:place])
    own = rows[before : before + len(tensor_leaves(root.children[place]))]
    objects: list[Sequence[Any]] = []
    write_node(root.children[place], column, iter(own), objects)
    return objects


def copy_rows(layout: Layout, source: Buffer, count: int, buffer: Buffer, num_rows: int, row: int) -> None:
    """Copy a buffer of ``count`` rows into rows ``row``, ``row + 1``, ... of a buffer of ``num_rows``."""
    theirs, _ = layout.offsets(count)
    ours, _ = layout.offsets(num_rows)
    for leaf, start, place in zip(layout.leaves, theirs, ours, strict=True):
        num_bytes, place = leaf.row_bytes * count, place + leaf.row_bytes * row
        buffer[place : place + num_bytes] = source[start : start + num_bytes]
