"""``ray_options``: what they may be. Ray itself is not imported; it checks its own options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError

# Options of Ray's actors that the loader sets, or that would change what an actor does.
_SET_HERE = {"max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "name", "lifetime"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The argument ``ray_options``, checked."""

    actor: Mapping[str, Any]
    """Options that are passed to Ray."""
    placement_timeout: float
    """Seconds until Ray must have placed and started workers."""


def options_of(given: Mapping[str, Any] | None) -> RayOptions:
    """Check ``ray_options``.

    Raises:
        ConfigError: one cannot be given, or a value of ours is out of range.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"ray_options must be a dict such as {{'num_cpus': 1}}, got ray_options={given!r}")
    actor = {"num_cpus": 1, **(given or {})}
    for name in _SET_HERE & actor.keys():
        raise ConfigError(f"ray_options has {name!r}, which fastload itself sets; leave it out")
    timeout = actor.pop("placement_timeout", 120.0)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ConfigError(f"ray_options['placement_timeout'] must be a number of seconds above 0, got {timeout!r}")
    return RayOptions(actor=actor, placement_timeout=float(timeout))
