"""Pairs are mixed as torchvision mixes neighbours, labels as images are, and nobody's partner is elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
from hypothesis import given
from hypothesis import strategies as st
from references import assert_near, coloured, elsewhere, keyed, random_images

from fastload.transforms.base import BatchShape
from fastload.transforms.draws import Draws
from fastload.transforms.mix import CutMix, MixUp, MixUpOrCutMix

FLOATS = (torch.float32, torch.float64)


def partners(num):
    """Return 1, 0, 3, 2, ...; an odd last one is its own."""
    return [min(row ^ 1, num - 1) for row in range(num)]


def as_in_torchvision(name, images, labels, values):
    """Return what torchvision makes of each sample if its partner is the one before it in a batch of two."""
    theirs = getattr(T, name)(num_classes=5)
    mixed = []
    for row, partner in enumerate(partners(len(images))):
        if partner == row:
            soft = torch.nn.functional.one_hot(labels[row], 5).float() if labels.ndim == 1 else labels[row].clone()
            mixed.append((images[row], soft))
            continue
        pair = [partner, row]  # torchvision mixes the second with the first
        theirs.make_params = lambda _, row=row: values(row)
        changed, soft = theirs(images[pair].contiguous(), labels[pair])
        mixed.append((changed[1], soft[1]))
    return torch.stack([image for image, _ in mixed]), torch.stack([soft for _, soft in mixed])


def labels_for(num, soft, seed):
    generator = torch.Generator().manual_seed(seed)
    if soft:
        return torch.rand(num, 5, generator=generator).softmax(dim=1)
    return torch.randint(0, 5, (num,), generator=generator)


@given(images=coloured(dtypes=FLOATS, most=9), soft=st.booleans(), seed=st.integers(0, 2**32))
def test_mixed_pairs_are_torchvisions(images, soft, seed):
    labels, before = labels_for(len(images), soft, seed), images.clone()
    transform = MixUp(alpha=0.7, num_classes=5)
    found, mixed, params = transform(images, labels, generator=torch.Generator().manual_seed(seed), return_params=True)
    assert torch.equal(images, before)
    expected = as_in_torchvision("MixUp", images, labels, lambda row: {"lam": params["weight"][row].item()})
    assert_near(found, expected[0], tolerance=1e-15 if images.dtype == torch.float64 else 0.0)
    assert_near(mixed, expected[1], tolerance=2e-7)


@given(images=coloured(most=9), soft=st.booleans(), seed=st.integers(0, 2**32))
def test_pasted_pairs_are_torchvisions(images, soft, seed):
    labels, before = labels_for(len(images), soft, seed), images.clone()
    transform = CutMix(num_classes=5)
    found, mixed, params = transform(images, labels, generator=torch.Generator().manual_seed(seed), return_params=True)
    assert torch.equal(images, before)

    def values(row):
        return {"box": params["box"][row].tolist(), "lam_adjusted": params["label_weight"][row].item()}

    expected = as_in_torchvision("CutMix", images, labels, values)
    assert torch.equal(found, expected[0])
    assert torch.equal(elsewhere(transform.transform, images, params=params), found)
    assert_near(mixed, expected[1], tolerance=2e-7)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16])
def test_lower_dtypes_are_mixed_in_float_and_rounded_once(dtype):
    images = random_images((4, 3, 5, 6), dtype, 0)
    found, _, params = MixUp(num_classes=5)(images, labels_for(4, False, 0), return_params=True)
    own = params["weight"].double().view(-1, 1, 1, 1)
    exact = images.double() * own + images[partners(4)].double() * (1 - own)
    assert found.dtype == dtype
    limit = 0.5 + 1e-4 if dtype == torch.uint8 else torch.finfo(dtype).eps
    assert (found.double() - exact).abs().max() <= limit


@pytest.mark.parametrize("name", [MixUp, CutMix, MixUpOrCutMix])
def test_a_pair_has_the_parameters_of_its_first_samples_key(name):
    transform, shape = name(num_classes=5), BatchShape(7, 3, 20, 30)
    together = transform.draw_for(keyed(7), shape)
    for values in together.values():
        assert torch.equal(values[0::2][:3], values[1::2])
    other = transform.draw_for(Draws(bytes(range(16)), np.array([0, 11, 2, 13, 4, 15, 6])), shape)
    assert all(torch.equal(together[key], other[key]) for key in together)
    rank = transform.draw_for(keyed(4, 2), BatchShape(4, 3, 20, 30))
    assert all(torch.equal(together[key][2:6], rank[key]) for key in together)


@pytest.mark.parametrize("name", [MixUp, CutMix, MixUpOrCutMix])
@pytest.mark.parametrize("num", [1, 5])
def test_an_odd_last_sample_stays_as_it_is(name, num):
    images, labels = random_images((num, 3, 8, 8), torch.float32, 0), labels_for(num, False, 0)
    for seed in range(5):
        found, mixed = name(num_classes=5)(images, labels, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(found[-1], images[-1])
        assert torch.equal(mixed[-1], torch.nn.functional.one_hot(labels[-1], 5).float())


def test_a_choice_of_both_gives_what_each_gives():
    images, labels = random_images((12, 3, 9, 10), torch.float32, 0), labels_for(12, False, 0)
    found, mixed, params = MixUpOrCutMix(num_classes=5)(images, labels, draws=keyed(12), return_params=True)
    ups, cuts = (
        one(num_classes=5)(images, labels, params={name: params[name] for name in (own, "label_weight")})[0]
        for one, own in ((MixUp, "weight"), (CutMix, "box"))
    )
    cut = params["weight"] == 1
    assert cut.any()
    assert not cut.all()
    assert torch.equal(found[cut], cuts[cut])
    assert torch.equal(found[~cut], ups[~cut])
    assert torch.allclose(mixed.sum(dim=1), torch.ones(12))


def test_soft_labels_say_themselves_how_many_classes_there_are():
    assert MixUp()(torch.zeros(2, 3, 4, 4), torch.ones(2, 7) / 7)[1].shape == (2, 7)
