"""What a what-if sets -> the lines of a script to change, or where no line does it what else does. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


__all__ = ["OFFERED", "lines_of"]
