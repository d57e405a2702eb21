"""Pillow images that are decoded when their pixels are needed.

In: an image that :mod:`fastload.late.opener` opened, and what the user's code calls on it. Out: late images for what
:class:`~fastload.late.view.View` records; for all else the same object as an ordinary Pillow image, by assigning to
its ``__class__``: from then on Pillow's code runs.

Two classes, since Pillow has two: :class:`LateJpeg` is what ``open`` returns, :class:`LateImage` what is derived from
it. Their state is in ``_late``. A :class:`LateJpeg` without it was opened and not loaded yet: then only its ``load`` is
ours. Whatever reads the pixel memory of an image reads the attribute ``_im`` (``im`` in old versions of Pillow), which
is a property here that makes the image real.
"""

from __future__ import annotations

import operator
import weakref
from typing import Any

import numpy as np
import torch
from PIL import Image, JpegImagePlugin
from torch import Tensor

from ..native.rows import MOST_SIDE
from .origin import is_written_in
from .reading import read
from .scope import Scope, thread
from .source import Pixels, Source
from .view import View

CORE = "_im" if "_im" in vars(Image.Image()) else "im"
"""The attribute that holds an image's pixel memory."""

_INTERPOLATIONS = {Image.Resampling.BILINEAR: "bilinear", Image.Resampling.BICUBIC: "bicubic"}

_ORIGINALS: dict[tuple[type, str], Any] = {
    (owner, name): getattr(owner, name)
    for owner, names in (
        (Image.Image, ("__array_interface__", "convert", "copy", "crop", "resize", "tobytes", "transpose")),
        (JpegImagePlugin.JpegImageFile, ("load",)),
    )
    for name in names
}
"""Pillow's methods that late images stand in for."""


_REPLACED_BEFORE = not all(is_written_in(method, "PIL") for method in _ORIGINALS.values())


def is_patched() -> bool:
    """Whether somebody has replaced a method of Pillow's that late images stand in for."""
    return _REPLACED_BEFORE or any(_is_replaced(*place) for place in _ORIGINALS)


def _is_replaced(owner: type, name: str) -> bool:
    return getattr(owner, name) is not _ORIGINALS[owner, name]


class _State:
    """What a late image is."""

    __slots__ = ("sample", "source", "view")

    def __init__(self, source: Source, view: View) -> None:
        self.source = source
        self.view = view
        self.sample: object = None
        """The sample that used the image; None: none has."""


class _Late:
    """What the two classes have in common.

    It is no base of theirs: an object's class can only be exchanged for one with the same first base.
    """

    _plain: type[Image.Image]

    # Pillow's attributes that are used here.
    _size: tuple[int, int]
    _mode: str
    info: dict[Any, Any]

    def _recording(self, method: str) -> _State | None:
        """Return the state if an operation may be recorded now; None if the image is to become real for it.

        Args:
            method: of Pillow's, that the operation stands in for.
        """
        scope = thread.scope
        if scope is None or _is_replaced(Image.Image, method):
            return None
        state: _State | None = self.__dict__.get("_late")
        if state is None:
            self.load()
            state = self.__dict__.get("_late")
            if state is None:
                return None
        if state.sample is None:
            state.sample = scope.sample
        # An image that is kept over several samples is decoded once, as without late decoding.
        return state if state.sample is scope.sample else None

    def _derived(self, state: _State, view: View | None, mode: str | None = None) -> LateImage | None:
        """Return a new late image, with what Pillow's methods hand on; None if there is no such view."""
        if view is None:
            return None
        new = LateImage.__new__(LateImage)
        Image.Image.__init__(new)
        new.__dict__.pop(CORE, None)
        new._mode = mode or self._mode
        new._size = view.shown_size
        new.info = {name: value.copy() if isinstance(value, list) else value for name, value in self.info.items()}
        new.__dict__["_late"] = _State(state.source, view)
        note(new)
        return new

    def copy(self) -> Any:
        """See :meth:`PIL.Image.Image.copy`."""
        state = self._recording("copy")
        if state is not None:
            return self._derived(state, state.view)
        return make_real(self).copy()

    __copy__ = copy

    def convert(self, mode: str | None = None, *args: Any, **options: Any) -> Any:
        """See :meth:`PIL.Image.Image.convert`; to the same mode, and from L to RGB, it is recorded."""
        known = not args and not options and (mode in (None, self._mode) or (self._mode == "L" and mode == "RGB"))
        state = self._recording("convert") if known and "transparency" not in self.info else None
        if state is not None:
            return self._derived(state, state.view, mode)
        return make_real(self).convert(mode, *args, **options)

    def crop(self, box: Any = None) -> Any:
        """See :meth:`PIL.Image.Image.crop`; within the image it is recorded."""
        state = self._recording("crop")
        made = None if state is None else self._derived(state, self._cropped(state.view, box))
        return make_real(self).crop(box) if made is None else made

    def _cropped(self, view: View, box: Any) -> View | None:
        if box is None:
            return view
        try:
            left, upper, right, lower = map(int, map(round, box))
        except (TypeError, ValueError, OverflowError):
            return None
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and (right - left) * (lower - upper) > limit:
            return None  # Pillow warns, or refuses
        return view.cropped((left, upper, right, lower))

    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
        """See :meth:`PIL.Image.Image.resize`; with ``BILINEAR`` or ``BICUBIC`` it is recorded."""
        known = box is None and reducing_gap is None
        state = self._recording("resize") if known else None
        made = None if state is None else self._derived(state, self._resized(state.view, size, resample))
        return make_real(self).resize(size, resample, box, reducing_gap) if made is None else made

    def _resized(self, view: View, size: Any, resample: Any) -> View | None:
        try:
            width, height = map(operator.index, size)
            interpolation = _INTERPOLATIONS.get(Image.Resampling.BICUBIC if resample is None else resample)
        except (TypeError, ValueError):
            return None
        if interpolation is None or not (0 < width <= MOST_SIDE and 0 < height <= MOST_SIDE):
            return None
        return view if (width, height) == self._size else view.resized((width, height), interpolation)

    def transpose(self, method: Any) -> Any:
        """See :meth:`PIL.Image.Image.transpose`; recorded."""
        state = self._recording("transpose") if isinstance(method, int) else None
        made = None if state is None else self._derived(state, state.view.transposed_by(method))
        return make_real(self).transpose(method) if made is None else made

    def load(self) -> Any:
        """See :meth:`PIL.Image.Image.load`; the pixels stay late until the access object is used."""
        if "_late" in self.__dict__ and thread.scope is not None:
            return _LateAccess(self)
        return make_real(self).load()

    def tobytes(self, encoder_name: str = "raw", *args: Any) -> bytes:
        """See :meth:`PIL.Image.Image.tobytes`."""
        pixels = self._pixels("tobytes") if encoder_name == "raw" and not args else None
        return make_real(self).tobytes(encoder_name, *args) if pixels is None else pixels.tobytes()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """See :class:`PIL.Image.Image`; read-only, as Pillow's."""
        pixels = self._pixels("__array_interface__")
        if pixels is None:
            real: dict[str, Any] = make_real(self).__array_interface__
            return real
        return {
            "version": 3,
            "shape": pixels.shape,
            "typestr": "|u1",
            "data": np.ascontiguousarray(pixels).data.toreadonly().cast("B"),
        }

    def _pixels(self, method: str) -> Pixels | None:
        """Return the pixels where that is better than making the image real; else None."""
        fresh = "_late" in self.__dict__ and self.__dict__["_late"].sample is None
        state = self._recording(method)
        # Small pixels take the place of their file. And who reads an image twice shall not decode it twice.
        if state is None or not fresh or _is_small(self, state):
            return None
        return pixels_of(state, self._mode, thread.scope)

    def __eq__(self, other: object) -> bool:
        if is_late(other):
            make_real(other)
        return bool(make_real(self) == other)

    __hash__ = None  # type: ignore[assignment]  # as Pillow's

    def __repr__(self) -> str:
        return (
            f"<{self._plain.__module__}.{self._plain.__name__} image mode={self._mode} "
            f"size={self._size[0]}x{self._size[1]} at 0x{id(self):X}>"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        return make_real(self).__reduce_ex__(protocol)


def _core(image: Any) -> Any:
    """What reads the pixel memory of a late image makes it real; of one that is not loaded, it is None."""
    if "_late" not in image.__dict__:
        return image.__dict__.get(CORE)
    return getattr(make_real(image), CORE)


def _set_core(image: Any, core: Any) -> None:
    image.__dict__[CORE] = core
    if core is not None:
        image.__dict__.pop("_late", None)
        image.__class__ = image._plain


setattr(_Late, CORE, property(_core, _set_core))


def _with_late_methods(late: type[Any]) -> Any:
    for name, value in vars(_Late).items():
        is_method = callable(value) or isinstance(value, property)
        if name == "__hash__" or (is_method and name not in vars(late)):
            setattr(late, name, value)
    return late


@_with_late_methods
class LateImage(Image.Image):
    """What a late image's methods return."""

    _plain = Image.Image


@_with_late_methods
class LateJpeg(JpegImagePlugin.JpegImageFile):
    """What ``PIL.Image.open`` returns for a JPEG file."""

    _plain = JpegImagePlugin.JpegImageFile

    def load(self) -> Any:
        """See :meth:`PIL.ImageFile.ImageFile.load`: reads and closes the file as it does, and does not decode it."""
        scope = thread.scope
        if "_late" not in self.__dict__ and scope is not None and not _is_replaced(self._plain, "load"):
            source = read(self)
            if isinstance(source, str):
                scope.count(f"at once ({source})")
            else:
                self.__dict__["_late"] = _State(source, View.whole(source.width, source.height))
                note(self)
        return _Late.load(self)  # type: ignore[arg-type]  # see there


class _LateAccess:
    """What ``load`` returns of a late image: decodes it when it is used."""

    __slots__ = ("_image",)

    def __init__(self, image: Any) -> None:
        self._image = image

    def __getitem__(self, place: Any) -> Any:
        return make_real(self._image).load()[place]

    def __setitem__(self, place: Any, color: Any) -> None:
        make_real(self._image).load()[place] = color


def is_late(found: Any) -> bool:
    """Whether an object is a late image."""
    return isinstance(found, (LateImage, LateJpeg))


def note(image: Any) -> None:
    """Let the sample that is being made know of a late image."""
    if thread.scope is not None:
        thread.scope.images.append(weakref.ref(image))


def make_real(image: Any) -> Any:
    """Return the same object, as an ordinary Pillow image."""
    state = image.__dict__.get("_late")
    if state is not None:
        core = _to_core(state, image._mode)
        # Another thread may have been faster: what it made may have been changed since.
        if image.__dict__.get(CORE) is None:
            image.__dict__.pop(CORE, None)
        image.__dict__.setdefault(CORE, core)
        image.__dict__.pop("_late", None)
    if is_late(image):
        image.__class__ = image._plain
    return image


def make_real_if_small(image: Any) -> None:
    """Make an image real if its pixels take less memory than what it is made from."""
    state = image.__dict__.get("_late")
    if state is not None and _is_small(image, state):
        make_real(image)


def _is_small(image: Any, state: _State) -> bool:
    width, height = image._size
    return bool(width * height * (1 if image._mode == "L" else 4) <= state.source.num_bytes)


def pixels_of(state: _State, mode: str, scope: Scope | None) -> Pixels:
    """Return the pixels of a late image: [height, width, 3], or [height, width] of mode L."""
    view = state.view
    width, height = view.upright_size
    batch = torch.empty((height, width, 3), dtype=torch.uint8)
    state.source.write(view, batch.permute(2, 0, 1), None, scope)
    pixels: Pixels = batch.numpy()
    if mode == "L":
        pixels = pixels[..., 0]
    if view.transposed:
        pixels = pixels.swapaxes(0, 1)
        if view.mirrored:
            pixels = pixels[:, ::-1]
    return pixels[::-1] if view.inverted else pixels


def _to_core(state: _State, mode: str) -> Any:
    pixels = pixels_of(state, mode, thread.scope)
    height, width = pixels.shape[:2]
    return getattr(Image.frombytes(mode, (width, height), np.ascontiguousarray(pixels).data), CORE)


def tensor_of(image: Any, table: Tensor, channels_last: bool) -> Tensor | None:
    """Return what a level table makes of a late image: [3, H, W] of the table's dtype.

    None where the image must become real: it is grey, transposed, or was used before.

    Args:
        image: a late image.
        table: [3, 256].
        channels_last: the order of the result in memory.
    """
    state = image._recording("__array_interface__") if image._mode == "RGB" else None
    if state is None or state.view.transposed or state.view.inverted:
        return None
    width, height = state.view.upright_size
    if channels_last:
        out = torch.empty((height, width, 3), dtype=table.dtype).permute(2, 0, 1)
    else:
        out = torch.empty((3, height, width), dtype=table.dtype)
    state.source.write(state.view, out, table, thread.scope)
    return out


__all__ = ["CORE", "LateImage", "LateJpeg", "is_late", "is_patched", "make_real", "make_real_if_small", "tensor_of"]
