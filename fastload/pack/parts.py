"""One Arrow file of a pack: written in batches, read from a memory map.

The file is an Arrow IPC stream of ``image`` (a struct of ``bytes`` and ``path``) and ``label``; its schema tells
Hugging Face datasets that these are an ``Image`` and a ``ClassLabel``. The offsets in Arrow's columns are the index.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import PackError, why_not_imported

# A batch's offsets are 32 bits wide, and a batch is in memory while it is written.
_BATCH_BYTES = 64 << 20


def load_pyarrow() -> Any:
    """Return pyarrow with its ``ipc``.

    Raises:
        PackError: it is not installed, or cannot be imported.
    """
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        reason = why_not_imported("pyarrow", error)
        remedy = ": pip install pyarrow" if reason == "is not installed" else ""
        raise PackError(f"packs are Arrow files, and pyarrow {reason}{remedy}") from error
    return pyarrow


def write_part(path: str, images: Iterable[tuple[bytes, str, int]], classes: Sequence[str]) -> None:
    """Write a new file of the bytes, name and label of each image, and flush it to the disk.

    Raises:
        OSError: the file cannot be written, or exists.
    """
    pa = load_pyarrow()
    features = {"image": {"_type": "Image"}, "label": {"names": list(classes), "_type": "ClassLabel"}}
    schema = _schema(pa).with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    kept: list[tuple[bytes, str, int]] = []
    size = 0

    def flush() -> None:
        data, names, labels = zip(*kept, strict=True)
        columns = [pa.array(data, pa.binary()), pa.array(names, pa.string())]
        image = pa.StructArray.from_arrays(columns, fields=list(schema.field("image").type))
        writer.write_batch(pa.record_batch([image, pa.array(labels, pa.int64())], schema=schema))

    with open(path, "xb") as file:
        with pa.ipc.new_stream(file, schema) as writer:
            for one in images:
                if kept and size + len(one[0]) > _BATCH_BYTES:
                    flush()
                    kept, size = [], 0
                kept.append(one)
                size += len(one[0])
            if kept:
                flush()
        file.flush()
        os.fsync(file.fileno())


def _schema(pa: Any) -> Any:
    return pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])


class Part:
    """A memory-mapped file, open as long as this object or a view of its bytes exists. Threads may share it.

    Raises:
        PackError: it cannot be opened, is not a part of a pack, or is damaged.
    """

    def __init__(self, path: str) -> None:
        pa = load_pyarrow()
        self.path = path
        try:
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            whole = pa.py_buffer(self._map)
            # A process that is forked later would lack Arrow's threads.
            options = pa.ipc.IpcReadOptions(use_threads=False)
            with pa.ipc.open_stream(whole, options=options) as reader:
                if reader.schema != _schema(pa):
                    raise ValueError("its columns are not those of a pack")
                batches = [_checked(batch) for batch in reader]
            columns = [batch.column("image").flatten() for batch in batches]
            self._names = pa.chunked_array([names for _, names in columns], pa.string())
            self.labels: list[int] = [label for batch in batches for label in batch.column("label").to_pylist()]
            self._spans = np.concatenate([np.zeros((0, 2), np.int64), *(_spans(data, whole) for data, _ in columns)])
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise PackError(
                f"{path} cannot be read as a part of a pack ({error}); it may be damaged: remove it, and run fastload "
                "pack again"
            ) from error
        self._bytes = memoryview(self._map)
        self.is_checked = bytearray(len(self._spans))
        """By place: 1 for an image whose record was found to be whole."""

    def __len__(self) -> int:
        return len(self._spans)

    def encoded(self, place: int) -> memoryview:
        """Return an image's bytes, a view of the map."""
        first, end = self._spans[place].tolist()
        return self._bytes[first:end]

    def name(self, place: int) -> str:
        """Return an image's path in the folder that was packed."""
        name: str = self._names[place].as_py()
        return name

    def names(self) -> list[str]:
        """Return all of them."""
        names: list[str] = self._names.to_pylist()
        return names

    def will_need(self, place: int) -> None:
        """Ask the system to read an image ahead, if it can."""
        if hasattr(mmap, "MADV_WILLNEED"):
            first, end = self._spans[place].tolist()
            start = first - first % mmap.PAGESIZE
            with contextlib.suppress(OSError):  # it is only advice
                self._map.madvise(mmap.MADV_WILLNEED, start, end - start)


def _checked(batch: Any) -> Any:
    """Return a batch of Arrow, if it is valid: reading an invalid one may crash the process.

    Raises:
        pyarrow.ArrowInvalid, ValueError: it is not valid.
    """
    batch.validate(full=True)
    image = batch.column("image")
    if any(column.null_count for column in (image, *image.flatten(), batch.column("label"))):
        raise ValueError("it has missing values")
    return batch


def _spans(data: Any, whole: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return begin and end of each image of a column, as offsets in the file: int64 [images, 2].

    Raises:
        ValueError: they are outside of the file.
    """
    _, offsets, values = data.buffers()
    ends = np.frombuffer(offsets or bytes(4), np.int32, len(data) + 1, 4 * data.offset).astype(np.int64)
    # Arrow maps no byte of a column without any.
    ends += values.address - whole.address if ends[-1] > ends[0] else -ends[0]
    if ends[0] < 0 or ends[-1] > whole.size:
        raise ValueError("offsets point outside of the file")
    return np.stack([ends[:-1], ends[1:]], axis=1)
