"""Batches in parts, changes of some samples, and faster operations with the same bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import DTYPES, lain_out, random_images

from fastload.transforms import tensors
from fastload.transforms.tensors import choose, in_parts, memory_format_of, narrowed, slices


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
    assert all((part.stop - part.start) * 20 <= max(size * torch.get_num_threads(), 40) for part in cut)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided", "turned"])
@pytest.mark.parametrize("width", [5, 8])  # samples of a whole number of eight bytes, and not
@pytest.mark.parametrize("rows", [[], [3], [0, 2, 6], list(range(7))])
def test_some_samples_are_changed_and_the_others_are_not(dtype, layout, width, rows, monkeypatch):
    monkeypatch.setattr(tensors, "PART_SIZE", 120)
    images = lain_out(random_images((7, 3, 5, width), dtype, 0), layout)
    before, amounts = images.clone(), torch.arange(7) + 1
    expected = before.clone()
    expected[rows] += amounts[rows].to(dtype).view(-1, 1, 1, 1)
    chosen = torch.zeros(7, dtype=torch.bool)
    chosen[rows] = True
    found = choose(images, chosen, shifted, amounts)
    assert torch.equal(found, expected)
    assert torch.equal(images, before)
    assert memory_format_of(found) == memory_format_of(images)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(choose(images, chosen, shifted, amounts), expected)


def test_gradients_pass():
    images = torch.rand(3, 1, 2, 2, requires_grad=True)
    shifted(images, torch.ones(3)).sum().backward()
    assert torch.equal(images.grad, torch.ones_like(images))
    chosen = torch.tensor([False, True, False])
    choose(images, chosen, lambda some: some * 3).sum().backward()
    assert images.grad[:, 0, 0, 0].tolist() == [2, 4, 2]


def test_floats_are_cut_off_to_levels():
    wide = torch.linspace(0, 255.999, 5000)
    assert torch.equal(narrowed(wide, torch.uint8), wide.to(torch.uint8))
    assert torch.equal(narrowed(wide.double(), torch.uint8), wide.double().to(torch.uint8))
    assert narrowed(wide, torch.float16).dtype == torch.float16
