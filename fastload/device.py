"""Batches of the host to batches of a device, ahead of time, on a stream of their own.

::

    host batches ─> copy on the side stream ─> transform on the side stream ─> [depth batches ahead] ─> training loop
         ▲                    │ event: copied                                          │
         └── host memory free ┘                     compute stream waits for the event ┘

In: batches in order, from any iterator. Out: the same batches with their tensors on the device. Nothing here waits for
the device on the host, but :meth:`DeviceAhead.close` where copies are under way.

NOTE [Two streams, two waits]
The compute stream waits for the event behind a batch's copy and transform before the batch is handed out. The other
direction: a batch's memory must not be written again while kernels that read it are queued on the compute stream. What
was allocated on the side stream is given back to the allocator for the side stream when its last reference goes, which
is before those kernels have run. So each tensor that is handed out is told of the compute stream (``record_stream``),
and the allocator waits for it. With fixed buffers, which are never freed, an event of the compute stream is recorded
when the user asks for the next batch, and the side stream waits for it before it writes that buffer again.

And the host's side: a copy from page-locked memory is still reading it when the call has returned. So a host batch is
kept until the event behind its copy has come, which is asked, not waited for.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections import UserDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from .errors import ConfigError, DatasetError, LoadTimeout, NotReady


class Loaded(NamedTuple):
    """A batch of the host, with what its maker says of it."""

    batch: Any
    draws: Any = None
    """For the transform."""
    note: Any = None
    """Comes out as :attr:`DeviceAhead.note` when the batch is given out."""


Key: TypeAlias = str | int
"""Where a part of a batch is: a mapping's key, a sequence's place, or a field's name. Paths are joined by dots."""


_PLAIN = (str, bytes, int, float, complex, type(None), type, ModuleType, FunctionType)
_MAX_DEPTH = 16


class Source(Protocol):
    """Where host batches come from."""

    def next(self) -> Loaded:
        """Return the next batch. Blocks."""

    def next_nowait(self) -> Loaded:
        """Return the next batch if it is complete; else raise :class:`NotReady`."""


class Streams(Protocol):
    """What is asked of a device that works asynchronously. :class:`DeviceStreams` is the real one."""

    def holds(self, leaf: Tensor) -> bool:
        """Return whether a tensor is on the device."""

    def beside(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which work goes to the side stream."""

    def to_device(self, leaf: Tensor) -> Tensor:
        """Return a copy on the device, made on the current stream. Does not block."""

    def copy_into(self, place: Tensor, leaf: Tensor) -> None:
        """Copy within the device, on the current stream."""

    def mark_side(self) -> Any:
        """Return an event behind the work of the side stream so far."""

    def mark_compute(self) -> Any:
        """Return an event behind the work of the compute stream so far."""

    def compute_waits(self, event: Any) -> None:
        """Let the compute stream wait for an event."""

    def side_waits(self, event: Any) -> None:
        """Let the side stream wait for an event."""

    def used_by_compute(self, leaf: Tensor) -> None:
        """Tell the allocator that the compute stream reads a tensor of the side stream."""

    def used_by_side(self, leaf: Tensor) -> None:
        """Let the side stream read a tensor of the compute stream."""


class DeviceStreams:
    """The streams of a real device: one side stream, made once; the compute stream is the user's current one.

    Args:
        device: with an index.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        self._side = self._module.Stream(device=device)

    def holds(self, leaf: Tensor) -> bool:
        """See :class:`Streams`."""
        return leaf.device == self.device

    def beside(self) -> contextlib.AbstractContextManager[Any]:
        """See :class:`Streams`."""
        context: contextlib.AbstractContextManager[Any] = self._module.stream(self._side)
        return context

    def to_device(self, leaf: Tensor) -> Tensor:
        """See :class:`Streams`. What is not page-locked goes through page-locked memory of torch's allocator."""
        if leaf.device.type == "cpu" and leaf.layout is torch.strided:
            if not (leaf.ndim == 4 and leaf.is_contiguous(memory_format=torch.channels_last)):
                leaf = leaf.contiguous()  # else the copy would make it so, in memory that it waits for
            if not leaf.is_pinned():
                leaf = leaf.pin_memory()
        return leaf.to(self.device, non_blocking=True)

    def copy_into(self, place: Tensor, leaf: Tensor) -> None:
        """See :class:`Streams`."""
        place.copy_(leaf, non_blocking=True)

    def mark_side(self) -> Any:
        """See :class:`Streams`."""
        event = self._module.Event()
        event.record(self._side)
        return event

    def mark_compute(self) -> Any:
        """See :class:`Streams`."""
        event = self._module.Event()
        event.record(self._module.current_stream(self.device))
        return event

    def compute_waits(self, event: Any) -> None:
        """See :class:`Streams`."""
        self._module.current_stream(self.device).wait_event(event)

    def side_waits(self, event: Any) -> None:
        """See :class:`Streams`."""
        self._side.wait_event(event)

    def used_by_compute(self, leaf: Tensor) -> None:
        """See :class:`Streams`."""
        for part in _strided_parts(leaf):
            part.record_stream(self._module.current_stream(self.device))

    def used_by_side(self, leaf: Tensor) -> None:
        """See :class:`Streams`."""
        self.side_waits(self.mark_compute())
        for part in _strided_parts(leaf):
            part.record_stream(self._side)


def _strided_parts(leaf: Tensor) -> list[Tensor]:
    """Return the tensors that a tensor is made of: the allocator knows no others."""
    if leaf.is_nested:
        return [leaf.values()] if leaf.layout is torch.jagged else list(leaf.unbind())
    if leaf.layout is torch.sparse_coo:
        return [leaf._indices(), leaf._values()]
    if leaf.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [leaf.crow_indices(), leaf.col_indices(), leaf.values()]
    if leaf.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [leaf.ccol_indices(), leaf.row_indices(), leaf.values()]
    return [leaf]


def streams_of(device: torch.device) -> DeviceStreams | None:
    """Return the streams of a device; None for the CPU, and for devices that have none."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    if not all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream")):
        return None
    return DeviceStreams(device)


def device_of(device: torch.device | str | int) -> torch.device:
    """Return a device with its index.

    Raises:
        ConfigError: this is no device, or it is not there.
    """
    try:
        found: torch.device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device must name a device of torch's, as 'cuda' or 'cpu', got {device=}: {error}") from None
    if found.type == "cpu":
        return torch.device("cpu")
    try:
        module: Any = torch.get_device_module(found)
        count: int = module.device_count()
    except (RuntimeError, AttributeError):
        module, count = None, 0
    index: Any = found.index  # None where it was not given
    if index is None:
        index = module.current_device() if count and hasattr(module, "current_device") else 0
    if count <= index:
        raise ConfigError(
            f"device={device!r} is not there: torch {torch.__version__} sees {count} devices of the type {found.type}; "
            "device='cpu' runs the same stages without a copy"
        )
    return torch.device(found.type, index)


class Mover:
    """Moves batches to a device: what is copied, how it lies there, and what is done with it.

    Args:
        device: where to.
        streams: its streams; None: everything happens at once, in order.
        keep_on_host: paths of parts that stay where they are (``"lengths"``, ``1``, ``"meta.lengths"``).
        channels_last: four-dimensional tensors lie NHWC in memory, on the device.
        transform: what is done with a batch on the device: (batch, its draws) -> batch.
        num_buffers: batches are put into this many fixed places in turn; 0: each has memory of its own.
    """

    def __init__(
        self,
        device: torch.device,
        streams: Streams | None,
        *,
        keep_on_host: Collection[Key] = (),
        channels_last: bool = False,
        transform: Callable[[Any, Any], Any] | None = None,
        num_buffers: int = 0,
    ) -> None:
        self.device = device
        self.streams = streams
        self._kept = frozenset(str(key) for key in keep_on_host)
        self._channels_last = channels_last
        self._transform = transform
        self._buffers: list[_Buffers] = [_Buffers() for _ in range(num_buffers)]
        self._turn = 0
        self._last: _Buffers | None = None
        self._user: weakref.ref[Any] | None = None
        self._checked = not self._kept

    def begin(self, user: object) -> None:
        """A stage begins to use this.

        Raises:
            RuntimeError: another one does, and there are fixed places.
        """
        if self._buffers:
            if self._user is not None and self._user() not in (None, user):
                raise RuntimeError(
                    "with fixed_buffers=True one iteration at a time: the one before is not over, and its batches lie "
                    "where the next ones would; end it first"
                )
            self._user = weakref.ref(user)
            self.asked()
        if self.streams is not None:  # what the user has made for the transform until now
            self.streams.side_waits(self.streams.mark_compute())

    def end(self) -> None:
        """The stage has ended."""
        self._user = None

    def move(self, batch: Any, draws: Any) -> tuple[Any, Any]:
        """Begin to move a batch.

        Args:
            batch: of the host.
            draws: for the transform.

        Returns:
            The batch on the device, and the event behind it; None where there are no streams.
        """
        if not self._checked:
            self._check_paths(batch)
        # What is no tensor is moved on the compute stream: nobody could tell the allocator of what is inside of it.
        batch = _map(batch, self._object_to_device, self._kept)
        if self.streams is None:
            return self._made(batch, draws), None
        _map(batch, self._used_by_side, self._kept)
        with self.streams.beside():
            made = self._made(batch, draws)
            return made, self.streams.mark_side()

    def _check_paths(self, batch: Any) -> None:
        paths = set(_paths(batch, ""))
        if missing := self._kept - paths:
            raise ConfigError(
                f"keep_on_host names {', '.join(map(repr, sorted(missing)))}, and the batch has "
                f"{', '.join(map(repr, sorted(paths))) or 'no parts'}"
            )
        self._checked = True

    def _made(self, batch: Any, draws: Any) -> Any:
        kept_tensors = list(_kept_in(batch, self._kept))
        made = _map(batch, self._to_device, self._kept)
        if self._transform is not None:
            try:
                made = self._transform(made, draws)
            except StopIteration as error:  # in a loop it would end the epoch without a word
                raise DatasetError("the batch transform raised StopIteration, which would end the iteration") from error
        if not self._buffers:
            return made
        buffers = self._buffers[self._turn]
        self._turn = (self._turn + 1) % len(self._buffers)
        if self.streams is not None and buffers.consumed is not None:
            self.streams.side_waits(buffers.consumed)
        if self.streams is not None:
            return buffers, buffers.fill(made, self.streams.copy_into, self.streams.holds)
        kept = {id(leaf) for leaf in kept_tensors}
        return buffers, buffers.fill(made, Tensor.copy_, lambda leaf: id(leaf) not in kept)

    def _object_to_device(self, leaf: Any) -> Any:
        return leaf if isinstance(leaf, Tensor) else leaf.to(self.device)

    def _used_by_side(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and self.streams is not None and self.streams.holds(leaf):
            self.streams.used_by_side(leaf)
        return leaf

    def _to_device(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if self.streams is None:
            leaf = leaf.to(self.device)
        elif not self.streams.holds(leaf):
            leaf = self.streams.to_device(leaf)
        if self._channels_last and leaf.ndim == 4:
            leaf = leaf.contiguous(memory_format=torch.channels_last)
        return leaf

    def hand_out(self, made: Any, event: Any) -> Any:
        """Let the user's stream have a batch."""
        self.asked()
        if self.streams is not None:
            self.streams.compute_waits(event)
        if self._buffers:
            self._last, made = made
        if self.streams is not None:
            for leaf in _tensors_in(made, set()):
                if self.streams.holds(leaf):
                    self.streams.used_by_compute(leaf)
        return made

    def asked(self) -> None:
        """The user asks for the next batch: what he has queued on the last one is all there will be, if it is fixed."""
        if self._last is not None and self.streams is not None:
            self._last.consumed = self.streams.mark_compute()
        self._last = None


class _Buffers:
    """A fixed place for one batch on the device."""

    def __init__(self) -> None:
        self._leaves: list[Tensor] | None = None
        self.consumed: Any = None

    @torch.inference_mode(False)
    @torch.no_grad()
    def fill(self, made: Any, copy_into: Callable[[Tensor, Tensor], Any], belongs: Callable[[Tensor], bool]) -> Any:
        """Copy a batch here and return it as it lies here. Tensors that do not belong here stay where they are."""
        found: list[Tensor] = []

        def is_mine(leaf: Any) -> bool:
            return isinstance(leaf, Tensor) and leaf.layout is torch.strided and belongs(leaf)

        _map(made, lambda leaf: found.append(leaf) if is_mine(leaf) else None)
        if self._leaves is None:
            self._leaves = [torch.empty_like(leaf) for leaf in found]
        layouts = [[(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves] for leaves in (found, self._leaves)]
        if layouts[0] != layouts[1]:
            raise ConfigError(
                "with fixed_buffers=True all batches must have the same shapes and dtypes, got "
                f"{[tuple(leaf.shape) for leaf in found]} after {[tuple(leaf.shape) for leaf in self._leaves]}; "
                "drop_last=True leaves a short last batch out"
            )
        for fixed, leaf in zip(self._leaves, found, strict=True):
            copy_into(fixed, leaf)
        leaves = iter(self._leaves)
        return _map(made, lambda leaf: next(leaves) if is_mine(leaf) else leaf)


@dataclass(slots=True)
class _Moved:
    made: Any
    event: Any
    error: BaseException | None = None
    note: Any = None


class DeviceAhead:
    """Takes host batches from a source and has the next ones on the device before they are asked for.

    Args:
        source: see :class:`Source`.
        mover: see :class:`Mover`.
        depth: batches on the device beyond the one handed out.
        patient: whether the source is asked for batches that are not ready, to have ``depth`` of them. For sources
            that make a batch only when they are asked.

    Holds the host's memory of a batch until its copy is done, and no longer.
    """

    def __init__(self, source: Source, mover: Mover, depth: int, *, patient: bool) -> None:
        self._source = source
        self._mover = mover
        self._depth = depth
        self._patient = patient
        self._ready: deque[_Moved] = deque()
        self._host: deque[tuple[Any, Any]] = deque()
        self._unmoved: Loaded | None = None
        self.note: Any = None
        """What came with the batch given out last, or with the one in whose place an error was raised."""
        self._begun = False
        self._ended = False
        mover.begin(self)

    def next(self) -> Any:
        """Return the next batch, on the device. Blocks for the host's part only.

        Raises:
            Exception: as the source does, at the same place; or what the copy or transform raised.
        """
        self._mover.asked()
        self._let_go()
        if not self._ready:
            if self._ended:
                self._mover.end()
                raise StopIteration
            self._take(self._source.next)
        if self._begun:
            self._fill()
        self._begun = True  # the first batch does not wait for the others
        moved = self._ready.popleft()
        self.note = moved.note
        if moved.error is not None:
            try:
                raise moved.error
            finally:
                del moved  # or its traceback would hold a frame that holds it
        return self._mover.hand_out(moved.made, moved.event)

    def _fill(self) -> None:
        while len(self._ready) <= self._depth and not self._ended:
            try:
                self._take(self._source.next if self._patient else self._source.next_nowait)
            except NotReady:
                return
            except LoadTimeout:
                if not self._ready:
                    raise
                return

    def _take(self, take: Callable[[], Any]) -> None:
        if self._unmoved is None:
            try:
                self._unmoved = take()
            except (NotReady, LoadTimeout):
                raise
            except StopIteration as error:
                self._ended = True
                self._mover.end()
                self._ready.append(_Moved(None, None, error))
                return
            except Exception as error:
                self._ready.append(_Moved(None, None, error))
                return
        loaded = self._unmoved  # an interrupt leaves it for the next time
        try:
            made, event = self._mover.move(loaded.batch, loaded.draws)
        except Exception as error:
            self._ready.append(_Moved(None, None, error, loaded.note))
        else:
            self._ready.append(_Moved(made, event, None, loaded.note))
            if event is not None:
                self._host.append((event, loaded.batch))
        self._unmoved = None

    def _let_go(self) -> None:
        while self._host and self._host[0][0].query():
            self._host.popleft()

    def drop(self) -> None:
        """Forget what is under way, for a new iteration. Waits for the copies that are."""
        self._forget()
        self._begun = self._ended = False
        self._mover.begin(self)

    def close(self) -> None:
        """Forget everything. Waits for the copies that are under way, since they read the host's memory."""
        self._forget()
        self._ended = True
        self._mover.end()

    def _forget(self) -> None:
        self._unmoved = None
        self._ready.clear()
        while self._host:
            self._host[0][0].synchronize()
            self._host.popleft()


class Prefetched:
    """An iterable whose batches are on a device, ahead of time. See :func:`prefetch`."""

    def __init__(self, iterable: Iterable[Any], mover: Mover, depth: int) -> None:
        self.iterable = iterable
        self.device = mover.device
        self._mover = mover
        self._depth = depth

    def __iter__(self) -> Iterator[Any]:
        ahead = DeviceAhead(_Plain(iter(self.iterable)), self._mover, self._depth, patient=True)
        return _Iteration(ahead)

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]  # its own error, where it has no length


class _Iteration:
    """One pass over a prefetched iterable."""

    def __init__(self, ahead: DeviceAhead) -> None:
        self._ahead = ahead

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        return self._ahead.next()

    def close(self) -> None:
        """End it; what is ahead is dropped."""
        self._ahead.close()

    def __del__(self) -> None:
        self._ahead.close()


class _Plain:
    """An iterator as a :class:`Source`."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def next(self) -> Loaded:
        return Loaded(next(self._iterator))

    def next_nowait(self) -> Loaded:
        raise NotReady


def prefetch(
    iterable: Iterable[Any],
    device: torch.device | str | int,
    depth: int = 2,
    transform: Callable[[Any], Any] | None = None,
    *,
    keep_on_host: Collection[Key] = (),
    channels_last: bool = False,
    fixed_buffers: bool = False,
) -> Prefetched:
    """Return an iterable that gives the batches of another one on a device, copied while the steps before them run.

    Copies go over a side stream, and no call here waits for the device. What is not page-locked is copied through
    page-locked memory of torch's allocator, so ``pin_memory=True`` saves that. For a :class:`fastload.DataLoader`
    its own argument ``device`` is better: it copies from its slots, and its state says what the loop was given.

    Args:
        iterable: of batches: tensors, nested in dicts, lists, tuples and named tuples as they may be; other objects
            that have ``to``, as ``PackedSequence``; what has not stays as it is.
        device: ``"cuda"``, ``"cuda:1"``, ..., or ``"cpu"``: the same, without a copy.
        depth: batches on the device beyond the one given out; at least 1. Also how far ``iterable`` is asked ahead.
        transform: what is done with each batch on the device, on the side stream.
        keep_on_host: parts that stay on the host, by their path: ``("lengths",)``, ``(1,)``, ``("meta.lengths",)``.
        channels_last: four-dimensional tensors get torch's channels-last format on the device.
        fixed_buffers: all batches are in the same ``depth + 2`` places in turn, for CUDA graphs. Such a batch is valid
            until the next one is asked for, and all must have the same shapes.

    Raises:
        ConfigError: an argument is out of its range, or the device is not there.
    """
    where = device_of(device)
    depth = check_depth("depth", depth)
    if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
        raise ConfigError(f"prefetch takes an iterable of batches, got {iterable!r}")
    if transform is not None and not callable(transform):
        raise ConfigError(f"transform must be callable with a batch, got {transform!r}")
    applied = None if transform is None else lambda batch, _: transform(batch)
    mover = Mover(
        where,
        streams_of(where),
        keep_on_host=check_paths("keep_on_host", keep_on_host),
        channels_last=channels_last,
        transform=applied,
        num_buffers=depth + 2 if fixed_buffers else 0,
    )
    return Prefetched(iterable, mover, depth)


def check_depth(name: str, depth: Any) -> int:
    """Return a number of batches.

    Raises:
        ConfigError: it is no integer of at least 1.
    """
    if isinstance(depth, bool) or not hasattr(depth, "__index__") or depth < 1:
        raise ConfigError(f"{name} must be an integer of at least 1, got {name}={depth!r}")
    return int(depth)


def check_paths(name: str, paths: object) -> tuple[Key, ...]:
    """Check paths into a batch.

    Raises:
        ConfigError: these are not keys and places.
    """
    if isinstance(paths, str) or not isinstance(paths, Collection):
        raise ConfigError(f"{name} must be a collection of keys or places, as ('lengths',), got {name}={paths!r}")
    for path in paths:
        if isinstance(path, bool) or not isinstance(path, (str, int)):
            raise ConfigError(f"{name} must hold keys or places, as 'lengths' or 1, got {path!r}")
    return tuple(paths)


def _tensors_in(value: Any, seen: set[int], depth: int = 0) -> Iterator[Tensor]:
    """Yield the tensors that an object is made of, whatever object it is, as deep as batches are nested."""
    if isinstance(value, _PLAIN) or id(value) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    parts = _parts(value)
    if parts is None:
        named = getattr(value, "__dict__", None)
        parts = list(named.items()) if isinstance(named, dict) else []
        slots = [slot for kind in type(value).__mro__ for slot in _names(vars(kind).get("__slots__", ()))]
        parts += [(slot, getattr(value, slot)) for slot in slots if hasattr(value, slot)]
    for _, part in parts:
        yield from _tensors_in(part, seen, depth + 1)


def _kept_in(value: Any, kept: frozenset[str], path: str = "") -> Iterator[Tensor]:
    """Yield the tensors at the paths."""
    if not kept:
        return
    if path in kept:
        yield from _tensors_in(value, set())
    elif not isinstance(value, Tensor) and not _moves_itself(value):
        for key, part in _parts(value) or ():
            yield from _kept_in(part, kept, f"{path}.{key}" if path else str(key))


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _map(value: Any, change: Callable[[Any], Any], kept: frozenset[str] = frozenset(), path: str = "") -> Any:
    """Apply ``change`` to the tensors of a batch, and to other objects with ``to``. Containers keep their types."""
    if path and path in kept:
        return value
    if isinstance(value, Tensor) or _moves_itself(value):
        return change(value)
    parts = _parts(value)
    if parts is None:
        return value
    prefix = f"{path}." if path else ""
    changed = [_map(part, change, kept, f"{prefix}{key}") for key, part in parts]
    if isinstance(value, Mapping):
        return _mapping_of(value, dict(zip(value, changed, strict=True)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*changed)
    return _sequence_of(value, changed)


def _moves_itself(value: Any) -> bool:
    """Whether an object has its own way to a device, as PackedSequence, a named tuple, has."""
    return not isinstance(value, (str, bytes, list, dict, UserDict)) and callable(getattr(value, "to", None))


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts of a container with their keys; None for what is none."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)) or (
        isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, range, memoryview))
    ):
        return list(enumerate(value))
    return None


def _paths(value: Any, path: str) -> Iterator[str]:
    if path:
        yield path
    if not isinstance(value, Tensor) and not _moves_itself(value):
        for key, part in _parts(value) or ():
            yield from _paths(part, f"{path}.{key}" if path else str(key))


def _mapping_of(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    try:
        if isinstance(value, MutableMapping):
            # A class may have other attributes, and another constructor.
            made = copy.copy(value)
            made.update(items)
            return made
        return type(value)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def _sequence_of(value: Sequence[Any], parts: list[Any]) -> Any:
    if type(value) is tuple:
        return tuple(parts)
    if type(value) is list:
        return parts
    try:
        return type(value)(parts)  # type: ignore[call-arg]
    except TypeError:
        return parts
