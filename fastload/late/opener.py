"""JPEG and PNG files that a sample opens through Pillow: opened and read as it does, not decoded. Records of packs too.

``PIL.Image.OPEN``, which :func:`prepare` adds an opener to, is public: ``PIL.Image.register_open`` fills it.
"""

from __future__ import annotations

import functools
from typing import Any

from PIL import Image

from ..base import overrides
from ..cache.kinds import Data, Size
from ..cache.records import NO_RECORD, OTHER_FORMAT
from ..native import jpeg, png
from .geometry import Geometry
from .image import CORE, OPENED, PATCH_GUARD, TO_RGB, made_late, make_late
from .patch_guard import SampleOverride
from .scope import UNKNOWN, thread
from .source import PACKED, FileSource

LEAST_VALUES = 10_000
"""Smallest PNG, in values, worth deferring; Pillow decodes smaller ones faster."""
TOO_OLD = "Pillow is older than 10.1, or changed since 13"
"""A reason of :func:`unavailable_reason`."""
_FILE = "_close_exclusive_fp_after_loading", "_exclusive_fp"


def unavailable_reason() -> str | None:
    """Return why late decoding is off in this process; None where it is on."""
    if not overrides.ON:
        return f"{overrides.VARIABLE}=0"
    if not vars(Image.Image()).keys() >= {"_mode", CORE}:
        return TOO_OLD
    if UNKNOWN is not None:
        return UNKNOWN
    if PATCH_GUARD.replaced() is not None:
        return "methods of Pillow's images were replaced"
    return jpeg.why_not_as_pillow()


class _Opener(SampleOverride):
    """The function that opens a format's files, with the one that knows them by their first bytes."""

    def is_original(self, found: Any) -> bool:
        """Return whether there is one: also another library's, whose images stay as they are."""
        return found[0] is not None

    def stand_in(self, original: Any) -> Any:
        factory, accept = original

        @functools.wraps(factory, updated=())  # of PNG files it is a class
        def open_late(fp: Any, filename: Any = "") -> Any:
            return _opened(factory(fp, filename))

        return open_late, accept


def _opened(image: Any) -> Any:
    """Make an image late that was opened in a sample, if that pays; return it."""
    scope = thread.scope
    if (
        scope is None
        or type(image) not in OPENED
        or not all(hasattr(image, name) for name in _FILE)
        or PATCH_GUARD.replaced()
    ):
        return image
    if getattr(image, CORE) is not None or not image.tile or image.tile[0][0] in Image.DECODERS:
        return image  # another opener has loaded it, or another decoder is to do it
    if image.mode not in ("RGB", "L") and (image.format != "PNG" or image.mode not in TO_RGB):
        reason = image.mode
    elif getattr(image, "is_animated", False):
        reason = "animated"
    elif image.format == "PNG" and image.width * image.height * len(image.mode) < LEAST_VALUES:
        reason = "small"
    else:
        make_late(image)
        return image
    scope.count(f"at once ({reason})")
    scope.note_not_kept(OTHER_FORMAT if image.format == "PNG" else NO_RECORD)
    return image


_PURPOSE = "files that a sample opens through Pillow are decoded when their pixels are needed"
OVERRIDES = tuple(
    _Opener("PIL.Image", "PIL.Image:OPEN", name, _PURPOSE, None, self_test, overrides.PROCESS)
    for name, self_test in (("JPEG", lambda _: jpeg.pillow_agrees()), ("PNG", lambda _: png.pillow_agrees()))
)


def prepare() -> bool:
    """Register the openers of files once, when a worker begins a chunk; return whether late decoding is on.

    At each file they ask for themselves whether methods were replaced.
    """
    if not any(one.is_installed for one in OVERRIDES):
        if unavailable_reason() is not None:
            return False
        for one in OVERRIDES:
            if one.agrees():
                one.install()
    return True


def image_of_record(data: Data, size: Size, info: dict[Any, Any]) -> Any:
    """Return the image of a pack's record in RGB, not decoded yet; None where images are not late."""
    if thread.scope is None or thread.scope.is_full or unavailable_reason() is not None:
        return None
    source = FileSource(data, size.width, size.height, size.is_grey, PACKED)
    return made_late(source, Geometry.whole(size.width, size.height), "RGB", info)
