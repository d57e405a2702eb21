"""``worker_method="ray"``, ``remote_workers`` and ``ray_options``: what they may be.

In: a loader's arguments. Out: :class:`Options`. Ray itself is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from torch.utils.data import IterableDataset

from ...base.users_line import warn_at_users_line
from ...errors import ConfigError
from ...spec import Spec

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


def check_ray_arguments(spec: Spec) -> None:
    """Check the arguments that are about Ray; warn if there is no worker that could be Ray's.

    Raises:
        ConfigError: they cannot be, or not together; or Ray is not installed.
    """
    number = spec.remote_workers
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(f"remote_workers must be an integer of at least 0, got remote_workers={number!r}")
    options_of(spec.ray_options)
    uses_ray = number > 0 or spec.worker_method == "ray"
    if not uses_ray:
        raise ConfigError(
            "ray_options is for Ray's workers, and there are none; add worker_method='ray' or remote_workers=N, or "
            "leave ray_options out"
        )
    if number:
        _check_remote_workers(spec)
    if find_spec("ray") is None:
        name = f"remote_workers={number}" if number else "worker_method='ray'"
        raise ConfigError(f"{name} needs Ray, which is not installed: pip install ray")
    if not number and spec.num_workers == 0:
        # No error: that is how a script is debugged, and one argument may be meant for all of its loaders.
        warn_at_users_line(
            "worker_method='ray' with num_workers=0: there are no workers, and this process loads the samples itself. "
            "Give the number of Ray's workers (num_workers=8, say), or leave worker_method out"
        )


def _check_remote_workers(spec: Spec) -> None:
    name = f"remote_workers={spec.remote_workers}"
    if spec.worker_method == "ray":
        raise ConfigError(
            f"{name} adds Ray's workers to local ones, and with worker_method='ray' all are Ray's: add them to "
            "num_workers, and leave remote_workers out"
        )
    if not spec.num_workers:
        raise ConfigError(
            f"{name} adds workers to local ones, and num_workers=0; use worker_method='ray' with "
            f"num_workers={spec.remote_workers}, or give num_workers"
        )
    for given, why in (
        (isinstance(spec.dataset, IterableDataset), "an IterableDataset's replicas stay with their workers"),
        (spec.seeding == "torch", "seeding='torch' binds each batch to its worker"),
    ):
        if given:
            raise ConfigError(
                f"{name} shares one queue between local and remote workers, and {why}; use local workers only, or "
                "worker_method='ray'"
            )
