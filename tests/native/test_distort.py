"""Changes of tensors' colors are torchvision's, for all colors, levels of the processor, sizes and factors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import each_level, use_level
from torch import Tensor
from torchvision.transforms import _functional_tensor
from torchvision.transforms.v2 import functional

from fastload.late.tensor_colors import _fused
from fastload.native import LEVELS, distort

levels = st.sampled_from(LEVELS)
FUSED = bool(_fused(2))


def by_torch(image: Tensor, _: Any = None) -> Tensor:
    red, green, blue = image.unbind()
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()[None]


CHANGES: dict[str, tuple[Callable[[Tensor, Any], Tensor], Callable[[Tensor, Any], Tensor]]] = {
    "saturation": (partial(distort.saturated, fused=FUSED), functional.adjust_saturation_image),
    "hue": (distort.turned, functional.adjust_hue_image),
    "saturation, version 1": (partial(distort.saturated, fused=False), _functional_tensor.adjust_saturation),
    "hue, version 1": (distort.turned_1, _functional_tensor.adjust_hue),
    "grey": (lambda image, _: distort.greys(image, fused=FUSED), by_torch),
    "grey, version 1": (
        lambda image, _: distort.greys(image, fused=False).to(torch.uint8),
        lambda image, _: _functional_tensor.rgb_to_grayscale(image),
    ),
}
changes = st.one_of(
    st.tuples(
        st.sampled_from(["saturation", "saturation, version 1"]),
        st.floats(0, 10) | st.sampled_from([0.0, 1.0, 0.5, 1 / 3, 1e-30, 1e6]),
    ),
    st.tuples(
        st.sampled_from(["hue", "hue, version 1"]),
        st.floats(-0.5, 0.5) | st.sampled_from([0.0, -0.0, 1e-9, -1e-9, 1 / 6, -1 / 3]),
    ),
)


def noise(height: int, width: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


FORMS = ("planes", "part of planes", "side by side", "part")


def arranged(pixels: Tensor, form: str) -> Tensor:
    """Return pixels [H, W, 3] as an image: as planes or side by side, in memory with gaps or without."""
    image = pixels.permute(2, 0, 1)
    if form == "planes":
        return image.contiguous()
    if form == "part of planes":
        return torch.nn.functional.pad(image.contiguous(), (2, 3, 1, 4))[:, 1:-4, 2:-3]
    if form == "part":
        return torch.nn.functional.pad(pixels, (0, 0, 1, 2, 3, 1))[3:-1, 1:-2].permute(2, 0, 1)
    return image


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_all_colors_are_those_of_torchvision() -> None:
    number = torch.arange(1 << 24)
    colors = torch.stack([number >> 16, number >> 8 & 255, number & 255]).to(torch.uint8).reshape(3, 4096, 4096)
    for part in colors.split(512, 1):  # version 1 takes 300 bytes for each pixel
        for name, argument in (
            *(("saturation", 0.1), ("saturation", 1.234), ("hue", 0.0123), ("hue", -0.5)),
            *(("saturation, version 1", 1.234), ("hue, version 1", -0.0321)),
            *(("grey", None), ("grey, version 1", None)),
        ):
            change, original = CHANGES[name]
            expected = original(part, argument)
            for _ in each_level():
                assert torch.equal(change(part, argument), expected), name


@settings(max_examples=120, deadline=None)
@given(
    changes, st.integers(2, 40), st.integers(2, 40), st.sampled_from(FORMS), st.integers(0, 5), levels,
)  # fmt: skip
def test_images_of_any_size_and_order_in_memory_give_what_torchvision_gives(
    asked: tuple[str, Any], height: int, width: int, form: str, seed: int, level: str
) -> None:
    (name, argument), image = asked, arranged(noise(height, width, seed), form)
    assert distort.is_known(image)
    change, original = CHANGES[name]
    use_level(level)
    made, expected = change(image, argument), original(image, argument)
    assert torch.equal(made, expected)
    assert made.stride() == expected.stride()
    for grey in ("grey", "grey, version 1"):
        assert torch.equal(CHANGES[grey][0](image, None), CHANGES[grey][1](image, None))
    if not name.startswith("hue"):  # rounded once or twice, on every processor
        for fused in (False, True):
            found = [distort.saturated(image, argument, fused=fused) for _ in each_level()]
            assert all(torch.equal(one, found[0]) for one in found)
