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
from collections.abc import Callable, Sequence
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
    """A sample is not of the layout. The message says in what."""


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
        write_node(self.root, samples, rows[::-1], objects)
        return objects

    def build(self, buffer: Buffer, num_rows: int, objects: Sequence[Sequence[Any]]) -> Any:
        """Return the batch: what ``default_collate`` gives for the samples in ``buffer``; its tensors keep that alive.

        ``objects``: for each object leaf the objects of all rows.
        """
        tensors = self.tensors(buffer, num_rows)
        tensors.reverse()
        return _build(self.root, tensors, list(reversed(objects)), list)


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
        self.layout: Layout | None = None
        self.layouts: dict[int, Layout] = {}
        self.fallback_reason: str | None = None
        self._recent = 0.0

    def learn(self, samples: Sequence[Any]) -> None:
        """Learn from the first samples ever seen."""
        found = learn(samples[0])
        if isinstance(found, str):
            self.fallback_reason = f"a sample has {found}"
        else:
            self.adopt(found)

    def adopt(self, layout: Layout) -> None:
        """Let new work fit this layout."""
        self.generation += 1
        self.layout = self.layouts[self.generation] = layout
        self.layouts.pop(self.generation - self.KEPT, None)

    def fitted(self) -> None:
        """A batch fitted its layout."""
        self._recent = max(0.0, self._recent - self.MAX_MISFITS / self.AMONG)

    def misfit(self, samples: Sequence[Any]) -> None:
        """Take note of a batch that did not fit; if its samples are all of one new layout, adopt that."""
        found = learn(samples[0])
        of_one = isinstance(found, Layout) and all(learn(sample) == found for sample in samples[1:])
        self.misfit_of(found if isinstance(found, Layout) and of_one else None)

    def misfit_of(self, found: Layout | None) -> None:
        """Take note of a batch that did not fit but is all of one layout, or of none."""
        if found is not None and found == self.layout:
            return  # it was under way when this layout was learnt
        self._recent += 1
        if self._recent > self.MAX_MISFITS:
            self.fallback_reason = "samples change their shape, type or keys too often"
        elif found is not None:
            self.adopt(found)


def learn(sample: Any) -> Layout | str:
    """Learn the layout of a sample; or say why it has none."""
    node = _learn(sample)
    return node if isinstance(node, str) else Layout(node)


def _learn(value: Any) -> Node | str:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return _learn_tensor(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc" or (isinstance(value, np.ma.MaskedArray) and not value.ndim):  # NaN or 0.0
            return f"{kind.__qualname__} of dtype {value.dtype}"
        try:
            return TensorLeaf(np.ndarray, torch.as_tensor(value, device="cpu").dtype, value.shape)
        except (TypeError, ValueError) as error:  # byte order, negative strides: torch's own error follows
            return f"{REFUSED}: {error}"
    if isinstance(value, np.bool_ | np.number):
        try:
            return TensorLeaf(kind, torch.as_tensor([value], device="cpu").dtype, ())
        except (TypeError, ValueError, RuntimeError):
            return f"NumPy scalar {kind.__name__}"
    if kind in _NUMBERS:
        return TensorLeaf(kind, _NUMBERS[kind], ())
    if kind in (str, bytes):
        return ObjectLeaf(kind)
    if kind is dict:
        return _learn_children(value.values(), lambda children: Dict(tuple(value), children))
    if kind in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return _learn_children(value, lambda children: Row(kind, children))
    return f"{kind.__module__}.{kind.__qualname__}"


def _learn_children(values: Any, make: Any) -> Node | str:
    children = []
    for value in values:
        child = _learn(value)
        if isinstance(child, str):
            return child
        children.append(child)
    node: Node = make(tuple(children))
    return node


def _learn_tensor(value: torch.Tensor) -> Node | str:
    kind = type(value)
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        return "sparse, nested or quantised tensor"
    if value.device.type != "cpu":
        return f"tensor on {value.device}"
    if value.requires_grad:
        return "tensor that requires grad"
    try:
        torch.frombuffer(bytearray(16), dtype=value.dtype, count=1)
        if kind is not torch.Tensor and type(torch.stack([value])) is not torch.Tensor:
            return f"tensor subclass {kind.__name__} that stacks to its own kind"
    except (RuntimeError, TypeError, ValueError) as error:
        return f"tensor of dtype {value.dtype}: {error}"
    return TensorLeaf(kind, value.dtype, tuple(value.shape))


def tensor_leaves(node: Node) -> list[TensorLeaf]:
    """Return the tensor leaves below a node, in order."""
    if isinstance(node, TensorLeaf):
        return [node]
    if isinstance(node, ObjectLeaf):
        return []
    return [leaf for child in node.children for leaf in tensor_leaves(child)]


def write_node(node: Node, column: Sequence[Any], outs: list[torch.Tensor], objects: list[Sequence[Any]]) -> None:
    """Write one column of the samples. The work is done a column at a time: the loops run in C."""
    if isinstance(node, TensorLeaf):
        _write_tensors(node, column, outs.pop())
        return
    kinds = set(map(type, column))
    expected = dict if isinstance(node, Dict) else node.kind
    if kinds != {expected}:
        raise LayoutMismatch(f"{_names(kinds)} where the layout has {expected.__name__}")
    if isinstance(node, ObjectLeaf):
        objects.append(column)
    elif isinstance(node, Dict):
        if set(map(tuple, column)) != {node.keys}:
            raise LayoutMismatch(f"other keys, or keys in another order, than {node.keys}")
        for key, child in zip(node.keys, node.children, strict=True):
            write_node(child, [sample[key] for sample in column], outs, objects)
    else:
        if set(map(len, column)) != {len(node.children)}:
            raise LayoutMismatch(f"another length than {len(node.children)}")
        for child, values in zip(node.children, zip(*column, strict=True), strict=True):
            write_node(child, values, outs, objects)


def _write_tensors(leaf: TensorLeaf, column: Sequence[Any], out: torch.Tensor) -> None:
    kind = leaf.kind
    if kind is np.ndarray:
        if not all(isinstance(value, np.ndarray) for value in column):
            raise LayoutMismatch(f"{_names(set(map(type, column)))} where the layout has an array")
        try:
            column = [torch.as_tensor(value, device="cpu") for value in column]
        except (TypeError, ValueError) as error:
            raise LayoutMismatch(str(error)) from None
    else:
        kinds = set(map(type, column))
        if kinds != {kind}:
            raise LayoutMismatch(f"{_names(kinds)} where the layout has {kind.__name__}")
        if not issubclass(kind, torch.Tensor):
            try:
                if kind in _NUMBERS:  # by NumPy, which takes a third of torch's time
                    values = torch.from_numpy(np.array(column, dtype=_NUMPY[kind]))
                else:
                    values = torch.as_tensor(column, device="cpu")
            except (RuntimeError, TypeError, ValueError, OverflowError) as error:
                raise LayoutMismatch(f"{type(error).__name__}: {error}") from None
            out.copy_(values)
            return
        if kind is not torch.Tensor:
            if type(torch.stack([column[0]])) is not torch.Tensor:  # its library may be told so at any time
                raise LayoutMismatch(f"{kind.__name__}, which stacks to its own kind now")
            column = [value.as_subclass(torch.Tensor) for value in column]
    if {value.dtype for value in column} != {leaf.dtype}:
        raise LayoutMismatch(f"another dtype than {leaf.dtype}")
    if column[0].shape != leaf.shape:
        raise LayoutMismatch(f"shape {tuple(column[0].shape)} where the layout has {leaf.shape}")
    try:
        # Checks the other shapes; refuses tensors that require grad, are sparse, or lie on another device.
        torch.stack(list(column), 0, out=out)
    except (RuntimeError, NotImplementedError) as error:
        raise LayoutMismatch(str(error)) from None


def _names(kinds: set[type]) -> str:
    return " and ".join(sorted(kind.__name__ for kind in kinds))


def _build(node: Node, tensors: list[torch.Tensor], objects: list[Sequence[Any]], parent: type) -> Any:
    if isinstance(node, TensorLeaf):
        return tensors.pop()
    if isinstance(node, ObjectLeaf):
        # default_collate transposes sequences with zip, so there the strings stand in tuples.
        return parent(objects.pop())
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
