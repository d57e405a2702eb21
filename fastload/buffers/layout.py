"""The structure of a sample, and how rows of samples become a batch in one buffer.

The batch is the one that torch's ``default_collate`` would have made, with its types exactly. A :class:`Layout` is
learnt from one sample. It is keyed on exact Python types, dtypes and shapes, and it describes only what
``default_collate`` stacks without surprise; for everything else :func:`learn` gives the reason, and the samples travel
as they are and are collated by torch's own function. A sample that does not fit raises :class:`LayoutMismatch`; nothing
is converted in silence.

Pure: no threads, no clocks. Buffers are one-dimensional NumPy arrays of uint8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..work import Task

Buffer = np.ndarray[Any, np.dtype[np.uint8]]

# Leaves begin at multiples of this: a cache line, and enough for every vector instruction set.
ALIGNMENT = 64


# Begins the reason of :func:`learn` for samples that are an error in torch, and would be mended by pickling them.
REFUSED = "array that torch does not take"


class LayoutMismatch(Exception):
    """A sample is not of the layout."""


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor, an array or a number: one tensor of shape (rows, ...) in the batch."""

    kind: type
    """Exact type in the sample: torch.Tensor or a subclass, ndarray, a NumPy scalar type, bool, int or float."""
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class ObjectLeaf:
    """A ``str`` or ``bytes``: it travels beside the buffer, and the batch has them in a list or tuple."""

    kind: type


@dataclass(frozen=True, slots=True)
class Dict:
    """An exact ``dict`` with these keys in this order."""

    keys: tuple[Any, ...]
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """An exact ``list`` or ``tuple``, or a named tuple of class ``kind``."""

    kind: type
    children: tuple[Node, ...]


Node = TensorLeaf | ObjectLeaf | Dict | Row

_NUMBERS: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}
_NUMPY: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


class Layout:
    """A tree of leaves, and where each lies in a buffer.

    Two layouts are equal when their trees are; it pickles as its tree.
    """

    def __init__(self, root: Node) -> None:
        self.root = root
        self.leaves = tuple(tensor_leaves(root))
        self._offsets: dict[int, tuple[tuple[int, ...], int]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __reduce__(self) -> tuple[type[Layout], tuple[Node]]:
        return Layout, (self.root,)

    def offsets(self, num_rows: int) -> tuple[tuple[int, ...], int]:
        """Return the first byte of each tensor leaf, and the bytes in all, for a batch of ``num_rows``."""
        known = self._offsets.get(num_rows)
        if known is None:
            starts = []
            end = 0
            for leaf in self.leaves:
                starts.append(end)
                end += -(-leaf.row_bytes * num_rows // ALIGNMENT) * ALIGNMENT
            known = self._offsets[num_rows] = (tuple(starts), end)
            if len(self._offsets) > 64:  # batch samplers may make every size there is
                self._offsets = {num_rows: known}
        return known

    def tensors(self, buffer: Buffer, num_rows: int) -> list[torch.Tensor]:
        """Return one tensor of shape (num_rows, ...) for each tensor leaf.

        Each has a storage of its own, exactly as long as it is (so that ``torch.save`` of one leaf does not save
        the others), and each keeps ``buffer`` alive.
        """
        starts, _ = self.offsets(num_rows)
        made = []
        for leaf, start in zip(self.leaves, starts, strict=True):
            shape = (num_rows, *leaf.shape)
            count = math.prod(shape)
            if count == 0:
                made.append(torch.empty(shape, dtype=leaf.dtype, device="cpu"))
            else:
                made.append(torch.frombuffer(buffer, dtype=leaf.dtype, count=count, offset=start).view(shape))
        return made

    def write(self, samples: Sequence[Any], buffer: Buffer, num_rows: int, row: int) -> list[Sequence[Any]]:
        """Write samples to rows ``row``, ``row + 1``, ... of a batch of ``num_rows``: see :meth:`write_into`."""
        return self.write_into(samples, self.rows(buffer, num_rows, row, len(samples)))

    def rows(self, buffer: Buffer, num_rows: int, row: int, count: int) -> list[torch.Tensor]:
        """Return, for each tensor leaf, rows ``row`` to ``row + count`` of a batch of ``num_rows``."""
        tensors = self.tensors(buffer, num_rows)
        return tensors if count == num_rows else [tensor[row : row + count] for tensor in tensors]

    def write_into(self, samples: Sequence[Any], rows: list[torch.Tensor]) -> list[Sequence[Any]]:
        """Write samples to their rows; return the samples' objects for each object leaf, in order.

        Raises:
            LayoutMismatch: a sample differs from the layout. Rows may have been partly written.
        """
        objects: list[Sequence[Any]] = []
        write_node(self.root, samples, iter(rows), objects)
        return objects

    def build(self, buffer: Buffer, num_rows: int, objects: Sequence[Sequence[Any]]) -> Any:
        """Return the batch: what ``default_collate`` gives for the samples in ``buffer``; its tensors keep that alive.

        ``objects``: for each object leaf the objects of all rows.
        """
        return _build(self.root, iter(self.tensors(buffer, num_rows)), iter(objects), list)


FIRST_LAYOUT = 1
"""Number of the layout that is learnt first. Work that is given out before may use it, and only it."""


class LayoutBook:
    """Which layout new work is to fit. Pure bookkeeping; survives the workers that it was learnt with.

    A batch that did not fit teaches a new layout, if all its samples are of one. If that happens too often, layouts do
    not pay for this dataset, and workers collate whole batches.
    """

    # Layouts are no longer used once more than MAX_MISFITS of AMONG batches in a row did not fit.
    MAX_MISFITS = 4
    AMONG = 32
    # Layouts that batches still under way may have been written by.
    KEPT = 64

    def __init__(self) -> None:
        self.generation = FIRST_LAYOUT - 1
        """Number of the layout learnt last."""
        self.layouts: dict[int, Layout] = {}
        self.fallback_reason: str | None = None
        self._recent = 0.0

    @property
    def layout(self) -> Layout | None:
        """The layout learnt last; None: none yet."""
        return self.layouts.get(self.generation)

    def learn(self, samples: Sequence[Any]) -> None:
        """Learn from the first samples ever seen; later ones change nothing."""
        if not samples or self.layout is not None or self.fallback_reason is not None:
            return
        found = learn(samples[0])
        if isinstance(found, str):
            self.fallback_reason = f"a sample has {found}"
        else:
            self.adopt(found)

    def adopt(self, layout: Layout) -> None:
        """Let new work fit this layout."""
        self.generation += 1
        self.layouts[self.generation] = layout
        self.layouts.pop(self.generation - self.KEPT, None)

    def met(self, layout: Layout) -> None:
        """Take note of a layout that a worker has learnt from a whole batch."""
        if self.layout is None and self.fallback_reason is None:
            self.adopt(layout)
        elif self.fallback_reason is None and layout != self.layout:
            self._misfit_of(layout)

    def fitted(self) -> None:
        """A batch fitted its layout."""
        self._recent = max(0.0, self._recent - self.MAX_MISFITS / self.AMONG)

    def misfit(self, samples: Sequence[Any]) -> bool:
        """Take note of a batch that was not written by a layout; return False if it would fit by now.

        If its samples are all of one new layout, that is adopted.
        """
        found = learn(samples[0])
        of_one = found if isinstance(found, Layout) and all(learn(one) == found for one in samples[1:]) else None
        if of_one is not None and of_one == self.layout:
            return False  # it was under way when this layout was learnt
        self._misfit_of(of_one)
        return True

    def _misfit_of(self, found: Layout | None) -> None:
        self._recent += 1
        if self._recent > self.MAX_MISFITS:
            self.fallback_reason = "samples change their shape, type or keys too often"
        elif found is not None:
            self.adopt(found)


class _NoLayoutError(Exception):
    """A sample has no layout. The message says what it has."""


def learn(sample: Any) -> Layout | str:
    """Learn the layout of a sample; or say why it has none."""
    try:
        return Layout(_learn(sample))
    except _NoLayoutError as error:
        return str(error)


def _learn(value: Any) -> Node:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return _learn_tensor(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc" or (isinstance(value, np.ma.MaskedArray) and not value.ndim):  # NaN or 0.0
            raise _NoLayoutError(f"{kind.__qualname__} of dtype {value.dtype}")
        try:
            return TensorLeaf(np.ndarray, torch.as_tensor(value, device="cpu").dtype, value.shape)
        except (TypeError, ValueError) as error:  # byte order, negative strides: torch's own error follows
            raise _NoLayoutError(f"{REFUSED}: {error}") from None
    if isinstance(value, np.bool_ | np.number):
        try:
            return TensorLeaf(kind, torch.as_tensor([value], device="cpu").dtype, ())
        except (TypeError, ValueError, RuntimeError):
            raise _NoLayoutError(f"NumPy scalar {kind.__name__}") from None
    if kind in _NUMBERS:
        return TensorLeaf(kind, _NUMBERS[kind], ())
    if kind in (str, bytes):
        return ObjectLeaf(kind)
    if kind is dict:
        return Dict(tuple(value), tuple(map(_learn, value.values())))
    if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return Row(kind, tuple(map(_learn, value)))
    raise _NoLayoutError(f"{kind.__module__}.{kind.__qualname__}")


def _learn_tensor(value: torch.Tensor) -> Node:
    kind = type(value)
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        raise _NoLayoutError("sparse, nested or quantised tensor")
    if value.device.type != "cpu":
        raise _NoLayoutError(f"tensor on {value.device}")
    if value.requires_grad:
        raise _NoLayoutError("tensor that requires grad")
    try:
        torch.frombuffer(bytearray(16), dtype=value.dtype, count=1)
        if kind is torch.Tensor or type(torch.stack([value])) is torch.Tensor:
            return TensorLeaf(kind, value.dtype, tuple(value.shape))
    except (RuntimeError, TypeError, ValueError) as error:
        raise _NoLayoutError(f"tensor of dtype {value.dtype}: {error}") from None
    raise _NoLayoutError(f"tensor subclass {kind.__name__} that stacks to its own kind")


def tensor_leaves(node: Node) -> list[TensorLeaf]:
    """Return the tensor leaves below a node, in order."""
    if isinstance(node, TensorLeaf):
        return [node]
    if isinstance(node, ObjectLeaf):
        return []
    return [leaf for child in node.children for leaf in tensor_leaves(child)]


def write_node(node: Node, column: Sequence[Any], outs: Iterator[torch.Tensor], objects: list[Sequence[Any]]) -> None:
    """Write one column of the samples. The work is done a column at a time: the loops run in C."""
    if isinstance(node, TensorLeaf):
        _write_tensors(node, column, next(outs))
        return
    if set(map(type, column)) != {dict if isinstance(node, Dict) else node.kind}:
        raise LayoutMismatch
    if isinstance(node, ObjectLeaf):
        objects.append(column)
    elif isinstance(node, Dict):
        if set(map(tuple, column)) != {node.keys}:
            raise LayoutMismatch
        for key, child in zip(node.keys, node.children, strict=True):
            write_node(child, [sample[key] for sample in column], outs, objects)
    else:
        if set(map(len, column)) != {len(node.children)}:
            raise LayoutMismatch
        for child, values in zip(node.children, zip(*column, strict=True), strict=True):
            write_node(child, values, outs, objects)


def _write_tensors(leaf: TensorLeaf, column: Sequence[Any], out: torch.Tensor) -> None:
    kind, is_array = leaf.kind, leaf.kind is np.ndarray
    if not all(isinstance(value, np.ndarray) for value in column) if is_array else set(map(type, column)) != {kind}:
        raise LayoutMismatch
    try:
        if kind in _NUMBERS:  # by NumPy, which takes a third of torch's time
            out.copy_(torch.from_numpy(np.array(column, dtype=_NUMPY[kind])))
            return
        if not is_array and not issubclass(kind, torch.Tensor):
            out.copy_(torch.as_tensor(column, device="cpu"))
            return
        if is_array:
            column = [torch.as_tensor(value, device="cpu") for value in column]
        elif kind is not torch.Tensor:
            if type(torch.stack([column[0]])) is not torch.Tensor:  # its library may be told so at any time
                raise LayoutMismatch
            column = [value.as_subclass(torch.Tensor) for value in column]
        if {value.dtype for value in column} != {leaf.dtype} or column[0].shape != leaf.shape:
            raise LayoutMismatch
        # Checks the other shapes; refuses tensors that require grad, are sparse, or lie on another device.
        torch.stack(list(column), 0, out=out)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        raise LayoutMismatch from None


def _build(node: Node, tensors: Iterator[torch.Tensor], objects: Iterator[Sequence[Any]], parent: type) -> Any:
    if isinstance(node, TensorLeaf):
        return next(tensors)
    if isinstance(node, ObjectLeaf):
        # default_collate transposes sequences with zip, so there the strings stand in tuples.
        return parent(next(objects))
    if isinstance(node, Dict):
        return {key: _build(child, tensors, objects, list) for key, child in zip(node.keys, node.children, strict=True)}
    children = [_build(child, tensors, objects, tuple) for child in node.children]
    return node.kind(*children) if node.kind not in (list, tuple) else children


WriteRows: TypeAlias = Callable[[list[Tensor]], list[Sequence[Any]]]
"""Writes a task's samples: given the rows of each tensor leaf, returns the objects of each object leaf."""


class Sink(Protocol):
    """Storage of a worker's rows and layouts."""

    def layout(self, generation: int) -> Layout | None:
        """Return the layout of this generation; None if there is none (yet)."""

    def write_rows(self, layout: Layout, task: Task, write: WriteRows) -> Any:
        """Let the rows of a task be written in its slot; return what must travel beside them."""
