"""Records stages within a sample: the transforms of a Compose by class name, decoding, opening files.

Of what a Compose holds, ``RandomApply``, ``RandomChoice``, ``RandomOrder`` and ``nn.Sequential`` are no stages: their
members are. Of albumentations each transform is one, wherever it is called.

Stages do not overlap: where one runs within another, the outer one is recorded as the pieces before and after it. Only
stages of a sample that is being recorded are recorded; elsewhere a hook costs one check.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from ..recorder import Recorder
from ..ring import RecordKind
from .patching import Patches, hook

_now = time.perf_counter_ns
_cpu = time.thread_time_ns

# Pieces shorter than this, in ns, are left to the sample: PIL calls load() before each operation.
_SHORT = 1_000

_FUNCTIONS = {
    "PIL.Image": (("open", "PIL.Image.open"), ("Image.convert", "PIL.convert")),  # pixels are decoded later, by load()
    "PIL.ImageFile": (("ImageFile.load", "PIL.decode"),),
    "fastload.late.source": (("FileSource.pixels", "late.decode"), ("FileSource.row", "late.decode")),
    "fastload.late.arrays": (("decoded", "late.decode"),),
    "fastload.cache.records": (
        *(("Records.find", "cache.find"), ("Records.keep", "cache.keep")),
        ("decoded", "cache.decode"),
    ),
    "cv2": (("imread", "cv2.imread"), ("imdecode", "cv2.imdecode")),
    "torchcodec.decoders": tuple(
        (f"VideoDecoder.{name}", "video.decode")
        for name in ("__getitem__", "get_frame_at", "get_frames_at", "get_frames_in_range", "get_frames_played_at")
    ),
}
"""Module -> its functions and methods that are stages, and the names of these."""
_COMPOSES = ("torchvision.transforms.transforms", "torchvision.transforms.v2._container")
_INNER = ("RandomApply", "RandomChoice", "RandomOrder", "Sequential")
"""Containers that are recorded within a Compose only: models and scripted transforms are made of them too."""


class _Thread(threading.local):
    ring: Any = None
    """Ring for the records of the running sample; None: there is none."""
    inner: Any = None


class StageHooks:
    """The stages of one process."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self._recorder = recorder
        self._patches = patches
        self._thread = _Thread()
        self._lists: Any = None
        """:mod:`fastload.late.transform_lists`, once a Compose is imported."""
        self._composes: weakref.WeakKeyDictionary[Any, _RecordedCompose] = weakref.WeakKeyDictionary()
        self.modules = dict.fromkeys((*_FUNCTIONS, "torchvision.io.image"), self._patch_functions)
        """Functions to call once a module is imported."""
        self.modules |= dict.fromkeys(_COMPOSES, self.patch_compose)
        self.modules["albumentations.core.transforms_interface"] = self._patch_albumentations

    def begin(self, ring: Any) -> None:
        """A sample begins in this thread."""
        self._thread.ring = ring

    def end(self) -> None:
        """The sample has ended."""
        self._thread.ring = self._thread.inner = None

    def timed(self, name: str, function: Any) -> Any:
        """Return a function that does the same and is recorded as a stage."""
        thread = self._thread

        @functools.wraps(function, updated=())
        def stage(*arguments: Any, **named: Any) -> Any:
            if thread.ring is None:
                return function(*arguments, **named)
            return self._run(name, function, arguments, named)

        return stage

    def _run(self, name: str, function: Any, arguments: Any, named: Any) -> Any:
        thread = self._thread
        outer = thread.inner
        cpu = _cpu()
        begun = _now()
        if outer is not None:
            self._write(outer, begun, cpu)
        mine = thread.inner = [name, begun, cpu]
        try:
            return function(*arguments, **named)
        finally:
            ended = _now()
            cpu = _cpu()
            self._write(mine, ended, cpu)
            thread.inner = outer
            if outer is not None:
                outer[1], outer[2] = ended, cpu

    def _write(self, stage: Any, ended: int, cpu: int) -> None:
        name, begun, cpu_before = stage
        ring = self._thread.ring
        if ring is not None and ended - begun >= _SHORT:
            ring.write(RecordKind.STAGE, self._recorder.name(name), 0, begun, ended, cpu - cpu_before)

    def patch_open(self) -> None:
        """Record the built-in ``open``."""
        self._replace(builtins, "open", "open")

    def _patch_functions(self, module: Any) -> None:
        """Record the functions of a module of :data:`_FUNCTIONS`, or the decoders of ``torchvision.io.image``."""
        decoders = [(name, f"torchvision.io.{name}") for name in vars(module) if name.startswith("decode_")]
        for path, stage in _FUNCTIONS.get(module.__name__, decoders):
            owner, _, name = path.rpartition(".")
            self._replace(getattr(module, owner, None) if owner else module, name, stage)

    def patch_compose(self, module: Any) -> None:
        """Record the members of a Compose."""
        from ...late import transform_lists  # takes time, and torch is imported by now

        self._lists = transform_lists
        compose = getattr(module, "Compose", None)
        name = next((name for at, _, name in transform_lists.CONTAINERS if at == module.__name__), "__call__")
        if name not in vars(compose or object):
            self._recorder.missing(f"transforms of {module.__name__}", "it has no Compose that is called")
            return
        self._patches.replace(compose, name, self._call, f"transforms of {module.__name__}", uses=("transforms",))

    @hook
    def _call(self, function: Any, compose: Any, *arguments: Any, **named: Any) -> Any:
        """Call a Compose; in a recorded sample, with recorded members."""
        return function(compose if self._thread.ring is None else self._recorded(compose), *arguments, **named)

    def _recorded(self, compose: Any) -> Any:
        """Return something that has all that a Compose has, with recorded members."""
        members = self._lists.items_of(compose)
        known = self._composes.get(compose)
        if known is None or [*map(id, known.members)] != [*map(id, members)]:
            known = _RecordedCompose(compose, list(members), [self._recorded_member(member) for member in members])
            self._composes[compose] = known
        return known

    def _recorded_member(self, member: Any) -> Any:
        kind = type(member)
        if kind.__name__ == "Compose" or not callable(member):
            return member
        is_inner = kind.__name__ in _INNER and kind.__module__ in (*_COMPOSES, "torch.nn.modules.container")
        if is_inner and self._lists.instance_override(member) is None:
            return self._recorded_inner(member, getattr(kind, "forward", kind.__call__))
        return self.timed(self._lists.name_of(member), member)

    def _recorded_inner(self, container: Any, run: Any) -> Any:
        """Return a function that does what a container within a Compose does, with recorded members."""

        def call(*arguments: Any, **named: Any) -> Any:
            return run(self._recorded(container), *arguments, **named)

        return call

    def _patch_albumentations(self, module: Any) -> None:
        transform = getattr(module, "BasicTransform", None)
        self._patches.replace(transform, "__call__", self._call_albumentation, "transforms of albumentations")

    @hook
    def _call_albumentation(self, function: Any, transform: Any, *arguments: Any, **named: Any) -> Any:
        if self._thread.ring is None:
            return function(transform, *arguments, **named)
        return self._run(f"albumentations.{type(transform).__name__}", function, (transform, *arguments), named)

    def _replace(self, owner: Any, name: str, stage: str) -> None:
        def make(function: Any) -> Any:
            timed = self.timed(stage, function)
            return timed if inspect.isfunction(function) else _CFunction(timed, owner.__name__, name)

        self._patches.replace(owner, name, make, stage)


class _CFunction:
    """Replaces a function written in C: as a class attribute it is not a method, and it is pickled by name."""

    def __init__(self, timed: Any, module: str, name: str) -> None:
        functools.update_wrapper(self, timed, updated=())
        self.__module__, self.__qualname__ = module, name
        self._timed = timed

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._timed(*arguments, **named)

    def __reduce__(self) -> str:
        return self.__qualname__


class _RecordedCompose:
    """A container whose members are recorded; all else is the container's own."""

    def __init__(self, compose: Any, members: list[Any], transforms: list[Any]) -> None:
        self._compose = weakref.proxy(compose)
        self.members = members
        self.transforms = transforms

    def __iter__(self) -> Iterator[Any]:
        return iter(self.transforms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compose, name)
