"""Transforms compiled by torch's own compiler, inductor, and not only recorded: the values that it gives on the CPU."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from references import random_images

from fastload.transforms import Draws, RandomAutocontrast, RandomEqualize
from fastload.transforms.base import shape_of

COMPILER = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="inductor needs a C++ compiler for the CPU, and there is none"),
    # Its own imports.
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def one_compiling_process():
    """Compile in this process: inductor would start one for each core, and each would import torch."""
    from torch._inductor import config

    with config.patch(compile_threads=1):
        yield


def compiled_and_not(transform):
    torch.compiler.reset()
    images = random_images((30, 3, 9, 10), torch.uint8, 0).clamp(60, 200)  # no level is the highest or the least
    params = transform.draw_for(Draws(bytes(16), np.arange(len(images))), shape_of(images))
    compiled = torch.compile(transform.transform, fullgraph=True)
    return compiled(images, params).int(), transform.transform(images, params).int()


@pytest.mark.thorough
@pytest.mark.parametrize("transform", [RandomAutocontrast(1.0), RandomEqualize(1.0)], ids=["autocontrast", "equalize"])
def test_extremes_of_bytes_are_found(transform):
    found, expected = compiled_and_not(transform)
    assert (found - expected).abs().max() <= 1
