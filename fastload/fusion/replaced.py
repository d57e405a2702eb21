"""Whether functions of torchvision and Pillow that fused steps stand in for were replaced: then nothing is fused."""

from __future__ import annotations

import functools
import sys

from PIL import Image, ImageFile, JpegImagePlugin
from torch import nn

from ..base.overrides import is_written_in
from ..late.originals import Originals

_MODULES = ("torchvision.transforms.", "torchvision.datasets.folder")
_PILLOW = ("PIL.Image", "PIL.ImageFile", "PIL.ImageOps")
_METHODS: dict[type, str] = {
    Image.Image: (
        "__array_interface__ __init__ _new convert copy crop getbands getdata height load mode paste reduce resize "
        "size tobytes transpose width"
    ),
    ImageFile.ImageFile: "__init__ load load_end load_prepare",
    JpegImagePlugin.JpegImageFile: "__init__ _open draft load load_end load_prepare load_read",
}
_PACKAGES = ("torch", "torchvision", "PIL", "typing", "fastload")  # ours: late decoding


@functools.cache
def _originals() -> Originals:
    originals = Originals(*_PACKAGES)
    names = [name for name in sys.modules if name.startswith(_MODULES)]
    for module in [sys.modules[name] for name in (*names, *_PILLOW) if name in sys.modules]:
        items = vars(module).items()
        originals.add(module, [name for name, value in items if callable(value) and not isinstance(value, type)])
    for kind, methods in _METHODS.items():
        originals.add(kind, methods.split())
    return originals


def replaced() -> str | None:
    """Return what makes torchvision or Pillow do something else than they say; None if nothing does."""
    name = _originals().replaced()
    if name is not None:
        return f"{name} was replaced"
    opener = Image.OPEN.get("JPEG")
    if opener is not None and not is_written_in(opener[0], *_PACKAGES):
        return "Pillow's opener of JPEG files was replaced"
    hooks = nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "all modules have hooks (torch.nn.modules.module)"
    return None
