"""Other ways to the same bits."""

from __future__ import annotations

import pytest
import torch
from color_references import DTYPES, random_images
from hypothesis import given
from hypothesis import strategies as st

from fastload.transforms.steps import narrowed, pick


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 2**32), shape=st.sampled_from([(2, 3, 4, 5), (2, 1, 4, 5), (2, 1, 1, 1), (4, 5)]))
def test_a_pick_is_where(dtype, seed, shape):
    chosen, other = random_images((2, 3, 4, 5), dtype, seed), random_images((2, 3, 4, 5), dtype, seed + 1)
    if dtype != torch.uint8:
        chosen[0, 0, 0, 0], other[0, 0, 0, 1], other[1, 2, 3, 4] = torch.nan, torch.inf, -0.0
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    found = pick(mask, chosen, other)
    assert torch.equal(found.view(torch.uint8), torch.where(mask, chosen, other).view(torch.uint8))
    turned = pick(mask, chosen, other.transpose(2, 3).contiguous().transpose(2, 3))
    assert torch.equal(turned.contiguous().view(torch.uint8), found.view(torch.uint8))


def test_a_pick_has_gradients():
    chosen, other = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    pick(torch.tensor([True, False, True]), chosen, other).sum().backward()
    assert chosen.grad.tolist() == [1, 0, 1]
    assert other.grad.tolist() == [0, 1, 0]


def test_floats_are_cut_off_to_levels():
    wide = torch.linspace(0, 255.999, 5000)
    assert torch.equal(narrowed(wide, torch.uint8), wide.to(torch.uint8))
    assert torch.equal(narrowed(wide.double(), torch.uint8), wide.double().to(torch.uint8))
    assert narrowed(wide, torch.float16).dtype == torch.float16
