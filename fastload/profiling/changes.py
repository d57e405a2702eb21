"""What a what-if can change: the settings, their effect on the simulation, and the lines of code to change. Pure.

Settings are a mapping with keys of :data:`SETTINGS`; a setting that is not given stays as recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from .formatting import STAGES_KNOWN
from .overheads import Part
from .simulation import LoaderModel, Order
from .trials import AS_BEFORE, CostRatio, chosen
from .workload import BatchWork, Workload, total

SETTINGS = (
    *("num_workers", "prefetch_factor", "in_order", "engine", "fuse", "seeding"),
    *("persistent_workers", "pin_memory", "uint8", "cache", "decoder_speedup", "on_device"),
)
"""What can be set; docs/profile.md says what each means."""

_STEPS_AHEAD = 2
"""How far a loop that does not wait for the device at each step gets ahead of it."""
_DECODING = ("decode", "imread")
"""Parts of the names of stages that decode: ``PIL.decode``, ``torchvision.io.decode_jpeg``, ``cv2.imread``."""


def model_of(workload: Workload) -> LoaderModel:
    """Return the model of the loader that was recorded."""
    loader = workload.loader
    return LoaderModel(
        workers=int(loader.get("num_workers") or 0),
        prefetch=int(loader.get("prefetch_factor") or 2),
        order=_order(loader, {}),
        whole=loader.get("collate") not in (None, "default_collate"),
        pin=any(batch.pin_ns for batch in workload.batches),
        persistent=bool(loader.get("persistent_workers")),
        cores=float(workload.cores),
        paces=workload.paces,
        device_lag=_device_lag(workload),
    )


def _order(loader: Mapping[str, Any], settings: Mapping[str, Any]) -> Order:
    """Return how work is shared: without keys a batch belongs to one worker, but where nothing is drawn."""
    _, after = chosen(loader, settings)
    if after.engine == "fastload" and (after.seeding == "sample" or loader.get("draws_nothing")):
        return "sample"
    return "batch" if settings.get("in_order", loader.get("in_order") is not False) else "any"


def _device_lag(workload: Workload) -> int:
    """Return how many steps the device may lag behind: none if the loop takes about as long per step as the device."""
    both = [(sum(batch.loop), batch.device_ns) for batch in workload.batches if batch.device_ns]
    waits = sum(loop for loop, _ in both) >= 0.8 * sum(device for _, device in both)
    return 0 if waits else _STEPS_AHEAD


def has_copies(workload: Workload) -> bool:
    """Return whether the loop waited for copies to a device."""
    return any(batch.copy_ns for batch in workload.batches)


def changed_model(model: LoaderModel, loader: Mapping[str, Any], settings: Mapping[str, Any]) -> LoaderModel:
    """Return the model of a loader with changed settings.

    Raises:
        ConfigError: a setting has a value that is not supported.
    """
    return dataclasses.replace(
        model,
        workers=_count(settings, "num_workers", model.workers, 0),
        prefetch=_count(settings, "prefetch_factor", model.prefetch, 1),
        order=_order(loader, settings),
        persistent=bool(settings.get("persistent_workers", model.persistent)),
        pin=bool(settings.get("pin_memory", model.pin)),
    )


def _count(settings: Mapping[str, Any], name: str, before: int, least: int) -> int:
    value = settings.get(name, before)
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def sample_cost(workload: Workload, settings: Mapping[str, Any]) -> CostRatio:
    """Return what samples and their collation cost with changed settings; raises as :func:`changed_workload`."""
    before, after = chosen(workload.loader, settings)
    if before == after:
        return AS_BEFORE
    try:
        cost = workload.trials.ratio(before, after)
        share = cached_share(workload)
        if after.cache == before.cache or share == 1.0:
            return cost
        rest = workload.trials.ratio(before, after._replace(cache=None))
        return CostRatio(*(share * with_it + (1 - share) * one for with_it, one in zip(cost, rest, strict=True)))
    except ConfigError:
        if {"fuse", "seeding"} & settings.keys() or settings.get("cache") == "auto":
            raise
    return AS_BEFORE


def cached_share(workload: Workload) -> float:
    """Return which share of the dataset a cache could hold, from its trial."""
    room = workload.trials.cache
    return 1.0 if room is None else room.share(workload.loader.get("length"))


def changed_workload(workload: Workload, settings: Mapping[str, Any], cost: float) -> Workload:
    """Return the workload with changed settings, if samples then have a ``cost`` of :func:`sample_cost`.

    Raises:
        ConfigError: a setting has a value that is not supported, or needs what was not recorded.
    """
    if (cache := settings.get("cache")) in ("encoded", "decoded"):
        decoding = _decoding_stages(workload, "cache=decoded") if cache == "decoded" else []
        workload = _each(workload, lambda batch: _without(_unblocked(batch), decoding, 1.0))
    if (speedup := settings.get("decoder_speedup")) is not None:
        if not 0 < speedup < float("inf"):
            raise ConfigError(f"decoder_speedup must be a number above 0, got {speedup!r}")
        decoding = _decoding_stages(workload, "decoder_speedup")
        workload = _each(workload, lambda batch: _without(batch, decoding, 1.0 - 1.0 / speedup))
    if names := settings.get("on_device"):
        recorded = _stages(workload, "on_device")
        if unknown := [name for name in names if name not in recorded]:
            raise ConfigError(f"on_device must name recorded stages ({', '.join(recorded)}), got {unknown[0]!r}")
        workload = _each(workload, lambda batch: _without(batch, names, 1.0))
    if cost != 1.0:
        workload = _each(workload, lambda batch: _with_cost(batch, cost))
    if settings.get("uint8") or settings.get("pin_memory"):
        if not has_copies(workload):
            raise ConfigError("uint8 and pin_memory change copies that the loop waits for; none were recorded")
        if settings.get("uint8"):
            workload = _each(workload, lambda batch: _with_copies(batch, 0.25, 0.0))
        if settings.get("pin_memory"):  # such a copy copies to page-locked memory first anyway
            workload = _each(workload, lambda batch: _with_copies(batch, 0.0, 1.0))
    return workload


def _with_cost(batch: BatchWork, cost: float) -> BatchWork:
    def changed(part: Part) -> Part:
        return part._replace(cpu=part.cpu * cost)

    return dataclasses.replace(batch, samples=tuple(map(changed, batch.samples)), collate=changed(batch.collate))


def _with_copies(batch: BatchWork, loop: float, pinning: float) -> BatchWork:
    """Leave a share of the copies' time in the loop, and give a share to the thread that pins."""
    part, copy = batch.loop, batch.copy_ns
    keep = max(0.0, 1.0 - copy * (1.0 - loop) / sum(part)) if sum(part) else 1.0
    return dataclasses.replace(batch, loop=part.times(keep), copy_ns=copy * loop, pin_ns=batch.pin_ns + copy * pinning)


def _decoding_stages(workload: Workload, name: str) -> list[str]:
    recorded = _stages(workload, name)
    found = [stage for stage in recorded if decodes(stage)]
    if not found:
        raise ConfigError(f"{name} needs a stage that decodes, and none was recorded: {', '.join(recorded)}")
    return found


def decodes(stage: str) -> bool:
    """Return whether a stage is a decoder."""
    return any(word in stage for word in _DECODING)


def _stages(workload: Workload, name: str) -> list[str]:
    found = sorted({stage for batch in workload.batches for stage in batch.stages})
    if not found:
        remedy = "record with --level 2" if workload.level != 2 else f"--level 2 knows only {STAGES_KNOWN}"
        raise ConfigError(f"{name} needs the stages of samples, and none were recorded; {remedy}")
    return found


def _each(workload: Workload, change: Callable[[BatchWork], BatchWork]) -> Workload:
    return dataclasses.replace(workload, epochs=tuple(tuple(map(change, epoch)) for epoch in workload.epochs))


def _unblocked(batch: BatchWork) -> BatchWork:
    return dataclasses.replace(batch, samples=tuple(part._replace(blocked=0.0) for part in batch.samples))


def _without(batch: BatchWork, stages: Sequence[str], share: float) -> BatchWork:
    """Remove a share of stages, from all samples alike."""
    removed, whole = total(batch.stages[name] for name in stages if name in batch.stages), total(batch.samples)
    cpu = max(0.0, 1.0 - share * removed.cpu / whole.cpu) if whole.cpu else 1.0
    blocked = max(0.0, 1.0 - share * removed.blocked / whole.blocked) if whole.blocked else 1.0
    samples = (part._replace(cpu=part.cpu * cpu, blocked=part.blocked * blocked) for part in batch.samples)
    return dataclasses.replace(batch, samples=tuple(samples))


# -- lines of code ----------------------------------------------------------------------------------------------------

_FASTLOAD_ONLY = ("fuse", "seeding", "cache")
_ARGUMENTS = ("num_workers", "prefetch_factor", "in_order", "persistent_workers", "pin_memory", *_FASTLOAD_ONLY)
"""Settings that are arguments of a DataLoader."""
_TO_FASTLOAD = ["-from torch.utils.data import DataLoader", "+from fastload import DataLoader"]
_TO_TORCH = ["-from fastload import DataLoader", "+from torch.utils.data import DataLoader"]
_FOLDERS = ("torchvision.datasets.folder.ImageFolder", "torchvision.datasets.folder.DatasetFolder")
"""Datasets whose folder can be packed."""
_COUNTERPARTS = {"ToTensor": "ToDtype", "ConvertImageDtype": "ToDtype"}
"""Transforms of torchvision -> names in fastload.transforms, where they differ."""
_LINES: dict[tuple[str, Any], list[str]] = {
    ("uint8", True): [
        "-x = x.to(device)",
        "+x = x.to(device).float().div(255)  # x is uint8: do not convert it earlier",
    ],
    ("pin_memory", True): ["-x = x.to(device)", "+x = x.to(device, non_blocking=True)"],
    ("fuse", True): ["# other augmentation: random transforms then draw from each sample's key"],
    ("seeding", "sample"): [
        "# other augmentation: each sample then draws from a key of its own, whatever the workers,",
        "# and not from torch's streams; so workers share a batch",
    ],
    ("seeding", "torch"): ["# without a seed; augmentation then is torch's, and depends on the number of workers"],
    ("cache", "encoded"): [
        "# needs more than one line: copy the files to a disk in memory (tmpfs), or read",
        "# their bytes in the dataset before workers start; they must fit into memory",
    ],
    ("cache", "decoded"): [
        *_TO_FASTLOAD,
        "-DataLoader(...)",
        '+DataLoader(..., resident="host", batch_transform=RANDOM)',
        "# reads the dataset once and keeps it in memory, where it must fit; samples",
        "# have one shape, and random transforms move from the dataset to batch_transform",
    ],
}
"""Setting and value -> what to change besides arguments."""


def lines_of(
    before: Mapping[str, Any], loader: Mapping[str, Any], settings: Mapping[str, Any], of: str | None = None
) -> str:
    """Return the lines to change, old ones with ``-`` before them and new ones with ``+``; remarks with ``#``.

    Where no line of code is enough, remarks say what to do.

    ``before`` are the recorded settings; ``of``: which loader is meant, in words, if there are several.
    """
    which = "" if of is None else f"  # of {of}"
    is_fastload = settings.get("engine", before["engine"]) == "fastload"
    dataset = str(loader.get("dataset"))
    lines: list[str] = []
    if is_fastload != (before["engine"] == "fastload"):
        lines += _TO_FASTLOAD if is_fastload else _TO_TORCH
        if is_fastload:
            lines += ["# or without an edit: fastload run SCRIPT (or fastload.install() in it)"]
    named = [name for name in _ARGUMENTS if name in settings and (name != "cache" or settings[name] == "auto")]
    if named:
        values = {name: loader.get(name, before.get(name)) for name in named}
        values = {name: value for name, value in values.items() if name not in _FASTLOAD_ONLY or value is not None}
        changed = {name: settings[name] for name in named}
        if changed.get("seeding") == "sample":
            del changed["seeding"]
            values.pop("seeding", None)  # it may follow from other arguments
            changed["seed"] = 1
        called = "DataLoader" if loader.get("torchs", True) else "LOADER"
        lines += [f"-{called}({_arguments(values)}){which}", f"+{called}({_arguments(changed)}){which}"]
    for name, value in settings.items():
        if name == "on_device":
            lines += _lines_of_device(sorted(set(value)), is_fastload)
        elif name == "decoder_speedup":
            lines += _lines_of_decoder(dataset, is_fastload)
        elif name == "cache" and value != "auto" and dataset in _FOLDERS:
            lines += _lines_of_packing(value)
        else:
            lines += _LINES.get((name, value), [])
    return "\n".join(dict.fromkeys(lines))  # two settings may change the same line


def lines_of_ceiling(stage: str, loader: Mapping[str, Any], has_device: bool) -> str:
    """Return the lines that make a stage cheaper, or move it to the device if there is one."""
    is_fastload = loader.get("engine") == "fastload"
    if decodes(stage):
        return "\n".join(_lines_of_decoder(str(loader.get("dataset")), is_fastload))
    lines = ["# cheaper: on smaller images, for fewer samples (RandomApply), or another implementation"]
    if has_device:
        return "\n".join([*lines, "# or on the device:", *_lines_of_device([stage], is_fastload)])
    return "\n".join([*lines, f"# with a GPU it can move there: fastload whatif DIR --on-device {stage}"])


def _lines_of_packing(cache: str) -> list[str]:
    raw = cache == "decoded"
    what = "pixels: nothing is left to decode" if raw else "a few large files, which stay in the page cache"
    return [
        f"+fastload pack FOLDER PACKED{' --raw' if raw else ''}  # once: {what}",
        "-dataset = ImageFolder(FOLDER, transform)",
        "+dataset = fastload.images.PackedImages(PACKED, transform)",
        "# all of PACKED must fit into memory",
    ]


def _lines_of_decoder(dataset: str, is_fastload: bool) -> list[str]:
    if dataset.startswith(("torchvision.datasets.", "fastload.images.")):
        return [
            *([] if is_fastload else _TO_FASTLOAD),
            "-DataLoader(...)",
            "+DataLoader(..., fuse=True)",
            "# decodes only what the crop needs: fastload explain SCRIPT shows what; or",
            "# fastload pack FOLDER PACKED --max-side 500 makes smaller files",
        ]
    return [
        "# needs more than one line: decode smaller images (for a folder:",
        "# fastload pack FOLDER PACKED --max-side 500), or use another decoder",
    ]


def _lines_of_device(names: Sequence[str], is_fastload: bool) -> list[str]:
    from .. import transforms

    offered = [name for name in names if _COUNTERPARTS.get(name, name) in transforms.__all__]
    lines: list[str] = []
    if offered:
        lines += [] if is_fastload else _TO_FASTLOAD
        lines += [f"-Compose([..., {name}(...)])  # in the dataset" for name in offered]
        moved = ", ".join(f"T.{_COUNTERPARTS.get(name, name)}(...)" for name in offered)
        lines += [
            "-DataLoader(...)",
            "+DataLoader(..., device=device, batch_transform=T.Compose([",
            f"+    {moved}",
            "+]))  # from fastload import transforms as T",
            "# only the last transforms of a chain can move, and their input must have one size",
        ]
    others = [name for name in names if name not in offered]
    return lines + [f"# {name}: write it for a whole batch, on the device, after x.to(device)" for name in others]


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(["...", *(f"{name}={value!r}" for name, value in values.items())])
