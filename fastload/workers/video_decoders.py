"""Decoders of video and audio that a dataset keeps open: one thread at a time, and none from before a fork."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from ..inject.fastload_hook import after_import

_DECODERS = {
    "torchcodec.decoders": ("VideoDecoder", "AudioDecoder", "WavDecoder"),
    "decord": ("VideoReader", "AudioReader"),
}
# Their methods that are called by other names than their own.
_OPERATORS = ("__getitem__", "__next__")
_LEROBOT = ("lerobot.datasets.video_utils", "lerobot.common.datasets.video_utils")
# Never freed: a decoder with threads would wait for them, and a fork has left them in the parent.
_inherited: list[Any] = []


@functools.cache
def lock_decoders() -> None:
    """Let each decoder work for one thread at a time, in this process; also where its library is imported later.

    A decoder has one place in its file, and its libraries release the GIL: two threads that ask it for frames would end
    the process with SIGSEGV.
    """
    for name in _DECODERS:
        after_import(name, _lock_classes)


def _lock_classes(library: ModuleType) -> None:
    for decoder in [getattr(library, name) for name in _DECODERS[library.__name__] if hasattr(library, name)]:
        for name, method in list(vars(decoder).items()):
            if isinstance(method, FunctionType) and (not name.startswith("_") or name in _OPERATORS):
                setattr(decoder, name, _by_one_thread(method))


def _by_one_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def locked(decoder: Any, *args: Any, **kwargs: Any) -> Any:
        # Of this process: another thread may have held the parent's at a fork.
        with vars(decoder).setdefault(f"_fastload_lock_{os.getpid()}", threading.RLock()):
            return method(decoder, *args, **kwargs)

    return locked


def forget_inherited_decoders() -> None:
    """Begin LeRobot's cache of decoders anew in a worker.

    Decoders that were opened before a fork read through files whose place the parent and all workers share, so they
    would fail ("Could not push packet to decoder").
    """
    for module in [sys.modules[name] for name in _LEROBOT if name in sys.modules]:
        cache: Any = getattr(module, "_default_decoder_cache", None)
        if cache is not None:
            _inherited.append(cache)
            fresh = type(cache)()
            if hasattr(cache, "max_size"):
                fresh.max_size = cache.max_size
            module._default_decoder_cache = fresh  # type: ignore[attr-defined] # of LeRobot's module
