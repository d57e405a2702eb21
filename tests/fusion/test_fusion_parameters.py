"""Parameters belong to the sample, whatever chunk or process it is in."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from fused_samples import params_of
from fusion_tools import PIPELINES, cifar, folder, fused
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import transforms as v1

from fastload.keys.seeding import sample_id

NAMES = ["v1, resized crop", "v2, resize, crop, flips", "v1, erase by noise", "v2, pad"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


@given(
    name=st.sampled_from(NAMES),
    arrays=st.booleans(),
    indices=st.lists(st.integers(0, 11), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    epoch=st.integers(0, 5),
)
@settings(max_examples=40)
def test_a_sample_is_the_same_in_whatever_chunk(root, name, arrays, indices, cuts, epoch):
    transform = v1.Compose(PIPELINES[name])
    one = fused(cifar(transform, size=(45, 53)) if arrays else folder(root, transform))
    whole = one.load(indices, indices, epoch)
    bounds = sorted({0, len(indices), *(cut for cut in cuts if cut < len(indices))})
    parts = [
        one.load(indices[first:last], indices[first:last], epoch).images for first, last in itertools.pairwise(bounds)
    ]
    assert torch.equal(whole.images, torch.cat(parts))


def test_epochs_seeds_ids_and_repeats_give_other_parameters():
    dataset = cifar(v1.Compose([v1.RandomResizedCrop(9), v1.ToTensor()]))
    drawn = {
        str(params_of(fused(dataset, seed), dataset, 3, identity, epoch))
        for seed in (0, 1)
        for epoch in (0, 1)
        for identity in (3, 4, sample_id(3, 20, 12))
    }
    assert len(drawn) == 12


def test_two_steps_of_a_kind_draw_independently():
    dataset = cifar(v1.Compose([v1.RandomHorizontalFlip(), v1.RandomHorizontalFlip(), v1.ToTensor()]))
    one = fused(dataset)
    given_ = [params_of(one, dataset, 0, identity, 0) for identity in range(400)]
    first, second = (np.array([values[place]["flip"] for values in given_]) for place in (0, 1))
    assert 140 < (first == second).sum() < 260
