"""Hears what happens within a sample: transforms of a Compose by class name, decoding, opening files.

Stages do not overlap: where one runs within another, the outer one is told in the pieces before and after it. Only
those within a sample that is being recorded are told, so elsewhere a hook costs one look.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import threading
import time
import weakref
from typing import Any

from ..recorder import Recorder
from ..ring import Kind
from .patching import Places, leave, unseen

_now = time.perf_counter_ns
_cpu = time.thread_time_ns

# Pieces shorter than this, in ns, are left to the sample: PIL calls load() before each operation.
_SHORT = 1_000


class _Thread(threading.local):
    ring: Any = None
    """Where the records of the sample under way go; None: none is."""
    inner: Any = None
    """The stage under way."""


class Stages:
    """The stages of one process.

    Args:
        recorder: where their names go.
        places: puts the hooks in.
    """

    def __init__(self, recorder: Recorder, places: Places) -> None:
        self._recorder = recorder
        self._places = places
        self._thread = _Thread()

    def begin(self, ring: Any) -> None:
        """A sample begins in this thread."""
        self._thread.ring = ring

    def end(self) -> None:
        """It has ended."""
        self._thread.ring = self._thread.inner = None

    def timed(self, name: str, function: Any) -> Any:
        """Return a function that does the same and is told as a stage."""
        thread = self._thread

        @functools.wraps(function, updated=())
        @unseen
        def stage(*arguments: Any, **named: Any) -> Any:
            try:
                if thread.ring is None:
                    return function(*arguments, **named)
                return self._run(name, function, arguments, named)
            except BaseException as error:
                leave(error)
                raise

        return stage

    @unseen
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
        except BaseException as error:
            leave(error)
            raise
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
            ring.write(Kind.STAGE, self._recorder.name(name), 0, begun, ended, cpu - cpu_before)

    # -- what is replaced ---------------------------------------------------------------------------------------------

    def hook_builtins(self) -> None:
        """Hear ``open``."""
        self._replace(builtins, "open", "open")

    def hook_pil(self, module: Any) -> None:
        """Hear ``PIL.Image``: opening reads the header; the pixels are decoded later, by ``load``."""
        self._replace(module, "open", "PIL.Image.open")
        self._replace(getattr(module, "Image", None), "convert", "PIL.convert")

    def hook_pil_file(self, module: Any) -> None:
        """Hear ``PIL.ImageFile``: decoding."""
        self._replace(getattr(module, "ImageFile", None), "load", "PIL.decode")

    def hook_late(self, module: Any) -> None:
        """Hear late decoding: see :mod:`fastload.late`."""
        for name in ("pixels", "row"):
            self._replace(getattr(module, "Source", None), name, "late.decode")

    def hook_torchvision_io(self, module: Any) -> None:
        """Hear ``torchvision.io.image``: decoding."""
        for name in [name for name in vars(module) if name.startswith("decode_")]:
            self._replace(module, name, f"torchvision.io.{name}")

    def hook_cv2(self, module: Any) -> None:
        """Hear OpenCV's decoding."""
        for name in ("imread", "imdecode"):
            self._replace(module, name, f"cv2.{name}")

    def hook_compose(self, module: Any) -> None:
        """Hear the members of a Compose: torchvision's first version has ``__call__``, its second ``forward``."""
        compose = getattr(module, "Compose", None)
        name = next((name for name in ("forward", "__call__") if name in vars(compose or object)), None)
        if compose is None or name is None:
            self._recorder.missing(f"transforms of {module.__name__}", "it has no Compose that is called")
            return
        members = _Members(self)
        thread = self._thread

        def make(function: Any) -> Any:
            def call(self: Any, *arguments: Any, **named: Any) -> Any:
                try:
                    return function(self if thread.ring is None else members.of(self), *arguments, **named)
                except BaseException as error:
                    leave(error)
                    raise

            return call

        self._places.replace(compose, name, make, f"transforms of {module.__name__}", uses=("transforms",))

    def _replace(self, owner: Any, name: str, stage: str) -> None:
        def make(function: Any) -> Any:
            timed = self.timed(stage, function)
            return timed if inspect.isfunction(function) else _OfC(timed, owner.__name__, name)

        self._places.replace(owner, name, make, stage)


class _OfC:
    """Stands for a function of C: as an attribute of a class it is no method, and it is pickled by its name."""

    def __init__(self, timed: Any, module: str, name: str) -> None:
        functools.update_wrapper(self, timed, updated=())
        self.__module__, self.__qualname__ = module, name
        self._timed = timed

    @unseen
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            return self._timed(*arguments, **named)
        except BaseException as error:
            leave(error)
            raise

    def __reduce__(self) -> str:
        return self.__qualname__


class _Members:
    """Stands in for Composes whose members are to be told."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._known: weakref.WeakKeyDictionary[Any, tuple[list[Any], Any]] = weakref.WeakKeyDictionary()

    def of(self, compose: Any) -> Any:
        """Return something that has all that a Compose has, but for members that are told."""
        members = compose.transforms
        known = self._known.get(compose)
        if known is None or [*map(id, known[0])] != [*map(id, members)]:
            made = _Composed(compose, [self._told(member) for member in members])
            known = self._known[compose] = list(members), made
        return known[1]

    def _told(self, member: Any) -> Any:
        kind = type(member)
        if kind.__name__ == "Compose" or not callable(member):
            return member
        name = member.__name__ if inspect.isfunction(member) else kind.__name__
        return self._stages.timed(name, member)


class _Composed:
    def __init__(self, compose: Any, transforms: list[Any]) -> None:
        self._compose = weakref.proxy(compose)
        self.transforms = transforms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compose, name)


__all__ = ["Stages"]
