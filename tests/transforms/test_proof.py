"""A kernel serves where its first results are torch's: with stand-ins for the kernel, on the CPU."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from references import keyed, made_images
from torch import Tensor
from torch.utils.data import TensorDataset

from fastload import DataLoader
from fastload.transforms import fused, proof
from fastload.transforms.compose import Compose
from fastload.transforms.crop import RandomCrop, RandomHorizontalFlip
from fastload.transforms.values import Normalize, ToDtype, ToNormalized

CPU = torch.device("cpu")
NORMALIZE = ToNormalized([0.4, 0.5, 0.6], [0.2, 0.3, 0.2], torch.bfloat16)
CHAINS: dict[str, list[Any]] = {
    "moved": [RandomCrop(8, 2, fill=7), RandomHorizontalFlip()],
    "moved and normalised": [RandomCrop(8, 2), RandomHorizontalFlip(), NORMALIZE],
    "floats": [RandomCrop(8, 2), Normalize([0.4], [0.2])],
    "values": [ToDtype(torch.float32, scale=True), Normalize([0.4], [0.2])],
}


class Kernel:
    """Stands for the kernel: writes what ``change`` makes of the result of torch's operations, or raises."""

    def __init__(self, change: Any) -> None:
        self.change = change
        self.right: Tensor
        self.launches = 0

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, images: Tensor, out: Tensor, *args: Any, **kwargs: Any) -> None:
        self.launches += 1
        out.copy_(self.change(self.right).view(out.dtype))


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch):
    monkeypatch.setattr(proof, "_reasons", {})
    monkeypatch.setattr(proof, "_warned", set())


def run(monkeypatch: Any, name: str, kernel: Kernel, num: int = 4, memory: str = "contiguous") -> None:
    """Check that a chain gives where a kernel takes images of the CPU what it gives elsewhere."""
    images = made_images(num, (num, 3, 12, 10), torch.float32 if name == "floats" else torch.uint8, memory)
    composed = Compose(CHAINS[name])
    monkeypatch.setenv("FASTLOAD_NATIVE", "0")
    kernel.right, params = composed(images, draws=keyed(num), return_params=True)
    with monkeypatch.context() as patched:
        patched.setattr(fused, "available", lambda device: True)
        patched.setattr(fused, "_kernel", lambda: SimpleNamespace(TYPES=defaultdict(int), transformed=kernel))
        assert torch.equal(composed(images, params=params), kernel.right)


same = torch.clone


def wrong(found: Tensor) -> Tensor:
    """One value of one image is wrong."""
    changed = found.clone()
    changed[2, 1, 3, 4] += 100 if found.dtype == torch.uint8 else 1
    return changed


DIFFERS = r"1 of its .* values differ from torch's, by up to"
raising = mock.Mock(side_effect=RuntimeError("PTX JIT compilation failed\nfor sm_999"))
RAISED = "it raised RuntimeError: PTX JIT compilation failed for sm_999"
# What a kernel does at each call; how often it is launched; and why it is replaced.
SCENES: dict[str, tuple[list[Any], int, str | None]] = {
    "right": ([same, same, same], 3, None),
    "wrong": ([wrong, wrong], 1, DIFFERS),
    "raising": ([raising, raising], 1, RAISED),
    "raising later": ([same, raising, raising], 2, RAISED),
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("name", CHAINS)
def test_a_kernel_is_compared_once_and_serves_until_it_fails_which_one_warning_says(monkeypatch, name, scene):
    changes, launches, reason = SCENES[scene]
    kernel, compared, far_apart = Kernel(same), [], proof.far_apart
    monkeypatch.setattr(proof, "far_apart", lambda *args: compared.append(None) or far_apart(*args))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for num, kernel.change in zip((4, 4, 3), changes, strict=False):  # the last batch may be smaller
            run(monkeypatch, name, kernel, num)
    assert kernel.launches == launches
    assert len(compared) == (scene != "raising")
    told = [str(one.message) for one in caught if one.category is RuntimeWarning]
    loader = DataLoader(TensorDataset(torch.zeros(4, 3, 8, 8)), 2, device="cpu")
    [words] = proof.in_words(CPU)
    assert words in loader.explain()
    if reason is None:
        assert told == proof.refusals(CPU) == []
        assert words.endswith(": by Triton, whose first results were those of torch's operations")
    else:
        assert len(told) == 1
        assert "FASTLOAD_TRITON=0" in told[0]
        assert words.startswith("torch's operations replace the Triton kernel: ")
        assert all(re.search(reason, text) for text in (told[0], words))


def test_each_kind_of_call_proves_itself_and_the_warning_comes_once(monkeypatch):
    with pytest.warns(RuntimeWarning):
        run(monkeypatch, "moved", Kernel(wrong))
    right = Kernel(same)
    run(monkeypatch, "values", Kernel(wrong))  # a second warning would be an error
    for memory in ("contiguous", "channels_last"):
        run(monkeypatch, "moved and normalised", right, memory=memory)
    assert right.launches == 2
    assert len(proof.refusals(CPU)) == 2
    assert len(proof.in_words(CPU)) == 3


def test_no_memory_and_wrong_parameters_are_no_fault_of_the_kernels(monkeypatch):
    with pytest.raises(torch.OutOfMemoryError):
        run(monkeypatch, "moved", Kernel(mock.Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))))
    images = made_images(0, (4, 3, 12, 10))
    _, params = Compose(CHAINS["moved"])(images[:3], return_params=True)
    with monkeypatch.context() as patched:
        patched.setattr(fused, "available", lambda device: True)
        with pytest.raises(ValueError, match="parameters for 3 samples, got 4 images"):
            Compose(CHAINS["moved"]).transform(images, params)
    assert proof.in_words(CPU) == []
    run(monkeypatch, "moved", Kernel(same))


def test_while_a_graph_is_captured_only_a_proved_kernel_serves(monkeypatch):
    kernel = Kernel(same)
    for is_capturing, launches in ((True, 0), (False, 1), (True, 2)):
        monkeypatch.setattr(proof, "_is_capturing", lambda device, now=is_capturing: now)
        run(monkeypatch, "moved", kernel)
        assert kernel.launches == launches


def test_values_that_are_no_numbers_are_compared_too():
    nan, inf = float("nan"), float("inf")
    values = torch.tensor([nan, inf, 1.0, -inf])
    assert proof.far_apart(values, values.clone(), 0.0) is None
    assert proof.far_apart(torch.tensor([nan, 1.0, 1.0, -inf]), values, torch.full((4,), inf)) is not None
    assert proof.far_apart(torch.tensor([0.0, inf, 1.0, -inf]), values, 0.5) is not None
