"""The transform or decoder that takes most of a sample, and what helps. Pure.

To add a remedy, measure it: both ways on one machine, with the same images. Say in it what it is about, since stages
have only the names of classes, and whether the values stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .workers import HOT

_NO_TRANSFORMS = ("sample", "collate", "open", "PIL.Image.open", "PIL.convert", "network and object store")
"""Parts of a sample that are neither a transform nor a decoder."""

# Measured on one core of an AMD EPYC, torch 2.15, torchvision 0.29, Pillow 13, OpenCV 5, albumentations 2.0.
_REMEDIES = {
    "GaussianBlur": (
        "torchvision's GaussianBlur(23) of 224 x 224 pixels: cv2.GaussianBlur(array, (23, 23), sigma) took less than a "
        "tenth of its time, with values that differ by 1 at most; PIL.ImageFilter.GaussianBlur(sigma) took a seventh, "
        "and differs more"
    ),
    "ElasticTransform": (
        "torchvision's ElasticTransform() of 224 x 224 pixels: albumentations.ElasticTransform(alpha=50, sigma=5) took "
        "less than a fifteenth of its time; it draws other displacements"
    ),
    "ColorJitter": (
        "torchvision's ColorJitter of 224 x 224 pixels: without hue= it took a quarter of its time, for PIL images, or "
        "less, for tensors"
    ),
    "Resize": (
        "torchvision's Resize: tensors of float32 took five to nine times as long as those of uint8, so convert to "
        "float32 after it; the values then differ"
    ),
}
_VIDEO = "video.decode"
# LeRobot 0.6.1's default, AV1 of 640 x 480 with a key frame at every second frame, on one core of the same machine.
_VIDEOS = (
    "a frame is decoded from the key frame before it on; a key frame of AV1 at 640 x 480 took 2 ms, and random frames "
    "cost at least that: smaller videos, fewer cameras or frames a sample take less"
)
_DECODING = ("decode", "imread")
"""Parts of the names of stages that decode: ``PIL.decode``, ``torchvision.io.decode_jpeg``, ``cv2.imread``."""
_DECODERS = (
    "fastload pack stores the images of a folder so that they take less: smaller (--max-side 500), JPEG files as "
    "coefficients (--coefficients), or as pixels (--raw)"
)


class Dominant(NamedTuple):
    """The transform or decoder that takes more than half of a sample."""

    stage: str
    share: float
    """Its share of the time per sample, collation included; without waiting for a core."""


def decodes(stage: str) -> bool:
    """Return whether a stage is a decoder."""
    return any(word in stage for word in _DECODING)


def remedy_for(stage: str) -> str | None:
    """Return what is known to help where a stage takes most of a sample; None: nothing that was measured."""
    if stage == _VIDEO:
        return _VIDEOS
    return _DECODERS if decodes(stage) else _REMEDIES.get(stage)


def dominant(stages_ms: Mapping[str, float]) -> Dominant | None:
    """Return the transform or decoder that takes more than half of a sample, its collation included."""
    whole = sum(stages_ms.values())
    stage = max(stages_ms, key=lambda name: stages_ms[name], default="")
    if stage in _NO_TRANSFORMS or not stages_ms or stages_ms[stage] <= HOT * whole:
        return None
    return Dominant(stage, stages_ms[stage] / whole)
