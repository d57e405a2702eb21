"""What a what-if can change: knobs -> the machinery and what batches ask for as they would be.

Settings are a mapping of the knobs of :data:`KNOBS`; those that are not named stay as they were. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from .demands import BatchDemand, Demands, Part
from .passing import in_processes, in_threads
from .simulation import Machinery, Order
from .trials import AS_BEFORE, Cost, Ratio, chosen

KNOBS: Mapping[str, str] = {
    "num_workers": "workers; 0: none",
    "prefetch_factor": "batches in flight for each worker",
    "in_order": "false: batches come as they are ready",
    "engine": "torch, or fastload: samples go to whichever worker is idle, batches come in order",
    "fuse": "of fastload's loader: auto, true or false",
    "seeding": "of fastload's loader: sample or torch",
    "worker_method": "of fastload's loader: multiprocessing or thread",
    "persistent_workers": "true: workers are kept from pass to pass",
    "pin_memory": "true: copies to the device come from page-locked memory, and the loop does not wait for them",
    "uint8": "true: float32 that is copied to the device is copied as bytes",
    "cache": "encoded: files are read from memory; decoded: decoded images are kept in memory",
    "decoder_speedup": "decoding is so many times as fast (needs a recording at level 2)",
    "on_device": "names of transforms that the workers no longer do (needs a recording at level 2)",
}
"""What can be set, and what it means."""

_STEPS_AHEAD = 2
"""A loop that does not wait for the device at each step is let so far ahead: its queue is not endless."""
_DECODING = ("decode", "imread")
"""What the names of stages that decode contain: ``PIL.decode``, ``torchvision.io.decode_jpeg``, ``cv2.imread``."""


def machinery_of(demands: Demands) -> Machinery:
    """Return what made the batches of a run, as far as its loader says."""
    loader = demands.loader
    fastload = loader.get("engine") == "fastload"
    order: Order = "sample" if fastload else "any" if loader.get("in_order") is False else "batch"
    return Machinery(
        workers=int(loader.get("num_workers") or 0),
        prefetch=int(loader.get("prefetch_factor") or 2),
        order=order,
        whole=_is_whole(demands),
        pin=any(batch.pin_ns for one in demands.passes for batch in one),
        persistent=bool(loader.get("persistent_workers")),
        cores=float(demands.cores),
        paces=demands.paces,
        device_lag=_device_lag(demands),
    )


def _device_lag(demands: Demands) -> int:
    """Return how many steps the loop lets the device lag behind: none, where it is about as long at each as it is."""
    both = [(sum(batch.loop), batch.device_ns) for one in demands.passes for batch in one if batch.device_ns]
    waits = sum(loop for loop, _ in both) >= 0.8 * sum(device for _, device in both)
    return 0 if waits else _STEPS_AHEAD


def has_copies(demands: Demands) -> bool:
    """Return whether the loop waited for copies to a device."""
    return any(batch.copy_ns for one in demands.passes for batch in one)


def _is_whole(demands: Demands) -> bool:
    return demands.loader.get("collate") not in (None, "default_collate")


def configured(machinery: Machinery, settings: Mapping[str, Any]) -> Machinery:
    """Return the machinery as settings change it.

    Raises:
        ConfigError: a knob does not exist, or cannot be set so.
    """
    unknown = [knob for knob in settings if knob not in KNOBS]
    if unknown:
        raise ConfigError(f"a what-if sets {', '.join(KNOBS)}; got {unknown[0]!r}")
    workers = _count(settings, "num_workers", machinery.workers, 0)
    engine = settings.get("engine", "fastload" if machinery.order == "sample" else "torch")
    in_order = settings.get("in_order", machinery.order != "any")
    if engine not in ("torch", "fastload"):
        raise ConfigError(f"engine must be torch or fastload, got {engine!r}")
    return dataclasses.replace(
        machinery,
        workers=workers,
        prefetch=_count(settings, "prefetch_factor", machinery.prefetch, 1),
        order="sample" if engine == "fastload" else "batch" if in_order else "any",
        persistent=bool(settings.get("persistent_workers", machinery.persistent)),
        pin=bool(settings.get("pin_memory", machinery.pin)),
    )


def _count(settings: Mapping[str, Any], knob: str, before: int, least: int) -> int:
    value = settings.get(knob, before)
    if type(value) is not int or value < least:
        raise ConfigError(f"{knob} must be an integer of at least {least}, got {value!r}")
    return value


def sample_cost(demands: Demands, settings: Mapping[str, Any]) -> Ratio:
    """Return what samples and their collation cost with settings.

    Raises:
        ConfigError: as :func:`changed`.
    """
    before, after = chosen(demands.loader, settings)
    if before != after:
        try:
            return demands.trials.ratio(before, after)
        except ConfigError:
            if {"fuse", "seeding", "worker_method"} & settings.keys():
                raise
    return AS_BEFORE


def changed(demands: Demands, settings: Mapping[str, Any], cost: Cost | None = None) -> Demands:
    """Return the demands as settings change them.

    Args:
        demands: as they were.
        settings: the knobs that change.
        cost: what samples cost; None: what :func:`sample_cost` says.

    Raises:
        ConfigError: a knob cannot be set so, or needs what the recording does not have.
    """
    if (cache := settings.get("cache")) is not None:
        if cache not in ("encoded", "decoded"):
            raise ConfigError(f"cache must be encoded or decoded, got {cache!r}")
        decoding = _decoding(demands, "cache=decoded") if cache == "decoded" else []
        demands = _each(demands, lambda batch: _without(_unblocked(batch), decoding, 1.0))
    if (speedup := settings.get("decoder_speedup")) is not None:
        if not isinstance(speedup, int | float) or not 0 < speedup < float("inf"):
            raise ConfigError(f"decoder_speedup must be above 0, got {speedup!r}")
        decoding = _decoding(demands, "decoder_speedup")
        demands = _each(demands, lambda batch: _without(batch, decoding, 1.0 - 1.0 / speedup))
    if names := settings.get("on_device"):
        recorded = _stages(demands, "on_device")
        if unknown := [name for name in names if name not in recorded]:
            raise ConfigError(
                f"on_device must name stages that were recorded: {', '.join(recorded)}; got {unknown[0]!r}"
            )
        demands = _each(demands, lambda batch: _without(batch, names, 1.0))
    cost = sample_cost(demands, settings).value if cost is None else cost
    if cost != Cost():
        demands = _each(demands, lambda batch: _computing(batch, cost))
    before, after = chosen(demands.loader, settings)
    if bool(before.threads) != bool(after.threads):
        passing = in_threads if after.threads else in_processes
        demands = dataclasses.replace(demands, costs=passing(demands.costs))
    if settings.get("uint8") or settings.get("pin_memory"):
        if not has_copies(demands):
            raise ConfigError("uint8 and pin_memory change copies to a device, and the recording has none that wait")
        if settings.get("uint8"):
            demands = _each(demands, lambda batch: _copying(batch, 0.25, 0.0))
        if settings.get("pin_memory"):  # copying to page-locked memory is what such a copy does first anyway
            demands = _each(demands, lambda batch: _copying(batch, 0.0, 1.0))
    return demands


def _computing(batch: BatchDemand, cost: Cost) -> BatchDemand:
    """Let samples and their collation cost something else."""

    def with_cost(part: Part) -> Part:
        return part._replace(cpu=part.cpu * cost.cpu, blocked=max(0.0, part.blocked + part.cpu * cost.waiting))

    samples, collate = tuple(map(with_cost, batch.samples)), with_cost(batch.collate)
    computed = collate.cpu + sum(part.cpu for part in samples)  # nobody waits for longer than the others compute
    loop = batch.loop._replace(blocked=batch.loop.blocked + min(batch.loop.cpu * cost.loop, computed))
    return dataclasses.replace(batch, samples=samples, collate=collate, loop=loop)


def _copying(batch: BatchDemand, loop: float, pinning: float) -> BatchDemand:
    """Leave a share of the copies' time in the loop, and give a share to the thread that pins."""
    part, copy = batch.loop, batch.copy_ns
    keep = max(0.0, 1.0 - copy * (1.0 - loop) / sum(part)) if sum(part) else 1.0
    return dataclasses.replace(batch, loop=part.times(keep), copy_ns=copy * loop, pin_ns=batch.pin_ns + copy * pinning)


def _decoding(demands: Demands, knob: str) -> list[str]:
    recorded = _stages(demands, knob)
    found = [name for name in recorded if any(word in name for word in _DECODING)]
    if not found:
        raise ConfigError(f"{knob} is for decoding, and no stage that was recorded decodes: {', '.join(recorded)}")
    return found


def _stages(demands: Demands, knob: str) -> list[str]:
    found = sorted({name for one in demands.passes for batch in one for name in batch.stages})
    if not found:
        raise ConfigError(f"{knob} needs the stages of samples, and none were recorded; record with --level 2")
    return found


def _each(demands: Demands, change: Callable[[BatchDemand], BatchDemand]) -> Demands:
    return dataclasses.replace(demands, passes=tuple(tuple(map(change, one)) for one in demands.passes))


def _unblocked(batch: BatchDemand) -> BatchDemand:
    return dataclasses.replace(batch, samples=tuple(Part(part.cpu, 0.0, part.queued) for part in batch.samples))


def _without(batch: BatchDemand, stages: Sequence[str], share: float) -> BatchDemand:
    """Take a share of stages away, from all samples alike."""
    cpu = share * sum(batch.stages[name].cpu for name in stages if name in batch.stages)
    blocked = share * sum(batch.stages[name].blocked for name in stages if name in batch.stages)
    whole_cpu = sum(part.cpu for part in batch.samples)
    whole_blocked = sum(part.blocked for part in batch.samples)
    keep_cpu = max(0.0, 1.0 - cpu / whole_cpu) if whole_cpu else 1.0
    keep_blocked = max(0.0, 1.0 - blocked / whole_blocked) if whole_blocked else 1.0
    return dataclasses.replace(
        batch,
        samples=tuple(Part(part.cpu * keep_cpu, part.blocked * keep_blocked, part.queued) for part in batch.samples),
    )


__all__ = ["KNOBS", "changed", "configured", "has_copies", "machinery_of", "sample_cost"]
