"""The probes: what the parts of fastload say of themselves, devices, and what the system allows.

torch and what else fastload needs can be imported by now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.metadata import distributions

from ..base.cgroups import processor_quota, processors
from ..base.memory import in_words
from ..errors import ConfigError, one_line
from .finding import Finding, pip
from .overridden import overridden
from .packages import source


def _asked(name: str, reason: str | None, well: str, cost: str = "", remedy: str = "") -> Finding:
    """Return the finding of a ``unavailable_reason()``, which has returned None where all is well."""
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
    words = " and ".join(there)
    reason = f"{words}: both are in one folder, and have overwritten each other's files" if len(there) > 1 else None
    yield _asked("Pillow", reason, words, "which of the two decodes is not defined", remedy)


def native_library() -> Iterator[Finding]:
    """Ask the C library, and what stands on it: late decoding, the fast way of seeding, functions of other packages."""
    from .. import native
    from ..keys.seeding import slow_seeding_reason
    from ..late import opener
    from ..native import description, inflate

    try:
        reason = native.unavailable_reason()
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
    reason = opener.unavailable_reason()
    remedy = pip("--upgrade 'pillow>=10.1'") if reason == opener.TOO_OLD else ""
    yield _asked("late decoding", reason, "only pixels that crops keep are decoded, as by Pillow", cost, remedy)
    cost, remedy = "PNG files are inflated by Python's zlib, which takes longer", pip("'isal>=1.8'")
    yield _asked("PNG files", inflate.unavailable_reason(), "are inflated by ISA-L", cost, remedy)
    cost = "with a seed, 7 µs of processor time per sample instead of 1 µs"
    yield _asked("seeding", slow_seeding_reason(), "each sample is seeded the fast way, to the same numbers", cost)


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
PROBES = pillow, native_library, overridden, cuda, cores, memory_files
"""All probes, in the order of the page."""
