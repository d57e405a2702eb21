"""Makes probes, one after the other, in a process of its own, and tells of each on a descriptor.

In: places in ``PROBES``. Out: a line of JSON when a probe begins, ``{"begin": place}``, and one when it has ended,
``{"place": place, "findings": [...]}``, so that whoever reads knows where the process has died or hangs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from .finding import Finding, in_one_line
from .probes import PROBES, Probe


def main(places: Sequence[int]) -> None:
    """Make the probes; their lines go to standard output, and whatever libraries print there to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    for place in places:
        _tell(out, {"begin": place})
        _tell(out, {"place": place, "findings": made(PROBES[place])})


def made(probe: Probe) -> list[Finding]:
    """Return what a probe finds; its own failure is a finding."""
    try:
        return probe.run()
    except Exception as error:  # whatever it meets: the others are made all the same
        return [failed(probe, f"could not be looked at: {in_one_line(error)}")]


def failed(probe: Probe, words: str) -> Finding:
    """Return what is said of a probe that failed."""
    return Finding(probe.name, "broken" if probe.needed else "costs", words)


def _tell(out: int, message: dict[str, Any]) -> None:
    line = json.dumps(message).encode() + b"\n"
    while line:
        line = line[os.write(out, line) :]


__all__ = ["failed", "made", "main"]
