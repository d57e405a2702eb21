"""A dataset that is read once and stays in memory: its samples column by column, and batches gathered from them.

::

    dataset ─> read once, in its own order ─> Columns [N, ...] of a device or the host ─rows─> batch

A dataset that draws random numbers is refused, since each epoch would repeat what it drew once.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
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
from ..work import Batch
from .moving import in_channels_last
from .streams import keep_in_children

Rows: TypeAlias = npt.NDArray[np.int64]

# Of what is free so much may be taken: where the user asked for it, and where it is ours to choose.
_SHARE_ASKED = 0.95
_SHARE_CHOSEN = 0.5


class TooLarge(Exception):
    """A dataset does not fit into a place. The message says why; no user meets this class."""


class Together(NamedTuple):
    """Batches that are made at once; in the place of a batch's draws."""

    batches: Sequence[Batch]
    """Each with its draws."""
    watch: observe.Watch | None
    """Times what is done; None: nobody listens."""

    def transformed(self, made: Any, transform: OnBatch) -> Any:
        """Return the batch that was gathered for all of them, transformed.

        Several get their data, or their errors: only those fail in which an error comes again.
        """
        then = transform if self.watch is None else self.watch.transform("batch_transform", transform)
        batches = self.batches
        if len(batches) == 1:
            return then(made, batches[0].draws)
        sizes = [len(batch.indices) for batch in batches]
        draws = Draws.joined([batch.draws for batch in batches])
        try:
            found = then(made, draws)
        except Exception:
            for batch, part in zip(batches, split(made, sizes), strict=True):
                try:
                    batch.data = then(part, batch.draws)
                except Exception as error:
                    batch.error = error
            return [batch.data for batch in batches]
        for batch, size, part in zip(batches, sizes, split(found, sizes), strict=True):
            batch.data = part
            batch.draws.shape = draws.shape._replace(num=size)
        return found


class Column:
    """One leaf of all samples: a tensor [N, ...] on any device, or a list of strings or ``bytes`` on the host.

    ``kind``: the list or tuple that collation makes of strings. ``pinned``: batches are made in page-locked memory, on
    their way to a device.
    """

    def __init__(self, values: Tensor | list[Any], *, kind: type = list, pinned: bool = False) -> None:
        self.values = values
        self._kind = kind
        self._pinned = pinned

    def take(self, rows: Tensor) -> Any:
        """Return the leaf of a batch, given rows [B], int64, on the device of the values."""
        values = self.values
        if isinstance(values, list):
            return self._kind([values[row] for row in rows.tolist()])
        if not self._pinned:
            return values.index_select(0, rows)
        place = torch.empty((len(rows), *values.shape[1:]), dtype=values.dtype, device="cpu", pin_memory=True)
        return torch.index_select(values, 0, rows, out=place)

    def put(self, start: int, leaf: Any) -> None:
        """Store the rows of a batch; raise a ValueError if they are of another kind, shape or dtype."""
        stop, values = start + len(leaf), self.values
        if isinstance(values, list) or not isinstance(leaf, Tensor):
            if isinstance(values, Tensor) or isinstance(leaf, Tensor):
                raise ValueError("strings, and no tensor" if isinstance(values, Tensor) else "a tensor, and no strings")
            values[start:stop] = leaf
            return
        place = values[start:stop]
        if place.shape != leaf.shape or place.dtype != leaf.dtype:  # else it would be broadcast and converted
            raise ValueError(f"{tuple(leaf.shape[1:])} of {leaf.dtype}, not {tuple(place.shape[1:])} of {place.dtype}")
        place.copy_(leaf)

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.values.nbytes if isinstance(self.values, Tensor) else sum(map(sys.getsizeof, self.values))


class Columns:
    """A whole dataset in memory.

    ``nesting`` is of a batch, with the path of a column, a :class:`_Path`, at each leaf. All are on ``device``, but for
    those that stay on the host.
    """

    def __init__(self, nesting: Any, columns: dict[str, Column], length: int, device: torch.device) -> None:
        self._nesting = nesting
        self._columns = columns
        self._length = length
        self.device = device
        keep_in_children(self)

    def __len__(self) -> int:
        return self._length

    @property
    def num_bytes(self) -> int:
        """Memory that they take."""
        return sum(column.num_bytes for column in self._columns.values())

    def tensors(self) -> list[Tensor]:
        """Return the tensors that they are made of."""
        return [column.values for column in self._columns.values() if isinstance(column.values, Tensor)]

    def host_leaves(self, rows: Tensor) -> dict[str, Any]:
        """Return the leaves of a batch that stay on the host, by path; ``rows`` are there too."""
        return {
            path: column.take(rows)
            for path, column in self._columns.items()
            if isinstance(column.values, list) or column.values.device != self.device
        }

    def batch(self, rows: Tensor, host_leaves: dict[str, Any]) -> Any:
        """Return a batch: those leaves, and the others gathered by rows, [B], int64, on the device."""

        def leaf(path: str) -> Any:
            return host_leaves[path] if path in host_leaves else self._columns[path].take(rows)

        return map_leaves(self._nesting, leaf, is_leaf=lambda value: type(value) is _Path)

    def gathering(self, watch: observe.Watch | None) -> Callable[..., Any]:
        """Return :meth:`batch`, timed where somebody listens."""
        return self.batch if watch is None else watch.collate(self.batch)

    def on_batches(
        self, transform: OnBatch | None, *, gathers: bool, channels_last: bool, keep_on_host: Collection[Key]
    ) -> OnBatch:
        """Return what a :class:`.moving.Mover` does with the batches of a source, whose draws are a :class:`Together`.

        ``gathers``: they are (rows, host_leaves), see :meth:`batch`, and are laid out here; else gathered batches.
        """
        kept = frozenset(map(str, keep_on_host))

        def transformed(batch: Any, together: Any) -> Any:
            if gathers:
                batch = self.gathering(together.watch)(*batch)
                if channels_last:
                    batch = map_leaves(batch, in_channels_last, kept)
            return batch if transform is None else together.transformed(batch, transform)

        return transformed

    def put(self, start: int, batch: Any) -> int:
        """Store a batch; return its number of samples. One that is not like the first is a ConfigError."""
        leaves = dict(leaves_of(batch, _is_leaf))
        size = next((len(leaf) for leaf in leaves.values() if hasattr(leaf, "__len__")), 0)
        try:
            if leaves.keys() != self._columns.keys():
                made, first = (", ".join(map(repr, paths)) for paths in (leaves, self._columns))
                raise ValueError(f"made of {made}, not of {first}")
            for path, column in self._columns.items():
                column.put(start, leaves[path])
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"resident data must all be of one shape and dtype, and samples {start} to {start + size - 1} differ "
                f"from the first: {error}"
            ) from error
        return size


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A possible location of a dataset: a device, with parts that stay on the host."""

    device: torch.device
    keep_on_host: Collection[Key] = ()
    pinned: bool = False
    """See :class:`Column`."""
    chosen: bool = False
    """True if nobody asked for this place, so that half of what is free is to stay free."""

    @property
    def words(self) -> str:
        """Location, for messages."""
        return "on the host" if self.device.type == "cpu" else f"on {self.device}"

    def check_room(self, num_bytes: int, num_samples: int) -> None:
        """Raise :class:`TooLarge` if there is no room for a dataset."""
        free = free_on(self.device)
        if free is None:
            return
        if self.device.type == "cpu":  # the ranks of a machine share its memory, and each has all the data
            free //= max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
        if num_bytes > free * (_SHARE_CHOSEN if self.chosen else _SHARE_ASKED):
            raise TooLarge(
                f"{num_samples:,} samples take {in_words(num_bytes)}, and {in_words(free)} are free {self.words}"
                + (", half of which may be used" if self.chosen else "")
            )

    def columns(self, example: Any, length: int, sample_bytes: int, whole: Sequence[Tensor] | None = None) -> Columns:
        """Make room for a dataset, or raise TooLarge.

        ``example``: a collated batch of some of its samples. ``whole``: the tensors of a TensorDataset, which are used
        as they are where they are in this place already.
        """
        leaves = dict(leaves_of(example, _is_leaf))
        given = {} if whole is None else dict(zip(leaves, whole, strict=True))
        copied = [tensor.nbytes for path, tensor in given.items() if tensor.device != self._device_of(path)]
        self.check_room(sample_bytes * length if whole is None else sum(copied), length)
        try:
            columns = {path: self._column(path, leaf, length, given.get(path)) for path, leaf in leaves.items()}
        except (RuntimeError, MemoryError) as error:  # torch says with both that there is no memory
            raise TooLarge(f"there is no room {self.words}: {str(error).splitlines()[0]}") from error
        paths = iter(leaves)
        nesting = map_leaves(example, lambda _: _Path(next(paths)), is_leaf=_is_leaf)
        return Columns(nesting, columns, length, self.device)

    def _column(self, path: str, leaf: Any, length: int, whole: Tensor | None) -> Column:
        """Return a column: ``whole``, or an empty one for what is like a leaf of a batch."""
        if whole is not None:
            return Column(whole.to(self._device_of(path)), pinned=self.pinned)
        if isinstance(leaf, (list, tuple)):
            return Column([None] * length, kind=type(leaf))
        if type(leaf) is not Tensor or leaf.layout is not torch.strided:
            what = f"{type(leaf).__name__}, {leaf.layout}" if isinstance(leaf, Tensor) else type(leaf).__name__
            where = f"{path!r} of a batch" if path else "a batch"
            raise ConfigError(
                f"resident data must be dense tensors or strings, but {where} is of type {what}; resident=None loads it"
            )
        values = torch.empty((length, *leaf.shape[1:]), dtype=leaf.dtype, device=self._device_of(path))
        return Column(values, pinned=self.pinned)

    def _device_of(self, path: str) -> torch.device:
        kept = any(path == key or path.startswith(f"{key}.") for key in map(str, self.keep_on_host))
        return torch.device("cpu") if kept else self.device


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
    given = indices.tolist() if isinstance(indices, Tensor) else indices
    given = given if isinstance(given, np.ndarray) else list(given)
    rows = np.array(given, dtype=None if len(given) else np.int64)  # a copy: the sampler may change its array later
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


class _Path(str):
    """The path of a column."""


def _is_leaf(value: Any) -> bool:
    """Return whether a part of a collated batch is a leaf: a tensor, or the strings of all samples."""
    if isinstance(value, Tensor):
        return True
    return type(value) in (list, tuple) and bool(value) and all(isinstance(part, (str, bytes)) for part in value)


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # A NaN is a NaN, and nothing else is not itself.
    return bool(((one == other) | ((one != one) & (other != other))).all())
