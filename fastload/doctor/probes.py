"""The probes: what the parts of fastload say of themselves, devices, and what the system allows.

torch and what else fastload needs can be imported by now.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import distributions

from ..base.cgroups import processor_quota, processors
from ..base.memory import in_words
from ..errors import ConfigError, one_line
from .finding import Finding, pip
from .packages import source


def _asked(name: str, reason: str | None, well: str, cost: str = "", remedy: str = "") -> Finding:
    """Return the finding of a ``why_not()``, which has returned None where all is well."""
    return Finding(name, "ok", well) if reason is None else Finding(name, "costs", reason, cost, remedy)


def pillow() -> Iterator[Finding]:
    """Tell which Pillow is installed: pillow-simd has the same folder, and no installer knows that."""
    known = [f"{one.metadata['Name']} {one.version}".lower() for one in distributions() if one.metadata["Name"]]
    there = sorted(one for one in set(known) if one.startswith(("pillow ", "pillow-simd ", "pillow_simd ")))
    remedy = pip(uninstall="pillow pillow-simd", install="pillow")
    try:
        from PIL import Image as Image
    except ImportError as error:
        yield Finding("Pillow", "broken", f"{' and '.join(there)} {one_line(error)}".strip(), remedy=remedy)
        return
    reason = "both are installed into one folder, and have overwritten each other's files" if len(there) > 1 else None
    words = " and ".join(there)
    cost = "which of the two decodes is not defined"
    yield _asked("Pillow", f"{words}: {reason}" if reason else None, words, cost, remedy)


def native_library() -> Iterator[Finding]:
    """Ask the C library, and what stands on it: late decoding, the fast way of seeding, functions of other packages."""
    from .. import native
    from ..keys.seeding import slow_because
    from ..late import opener
    from ..native.description import description

    try:
        reason = native.why_not()
    except ConfigError as error:
        yield Finding("C library", "broken", one_line(error), remedy="unset FASTLOAD_NATIVE")
        return
    built = "" if reason else description().removeprefix("native library ")
    is_off = os.environ.get("FASTLOAD_NATIVE") == "0"
    remedy = "unset FASTLOAD_NATIVE" if is_off else pip(f"--force-reinstall --no-deps --no-cache-dir {source()}")
    cost = "Pillow decodes whole images, about three times as long, and no cache keeps them"
    yield _asked("C library", reason, built, cost, remedy)
    if reason is not None:
        return
    reason = opener.why_not()
    remedy = pip("--upgrade 'pillow>=10.1'") if reason == opener.TOO_OLD else ""
    yield _asked("late decoding", reason, "images are decoded late, to Pillow's pixels", cost, remedy)
    cost = "with a seed, 7 µs of processor time per sample instead of 1 µs"
    yield _asked("seeding", slow_because(), "each sample is seeded the fast way, to the same numbers", cost)
    yield from replaced()


def replaced() -> Iterator[Finding]:
    """Compare functions of other packages with the C library, which takes their place in workers."""
    from torchvision.transforms.v2 import functional  # noqa: F401  # which has the kernels

    from ..late import arrays, tensor_colors
    from ..late.deferred import tensor_filters
    from ..native.rows import TENSOR_FILTERS

    for module, functions in arrays.DOORS.items():
        name = module.removesuffix(".decoders")
        if importlib.util.find_spec(name.partition(".")[0]) is None or arrays.why_not() is not None:
            continue
        try:
            importlib.import_module(module)
            found = [
                (title, arrays.unequal(pkgutil.resolve_name(path), decode, kinds))
                for path, decode, kinds, title in functions
            ]
        except Exception as error:  # such as of a library that is missing
            yield Finding(name, "costs", f"cannot be imported: {one_line(error)}")
            continue
        others = ", ".join(f"{title} ({', '.join(kinds)})" for title, kinds in found if kinds)
        reason = arrays.why_not(module) or (f"decodes other pixels than the C library: {others}" if others else None)
        yield _asked(name, reason, "workers decode its JPEG and PNG files by the C library", "it decodes by itself")
    unequal = [f"resize ({one.removeprefix('tensor ')})" for one in TENSOR_FILTERS if one not in tensor_filters()]
    for version, known, kernels in (
        ("version 1", tensor_colors.KNOWN_1, tensor_colors.functions()),
        ("version 2", tensor_colors.KNOWN_2, tensor_colors.kernels()),
    ):
        equal = [one for one in known if one in kernels and tensor_colors.agrees(*kernels[one])]
        unequal += [f"{one} ({version})" for one in known if one not in equal]
    reason = f"torchvision's values are not the C library's: {', '.join(unequal)}" if unequal else None
    yield _asked("tensors", reason, "are resized and colored by the C library", "torchvision makes them by itself")


def cuda() -> Iterator[Finding]:
    """Look for CUDA devices, and let each add two numbers."""
    import torch

    if not torch.cuda.is_available():
        yield Finding("CUDA", "absent", f"torch {torch.__version__} finds no device that it can use")
    for index in range(torch.cuda.device_count()):
        name, about = f"CUDA device {index}", torch.cuda.get_device_properties(index)
        try:
            (torch.ones(1, device=f"cuda:{index}") + 1).item()
        except RuntimeError as error:
            yield Finding(name, "broken", f"{about.name}: {one_line(error)}")
        else:
            yield Finding(name, "ok", f"{about.name}, {in_words(about.total_memory)}")


def cores() -> Iterator[Finding]:
    """Count the processors that this process may use."""
    count, quota = processors(), processor_quota()
    words, reason = f"{count} of {os.cpu_count()} can be used", None
    if quota is not None and quota < count:
        reason = f"{words}, together for {quota:g} cores' time (limit of the control group)"
    cost = "with more workers than that, the process is stopped for a part of each period"
    yield _asked("cores", reason, words, cost, f"num_workers={max(int(quota or 0), 1)}")


def memory_files() -> Iterator[Finding]:
    """Create a memory file, as batches are written to."""
    from ..workers.transport import use_packets

    name = "memory files"
    if not use_packets():
        asked = os.environ.get("FASTLOAD_TRANSPORT") == "pipes"
        words = "FASTLOAD_TRANSPORT=pipes asks for pipes" if asked else "this system has none; pipes are used"
        yield Finding(name, "costs", words, "one more copy of each batch", "unset FASTLOAD_TRANSPORT" if asked else "")
        return
    try:
        os.close(os.memfd_create("fastload-doctor", os.MFD_CLOEXEC))
    except OSError as error:
        words = f"cannot be created: {error}; workers cannot start"
        yield Finding(name, "broken", words, remedy="export FASTLOAD_TRANSPORT=pipes")
    else:
        yield Finding(name, "ok", "can be created (memfd_create): workers share batches without a copy")


PROBES: tuple[Callable[[], Iterator[Finding]], ...]
PROBES = pillow, native_library, cuda, cores, memory_files
"""All probes, in the order of the page."""
