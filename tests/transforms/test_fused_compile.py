"""The kernels compile for GPUs that need not be there, and to the code that is meant."""

from __future__ import annotations

import re

import pytest
import torch
from references import made_images
from triton_kernels import CHAIN, MEAN, STD

from fastload.transforms.compose import Compose
from fastload.transforms.crop import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from fastload.transforms.values import Normalize, ToDtype, ToNormalized

pytestmark = pytest.mark.slow  # Triton starts an assembler for each kernel

EVERY_TARGET = pytest.mark.parametrize("target", [80, 90, 100])


def code_of(made, target):
    [kernel] = made
    code = kernel.asm["ptx"]
    assert f".target sm_{target}" in code
    assert kernel.asm["cubin"][:4] == b"\x7fELF"
    assert kernel.metadata.shared == 0, "numbers stay with their threads"
    assert "ld.global.v" not in code, "nothing says that numbers of the source lie together"
    return code


@EVERY_TARGET
@pytest.mark.parametrize("memory", ["channels_last", "contiguous"])
def test_the_usual_chain_compiles_to_wide_stores_and_one_rounding(compiled, target, memory):
    Compose([RandomCrop(32, 4), *CHAIN[1:]])(made_images(0, (4, 3, 32, 32), memory=memory))
    code = code_of(compiled, target)
    assert "st.global.v" in code
    assert "fma.rn.f32" in code
    assert "cvt.rn.bf16" in code
    assert ".ftz" not in code


@pytest.mark.parametrize(
    ("dtype", "members", "instruction"),
    [
        (torch.float32, [RandomCrop(6, 2), Normalize(MEAN[:3], STD[:3])], "div.rn.f32"),
        (torch.float16, [Normalize(MEAN[:3], STD[:3])], "div.rn.f32"),
        (torch.bfloat16, [RandomCrop(6, 2, padding_mode="reflect"), ToDtype(torch.float16)], "cvt.rn.f16"),
        (torch.uint8, [RandomCrop(6, 1), CenterCrop(5), RandomVerticalFlip()], "ld.global"),
        (torch.float64, [RandomCrop(6, 2, fill=(0.1, 0.2, 0.3)), RandomHorizontalFlip()], "ld.global.b64"),
        (torch.uint8, [ToNormalized([0.4], [0.3], torch.float16)], "cvt.rn.f16"),
    ],
)
def test_other_chains_compile(compiled, target, dtype, members, instruction):
    Compose(members)(made_images(0, (2, 3, 9, 11), dtype))
    assert instruction in code_of(compiled, target)


def test_pixels_far_apart_are_loaded_one_by_one(compiled, target):
    # Strides that are multiples of 16 let Triton join loads, where it believes them to be consecutive.
    images = torch.zeros(2, 3, 70, 16 * 70, dtype=torch.uint8)[..., ::16]
    Compose([RandomCrop(64), RandomHorizontalFlip(), ToNormalized([0.4], [0.3])])(images)
    code = code_of(compiled, target)
    assert code.count("ld.global.b8") > 16, "numbers and the flips"
    assert not re.search(r"ld\.global\.(b16|b32)", code)


# Triton makes constants of arguments that are 1.
@pytest.mark.parametrize("moving", [RandomCrop(1, 1, fill=1), CenterCrop(1), CenterCrop((1, 7))])
@pytest.mark.parametrize("values", [[], [ToNormalized([1.0], [1.0])]])
@pytest.mark.parametrize("channels", [1, 2])
def test_sizes_of_one_compile(compiled, moving, values, channels):
    for side in (1, 5):
        images = made_images(0, (1, channels, side, side))
        Compose([moving, *values])(images)
        assert compiled.pop().asm["cubin"][:4] == b"\x7fELF"
