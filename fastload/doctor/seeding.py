"""Whether the states of generators can be installed for each sample, or samples are seeded slowly."""

from __future__ import annotations

from collections.abc import Iterator

from .finding import Finding


def probe() -> Iterator[Finding]:
    """Compare installed states with those of seeding."""
    from ..seeding import slow_because

    reason = slow_because()
    if reason is None:
        yield Finding(
            "seeding", "ok", "samples are seeded by installing states; they are those of seeding, bit for bit"
        )
    else:
        yield Finding("seeding", "costs", reason, "7 µs of processor time for each sample, in place of 1 µs")


__all__ = ["probe"]
