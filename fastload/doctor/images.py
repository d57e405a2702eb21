"""Probes of image decoding: Pillow, the native library and torchvision; whether each works, and how fast it is here.

Measured on a JPEG file made here, in processor time, which other processes disturb less than the clock.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import pkgutil
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, one_line, why_not_imported
from .finding import Finding, State, pip
from .installation import source

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Pixels = npt.NDArray[np.uint8]

# Of ImageNet's files on average: height and width, and the box that RandomResizedCrop draws.
SIDES = 375, 500
BOX = 54, 116, 267, 267
SIZE = 224
# Native AVX-512 against Pillow with torchvision, in processor time: benchmarks/README.md, "The native kernels".
_KNOWN = "a third of Pillow's time for a JPEG file (2026-11-21, AMD EPYC: 0.70 ms against 2.29 ms)"


def installed(folder: Path) -> dict[str, str]:
    """Return the versions of Pillow and pillow-simd that are installed in the folder of ``PIL``, by their names."""
    found = {}
    for one in distributions(path=[str(folder)]):
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        if name in ("pillow", "pillow-simd"):
            found[name] = one.version
    return found


def active(version: str, there: Mapping[str, str]) -> tuple[str, str]:
    """Return which of Pillow and pillow-simd is imported, and what is wrong if they have overwritten each other, or "".

    Both install the folder ``PIL``, and no installer knows that they exclude each other. ``there``: see
    :func:`installed`.
    """
    name = "pillow-simd" if ".post" in version else "Pillow"
    names = " and ".join(f"{one} {number}" for one, number in sorted(there.items()))
    if len(there) > 1:
        return name, f"{names} are both installed into one folder, and have overwritten each other's files"
    if there and version not in there.values():
        return name, f"{names} is installed, but the files are those of {name} {version}"
    return name, ""


def _reinstall_pillow() -> str:
    return pip(uninstall="pillow pillow-simd", install="pillow")


def pillow() -> Iterator[Finding]:
    """Check Pillow and its libjpeg."""
    try:
        import PIL
    except ModuleNotFoundError:
        yield Finding("Pillow", "broken", "is not installed", remedy=pip("pillow"))
        return
    name, trouble = active(PIL.__version__, installed(Path(PIL.__file__).parent.parent))
    try:
        from PIL import _imaging, features
    except ImportError as error:  # its compiled part is of another version
        words = f"{trouble}; {one_line(error)}" if trouble else one_line(error)
        yield Finding("Pillow", "broken", words, remedy=_reinstall_pillow())
        return
    words, compiled = f"{name} {PIL.__version__} is active", str(_imaging.PILLOW_VERSION)
    if not trouble and compiled != PIL.__version__:
        trouble = f"its compiled part is of version {compiled}"
    if trouble:
        cost = "which of the two decodes is not defined"
        yield Finding("Pillow", "costs", f"{words}; {trouble}", cost, _reinstall_pillow())
    else:
        yield Finding("Pillow", "ok", words)
    if features.check_feature("libjpeg_turbo"):
        yield Finding("its libjpeg", "ok", f"libjpeg-turbo {features.version_feature('libjpeg_turbo')}")
    else:
        reads = features.check_codec("jpg")
        state: State = "costs" if reads else "broken"
        words = "not libjpeg-turbo" if reads else "none: JPEG files cannot be read"
        cost = "files are decoded without vector instructions" if reads else ""
        yield Finding("its libjpeg", state, words, cost, _reinstall_pillow())


def native_library() -> Iterator[Finding]:
    """Check the native library, and let it decode a file."""
    import numpy as np

    from .. import native
    from ..native.description import description

    cost = f"Pillow decodes whole images; with the library fuse=True takes {_KNOWN}"
    try:
        reason = native.why_not()
    except ConfigError as error:
        yield Finding("native library", "broken", one_line(error), remedy="unset FASTLOAD_NATIVE")
        return
    if reason is not None:
        remedy = "unset FASTLOAD_NATIVE" if os.environ.get("FASTLOAD_NATIVE") == "0" else rebuild()
        yield Finding("native library", "costs", reason, cost, remedy)
        return
    yield Finding("native library", "ok", description().removeprefix("native library "))
    name = "its JPEG decoder"
    from ..late import opener
    from ..native.jpeg import why_not_as_pillow

    data = made_jpeg()
    made, expected = native_way(data)(), by_pillow(data)
    reason, differs = opener.why_not(), why_not_as_pillow() is not None
    if differs:
        remedy = _reinstall_pillow()
        values = np.abs(made.astype(np.int64) - expected)
        words = (
            f"works, but the active Pillow gives other values ({100 * np.mean(values > 0):.1f} % of them, by at most "
            f"{values.max()}), so fuse=True decodes by Pillow"
        )
    elif np.array_equal(made, expected):
        words = "decodes, crops and resizes to the same pixels as Pillow"
        remedy = pip("--upgrade 'pillow>=10.1'") if reason == opener.TOO_OLD else ""
    else:
        words = "gives other pixels than Pillow: a bug of fastload; please report it, with this page"
        yield Finding(name, "broken", words, remedy="export FASTLOAD_NATIVE=0")
        return
    if reason is None:
        yield Finding(name, "ok", f"{words}: images are decoded late")
    else:
        yield Finding(name, "costs", f"{words}; images are not decoded late: {reason}", "see the times below", remedy)
    if not differs:
        yield _coefficients(data, expected)


def _coefficients(data: bytes, expected: Pixels) -> Finding:
    """Make a file's record, as ``fastload pack --coefficients`` stores it, and read it."""
    import numpy as np

    from ..native.jpeg import record_of_jpeg
    from ..native.rows import Status

    record, name = record_of_jpeg(data), "packed coefficients"
    if isinstance(record, Status) or not np.array_equal(native_way(record)(), expected):
        words = "give other pixels than their file: a bug of fastload; please report it, with this page"
        return Finding(name, "broken", words, remedy="fastload pack without --coefficients")
    return Finding(name, "ok", "are read to the same pixels as their files")


def speed() -> Iterator[Finding]:
    """Measure what decoding an image costs here."""
    from PIL import __version__

    from .. import native
    from ..native.jpeg import record_of_jpeg
    from ..native.rows import Status

    name, data = active(__version__, {})[0], made_jpeg()
    theirs = milliseconds(lambda: by_pillow(data))
    words = f"{theirs:.2f} ms by {name}"
    if native.available():
        own = milliseconds(native_way(data))
        words = f"{own:.2f} ms by the native library, {words}: {theirs / own:.1f} times as fast"
        record = record_of_jpeg(data)
        if not isinstance(record, Status):
            words += f"; {milliseconds(native_way(record)):.2f} ms from packed coefficients"
    what = f"processor time to decode, crop and resize a JPEG file of {SIDES[1]} x {SIDES[0]} to {SIZE}"
    yield Finding("measured here", "ok", f"{words} ({what})")


def whole_images() -> Iterator[Finding]:
    """Compare other packages' functions that return whole images with the native library, which takes their place."""
    from ..late import arrays

    name, reason = "whole images", arrays.why_not()
    if reason is not None:
        yield Finding(name, "costs", f"cv2.imread, torchvision.io and TorchCodec decode by themselves: {reason}")
        return
    equal: list[str] = []
    has_others = False
    for module, functions in arrays.DOORS.items():
        try:
            importlib.import_module(module)
        except Exception as error:  # such as of a library that is missing
            package = module.partition(".")[0]
            reason = why_not_imported(package, error)
            if reason != "is not installed":
                yield Finding(name, "costs", f"{package} {reason}")
            continue
        reason = arrays.why_not(module)
        if reason is not None:
            yield Finding(name, "costs", f"{module} decodes by itself: {reason}")
            continue
        for path, decode, kinds, title in functions:
            unequal = arrays.unequal(pkgutil.resolve_name(path), decode, kinds)
            if unequal:
                has_others = True
                words = f"{title} decodes {', '.join(unequal)} files by itself: its pixels are not the native library's"
                # What torchvision's wheels contain before that is of 2018, when libjpeg-turbo made others of these.
                is_old = module == "torchvision.io" and unequal == ["JPEG 4:4:0"]
                remedy = pip("--upgrade torch 'torchvision>=0.28'") if is_old else ""
                yield Finding(name, "costs", words, remedy=remedy)
            if len(unequal) < len(kinds):
                equal.append(title)
    if equal:
        words = f"JPEG and PNG files that workers give to {', '.join(equal)} are decoded by the native library"
        yield Finding(name, "ok", f"other {words}" if has_others else words)


def tensors() -> Iterator[Finding]:
    """Compare torchvision's resizes and changes of tensors' colors with the native library, which takes their place."""
    from torchvision.transforms.v2 import functional  # noqa: F401  # which has the kernels

    from .. import native
    from ..late import tensor_colors
    from ..late.undecoded import tensor_filters
    from ..native.rows import TENSOR_FILTERS

    name, reason = "tensors", native.why_not()
    if reason is not None:
        yield Finding(
            name,
            "costs",
            f"torchvision resizes them, and changes their colors, by itself: without the native library ({reason})",
        )
        return
    versions = (
        ("1", tensor_colors.KNOWN_1, tensor_colors.functions()),
        ("2", tensor_colors.KNOWN_2, tensor_colors.kernels()),
    )
    for version, known, found in versions:
        equal = [one for one in known if one in found and tensor_colors.agrees(*found[one])]
        others = [one for one in known if one not in equal]
        if others:
            words = f"version {version} makes {', '.join(others)} by itself: its values are not the native library's"
            yield Finding(name, "costs", words)
        if equal:
            yield Finding(name, "ok", f"version {version}: {', '.join(equal)} by the native library, in workers")
    others = [one.removeprefix("tensor ") for one in TENSOR_FILTERS if one not in tensor_filters()]
    if others:
        words = f"version 2 resizes by itself ({', '.join(others)}): its values are not the native library's"
        yield Finding(name, "costs", words, "crops that are resized are decoded first, and resized after it")


def rebuild() -> str:
    """Return the command that builds the native library; where there is no compiler, the installer gets one."""
    return pip(f"--force-reinstall --no-deps --no-cache-dir {source()}")


@functools.cache
def made_jpeg() -> bytes:
    """Return a JPEG file of 500 x 375 and about 110 kB: smooth shapes with some noise; always the same."""
    import numpy as np
    from PIL import Image

    random = np.random.Generator(np.random.PCG64(0))
    coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(SIDES[::-1], Image.Resampling.BICUBIC)).astype(np.int64)
    noisy = np.clip(smooth + random.integers(-16, 17, smooth.shape), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(noisy).save(out, "JPEG", quality=94)
    return out.getvalue()


def by_pillow(data: bytes) -> Pixels:
    """Return the file's box, decoded, cropped and resized by Pillow as by torchvision's transforms: [224, 224, 3]."""
    import numpy as np
    from PIL import Image

    top, left, height, width = BOX
    with Image.open(io.BytesIO(data)) as image:
        cut = image.convert("RGB").crop((left, top, left + width, top + height))
    return np.asarray(cut.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def native_way(data: bytes) -> Callable[[], Pixels]:
    """Return a function that makes the same pixels by the native library.

    Raises:
        RuntimeError: the library, or its JPEG part, cannot be used.
    """
    from ..native.jpeg import pixels_of_jpeg
    from ..native.rows import Cut, Order, Status, pillow_order

    order = pillow_order() or Order.COLUMNS_FIRST
    cut = Cut(BOX, (SIZE, SIZE), "bilinear", (0, 0, SIZE, SIZE), (False, False))

    def make() -> Pixels:
        pixels = pixels_of_jpeg(data, cut, order=order)
        if isinstance(pixels, Status):
            raise RuntimeError(f"the native library did not decode a plain JPEG file: {pixels.name}")
        return pixels

    return make


def milliseconds(make: Callable[[], object], seconds: float = 0.3) -> float:
    """Return the median processor time of a call, over about so many seconds."""
    make()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        start = time.process_time()
        make()
        taken.append(time.process_time() - start)
    return statistics.median(taken) * 1e3
