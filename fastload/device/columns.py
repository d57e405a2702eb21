"""A dataset that is read once and stays in memory: its samples column by column, and batches gathered from them.

::

    dataset ─> read once, in its own order ─> Columns [N, ...] of a device or the host ─rows─> batch

A dataset that draws random numbers is refused, since each epoch would repeat what it drew once.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import observe
from ..base.memory import free_on, in_words
from ..base.nesting import Key, leaves_of, map_leaves
from ..errors import ConfigError
from ..transforms.batches import OnBatch
from ..transforms.draws import Draws
from .streams import keep_in_children

Rows: TypeAlias = npt.NDArray[np.int64]

# Of what is free so much may be taken: where the user asked for it, and where it is ours to choose.
_SHARE_ASKED = 0.95
_SHARE_CHOSEN = 0.5


class RowDraws(Draws):
    """The draws of rows that are to be gathered, with what that takes."""

    host_leaves: dict[int, Any] | None
    """The batch's leaves from the host; None: the batch was gathered before, on the host."""
    watch: observe.Watch | None
    """Times it; None: nobody listens."""

    def __init__(self, draws: Draws, host_leaves: dict[int, Any] | None, watch: observe.Watch | None) -> None:
        vars(self).update(vars(draws), host_leaves=host_leaves, watch=watch)


class TooLarge(Exception):
    """A dataset does not fit into a place. The message says why; no user meets this class."""


class TensorColumn:
    """A tensor for each sample, all of one shape and dtype: ``values`` [N, ...], on any device.

    With ``channels_last`` they are [N, H, W, C], and batches are [B, C, H, W] in that layout. ``pinned``: batches
    are made in page-locked memory, on their way to a device.
    """

    def __init__(self, values: Tensor, *, channels_last: bool = False, pinned: bool = False) -> None:
        self.values = values
        self._channels_last = channels_last
        self._pinned = pinned
        self.on_host = values.device.type == "cpu"

    def take(self, rows: Tensor) -> Tensor:
        """Return [B, ...], given rows [B], int64, on the device of the values."""
        if self._pinned:
            shape = len(rows), *self.values.shape[1:]
            place = torch.empty(shape, dtype=self.values.dtype, device="cpu", pin_memory=True)
            taken = torch.index_select(self.values, 0, rows, out=place)
        else:
            taken = self.values.index_select(0, rows)
        return taken.permute(0, 3, 1, 2) if self._channels_last else taken

    def put(self, start: int, leaf: Any) -> None:
        """Store the rows of a batch; raise a ValueError if they are no tensor, or of another shape or dtype."""
        if not isinstance(leaf, Tensor):
            raise ValueError("strings, and no tensor")
        if self._channels_last:
            leaf = _in_nhwc(leaf)
        place = self.values[start : start + len(leaf)]
        if place.shape != leaf.shape or place.dtype != leaf.dtype:  # else it would be broadcast and converted
            raise ValueError(f"{tuple(leaf.shape[1:])} of {leaf.dtype}, not {tuple(place.shape[1:])} of {place.dtype}")
        place.copy_(leaf)

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.values.numel() * self.values.element_size()


class ListColumn:
    """A string or ``bytes`` for each sample, on the host; ``kind``: the list or tuple that collation makes."""

    on_host = True

    def __init__(self, kind: type, length: int) -> None:
        self._kind = kind
        self._values: list[Any] = [None] * length

    def take(self, rows: Tensor) -> Any:
        """Return those of some rows, [B], int64, on the host."""
        return self._kind([self._values[row] for row in rows.tolist()])

    def put(self, start: int, leaf: Any) -> None:
        """Store the rows of a batch; raise a ValueError if they are no strings."""
        if isinstance(leaf, Tensor):
            raise ValueError("a tensor, and no strings")
        self._values[start : start + len(leaf)] = leaf

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return sum(sys.getsizeof(value) for value in self._values)


class Columns:
    """A whole dataset in memory.

    ``nesting`` is of a batch, with the number of a column at each leaf; columns and paths are in the order of the
    leaves. All are on ``device``, but for those that stay on the host.
    """

    def __init__(
        self,
        nesting: Any,
        columns: Sequence[TensorColumn | ListColumn],
        paths: Sequence[str],
        length: int,
        device: torch.device,
    ) -> None:
        self._nesting = nesting
        self._columns = columns
        self._paths = paths
        self._length = length
        self.device = device
        keep_in_children(self)

    def __len__(self) -> int:
        return self._length

    @property
    def num_bytes(self) -> int:
        """Memory that they take."""
        return sum(column.num_bytes for column in self._columns)

    def tensors(self) -> list[Tensor]:
        """Return the tensors that they are made of."""
        return [column.values for column in self._columns if isinstance(column, TensorColumn)]

    def host_leaves(self, rows: Tensor) -> dict[int, Any]:
        """Return the leaves of a batch that come from the host, by column; ``rows`` are there too."""
        return {number: column.take(rows) for number, column in enumerate(self._columns) if column.on_host}

    def batch(self, rows: Tensor, host_leaves: dict[int, Any]) -> Any:
        """Return a batch: its leaves from the host, and the others gathered by rows, [B], int64, on the device."""

        def leaf(column: int) -> Any:
            return host_leaves[column] if column in host_leaves else self._columns[column].take(rows)

        return map_leaves(self._nesting, leaf, is_leaf=lambda value: type(value) is int)

    def gathering(self, watch: observe.Watch | None) -> Callable[..., Any]:
        """Return :meth:`batch`, timed where somebody listens."""
        return self.batch if watch is None else watch.collate(self.batch)

    def transform(self, then: OnBatch | None) -> OnBatch:
        """Return what a :class:`.moving.Mover` gathers batches with, where the columns are, and then calls ``then``.

        Its draws are :class:`RowDraws`.
        """

        def gathered(batch: Any, draws: Draws | None) -> Any:
            assert isinstance(draws, RowDraws)
            if draws.host_leaves is not None:
                batch = self.gathering(draws.watch)(batch, draws.host_leaves)
            if then is None:
                return batch
            return (then if draws.watch is None else draws.watch.transform("batch_transform", then))(batch, draws)

        return gathered

    def put(self, start: int, batch: Any) -> int:
        """Store a batch; return its number of samples. One that is not like the first is a ConfigError."""
        leaves = dict(leaves_of(batch, _is_leaf))
        size = _size_of(batch)
        try:
            if leaves.keys() != set(self._paths):
                raise ValueError(f"made of {', '.join(map(repr, leaves))}, not of {', '.join(map(repr, self._paths))}")
            for column, path in zip(self._columns, self._paths, strict=True):
                column.put(start, leaves[path])
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"resident data must all be of one shape and dtype, and samples {start} to {start + size - 1} differ "
                f"from the first: {error}"
            ) from error
        return size


class Placement:
    """A possible location of a dataset: a device, with parts that stay on the host; see :class:`TensorColumn`."""

    def __init__(
        self,
        device: torch.device,
        keep_on_host: Collection[Key] = (),
        *,
        channels_last: bool = False,
        pinned: bool = False,
    ) -> None:
        self.device = device
        self._kept = tuple(str(key) for key in keep_on_host)
        self._channels_last = channels_last
        self._pinned = pinned

    def check_room(self, num_bytes: int, num_samples: int, *, chosen: bool) -> None:
        """Raise :class:`TooLarge` if there is no room for a dataset.

        ``chosen``: nobody asked for this place, so that half of what is free is to stay free.
        """
        free = free_on(self.device)
        if free is None:
            return
        if self.device.type == "cpu":  # the ranks of a machine share its memory, and each has all the data
            free //= max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
        if num_bytes > free * (_SHARE_CHOSEN if chosen else _SHARE_ASKED):
            raise TooLarge(
                f"{num_samples:,} samples take {in_words(num_bytes)}, and {in_words(free)} are free {self.words}"
                + (", half of which may be used" if chosen else "")
            )

    @property
    def words(self) -> str:
        """Location, for messages."""
        return "on the host" if self.device.type == "cpu" else f"on {self.device}"

    def columns(self, example: Any, length: int) -> Columns:
        """Make room for a dataset, given a collated batch of some of its samples; or raise TooLarge."""
        columns: list[TensorColumn | ListColumn] = []
        paths = []
        for path, leaf in leaves_of(example, _is_leaf):
            paths.append(path)
            if not isinstance(leaf, Tensor):
                if not isinstance(leaf, (list, tuple)):
                    raise ConfigError(_not_kept(path, type(leaf).__name__))
                columns.append(ListColumn(type(leaf), length))
                continue
            if type(leaf) is not Tensor or leaf.layout is not torch.strided:
                raise ConfigError(_not_kept(path, f"{type(leaf).__name__}, {leaf.layout}"))
            shape = (_in_nhwc(leaf) if self._is_channels_last(leaf, path) else leaf).shape[1:]
            with self._room():
                values = torch.empty((length, *shape), dtype=leaf.dtype, device=self._device_at(path))
            columns.append(self._column(values, leaf, path))
        return Columns(_nesting_of(example), columns, paths, length, self.device)

    def columns_of(self, tensors: Sequence[Tensor]) -> Columns:
        """Return a TensorDataset's columns, its own tensors where they are in this place already; or raise TooLarge."""
        columns = []
        paths = [str(number) for number in range(len(tensors))]
        for path, tensor in zip(paths, tensors, strict=True):
            with self._room():
                values = tensor.to(self._device_at(path))
                if self._is_channels_last(tensor, path):
                    values = _in_nhwc(values).contiguous()
            columns.append(self._column(values, tensor, path))
        return Columns(_nesting_of(list(tensors)), columns, paths, len(tensors[0]), self.device)

    def bytes_copied(self, tensors: Sequence[Tensor]) -> int:
        """Return how much of a TensorDataset would be copied."""
        total = 0
        for path, tensor in zip(map(str, range(len(tensors))), tensors, strict=True):
            there = tensor.device == self._device_at(path)
            laid_out = self._is_channels_last(tensor, path) and not _in_nhwc(tensor).is_contiguous()
            # A copy in the place's own layout follows the one to its device.
            total += (int(not there) + int(laid_out)) * tensor.numel() * tensor.element_size()
        return total

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, MemoryError) as error:  # torch says with both that there is no memory
            raise TooLarge(f"there is no room {self.words}: {str(error).splitlines()[0]}") from error

    def _column(self, values: Tensor, leaf: Tensor, path: str) -> TensorColumn:
        return TensorColumn(
            values, channels_last=self._is_channels_last(leaf, path), pinned=self._pinned and not self._is_kept(path)
        )

    def _is_channels_last(self, leaf: Tensor, path: str) -> bool:
        return self._channels_last and leaf.ndim == 4 and not self._is_kept(path)

    def _device_at(self, path: str) -> torch.device:
        return torch.device("cpu") if self._is_kept(path) else self.device

    def _is_kept(self, path: str) -> bool:
        return any(path == kept or path.startswith(f"{kept}.") for kept in self._kept)


def bytes_of(batch: Any) -> int:
    """Return the memory that a collated batch takes."""
    total = 0
    for _, leaf in leaves_of(batch, _is_leaf):
        if isinstance(leaf, Tensor):
            total += leaf.numel() * leaf.element_size()
        elif isinstance(leaf, (list, tuple)):
            total += sum(sys.getsizeof(value) + 8 for value in leaf)
    return total


def check_alike(one: Any, other: Any, index: int, *, drew: bool) -> None:
    """Raise a ConfigError if a sample that was read twice, with other seeds, is not the same, or drew something."""
    leaves, others = (dict(leaves_of(batch, _is_leaf)) for batch in (one, other))
    if leaves.keys() != others.keys() or not all(_same(leaf, others[path]) for path, leaf in leaves.items()):
        what = f"sample {index} differed when it was read again"
    elif drew:
        what = f"it draws random numbers for sample {index}"
    else:
        return
    raise ConfigError(
        f"resident data is read once, but the dataset is random: {what}; every epoch would repeat its draws. Move "
        "random transforms to batch_transform (see fastload.transforms), which draws anew in each epoch"
    )


def rows_of(indices: Any, length: int) -> Rows:
    """Return the rows that an index batch names, [B]."""
    if isinstance(indices, np.ndarray):
        rows = indices.copy()  # the sampler may change its array later
    else:
        given = indices.tolist() if isinstance(indices, Tensor) else list(indices)
        rows = np.asarray(given, dtype=None if given else np.int64)
    if rows.dtype.kind not in "iu" or rows.ndim != 1:
        shown = f"{rows.tolist()[:3]!r}{' ...' if len(indices) > 3 else ''}"
        raise ConfigError(
            f"resident needs a sampler that gives integers, got {shown}; use resident=None, which passes "
            "them to the dataset"
        )
    if rows.size and (rows.min() < 0 or rows.max() >= length):
        outside = (rows < -length) | (rows >= length)
        if outside.any():
            raise IndexError(f"index {rows[outside][0]} is out of range: the dataset has {length} samples")
        rows = np.where(rows < 0, rows + length, rows)
    found: Rows = rows.astype(np.int64, copy=False)
    return found


def split(batch: Any, sizes: Sequence[int]) -> Iterable[Any]:
    """Yield the collated batches, of these sizes, that a batch consists of, as views."""
    if type(batch) is list and all(isinstance(leaf, Tensor) for leaf in batch):  # as most are, in a quarter of the time
        yield from map(list, zip(*(leaf.split(sizes) for leaf in batch), strict=True))
        return
    ends = list(itertools.accumulate(sizes, initial=0))
    for start, stop in itertools.pairwise(ends):
        yield map_leaves(batch, lambda leaf, rows=slice(start, stop): leaf[rows], is_leaf=_is_leaf)  # type: ignore[misc]


class ResidentData(NamedTuple):
    """Resident data of a loader, and why parts are not resident."""

    made_from: tuple[Any, ...]
    length: int
    columns: Columns | None
    """None: they have no room anywhere."""
    fallback_reasons: tuple[str, ...]
    """Why not in better places."""


def _is_leaf(value: Any) -> bool:
    """Return whether a part of a collated batch is a leaf: a tensor, or the strings of all samples."""
    if isinstance(value, Tensor):
        return True
    return type(value) in (list, tuple) and bool(value) and all(isinstance(part, (str, bytes)) for part in value)


def _in_nhwc(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1)


def _nesting_of(batch: Any) -> Any:
    numbers = itertools.count()
    return map_leaves(batch, lambda _: next(numbers), is_leaf=_is_leaf)


def _size_of(batch: Any) -> int:
    return next((len(leaf) for _, leaf in leaves_of(batch, _is_leaf) if hasattr(leaf, "__len__")), 0)


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # A NaN is a NaN, and nothing else is not itself.
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _not_kept(path: str, what: str) -> str:
    where = f"{path!r} of a batch" if path else "a batch"
    return f"resident data must be dense tensors or strings, but {where} is of type {what}; resident=None loads it"
