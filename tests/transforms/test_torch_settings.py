"""What the user sets for a whole program - autocast, default dtype and device, gradients - changes no transform."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from every_transform import CASES, arguments, made, params_of
from torch import Tensor
from torch_settings import default_device, default_dtype, deterministic

from fastload.transforms.params import leaves_of

SETTINGS = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "half by default": lambda: default_dtype(torch.float16),
    "double by default": lambda: default_dtype(torch.float64),
    "another device by default": lambda: default_device("meta"),  # what is put there has no values
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "deterministic algorithms": deterministic,
}


def results(name: str, dtype: torch.dtype, setting: Any) -> list[Tensor]:
    """Return what a transform draws and makes when everything but the images is made inside of a setting."""
    images = made(dtype)
    labels = arguments(CASES[name].make(), images)[1:]
    with setting:
        transform = CASES[name].make()
        params = params_of(transform, images)
        found = transform(images, *labels, params=params, return_params=True)
    return [*found[:-1], *leaves_of(params)]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["on the CPU", "as on other devices"])
@pytest.mark.parametrize("name", CASES)
def test_no_setting_of_torch_changes_a_transform(name, elsewhere, monkeypatch):
    if elsewhere:  # where nothing may be read, as under a compiler
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for dtype in CASES[name].dtypes:
        expected = results(name, dtype, contextlib.nullcontext())
        for setting, make in SETTINGS.items():
            found = results(name, dtype, make())
            for one, other in zip(found, expected, strict=True):
                assert (one.dtype, one.device) == (other.dtype, other.device), (setting, dtype)
                assert torch.equal(one, other), (setting, dtype)


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_of_torch_changes_what_its_own_generator_draws(setting):
    images = made(torch.uint8)

    def drawn() -> Tensor:
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(4)
        transform = CASES["RandomCrop"].make()
        return torch.stack([transform(images), transform(images, generator=generator)])

    expected = drawn()
    with SETTINGS[setting]():
        found = drawn()
    assert torch.equal(found, expected)
