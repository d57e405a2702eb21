"""From files to pixels: the native library, Pillow, torchvision; whether they work, and what each costs here.

In: a JPEG file that is made on the spot. Out: findings.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

import numpy as np

from .. import native
from .finding import Finding, python_install, system_install
from .measuring import SIDES, SIZE, by_pillow, made_jpeg, milliseconds, native_way
from .pillow import active, anew

# Of processor time, native AVX-512 beside Pillow with torchvision: benchmarks/README.md, "The native kernels".
_KNOWN = "a third of Pillow's time for a JPEG file (2026-11-21, AMD EPYC: 0.70 ms beside 2.29 ms)"
_WHAT = f"a made {SIDES[1]} x {SIDES[0]} JPEG file, cropped and resized to {SIZE}"


def library() -> Iterator[Finding]:
    """Look at the native library's two parts, and have the second decode a file."""
    name, part = "native library", "its JPEG part"
    reason = native.why_not()
    if reason is not None:
        off = os.environ.get("FASTLOAD_NATIVE") == "0"
        remedy = "unset FASTLOAD_NATIVE" if off else rebuild(_missing())
        cost = f"images are decoded by Pillow, whole; with the library fuse=True takes {_KNOWN}"
        yield Finding(name, "costs", reason, cost, remedy)
        return
    yield Finding(name, "ok", f"loaded; instruction set: {native.processor_level()}")
    reason = native.why_not("jpeg")
    if reason is not None:
        missing = _missing()
        cost = f"images are decoded by Pillow, whole; with the library fuse=True takes {_KNOWN}"
        yield Finding(part, "costs", reason, cost, rebuild(missing))
        return
    from ..native.jpeg import pillow_agrees
    from ..native.rows import pillow_order

    data = made_jpeg()
    made, expected = native_way(data)(), by_pillow(data)
    if pillow_order() is None or not pillow_agrees():
        differ = np.abs(made.astype(np.int64) - expected)
        words = (
            f"works, but the active Pillow makes other values ({100 * np.mean(differ > 0):.1f} % of them, by at "
            f"most {differ.max()}), so no image is decoded late, and fuse=True leaves files to Pillow"
        )
        yield Finding(part, "costs", words, "see the times below", anew())
    elif not np.array_equal(made, expected):
        words = "does not give Pillow's pixels; please report this, with this page"
        yield Finding(part, "broken", words, remedy="export FASTLOAD_NATIVE=0")
    else:
        yield Finding(part, "ok", "decodes, crops and resizes to Pillow's pixels, bit for bit: images are decoded late")


def speed() -> Iterator[Finding]:
    """Measure what an image costs, on the spot."""
    from PIL import __version__

    name = "pillow-simd" if active(__version__, {}).name == "pillow-simd" else "Pillow"
    data = made_jpeg()
    pillow = milliseconds(lambda: by_pillow(data))
    if native.available("jpeg"):
        own = milliseconds(native_way(data))
        words = f"{own:.2f} ms by the native library, {pillow:.2f} ms by {name}: {pillow / own:.1f} times"
    else:
        words = f"{pillow:.2f} ms by {name}"
    yield Finding("measured here", "ok", f"{words} (processor time; {_WHAT})")


def torchvision_io() -> Iterator[Finding]:
    """Have torchvision decode a file."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    from ..images.torchvision_io import why_not

    data = torch.frombuffer(bytearray(made_jpeg()), dtype=torch.uint8)
    image = decode_jpeg(data, mode=ImageReadMode.RGB)
    if tuple(image.shape) != (3, *SIDES):
        yield Finding("torchvision.io", "costs", f"decodes a {SIDES} file to {tuple(image.shape)}")
        return
    taken = milliseconds(lambda: decode_jpeg(data, mode=ImageReadMode.RGB))
    words = f"decodes on the CPU, {taken:.2f} ms for all of that file"
    reason = why_not()
    if reason is None:
        yield Finding("torchvision.io", "ok", f"{words}; its pixels are Pillow's")
    else:
        yield Finding("torchvision.io", "costs", words, f"decoder='torchvision' is not available: {reason}")


def _missing() -> list[Literal["compiler", "libjpeg"]]:
    """Return what building the library wants and is not there."""
    words = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    compiler = words if shutil.which(words[0]) else ["cc"]
    if shutil.which(compiler[0]) is None:
        return ["compiler", "libjpeg"]
    # As in setup.py: version 2.0 or later of libjpeg-turbo, or it does not count.
    wanted = "#include <stdio.h>\n#include <jpeglib.h>\n#if LIBJPEG_TURBO_VERSION_NUMBER < 2000000\n#error\n#endif\n"
    command = [*compiler, "-E", "-x", "c", "-"]
    found = subprocess.run(command, input=wanted.encode(), capture_output=True, timeout=20, check=False)
    return [] if found.returncode == 0 else ["libjpeg"]


def rebuild(missing: list[Literal["compiler", "libjpeg"]]) -> str:
    """Return the commands that build the library.

    Args:
        missing: what is to be installed before.
    """
    checkout = Path(native.LIBRARY).parents[2]
    if (checkout / "setup.py").exists():
        build = f"(cd {shlex.quote(str(checkout))} && {sys.executable} setup.py build_ext --inplace --force)"
    else:
        source = _installed_from()
        build = python_install("--force-reinstall --no-deps --no-cache-dir --no-binary fastload", source)
        if build.startswith("uv "):
            build = python_install("--reinstall-package fastload --no-cache --no-binary fastload", source)
    return f"{system_install(*missing)} && {build}" if missing else build


def _installed_from() -> str:
    """Return what an installer is to be told to install this fastload again from its sources."""
    try:
        told = distribution("fastload").read_text("direct_url.json")
    except PackageNotFoundError:
        told = None
    if told is None:  # by its name
        return "fastload"
    origin = json.loads(told)
    url: str = origin["url"]
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return "fastload" if url.endswith(".whl") else shlex.quote(f"fastload @ {url}")


__all__ = ["library", "rebuild", "speed", "torchvision_io"]
