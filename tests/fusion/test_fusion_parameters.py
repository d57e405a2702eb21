"""Parameters belong to the sample, whatever chunk, process or device it is in, and are as likely as torchvision's."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from fused_samples import params_of
from fusion_tools import MEAN, PIPELINES, STD, cifar, folder, fused
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1

from fastload.device.batch_keys import BatchKeys
from fastload.fusion import FusedDataset, recognise
from fastload.keys.seeding import sample_id
from fastload.work import Batch, Shard

NAMES = ["v1, resized crop, flip", "v2, pad if needed", "tensors, rand augment", "v1, erase by noise", "v2, jitter"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


@given(
    name=st.sampled_from(NAMES),
    indices=st.lists(st.integers(0, 42), min_size=1, max_size=9),
    cuts=st.lists(st.integers(0, 9), max_size=3),
    epoch=st.integers(0, 5),
)
@settings(max_examples=80)
def test_a_sample_is_the_same_in_whatever_chunk(root, name, indices, cuts, epoch):
    transform = v1.Compose(PIPELINES[name])
    arrays = cifar(transform, size=(25, 33)), cifar(transform, size=(40, 19), seed=1)
    one = fused(ConcatDataset([Subset(arrays[0], range(6)), arrays[1], folder(root, transform)]))
    whole = one.load(indices, indices, epoch)
    bounds = sorted({0, len(indices), *(cut for cut in cuts if cut < len(indices))})
    parts = [
        one.load(indices[first:last], indices[first:last], epoch).images for first, last in itertools.pairwise(bounds)
    ]
    assert torch.equal(whole.images, torch.cat(parts))


def test_epochs_seeds_ids_and_repeats_give_other_parameters():
    dataset = cifar(v1.Compose([v1.RandomResizedCrop(9), v1.ToTensor()]))
    drawn = {
        params_of(fused(dataset, seed), [3], [identity], epoch)[0][0]
        for seed in (0, 1)
        for epoch in (0, 1)
        for identity in (3, 4, sample_id(3, 20, 12))
    }
    assert len(drawn) == 12


def test_two_steps_of_a_kind_draw_independently():
    dataset = cifar(v1.Compose([v1.RandomHorizontalFlip(), v1.RandomHorizontalFlip(), v1.ToTensor()]))
    given_ = params_of(fused(dataset), [0] * 400, range(400), 0)
    first, second = (np.array([values[place] for values in given_]) for place in (0, 1))
    assert 140 < (first == second).sum() < 260


@pytest.mark.parametrize("name", [*NAMES, "v2, pad", "floats, crop", "floats, jitter"])
@pytest.mark.parametrize("nested", [False, True])
def test_what_the_device_does_draws_what_the_worker_would(name, nested, tmp_path):
    transform = v1.Compose(PIPELINES[name])
    dataset = cifar(transform, size=(33, 40))
    if nested:
        dataset = ConcatDataset([Subset(dataset, [3, 1, 4, 1, 5]), cifar(transform, size=(33, 40), seed=5)])
    plan = recognise(dataset)
    here, tail = plan.split(device=True)
    assert tail is not None
    indices, positions = [2, 0, 4, 3], [40, 41, 42, 43]
    keys = BatchKeys(7, Shard(length=41, tail="pad"), ids_are_indices=True, auto_collation=True)
    ids = [sample_id(index, position, 41) for index, position in zip(indices, positions, strict=True)]
    whole = FusedDataset(dataset, plan, 7).load(indices, ids, 3)
    part = FusedDataset(dataset, here, 7).load(indices, ids, 3)
    assert type(part.images) is torch.Tensor
    assert part.kind == "tensor"
    batch = tail(part.images, draws=keys.draws(Batch(epoch=3, position=40, indices=indices)))
    assert batch.dtype == whole.images.dtype
    assert batch.shape == whole.images.shape
    assert batch.is_contiguous()
    # Of a warped image a pixel at the border between two may be the other one.
    apart = (batch - whole.images).abs() > 1e-5
    assert apart.float().mean() < (0.01 if "augment" in name else 1e-9)


def test_nothing_is_moved_without_a_device_or_where_it_would_not_be_equal(tmp_path):
    for steps in ([v1.ToTensor(), abs], [v1.Resize(9), v1.ToTensor()], [v1.CenterCrop(9)], [v1.ToTensor()]):
        plan = recognise(folder(tmp_path, v1.Compose(steps)))
        assert plan.split(device=True) == (plan, None)
    plan = recognise(cifar(v1.Compose(PIPELINES["v1, pad"])))
    assert plan.split(device=False) == (plan, None)
    # Pillow's arithmetic is not the tensors'.
    here, tail = recognise(cifar(v1.Compose(PIPELINES["v1, jitter"]))).split(device=True)
    assert [type(step).__name__ for step in here.parts[0].steps] == [
        "RandomResizedCrop",
        "ColorJitter",
        "RandomGrayscale",
    ]
    assert tail is not None


def test_parts_that_end_differently_are_not_moved():
    flip, norm = v1.RandomHorizontalFlip(), v1.Normalize(MEAN, STD)
    one, other = cifar(v1.Compose([flip, v1.ToTensor(), norm])), cifar(v1.Compose([flip, v1.ToTensor()]))
    plan = recognise(ConcatDataset([one, other]))
    assert plan.split(device=True) == (plan, None)
    # The second flip of one is the first of the other: they draw from streams of different names.
    twice = cifar(v1.Compose([v1.ColorJitter(0.1), flip, v1.ToTensor()]))
    thrice = cifar(v1.Compose([flip, v1.ColorJitter(0.1), flip, v1.ToTensor()]))
    plan = recognise(ConcatDataset([twice, thrice]))
    assert plan.split(device=True) == (plan, None)


def in_a_worker(pickled, queue):
    torch.set_num_threads(1)  # as every worker does: OpenMP's threads are not there after a fork
    one = pickle.loads(pickled)
    queue.put(one.load([3, 1], [3, 1], 2).images.numpy())


@pytest.mark.parametrize("arrays", [True, False])
def test_it_can_be_pickled_to_another_process(arrays, tmp_path):
    transform = v1.Compose(PIPELINES["v1, erase by noise"])
    one = fused(cifar(transform) if arrays else folder(tmp_path, transform))
    one.load([0], [0], 0)
    pickled = pickle.dumps(one)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=in_a_worker, args=(pickled, queue))
    process.start()
    found = queue.get()
    process.join()
    process.close()
    queue.close()
    assert np.array_equal(found, one.load([3, 1], [3, 1], 2).images.numpy())
    plan = pickle.loads(pickle.dumps(one.plan))
    assert plan == one.plan
    assert str(plan) == str(one.plan)
