"""Colour transforms and the policies made of them, as steps.

On PIL images they work with Pillow's arithmetic, in integers of its own rounding; the batched ones equal torchvision's
on tensors. So only those that get tensors can be batched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torchvision.transforms import InterpolationMode

from .. import transforms
from ..transforms.auto import OPERATIONS
from ..transforms.base import Transform
from ..transforms.draws import Draws
from .step import Drawn, Sizes, State, Step, any_size

Range = tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColorJitter(Step):
    """``ColorJitter``. Given: ((what, factor), ...) in the order in which they are done."""

    brightness: Range = None
    contrast: Range = None
    saturation: Range = None
    hue: Range = None

    random: ClassVar[bool] = True

    def twin(self) -> Any:
        """See :class:`Step`."""
        return transforms.ColorJitter(self.brightness, self.contrast, self.saturation, self.hue)

    def draw(self, twin: Any, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """See :class:`Step`."""
        params = twin.draw(draws.stream(name), any_size(len(draws)))
        return {key: value.numpy() for key, value in params.items() if not key.startswith("rows_")}

    def given(self, drawn: Drawn, count: int) -> list[Any]:
        """See :class:`Step`."""
        names = ("brightness", "contrast", "saturation")
        factors = {name: drawn[name].tolist() for name in (*names, "hue") if name in drawn}
        found = []
        for row, (order, place) in enumerate(zip(drawn["order"].tolist(), drawn["before_hue"].tolist(), strict=True)):
            turns = [names[kind] for kind in order]
            if "hue" in factors:
                turns.insert(place, "hue")
            found.append(tuple((name, factors[name][row]) for name in turns))
        return found

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        for name, factor in given:
            image = getattr(self.functional, f"adjust_{name}")(image, factor)
        return image

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return None if before.kind == "PIL" else [self.twin()]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomGrayscale(Step):
    """``RandomGrayscale``. Given: whether."""

    p: float = 0.1

    random: ClassVar[bool] = True

    def twin(self) -> Any:
        """See :class:`Step`."""
        return transforms.RandomGrayscale(self.p)

    def draw(self, twin: Any, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """See :class:`Step`."""
        return {"chosen": twin.draw(draws.stream(name), any_size(len(draws)))["chosen"].numpy()}

    def given(self, drawn: Drawn, count: int) -> list[Any]:
        """See :class:`Step`."""
        chosen: list[bool] = np.asarray(drawn["chosen"]).tolist()
        return chosen

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        if not given:
            return image
        channels = self.functional.get_dimensions(image)[0]
        return self.functional.rgb_to_grayscale(image, num_output_channels=channels)

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        return None if before.kind == "PIL" else [self.twin()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy(Step):
    """Given: ((operation, bin, sign), ...) in their order."""

    interpolation: str = "nearest"
    fill: float | tuple[float, ...] | None = None

    random: ClassVar[bool] = True

    def magnitude_of(self, operation: str, bin_: int, height: int, width: int, bound: float) -> float:
        """Return torchvision's magnitude of an operation, without its sign."""
        raise NotImplementedError

    def apply(self, image: Any, given: Any) -> Any:
        """See :class:`Step`."""
        # v1 brings the threshold of Solarize to 255 levels before it is known what the image is.
        tensor = isinstance(image, torch.Tensor)
        bound = 1.0 if self.version == "v2" and tensor and image.is_floating_point() else 255.0
        channels, height, width = self.functional.get_dimensions(image)
        fill: Any = list(self.fill) if isinstance(self.fill, tuple) else self.fill
        if self.version == "v1" and tensor and fill is not None:
            fill = fill if isinstance(fill, list) else [float(fill)] * channels
        for operation, bin_, sign in given:
            size = sign * self.magnitude_of(operation, bin_, height, width, bound)
            image = self._operate(image, operation, size, fill)
        return image

    def _operate(self, image: Any, operation: str, magnitude: float, fill: Any) -> Any:
        functional, mode = self.functional, InterpolationMode(self.interpolation)
        if operation.startswith(("Shear", "Translate")):
            along = operation.endswith("Y")
            shear, shift, centre = [0.0, 0.0], [0, 0], None
            if operation.startswith("Shear"):
                shear[along], centre = math.degrees(math.atan(magnitude)), [0, 0]
            else:
                shift[along] = int(magnitude)
            return functional.affine(image, 0.0, shift, 1.0, shear, mode, fill, centre)
        match operation:
            case "Rotate":
                return functional.rotate(image, magnitude, mode, fill=fill)
            case "Brightness" | "Contrast" | "Sharpness":
                return getattr(functional, f"adjust_{operation.lower()}")(image, 1.0 + magnitude)
            case "Color":
                return functional.adjust_saturation(image, 1.0 + magnitude)
            case "Posterize":
                return functional.posterize(image, int(magnitude))
            case "Solarize":
                return functional.solarize(image, magnitude)
            case "AutoContrast" | "Equalize":
                return getattr(functional, operation.lower())(image)
        return image  # Identity

    def _magnitude(
        self, operation: str, bin_: int, bins: int, bound: float, ranges: dict[str, float], bits: int
    ) -> float:
        """Return the value of a bin, as torchvision computes it.

        Args:
            operation: of :data:`OPERATIONS`.
            bin_: which.
            bins: how many there are.
            bound: the images' highest level.
            ranges: the highest magnitude of shearing, moving to the side and down, turning and enhancing.
            bits: how many bits Posterize takes away at most.
        """
        if operation in ("Identity", "AutoContrast", "Equalize"):
            return 0.0
        if operation == "Posterize":
            lost = torch.arange(bins, device="cpu") / ((bins - 1) / bits)
            return float((8 - lost.round() if self.version == "v1" else (8 - lost).round())[bin_])
        if operation == "Solarize":
            if self.version == "v1":
                return float(torch.linspace(255.0, 0.0, bins, device="cpu")[bin_])
            return bound * float(torch.linspace(1.0, 0.0, bins, device="cpu")[bin_])
        highest = ranges.get(operation, ranges["enhance"])
        return float(torch.linspace(0.0, highest, bins, device="cpu")[bin_])

    def batched(self, before: State) -> list[Transform] | None:
        """See :class:`Step`."""
        whole = before.kind != "PIL" and self.interpolation in ("nearest", "bilinear")
        # Where v1 rounds differently, the batched ones round as v2 does.
        return [self.twin()] if whole and self.version == "v2" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RandAugment(_Policy):
    """``RandAugment``. Given: ((operation, bin, sign), ...) in their order."""

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31

    def twin(self) -> Any:
        """See :class:`Step`."""
        mode = self.interpolation if self.interpolation == "bilinear" else "nearest"
        return transforms.RandAugment(self.num_ops, self.magnitude, self.num_magnitude_bins, mode, self.fill)

    def draw(self, twin: Any, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """See :class:`Step`."""
        return {"steps": twin.choices(draws.stream(name))}

    def given(self, drawn: Drawn, count: int) -> list[Any]:
        """See :class:`Step`."""
        steps = [_named(choice) for choice in drawn["steps"]]
        return list(zip(*steps, strict=True)) if steps else [()] * count

    def magnitude_of(self, operation: str, bin_: int, height: int, width: int, bound: float) -> float:
        """See :class:`_Policy`."""
        share = 150.0 / 331.0
        ranges = {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0, "enhance": 0.9}
        ranges |= {"TranslateX": share * width, "TranslateY": share * height}
        return self._magnitude(operation, bin_, self.num_magnitude_bins, bound, ranges, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrivialAugmentWide(_Policy):
    """``TrivialAugmentWide``. Given: ((operation, bin, sign),)."""

    num_magnitude_bins: int = 31

    def twin(self) -> Any:
        """See :class:`Step`."""
        mode = self.interpolation if self.interpolation == "bilinear" else "nearest"
        return transforms.TrivialAugmentWide(self.num_magnitude_bins, mode, self.fill)

    def draw(self, twin: Any, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """See :class:`Step`."""
        return {"step": twin.choice(draws.stream(name))}

    def given(self, drawn: Drawn, count: int) -> list[Any]:
        """See :class:`Step`."""
        return [(one,) for one in _named(drawn["step"])]

    def magnitude_of(self, operation: str, bin_: int, height: int, width: int, bound: float) -> float:
        """See :class:`_Policy`."""
        ranges = {"ShearX": 0.99, "ShearY": 0.99, "Rotate": 135.0, "enhance": 0.99}
        ranges |= {"TranslateX": 32.0, "TranslateY": 32.0}
        return self._magnitude(operation, bin_, self.num_magnitude_bins, bound, ranges, 6)


def _named(choice: Any) -> list[tuple[str, int, float]]:
    """Return (operation, bin, sign) of each sample."""
    operations = [OPERATIONS[operation] for operation in choice.operation.tolist()]
    return list(zip(operations, choice.bin.tolist(), choice.sign.tolist(), strict=True))


COLORS = (ColorJitter, RandAugment, RandomGrayscale, TrivialAugmentWide)
"""All of this module."""

__all__ = ["COLORS", "ColorJitter", "RandAugment", "RandomGrayscale", "TrivialAugmentWide"]
