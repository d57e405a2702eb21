"""Batches in parts, changes of some samples, and faster operations with the same bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import DTYPES, lain_out, random_images

from fastload.transforms import tensors
from fastload.transforms.tensors import change_rows, choose, in_parts, narrowed, pick, slices


@in_parts
def shifted(images, amounts):
    return images + amounts.to(images.dtype).view(-1, 1, 1, 1)


@given(num=st.integers(1, 20), size=st.integers(1, 500))
def test_parts_are_all_of_the_batch_and_divide_no_pair(num, size):
    images = torch.arange(num).view(num, 1, 1, 1).expand(num, 1, 4, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "PART_SIZE", size)
        cut = slices(images)
    assert [row for part in cut for row in range(num)[part]] == list(range(num))
    assert all(part.start % 2 == 0 for part in cut)
    assert all((part.stop - part.start) * 20 <= max(size, 40) for part in cut)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided", "turned"])
@pytest.mark.parametrize("width", [5, 8])  # samples of a whole number of eight bytes, and not
@pytest.mark.parametrize("rows", [[], [3], [6, 0, 2], list(range(7))])
def test_some_samples_are_changed_and_the_others_are_not(dtype, layout, width, rows, monkeypatch):
    monkeypatch.setattr(tensors, "PART_SIZE", 120)
    images = lain_out(random_images((7, 3, 5, width), dtype, 0), layout)
    before, amounts = images.clone(), torch.arange(7) + 1
    expected = before.clone()
    expected[rows] += amounts[rows].to(dtype).view(-1, 1, 1, 1)
    chosen = torch.zeros(7, dtype=torch.bool)
    chosen[rows] = True
    places = torch.tensor(rows, dtype=torch.int64)
    assert torch.equal(choose(images, chosen, places.sort().values, shifted, amounts), expected)
    assert torch.equal(images, before)
    change_rows(images, places, shifted, amounts)
    assert torch.equal(images, expected)


def test_gradients_pass():
    images = torch.rand(3, 1, 2, 2, requires_grad=True)
    shifted(images, torch.ones(3)).sum().backward()
    assert torch.equal(images.grad, torch.ones_like(images))
    chosen = torch.tensor([False, True, False])
    choose(images, chosen, torch.tensor([1]), lambda some: some * 3).sum().backward()
    assert images.grad[:, 0, 0, 0].tolist() == [2, 4, 2]


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
