"""Any result as one run of bytes: a pickle, and after it the buffers of its arrays and tensors.

Unpacked, its tensors and arrays lie in the very memory that was passed in: no copy, and no file descriptor for each
tensor.

A tensor takes its bytes along, not its storage: a view of a large one costs what the view has, wherever its elements
lie. A view whose elements lie far apart (a row of a column-major table, a window of many channels) arrives without the
gaps, its strides in the same order; and a view that takes less than half of a storage shares no memory there, unless
all of the storage came before it.
What torch has special ways for (on an accelerator, sparse, quantised, parameters) goes those ways.
"""

from __future__ import annotations

import copyreg
import io
import math
import pickle
from collections import ChainMap
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
import torch.multiprocessing.reductions  # registers torch's reducers with ForkingPickler

from .layout import ALIGNMENT, Buffer

# As torch's workers, up to Python 3.13: what arrives of read-only arrays can be written to.
_BY_VALUE = pickle.DEFAULT_PROTOCOL < 5

_reducers: dict[Any, Any] = getattr(ForkingPickler, "_extra_reducers", {})
_copyreg_table: dict[Any, Any] = copyreg.dispatch_table

BytesLike = bytes | memoryview | Buffer

_LENGTH_BYTES = 8
_PADDING = bytes(ALIGNMENT)
# Gaps between a tensor's elements go along where they are no more than the elements, or all of it is a page.
_GAPS_KEPT = 4096


class _Bytes:
    """Some memory of a storage. An object of its own, so that the pickler's memo knows it when it comes again."""

    def __init__(self, buffer: pickle.PickleBuffer) -> None:
        self.buffer = buffer


class Packer(pickle.Pickler):
    """Pickles by protocol 5, with the memory of CPU tensors and arrays kept aside in ``buffers``."""

    def __init__(self, file: io.BytesIO, *, for_all: bool = False) -> None:
        self._for_all = for_all
        self.buffers: list[pickle.PickleBuffer] = []
        self._seen: dict[tuple[int, int], _Bytes] = {}
        self._alive: list[Any] = []  # an address identifies a storage only as long as that lives
        # The list's method, not one of this object: a cycle would keep the batch until the next collection of cycles.
        super().__init__(file, 5, buffer_callback=self.buffers.append)
        # Where torch and multiprocessing register how things pass between processes.
        self.dispatch_table = ChainMap(_reducers, _copyreg_table)

    def reducer_override(self, obj: Any) -> Any:
        """Reduce plain CPU tensors and their storages to their bytes; leave the rest to the tables."""
        kind = type(obj)
        if _BY_VALUE and kind is np.ndarray and not obj.flags.writeable and not obj.dtype.hasobject:
            return obj.copy().__reduce_ex__(5)
        if kind is torch.Tensor and not obj.requires_grad and (obj.is_conj() or obj.is_neg()):
            # Else the bit that says so would be lost. Strides stay, as they do for other tensors.
            resolved = obj.resolve_conj().resolve_neg()
            if 0 not in obj.stride() and not _extent(obj)[1]:
                obj = torch.empty_strided(obj.size(), obj.stride(), dtype=obj.dtype, device="cpu").copy_(resolved)
            else:
                obj = resolved
        if kind is torch.Tensor and self._moves(obj):
            return _rebuild_tensor, self._reduce_tensor(obj)
        if _is_derived(kind) and self._moves(obj):
            # torch's own way, but for the storage, of which it would take all.
            rebuild, (_, of_class, _, state) = obj.__reduce_ex__(5)
            return rebuild, (_rebuild_tensor, of_class, self._reduce_tensor(obj.as_subclass(torch.Tensor)), state)
        if self._for_all and (kind in _ONCE_ONLY or (kind is torch.UntypedStorage and obj.is_shared())):
            raise pickle.PicklingError(f"{kind.__name__} can only be passed to one process, while it is started")
        if kind is torch.UntypedStorage and obj.device.type == "cpu":
            return _rebuild_storage, (self._bytes_of(obj, obj.data_ptr(), obj.nbytes()),)
        if kind is _Bytes:
            return _flat_tensor, (obj.buffer,)
        return NotImplemented

    def _moves(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's bytes are all that there is to it, beside its class."""
        return not tensor.requires_grad and _is_plain(tensor) and not (self._for_all and tensor.is_shared())

    def _reduce_tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        size, stride = tuple(tensor.shape), tensor.stride()
        storage = tensor.untyped_storage()
        if tensor.numel() == 0:
            return None, tensor.dtype, 0, size, stride
        span, scattered = _extent(tensor)
        address, num_bytes = storage.data_ptr(), storage.nbytes()
        most = num_bytes <= 2 * span and not scattered
        if most or (address, num_bytes) in self._seen:
            # Most of the storage is in use: take all of it, so that tensors which share it still share it there.
            whole = self._bytes_of(storage, address, num_bytes)
            return whole, tensor.dtype, tensor.storage_offset(), size, stride
        if scattered:  # without the gaps, in the order in which the elements lie
            repeated = [1 if step == 0 else n for n, step in zip(size, stride, strict=True)]
            return self._reduce_tensor(tensor.as_strided(repeated, stride).clone().expand(size))
        return self._bytes_of(storage, tensor.data_ptr(), span), tensor.dtype, 0, size, stride

    def _bytes_of(self, storage: torch.UntypedStorage, address: int, num_bytes: int) -> _Bytes | None:
        if num_bytes == 0:
            return None
        known = self._seen.get((address, num_bytes))
        if known is None:
            self._alive.append(storage)
            view: Any = torch.empty(0, dtype=torch.uint8, device="cpu")
            view.set_(storage, address - storage.data_ptr(), (num_bytes,))
            known = self._seen[address, num_bytes] = _Bytes(pickle.PickleBuffer(view.numpy()))
        return known


# What multiprocessing hands over with a descriptor. Methods and partial functions it takes apart; torch's own entries
# end in a storage, which is looked at.
_ONCE_ONLY = {kind for kind in _reducers if kind.__module__.split(".")[0] not in ("builtins", "functools", "torch")}


def _is_derived(kind: Any) -> bool:
    """Return whether a tensor subclass is pickled as torch does it: by storage, class and attributes."""
    return (
        issubclass(kind, torch.Tensor)
        and kind is not torch.Tensor
        and kind not in _reducers
        and kind not in _copyreg_table
        and kind.__reduce_ex__ is torch.Tensor.__reduce_ex__
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_nested
    )


def _extent(tensor: torch.Tensor) -> tuple[int, bool]:
    """Return the bytes from a tensor's first element to its last, and whether too many of them are not its own."""
    steps = [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step]
    span = (1 + sum((n - 1) * step for n, step in steps)) * tensor.itemsize
    own = math.prod(n for n, _ in steps) * tensor.itemsize
    return span, span > max(2 * own, _GAPS_KEPT)


def _flat_tensor(buffer: BytesLike) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=torch.uint8)


def _rebuild_tensor(
    flat: torch.Tensor | None, dtype: torch.dtype, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    if flat is None:
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
    return torch.empty(0, dtype=dtype, device="cpu").set_(flat.untyped_storage(), offset, size, stride)


def _rebuild_storage(flat: torch.Tensor | None) -> torch.UntypedStorage:
    return torch.UntypedStorage(0) if flat is None else flat.untyped_storage()


def pack(obj: Any, *, for_all: bool = False) -> tuple[list[BytesLike], int]:
    """Return an object as pieces of bytes, to be laid side by side from an aligned place on, and their length in all.

    ``for_all``: several processes shall read it, so refuse what only one can take.
    """
    file = io.BytesIO()
    packer = Packer(file, for_all=for_all)
    packer.dump(obj)
    buffers = [buffer.raw() for buffer in packer.buffers]
    lengths = [len(buffer) for buffer in buffers]
    head = pickle.dumps((file.getbuffer().tobytes(), lengths), 5)
    pieces: list[BytesLike] = [len(head).to_bytes(_LENGTH_BYTES, "little"), head]
    end = _LENGTH_BYTES + len(head)
    for buffer in buffers:
        gap = -end % ALIGNMENT
        if gap:
            pieces.append(_PADDING[:gap])
        pieces.append(buffer)
        end += gap + len(buffer)
    return pieces, end


def unpack(packed: Buffer) -> Any:
    """Return the object again. Its tensors and arrays lie in ``packed``, keep it alive, and may be written to."""
    memory = packed.data
    head_end = _LENGTH_BYTES + int.from_bytes(memory[:_LENGTH_BYTES], "little")
    payload, lengths = pickle.loads(memory[_LENGTH_BYTES:head_end])
    buffers = []
    end = head_end
    for length in lengths:
        start = end + -end % ALIGNMENT
        end = start + length
        buffers.append(packed[start:end])
    return pickle.loads(payload, buffers=buffers)


def join(pieces: list[BytesLike]) -> Buffer:
    """Lay the pieces into one private, writable buffer."""
    return np.frombuffer(bytearray().join(pieces), dtype=np.uint8)  # type: ignore[arg-type]  # arrays are buffers
