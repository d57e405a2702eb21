"""Which decoder: by name, or the fastest that can be used here.

To add a decoder, write a module with a subclass of ``Decoder``, like ``fastload.images.torchvision_io``, and name both
in ``DECODERS``.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import NamedTuple

import PIL.Image

from ..errors import ConfigError
from ..native.rows import Pixels, whole
from .base import Data, Decoder

DECODERS = {
    "native": "native_jpeg:NativeDecoder",
    "torchvision": "torchvision_io:TorchvisionDecoder",
    "pillow": "base:Decoder",
}
"""Their modules and classes; the fastest first."""


class DecoderInfo(NamedTuple):
    """A decoder, and whether it can be used here."""

    name: str
    """What ``decoder=`` calls it."""
    library: str
    """The library that decodes, with its version."""
    why_not: str | None
    """Why it is not available; None: it is."""
    remedy: str | None
    """How to make it available; None: it is."""

    @property
    def available(self) -> bool:
        """True if it can be used here."""
        return self.why_not is None


def decoders() -> tuple[DecoderInfo, ...]:
    """Return all decoders, the fastest first, and why some are not available."""
    return tuple(map(_info, DECODERS))


def _class_of(name: str) -> type[Decoder]:
    module, _, found = DECODERS[name].partition(":")
    decoder: type[Decoder] = getattr(import_module(f".{module}", __package__), found)
    return decoder


def _info(name: str) -> DecoderInfo:
    decoder = _class_of(name)
    reason = decoder.why_not()
    return DecoderInfo(name, decoder.library(), reason, None if reason is None else decoder.remedy)


def chosen(decoder: str) -> tuple[str, str]:
    """Return the name of the decoder that is used, and why.

    Args:
        decoder: ``"native"``, ``"torchvision"``, ``"pillow"``, or ``"auto"``: native if it is available, otherwise
            Pillow.

    Returns:
        The name, and the library or the reason.

    Raises:
        ConfigError: the decoder is unknown or not available.
    """
    if decoder == "auto":
        native = _info("native")
        if native.available:
            return "native", native.library
        return "pillow", f"{Decoder.library()}; native is not available: {native.why_not}"
    if decoder not in DECODERS:
        raise ConfigError(f"decoder must be 'auto' or one of {', '.join(map(repr, DECODERS))}, got {decoder=}")
    info = _info(decoder)
    if not info.available:
        raise ConfigError(f"{decoder=} is not available: {info.why_not}; {info.remedy}, or use decoder='auto'")
    return decoder, info.library


def make_decoder(decoder: str = "auto") -> Decoder:
    """Return a new decoder.

    Args:
        decoder: see ``decode``.

    Raises:
        ConfigError: the decoder is unknown or not available.
    """
    return _class_of(chosen(decoder)[0])()


def decode(data: Data, decoder: str = "auto") -> Pixels:
    """Decode an image file to pixels.

    All decoders give the pixels of ``PIL.Image.open(file).convert("RGB")``. The EXIF orientation is not applied.

    Args:
        data: the bytes of a file (JPEG, PNG, or another format that Pillow knows), or ``PackedImages.encoded(i)``.
        decoder: ``"native"``, ``"torchvision"``, ``"pillow"``, or ``"auto"``: native if it is available, otherwise
            Pillow.

    Returns:
        [H, W, 3], uint8: a new array.

    Raises:
        ConfigError: the decoder is unknown or not available.
        PIL.UnidentifiedImageError: Pillow does not know the format.
        OSError: the file is damaged.
        Exception: what else Pillow raises.
    """
    made = make_decoder(decoder)
    return made.pixels(data, whole(*made.size(data)))


class Loader:
    """Opens the files of an ImageFolder with a decoder of fastload: ``ImageFolder(root, loader=Loader())``.

    It returns what torchvision's ``pil_loader`` does: a PIL image in RGB, with the ``info`` of its file. It can be
    pickled, and threads may share it. With ``fuse=True`` the ``decoder`` of the ``DataLoader`` is used instead.

    Args:
        decoder: ``"native"``, ``"torchvision"``, ``"pillow"``, or ``"auto"``: native if it is available, otherwise
            Pillow.

    Raises:
        ConfigError: the decoder is unknown or not available.

    Examples:
        >>> from fastload.images import Loader
        >>> Loader("pillow")
        Loader('pillow')
    """

    def __init__(self, decoder: str = "auto") -> None:
        chosen(decoder)
        self.decoder = decoder

    def __call__(self, path: str | os.PathLike[str]) -> PIL.Image.Image:
        """Open the file at a path."""
        with open(path, "rb") as file:
            return make_decoder(self.decoder).image(file.read())

    def __repr__(self) -> str:
        return f"Loader({self.decoder!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loader) and self.decoder == other.decoder

    def __hash__(self) -> int:
        return hash((Loader, self.decoder))
