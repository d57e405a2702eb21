"""All probes, in the order of the page: plain data. A probe's module is imported when it is its turn: some fail."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import NamedTuple

from .finding import Finding


class Probe(NamedTuple):
    """Looks at one thing."""

    section: str
    name: str
    module: str
    """In this folder."""
    function: str
    arguments: tuple[str, ...] = ()
    needed: bool = False
    """Whether it is bad enough for exit status 1 when the probe itself fails."""

    def run(self) -> list[Finding]:
        """Look. Raises whatever goes wrong, from importing the module on."""
        module = importlib.import_module(f".{self.module}", __package__)
        found: Iterable[Finding] = getattr(module, self.function)(*self.arguments)
        return list(found)


PROBES = (
    Probe("Versions", "Python", "versions", "python", needed=True),
    *(
        Probe("Versions", name, "versions", "required", (name,), needed=True)
        for name in ("torch", "torchvision", "numpy", "rich")
    ),
    Probe("Versions", "together", "versions", "together", needed=True),
    Probe("Versions", "seeding", "seeding", "probe"),
    Probe("Images", "Pillow", "pillow", "probe", needed=True),
    Probe("Images", "native library", "decoding", "library", needed=True),
    Probe("Images", "torchvision.io", "decoding", "torchvision_io"),
    Probe("Images", "measured here", "decoding", "speed"),
    Probe("Devices", "CUDA", "devices", "cuda"),
    Probe("Devices", "nvJPEG", "devices", "nvjpeg"),
    Probe("Devices", "Triton kernel", "devices", "triton"),
    Probe("Devices", "page-locking", "devices", "page_locked"),
    Probe("Optional", "packages", "extras", "extras"),
    Probe("This machine", "cores", "machine", "cores"),
    Probe("This machine", "memory", "machine", "memory"),
    Probe("This machine", "memory files", "machine", "slots", needed=True),
    Probe("This machine", "limits", "machine", "limits"),
    Probe("This machine", "start", "machine", "starting"),
)

__all__ = ["PROBES", "Probe"]
