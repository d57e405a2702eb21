"""What a what-if can change: the settings, their effect on the simulation, and the lines of code to change. Pure.

Settings are a mapping with keys of :data:`SETTINGS`; a setting that is not given stays as recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from .demands import BatchDemand, Demands, Part
from .overheads import in_processes, in_threads
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


_OURS = ("fuse", "seeding", "worker_method")
_ARGUMENTS = ("num_workers", "prefetch_factor", "in_order", "persistent_workers", "pin_memory", *_OURS)
"""Knobs that are arguments of a DataLoader: the last ones of fastload's only."""
_IMPORTS = ("from torch.utils.data import DataLoader", "from fastload import DataLoader")
_TO_OURS = [f"-{_IMPORTS[0]}", f"+{_IMPORTS[1]}"]
_FOLDERS = ("torchvision.datasets.folder.ImageFolder", "torchvision.datasets.folder.DatasetFolder")
"""Datasets whose folder can be packed."""
_READ_PACKED = [
    "-dataset = ImageFolder(FOLDER, transform)",
    "+dataset = fastload.images.PackedImages(PACKED, transform)",
]
_COUNTERPARTS = {"ToTensor": "ToDtype", "ConvertImageDtype": "ToDtype"}
OFFERED = frozenset(
    {
        *("AugMix", "CenterCrop", "ColorJitter", "ConvertImageDtype", "CutMix", "GaussianBlur", "MixUp", "Normalize"),
        *("RandAugment", "RandomAdjustSharpness", "RandomAffine", "RandomAutocontrast", "RandomCrop", "RandomEqualize"),
        *("RandomErasing", "RandomGrayscale", "RandomHorizontalFlip", "RandomInvert", "RandomPosterize"),
        *("RandomResizedCrop", "RandomRotation", "RandomSolarize", "RandomVerticalFlip", "Resize", "ToDtype"),
        *("ToTensor", "TrivialAugmentWide"),
    }
)
"""Transforms of torchvision's that fastload.transforms has for batches, most of them by the same name."""


def lines_of(
    before: Mapping[str, Any], loader: Mapping[str, Any], settings: Mapping[str, Any], of: str | None = None
) -> str:
    """Return the change: lines of code, old ones with ``-`` before them and new ones with ``+``; remarks with ``#``.

    Where no line does it, remarks alone say what does.

    Args:
        before: the knobs as they were.
        loader: what was recorded of it.
        settings: the knobs that change.
        of: which loader is meant, in words, where there are several.
    """
    which = "" if of is None else f"  # of {of}"
    ours = settings.get("engine", before["engine"]) == "fastload"
    lines: list[str] = []
    if settings.get("engine", before["engine"]) != before["engine"]:
        old, new = _IMPORTS if ours else _IMPORTS[::-1]
        lines += [f"-{old}", f"+{new}"]
        if ours:
            lines += ["# or without an edit: fastload run SCRIPT (or fastload.install() in it)"]
    named = [knob for knob in _ARGUMENTS if knob in settings]
    values = {knob: loader.get(knob, before.get(knob)) for knob in named}
    values = {knob: value for knob, value in values.items() if knob not in _OURS or value is not None}
    if settings.get("uint8"):
        lines += ["-x = x.to(device)", "+x = x.to(device).float().div(255)  # x is uint8: leave it so in the dataset"]
    if settings.get("pin_memory"):
        lines += ["-x = x.to(device)", "+x = x.to(device, non_blocking=True)"]
    if named:
        lines += [
            f"-DataLoader({_arguments(values)}){which}",
            f"+DataLoader({_arguments({knob: settings[knob] for knob in named})}){which}",
        ]
    if settings.get("fuse") is True:
        lines += ["# what is random in a sample is drawn from its key then, in fewer steps"]
    if settings.get("seeding") == "torch":
        lines += ["# samples then depend on the number of workers, as torch's do"]
    if settings.get("worker_method") == "thread":
        lines += ["# workers are threads of the script's process then, which share one interpreter"]
    if settings.get("cache") is not None:
        lines += _lines_of_cache(str(loader.get("dataset")), settings["cache"])
    if settings.get("decoder_speedup") is not None:
        lines += _lines_of_decoder(str(loader.get("dataset")), ours)
    if settings.get("on_device"):
        lines += _lines_of_device(sorted(set(settings["on_device"])), ours)
    return "\n".join(dict.fromkeys(lines))  # two knobs may change the same line


def _lines_of_cache(dataset: str, kind: str) -> list[str]:
    if dataset in _FOLDERS:
        raw = " --raw" if kind == "decoded" else ""
        what = "pixels: nothing is left to decode" if raw else "a few large files, which stay in the page cache"
        return [
            f"+fastload pack FOLDER PACKED{raw}  # once: {what}",
            *_READ_PACKED,
            "# all of PACKED must fit into memory",
        ]
    if kind == "encoded":
        return [
            "# no line does it: copy the files to a disk in memory (tmpfs), or keep",
            "# their bytes in the dataset before workers start; they must fit into memory",
        ]
    return [
        *_TO_OURS,
        "-DataLoader(...)",
        '+DataLoader(..., resident="host", batch_transform=RANDOM)',
        "# reads the dataset once, and keeps it in memory, where it must fit; samples",
        "# have one shape, and what is random moves from the dataset to batch_transform",
    ]


def _lines_of_decoder(dataset: str, ours: bool) -> list[str]:
    if dataset.startswith(("torchvision.datasets.", "fastload.images.")):
        return [
            *([] if ours else _TO_OURS),
            "-DataLoader(...)",
            "+DataLoader(..., fuse=True)",
            "# decodes only what the crop needs: fastload explain SCRIPT says of what; or",
            "# fastload pack FOLDER PACKED --max-side 500 makes smaller files",
        ]
    return [
        "# no line does it: decode smaller images (of a folder they are made by",
        "# fastload pack FOLDER PACKED --max-side 500), or with another decoder",
        "# (fastload doctor measures those that are here)",
    ]


def _lines_of_device(names: Sequence[str], ours: bool) -> list[str]:
    offered = [name for name in names if name in OFFERED]
    others = [name for name in names if name not in OFFERED]
    lines: list[str] = []
    if offered:
        lines += [] if ours else _TO_OURS
        lines += [f"-Compose([..., {name}(...)])  # in the dataset" for name in offered]
        moved = ", ".join(f"T.{_COUNTERPARTS.get(name, name)}(...)" for name in offered)
        lines += [
            "-DataLoader(...)",
            "+DataLoader(..., device=device, batch_transform=T.Compose([",
            f"+    {moved}",
            "+]))  # from fastload import transforms as T",
            "# only the last ones of a chain can move, and what they get has one size",
        ]
    for name in others:
        lines.append(f"# {name}: write it for a whole batch, on the device, after x.to(device)")
    return lines


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(["...", *(f"{name}={value!r}" for name, value in values.items())])


__all__ = ["KNOBS", "OFFERED", "changed", "configured", "has_copies", "lines_of", "machinery_of", "sample_cost"]
