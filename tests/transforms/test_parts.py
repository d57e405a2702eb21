"""Batches in parts, and some of their samples."""

from __future__ import annotations

import pytest
import torch
from color_references import DTYPES, lain_out, random_images
from hypothesis import given
from hypothesis import strategies as st

from fastload.transforms import parts
from fastload.transforms.parts import change_rows, choose, in_parts, slices


@in_parts
def shifted(images, amounts):
    return images + amounts.to(images.dtype).view(-1, 1, 1, 1)


@given(num=st.integers(1, 20), size=st.integers(1, 500))
def test_parts_are_all_of_the_batch_and_divide_no_pair(num, size):
    images = torch.arange(num).view(num, 1, 1, 1).expand(num, 1, 4, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_SIZE", size)
        cut = slices(images)
    assert [row for part in cut for row in range(num)[part]] == list(range(num))
    assert all(part.start % 2 == 0 for part in cut)
    assert all((part.stop - part.start) * 20 <= max(size, 40) for part in cut)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided", "turned"])
def test_results_lie_as_the_images_do(layout):
    images = lain_out(random_images((5, 3, 4, 6), torch.float32, 0), layout)
    found = shifted(images, torch.ones(5))
    assert torch.equal(found, images + 1)
    if layout == "channels_last":
        assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided", "turned"])
@pytest.mark.parametrize("width", [5, 8])  # samples of a whole number of eight bytes, and not
@pytest.mark.parametrize("rows", [[], [3], [6, 0, 2], list(range(7))])
def test_some_samples_are_changed_and_the_others_are_not(dtype, layout, width, rows, monkeypatch):
    monkeypatch.setattr(parts, "PART_SIZE", 120)
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
