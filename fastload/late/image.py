"""The lazy image: a Pillow image that is decoded when its pixels are needed.

What :class:`~fastload.late.geometry.Geometry` records of an image makes another lazy one; all else materializes it, by
assigning to its ``__class__``: from then on Pillow's code runs.

:class:`LateJpeg` and :class:`LatePng` are what ``open`` returns, :class:`LateImage` what is derived from them. Their
state is in ``_late``. An opened image without it was not loaded yet: then only its ``load`` is ours. Whatever reads the
pixel memory of an image reads the attribute ``_im`` (``im`` in old versions of Pillow), which is a property here that
materializes the image.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from PIL import Image, ImageFile, JpegImagePlugin, PngImagePlugin

from ..cache.records import OTHER_FORMAT
from ..native.adjust import affine, greys, histogram, map_levels, pillow_agrees, pillow_mixes_alike
from ..native.rows import LAYOUTS, Pixels
from .geometry import Geometry
from .patch_guard import PatchGuard
from .pillow_arguments import affine_arguments, cropped, resized, table_of_levels
from .scope import LateSamples, run_outside_sample, thread
from .source import FileSource, read_jpeg, read_png


def _lazy(name: str, plain: type[Any], **own: Any) -> type[Any]:
    """Return the lazy class for one of Pillow's, with the methods of :class:`_Lazy` and its ``own``.

    ``name``: in this module, for pickle; Python's errors name it as Pillow's class.

    They are copied, and not inherited from a common base: an image is materialized by another ``__class__``, since the
    user's code holds this very object, and Python exchanges classes only where both have the same first base.
    """
    methods = {name: value for name, value in vars(_Lazy).items() if callable(value) or isinstance(value, property)}
    # Whoever copies an image's attributes copies those of an ordinary image.
    attributes = {"__dict__": property(lambda image: _attributes(materialize(image)), _set_attributes)}
    facts = {"_plain": plain, "__module__": __name__, "__qualname__": name, "__hash__": None}
    late: Any = type(plain.__name__, (plain,), methods | attributes | {CORE: property(_core, _set_core)} | facts | own)
    late.__init_subclass__ = classmethod(_derive)
    return late  # type: ignore[no-any-return]


def _derive(kind: type[Any], /, **options: Any) -> None:
    """Whoever derives a class from that of a lazy image means Pillow's."""
    kind.__bases__ = tuple(getattr(base, "_plain", base) for base in kind.__bases__)
    super(kind, kind).__init_subclass__(**options)


CORE = "_im" if "_im" in vars(Image.Image()) else "im"
"""The attribute that holds an image's pixel memory."""

_attributes: Callable[[Any], dict[str, Any]] = vars(Image.Image)["__dict__"].__get__
"""Returns an image's attributes. ``__dict__`` itself materializes a lazy image."""


def _set_attributes(image: Any, attributes: dict[str, Any]) -> None:
    materialize(image).__dict__ = attributes


TO_RGB = ("RGBA", "LA")
"""Modes of PNG files of which ``convert("RGB")`` alone is recorded."""

PATCH_GUARD = PatchGuard("PIL", "fastload")
"""Pillow's methods that lazy images override, and those that these call."""
for _kind in (Image.Image, JpegImagePlugin.JpegImageFile, PngImagePlugin.PngImageFile):
    PATCH_GUARD.add(_kind, ("__array_interface__", "_crop", "_new", "convert", "copy", "crop", "load", "resize"))
    PATCH_GUARD.add(_kind, ("histogram", "point", "tobytes", "transform", "transpose"))
    if _kind is not Image.Image:
        PATCH_GUARD.add(_kind, ("load_end", "load_prepare", "load_read"))


class _State:
    """The state of a lazy image."""

    __slots__ = ("access", "geometry", "pixels", "sample", "source")

    def __init__(self, source: FileSource, geometry: Geometry) -> None:
        self.source = source
        self.geometry = geometry
        self.pixels: Pixels | None = None
        """Pixels in RGB or L, if they were decoded before."""
        self.sample: object = None
        """The sample that used the image; None: none has."""
        self.access: weakref.ref[_LateAccess] | None = None
        """The access object that ``load`` returned."""


# Functions and no methods: another thread may materialize an image, and so exchange its class, at any moment.


def state_of(image: Any, method: str) -> _State | None:
    """Return the state if the image may stay lazy; None if ``method`` of Pillow's materializes it."""
    scope = thread.scope
    if scope is None or PATCH_GUARD.is_patched(Image.Image, method):
        return None
    to_rgb = method == "convert" and image._mode in TO_RGB
    if "_late" not in _attributes(image):
        if to_rgb:
            _load_png(image)
        else:
            image.load()
    state: _State | None = _attributes(image).get("_late")
    if image._mode in TO_RGB and not to_rgb:
        return None
    if state is not None and state.sample is None:
        state.sample = scope.sample
    # An image that is kept over several samples is decoded once, as without late decoding.
    return state if state is not None and state.sample is scope.sample else None


def _recorded(image: Any, method: str, change: Callable[[Geometry], Geometry | None], mode: str | None = None) -> Any:
    """Return the lazy image that an operation makes, in ``mode`` (None: the same); None if it is not to be recorded.

    ``change`` is asked first: what Pillow refuses, it refuses before it loads the file.
    """
    late: _State | None = _attributes(image).get("_late")
    geometry = change(Geometry.whole(*image._size) if late is None else late.geometry)
    state = None if geometry is None else state_of(image, method)
    if state is None or geometry is None:
        return None
    return made_late(state.source, geometry, mode or image._mode, _info_of(image))


def changed(image: Any, method: str, change: Callable[[Pixels], Pixels | None], info: Any = None) -> Any:
    """Return a lazy image with the pixels that a function makes of a lazy image's; None if Pillow is to make it.

    ``method``: Pillow's, which must not have been replaced; ``change`` gets the pixels as its own, and returns None if
    Pillow is to make them; ``info``: of the new image; None: a copy of the image's.
    """
    state = state_of(image, method) if _agrees(pillow_agrees) else None
    pixels = None if state is None else change(_pixels_of(state, image._mode))
    if pixels is None:
        return None
    height, width = pixels.shape[:2]
    source = FileSource(pixels, width, height, is_grey=pixels.ndim == 2)
    mode = "L" if source.is_grey else "RGB"
    return made_late(source, Geometry.whole(width, height), mode, _info_of(image) if info is None else info)


@functools.cache
def _agrees(compare: Callable[..., bool], *arguments: Any) -> bool:
    """Return whether the native library makes what Pillow makes; False if comparing fails."""
    return bool(run_outside_sample(lambda: compare(*arguments)))


def _info_of(image: Any) -> dict[Any, Any]:
    return {name: value.copy() if isinstance(value, list) else value for name, value in image.info.items()}


def _else_pillow(record: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls Pillow's of the same name, with the materialized image, where ``record`` gives None.

    Pillow's is called by the class: ``self`` may be of a class that a user has derived, and that overrides the method.
    """
    name = record.__name__
    record.__qualname__ = f"Image.{name}"

    @functools.wraps(record)
    def method(self: Any, *args: Any, **named: Any) -> Any:
        made = record(self, *args, **named)
        return getattr(Image.Image, name)(materialize(self), *args, **named) if made is None else made

    return method


class _Lazy:
    """The methods of lazy images: see Pillow's of the same names."""

    # Pillow's attributes that are used here.
    _size: tuple[int, int]
    _mode: str
    info: dict[Any, Any]

    @_else_pillow
    def copy(self) -> Any:
        return _recorded(self, "copy", lambda geometry: geometry)

    __copy__ = copy

    @_else_pillow
    def convert(self, mode: str | None = None, *args: Any, **options: Any) -> Any:
        # To the same mode, and to RGB, it is recorded; from RGB to L, the native library makes it.
        if args or options or "transparency" in self.info:
            return None
        if (self._mode, mode) == ("RGB", "L"):
            return changed(self, "convert", greys)
        if mode == "RGB" or (mode in (None, self._mode) and self._mode not in TO_RGB):
            return _recorded(self, "convert", lambda geometry: geometry, mode)
        return None

    @_else_pillow
    def crop(self, box: Any = None) -> Any:
        return _recorded(self, "crop", partial(cropped, box=box))

    @_else_pillow
    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
        if reducing_gap is not None:
            return None
        return _recorded(self, "resize", partial(resized, size=size, resample=resample, box=box))

    @_else_pillow
    def transpose(self, method: Any) -> Any:
        if not isinstance(method, int):
            return None
        return _recorded(self, "transpose", lambda geometry: geometry.transposed_by(method))

    def transform(
        self,
        size: Any,
        method: Any,
        data: Any = None,
        resample: Any = Image.Resampling.NEAREST,
        fill: Any = 1,
        fillcolor: Any = None,
    ) -> Any:
        info = self.info.copy()  # before the file is loaded, which may add to it
        arguments = affine_arguments(self._mode, size, method, data, resample, fillcolor)
        made, name = None, "" if arguments is None else arguments["interpolation"]
        if arguments is not None and (name == "nearest" or _agrees(pillow_mixes_alike, name)):
            made = changed(self, "transform", partial(affine, **arguments))
        if made is None:
            made = Image.Image.transform(materialize(self), size, method, data, resample, fill, fillcolor)
            made.info = info
        return made

    @_else_pillow
    def point(self, lut: Any, mode: str | None = None) -> Any:
        table = table_of_levels(lut, len(self._mode)) if mode is None else None
        return None if table is None else changed(self, "point", partial(map_levels, table=table))

    @_else_pillow
    def histogram(self, mask: Any = None, extrema: Any = None) -> list[int] | None:
        state = state_of(self, "histogram") if mask is None and extrema is None and _agrees(pillow_agrees) else None
        if state is None:
            return None
        state.pixels = _pixels_of(state, self._mode)  # the image is likely to be needed again
        counts: list[int] = histogram(state.pixels).tolist()
        return counts

    def load(self) -> Any:
        # The pixels stay lazy until the access object is used.
        state: _State | None = _attributes(self).get("_late")
        if state is None or thread.scope is None:
            real = materialize(self)
            return (ImageFile.ImageFile if isinstance(real, ImageFile.ImageFile) else Image.Image).load(real)
        access = None if state.access is None else state.access()
        if access is None:
            access = _LateAccess(self)
            state.access = weakref.ref(access)
        return access

    @property
    def __array_interface__(self) -> dict[str, Any]:
        state = state_of(self, "__array_interface__")
        if state is None:
            real: dict[str, Any] = Image.Image.__array_interface__.__get__(materialize(self))
            return real
        pixels = _pixels_of(state, "L" if self._mode == "L" else "RGB")
        # Read-only, as Pillow's.
        data = pixels.data.toreadonly().cast("B")
        return {"version": 3, "shape": pixels.shape, "typestr": "|u1", "data": data}

    @_else_pillow
    def putpalette(self, *args: Any, **options: Any) -> None:
        return None  # Pillow's changes the mode before it reads the pixels

    def __eq__(self, other: object) -> bool:
        if is_late(other):
            materialize(other)
        return bool(Image.Image.__eq__(materialize(self), other))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__":  # some libraries make an image one of theirs that way
            materialize(self)
        object.__setattr__(self, name, value)

    @_else_pillow
    def __reduce_ex__(self, protocol: Any) -> None:
        return None

    @_else_pillow
    def __repr__(self) -> Any:
        return None


def _core(image: Any) -> Any:
    """Materialize a lazy image for what reads its pixel memory; of one that is not loaded, it is None."""
    if "_late" not in _attributes(image):
        return _attributes(image).get(CORE)
    return getattr(materialize(image), CORE)


def _set_core(image: Any, core: Any) -> None:
    state = _attributes(image).get("_late")
    if state is not None and state.access is not None:
        materialize(image)
    _attributes(image)[CORE] = core
    _attributes(image).pop("_late", None)
    _make_plain(image)


def _load_jpeg(image: Any) -> Any:
    """Read and close a file as :meth:`PIL.ImageFile.ImageFile.load` does, and do not decode it."""
    return _load(image, read_jpeg)


def _load_png(image: Any) -> Any:
    """Read and close a file as Pillow does, and inflate it only."""
    stream = image.png
    # What Pillow's load_end sets.
    done = {} if stream is None else {"png": None, "_text": stream.im_text, "_PngImageFile__idat": 0}
    return _load(image, read_png, **done)


def _load_png_with_all(image: Any) -> Any:
    """Load a PNG file for other uses than ``convert("RGB")``: with an alpha channel it is Pillow's to decode."""
    if image._mode not in TO_RGB or "_late" in _attributes(image):
        return _load_png(image)
    if thread.scope is not None:
        thread.scope.count(f"at once ({image._mode})")
        thread.scope.note_not_kept(OTHER_FORMAT)
    return _Lazy.load(image)


for _name, _method in vars(_Lazy).items():
    if inspect.isfunction(_method):
        _method.__qualname__ = f"Image.{_name}"  # so Python names it where arguments are wrong
LateImage = _lazy("LateImage", Image.Image)
"""A lazy image that a method of another one has returned."""
LateJpeg = _lazy("LateJpeg", JpegImagePlugin.JpegImageFile, load=_load_jpeg)
LatePng = _lazy("LatePng", PngImagePlugin.PngImageFile, load=_load_png_with_all)
"""A file that ``PIL.Image.open`` has opened."""
OPENED = {JpegImagePlugin.JpegImageFile: LateJpeg, PngImagePlugin.PngImageFile: LatePng}
"""Lazy classes by Pillow's, of opened files."""
LATE = (LateImage, LateJpeg, LatePng)


def _load(image: Any, read: Callable[[Any, LateSamples], FileSource | str], **done: Any) -> Any:
    """Load an opened image. ``done``: attributes that say so, beside those of all files."""
    scope = thread.scope
    is_unread = is_late(image) and "_late" not in _attributes(image)
    if not is_unread or scope is None or PATCH_GUARD.is_patched(type(image)._plain, "load"):
        return _Lazy.load(image)
    try:
        source = "much in one sample" if scope.is_full else read(image, scope)
    except BaseException:  # it leaves what it leaves in Pillow: an image to be loaded again, all black till then
        materialize(image).map = None
        image.load_prepare()
        raise
    if isinstance(source, str):
        scope.count(f"at once ({source})")
    else:
        scope.num_bytes += source.num_bytes
        # All that says that it was loaded changes in one step: a signal's handler may raise an error at any moment.
        file, closes_file = image.fp, image._exclusive_fp and image._close_exclusive_fp_after_loading
        state = _State(source, Geometry.whole(source.width, source.height))
        image.readonly = 0
        _attributes(image).pop(CORE, None)  # an error may have come while it was materialized
        _attributes(image).update(tile=[], map=None, fp=None, _late=state, **done)
        if closes_file and file is not None:
            file.close()
    return _Lazy.load(image)


class _LateAccess:
    """The access object of a lazy image: decodes it when it is used.

    As Pillow's, it goes on with the pixels that the image had, if the image is closed or given others.
    """

    __slots__ = ("__weakref__", "_image", "_real")

    def __init__(self, image: Any) -> None:
        self._image = image
        self._real: Any = None

    def real(self) -> Any:
        """Return Pillow's own."""
        if self._real is None:
            self._real = materialize(self._image).load()
        return self._real

    def __getitem__(self, place: Any) -> Any:
        return self.real()[place]

    def __setitem__(self, place: Any, color: Any) -> None:
        self.real()[place] = color


def made_late(source: FileSource, geometry: Geometry, mode: str, info: dict[Any, Any]) -> Any:
    """Return a lazy image, and register it with the sample that is being made."""
    new: Any = Image.Image()
    attributes = vars(new)
    del attributes[CORE]
    attributes["_late"] = _State(source, geometry)
    new._mode = mode
    new._size = geometry.shown_size
    new.info = info
    new.__class__ = LateImage
    _note(new)
    return new


def make_late(image: Any) -> None:
    """Turn an image that was opened, and not loaded, into a lazy one."""
    del vars(image)[CORE]
    image.__class__ = OPENED[type(image)]
    _note(image)


def is_late(found: Any) -> bool:
    """Return whether an object is a lazy image."""
    return type(found) in LATE


def _note(image: Any) -> None:
    if thread.scope is not None:
        thread.scope.images.append(weakref.ref(image))


def materialize(image: Any) -> Any:
    """Return the same object, as an ordinary Pillow image."""
    attributes = _attributes(image)
    state = attributes.get("_late")
    # Another thread may have been faster: what it made may have been changed since.
    attributes.setdefault(CORE, None if state is None else _to_core(state, image._mode))
    attributes.pop("_late", None)
    _make_plain(image)
    access = None if state is None or state.access is None else state.access()
    if access is not None:
        access.real()
    return image


def _make_plain(image: Any) -> None:
    plain = getattr(type(image), "_plain", None)  # its class is read once: another thread may be making it plain too
    if plain is not None:
        object.__setattr__(image, "__class__", plain)


def is_small(image: Any) -> bool:
    """Return whether a lazy image's pixels take less memory than what it is made from."""
    state = _attributes(image).get("_late")
    width, height = image._size
    return state is not None and width * height * (1 if image._mode == "L" else 4) <= state.source.num_bytes


def _pixels_of(state: _State, layout: str) -> Pixels:
    """Return the pixels of a lazy image: see :func:`~fastload.native.rows.pixels_of_image`."""
    geometry, known = state.geometry, state.pixels
    if known is not None and LAYOUTS[layout] == known.size // (known.shape[0] * known.shape[1]):
        return known.copy()
    pixels = state.source.pixels(geometry.cut, layout, thread.scope)
    if geometry.transposed:
        mirrored, inverted = geometry.steps.flips
        pixels = pixels.swapaxes(0, 1)[:: -1 if inverted else 1, :: -1 if mirrored else 1].copy()
    return pixels


def _to_core(state: _State, mode: str) -> Any:
    if mode in TO_RGB and not state.source.is_grey:
        return getattr(state.source.by_pillow(), CORE)
    if mode == "P":
        mode = "L"  # remap_palette has set another one, and gives these pixels a palette next
    layout = "L" if mode == "L" else "RGBX"  # as Pillow keeps them
    pixels = _pixels_of(state, layout)
    height, width = pixels.shape[:2]
    return getattr(Image.frombytes(mode, (width, height), pixels.data, "raw", layout), CORE)
