"""LeRobot's rows, as chunks of actions, read from Arrow's memory; and the frames of its videos, copied once.

A ``LeRobotDataset`` has its numbers in a ``datasets.Dataset`` with the transform ``hf_transform_to_torch``, which makes
a tensor of each value. It asks that for ``dataset[key][rows]`` and ``dataset[rows][key]``, and ``datasets`` makes
Python lists of all columns of all these rows first: a third of a sample's time. Here only columns of numbers, and of
lists of numbers, are read; nulls and all else are left to ``datasets``. The first rows of each column are read in both
ways: if they differ, ``datasets`` reads that column.

Frames come from torchcodec as views of bytes with the channels last. LeRobot stacks them twice, then makes float32 of
them: here they are copied once.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..base import overrides
from ..base.overrides import Override, agreed
from .arrow import ArrowColumn, Unreadable, number_of
from .hugging_face import OF_A_DATASET, Numbers, alike

_LIBRARY = "datasets.arrow_dataset"
_TRANSFORM = "hf_transform_to_torch"
_VIDEO, _DECODE = "lerobot.datasets.video_utils", "decode_video_frames_torchcodec"
# Of LeRobot 0.4.0 to 0.4.3; 0.4.4 and 0.5.0; 0.5.1; 0.6.0 and 0.6.1: they differ in errors, logs and return_uint8.
_SOURCES = {"5d8af34020c6ac0b", "99fd2495cb53a03f", "5bb9e94ef3f0ddb6", "5bc985637a3d2be0"}


def _is_lerobots(transform: Any) -> bool:
    name = getattr(transform, "__module__", None) or ""
    return name.partition(".")[0] == "lerobot" and getattr(sys.modules.get(name), _TRANSFORM, None) is transform


def _makes_other_tensors() -> bool:
    """Return True if ``torch.tensor`` makes other tensors than by default."""
    made = torch.empty(0)  # before 2.10 get_default_device() fails after set_default_device(None)
    return made.dtype != torch.float32 or made.device.type != "cpu"


class _Table:
    """A dataset under LeRobot's transform, as it was when it was looked at; for one thread at a time."""

    def __init__(self, made_from: list[Any]) -> None:
        self.made_from = made_from
        self.lock = threading.Lock()
        data, indices, info, _, columns, options, _ = made_from
        self._columns: dict[str, ArrowColumn] = {}
        self._compared: set[str] = set()
        if columns is not None or list(options) != ["transform"] or not _is_lerobots(options["transform"]):
            return
        self._indices = None if indices is None else ArrowColumn(indices.column(0))
        decoded: Any = getattr(info.features, "_column_requires_decoding", None)
        for name in data.column_names if decoded is not None else ():
            column = data.column(name)
            # torch has no room for integers above 2**63.
            if not decoded[name] and number_of(column.type) not in (None, "uint64"):
                self._columns[name] = ArrowColumn(column)

    def read(self, names: list[str], rows: Any, original: Callable[[], Any]) -> dict[str, list[Tensor]]:
        """Return the columns of numbers among these, each row a tensor as LeRobot's transform makes it.

        ``original``: returns all columns as `datasets` reads them.

        Raises:
            Unreadable: `datasets` has to read them.
        """
        try:
            numbers = np.array(rows)
        except ValueError as error:  # lists of different lengths
            raise Unreadable(str(error)) from error
        if numbers.dtype != np.int64 or numbers.ndim != 1 or not numbers.size:
            raise Unreadable("not a list of row numbers")
        if _makes_other_tensors():
            raise Unreadable("torch.tensor makes other tensors")
        places = torch.from_numpy(numbers)
        found = {}
        if self._columns and self._indices is not None:
            places, _ = self._indices.take(places)
        for name in names:
            if name in self._columns:
                found[name] = self._tensors(self._columns[name], places)
        if new := found.keys() - self._compared:
            theirs = original()
            for name in new:
                self._compared.add(name)
                same = len(found[name]) == len(theirs[name])
                if not (same and all(map(alike, found[name], theirs[name]))):
                    del found[name], self._columns[name]
        return found

    def _tensors(self, column: ArrowColumn, places: Tensor) -> list[Tensor]:
        flat, lengths = column.take(places)
        if not flat.numel() or (isinstance(lengths, list) and 0 in lengths):
            raise Unreadable("an empty list has no dtype")
        if flat.is_floating_point():  # through Python's numbers, which are float64
            flat = flat.to(torch.float64).to(torch.float32)
        tensors: list[Tensor] = list(Numbers(flat, lengths, len(places), column.is_list, "torch").rows())
        return tensors


_tables: weakref.WeakKeyDictionary[Any, _Table] = weakref.WeakKeyDictionary()


def _table_of(dataset: Any) -> _Table | None:
    if type(dataset) is not sys.modules[_LIBRARY].Dataset:
        return None
    own = vars(dataset)
    if own.get("_format_type") != "custom" or not own.keys() >= set(OF_A_DATASET):  # soon told, as each comes here
        return None
    now = [own.get(name) for name in OF_A_DATASET]
    table = _tables.get(dataset)
    if table is None or any(one is not other for one, other in zip(table.made_from, now, strict=True)):
        table = _tables[dataset] = _Table(now)
    return table


def _column(override: Override, column: Any, key: Any) -> list[Tensor] | None:
    """Read ``dataset[name][rows]``."""
    if type(key) is not list or (table := _table_of(column.source)) is None:
        return None
    name = column.column_name
    try:
        with table.lock:
            return table.read([name], key, lambda: _ROWS.original(column.source, key)).get(name)
    except Unreadable:
        return None


def _rows(override: Override, dataset: Any, key: Any) -> dict[str, Any] | None:
    """Read ``dataset[rows]``. `datasets` reads the columns that are not of numbers."""
    if type(key) is not list or (table := _table_of(dataset)) is None:
        return None
    names = table.made_from[0].column_names
    try:
        with table.lock:
            found: dict[str, Any] = table.read(names, key, lambda: override.original(dataset, key))
    except Unreadable:
        return None
    others = [name for name in names if name not in found]
    if not found:
        return None
    if others:
        rest = copy.copy(dataset)
        rest._data = table.made_from[0].select(others)
        found |= override.original(rest, key)
    return {name: found[name] for name in names}


def _frames(
    override: Override,
    video_path: Any,
    timestamps: list[float],
    tolerance_s: float,
    log_loaded_timestamps: bool = False,
    decoder_cache: Any = None,
    return_uint8: bool = False,
) -> Tensor | None:
    """Decode frames ``[N, C, H, W]``: uint8, or float32 from 0 to 1. LeRobot's own function raises its errors."""
    key = override.path, return_uint8, len(timestamps) > 1
    if log_loaded_timestamps or not timestamps or not overrides.results.get(key, True) or _makes_other_tensors():
        return None
    cache = sys.modules[_VIDEO]._default_decoder_cache if decoder_cache is None else decoder_cache
    decoder = cache.get_decoder(str(video_path))
    rate = decoder.metadata.average_fps
    found = decoder.get_frames_at(indices=[round(time * rate) for time in timestamps])
    if found.data.dtype != torch.uint8 or found.data.device.type != "cpu":
        return None
    asked, loaded = torch.tensor(timestamps), found.pts_seconds.to(torch.float32)
    distances, nearest = torch.cdist(asked[:, None], loaded[:, None], p=1).min(1)
    if not bool((distances < tolerance_s).all()):
        return None
    frames = found.data if nearest.tolist() == [*range(len(timestamps))] else found.data[nearest]
    made = frames.contiguous() if return_uint8 else torch.div(frames, 255.0, out=torch.empty(frames.shape))

    def is_lerobots() -> bool:
        named = {"return_uint8": True} if return_uint8 else {}  # LeRobot 0.4 has no such argument
        theirs = override.original(video_path, timestamps, tolerance_s, decoder_cache=decoder_cache, **named)
        return alike(made, theirs) and made.stride() == theirs.stride()

    return made if agreed(key, is_lerobots) else None


def _is_other() -> str | None:
    """Return why frames are left to LeRobot's own function."""
    function = getattr(sys.modules.get(_VIDEO), _DECODE, None)
    try:
        source = inspect.getsource(function) if function is not None else ""
    except (OSError, TypeError):
        source = ""
    known = hashlib.sha256(source.encode()).hexdigest()[:16] in _SOURCES
    return None if known else f"{_DECODE} is another one than in LeRobot 0.4 to 0.6"


def _missing() -> str | None:
    return native.unavailable_reason() if _LIBRARY in sys.modules else "no dataset of `datasets` was made"


_PURPOSE = "rows of LeRobot's tables are read from Arrow's memory"
_ROWS = Override("lerobot", f"{_LIBRARY}:Dataset", "__getitem__", _PURPOSE, _rows, needs=_missing)
_COLUMN = Override("lerobot", f"{_LIBRARY}:Column", "__getitem__", _PURPOSE, _column, needs=_missing)
_FRAMES = Override("lerobot", _VIDEO, _DECODE, "frames of videos are copied once", _frames, needs=_is_other)
OVERRIDES = (_ROWS, _COLUMN, _FRAMES)
