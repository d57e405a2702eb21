"""The kernels compile for GPUs that need not be there, and to the code that is meant."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from references import made_images
from torch import Tensor
from triton_kernels import CHAIN, MEAN, STD, launched

from fastload.transforms import fused, fused_kernel, proof
from fastload.transforms.compose import Compose
from fastload.transforms.crop import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from fastload.transforms.values import Normalize, ToDtype, ToNormalized

GPUTarget = pytest.importorskip("triton.backends.compiler", reason="Triton is there on Linux only").GPUTarget
pytestmark = pytest.mark.slow  # Triton starts an assembler for each kernel


class Compiler:
    """Takes the kernel's launches, and compiles it for a GPU instead, which is not there."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.target = GPUTarget("cuda", 90, 32)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.made.append(fused_kernel.transformed.warmup(*args, grid=grid, **kwargs))

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def code_of(self, members: list[Any], images: Tensor) -> str:
        """Return the code of the one kernel that a Compose launches."""
        Compose(members)(images)
        kernel = self.made.pop()
        assert not self.made
        code: str = kernel.asm["ptx"]
        assert f".target sm_{self.target.arch}" in code
        assert kernel.asm["cubin"][:4] == b"\x7fELF"
        assert kernel.metadata.shared == 0, "numbers stay with their threads"
        assert "ld.global.v" not in code, "nothing says that numbers of the source lie together"
        return code


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    from triton.runtime.driver import driver

    found = Compiler()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", found)
    monkeypatch.setattr(fused, "available", lambda device: True)
    kernel = SimpleNamespace(TYPES=fused_kernel.TYPES, transformed=found)
    monkeypatch.setattr(fused, "_kernel", lambda: kernel)
    monkeypatch.setattr(proof, "served", launched)
    fused_kernel.transformed.device_caches.clear()  # what it has compiled in this process
    yield found
    fused_kernel.transformed.device_caches.clear()


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("memory", ["channels_last", "contiguous"])
def test_the_usual_chain_compiles_to_wide_stores_and_one_rounding(compiler, capability, memory):
    compiler.target = GPUTarget("cuda", capability, 32)
    code = compiler.code_of([RandomCrop(32, 4), *CHAIN[1:]], made_images(0, (4, 3, 32, 32), memory=memory))
    assert all(instruction in code for instruction in ("st.global.v", "fma.rn.f32", "cvt.rn.bf16"))
    assert ".ftz" not in code


@pytest.mark.parametrize(
    ("dtype", "members", "instruction"),
    [
        (torch.float32, [RandomCrop(6, 2), Normalize(MEAN[:3], STD[:3])], "div.rn.f32"),
        (torch.bfloat16, [RandomCrop(6, 2, padding_mode="reflect"), ToDtype(torch.float16)], "cvt.rn.f16"),
        (torch.uint8, [RandomCrop(6, 1), CenterCrop(5), RandomVerticalFlip()], "ld.global"),
        (torch.float64, [RandomCrop(6, 2, fill=(0.1, 0.2, 0.3)), RandomHorizontalFlip()], "ld.global.b64"),
    ],
)
def test_other_chains_compile(compiler, dtype, members, instruction):
    assert instruction in compiler.code_of(members, made_images(0, (2, 3, 9, 11), dtype))


def test_pixels_far_apart_are_loaded_one_by_one(compiler):
    # Strides that are multiples of 16 let Triton join loads, where it believes them to be consecutive.
    images = torch.zeros(2, 3, 70, 16 * 70, dtype=torch.uint8)[..., ::16]
    code = compiler.code_of([RandomCrop(64), RandomHorizontalFlip(), ToNormalized([0.4], [0.3])], images)
    assert code.count("ld.global.b8") > 16, "numbers and the flips"
    assert not re.search(r"ld\.global\.(b16|b32)", code)


# Triton makes constants of arguments that are 1.
@pytest.mark.parametrize("moving", [RandomCrop(1, 1, fill=1), CenterCrop(1), CenterCrop((1, 7))])
@pytest.mark.parametrize("values", [[], [ToNormalized([1.0], [1.0])]])
@pytest.mark.parametrize("channels", [1, 2])
def test_sizes_of_one_compile(compiler, moving, values, channels):
    for side in (1, 5):
        compiler.code_of([moving, *values], made_images(0, (1, channels, side, side)))
