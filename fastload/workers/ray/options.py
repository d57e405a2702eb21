"""``worker_method="ray"``, ``remote_workers`` and ``ray_options``: what they may be.

In: a loader's arguments. Out: :class:`Options`. Ray itself is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError

RAYS_OPTIONS = frozenset(
    {
        "accelerator_type",
        "fallback_strategy",
        "label_selector",
        "memory",
        "num_cpus",
        "num_gpus",
        "resources",
        "runtime_env",
        "scheduling_strategy",
    }
)
"""Options of Ray's actors that a user may give."""

_OWN = ("placement_timeout", "share_memory", "compare_nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The argument ``ray_options``, checked."""

    actor: Mapping[str, Any] = field(default_factory=lambda: {"num_cpus": 1})
    """What Ray gets."""
    placement_timeout: float = 120.0
    """Seconds until Ray must have placed and started workers."""
    share_memory: bool = True
    """Whether workers on this machine write into the slots themselves."""
    compare_nodes: bool = True
    """Whether a machine on which fastload differs, or makes other pixels, is an error."""


def options_of(given: Mapping[str, Any] | None) -> Options:
    """Check ``ray_options``.

    Raises:
        ConfigError: a name is not known, or a value is out of range.
    """
    if given is None:
        return Options()
    if not isinstance(given, Mapping):
        raise ConfigError(f"ray_options must be a dict such as {{'num_cpus': 1}}, got ray_options={given!r}")
    for name in given:
        if name not in RAYS_OPTIONS and name not in _OWN:
            raise ConfigError(
                f"ray_options has {name!r}, which is none of fastload's ({', '.join(_OWN)}) and none of Ray's options "
                f"that can be given ({', '.join(sorted(RAYS_OPTIONS))}); fastload itself sets how often actors are "
                "started again, and their names"
            )
    timeout = given.get("placement_timeout", 120.0)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ConfigError(f"ray_options['placement_timeout'] must be a number of seconds above 0, got {timeout!r}")
    for name in ("share_memory", "compare_nodes"):
        if not isinstance(given.get(name, True), bool):
            raise ConfigError(f"ray_options[{name!r}] must be True or False, got {given[name]!r}")
    for name in ("num_cpus", "num_gpus", "memory"):
        value = given.get(name, 0)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf")
        ):
            raise ConfigError(f"ray_options[{name!r}] must be a finite number of at least 0, got {value!r}")
    for name in ("resources", "runtime_env"):
        if not isinstance(given.get(name) or {}, Mapping):
            raise ConfigError(f"ray_options[{name!r}] must be a dict, got {given[name]!r}")
    return Options(
        actor={"num_cpus": 1, **{name: value for name, value in given.items() if name in RAYS_OPTIONS}},
        placement_timeout=float(timeout),
        share_memory=given.get("share_memory", True),
        compare_nodes=given.get("compare_nodes", True),
    )
