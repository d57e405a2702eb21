"""Pairs are mixed as torchvision mixes neighbours, labels as images are, and nobody's partner is elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
from hypothesis import given
from hypothesis import strategies as st
from references import DTYPES, assert_near, coloured, elsewhere, keyed, random_images

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


@pytest.mark.parametrize("kind", [MixUp, CutMix])
@given(data=st.data(), soft=st.booleans(), seed=st.integers(0, 2**32))
def test_pairs_are_mixed_as_by_torchvision_and_an_odd_last_sample_stays_as_it_is(kind, data, soft, seed):
    images = data.draw(coloured(dtypes=FLOATS if kind is MixUp else DTYPES, most=9))
    labels, before = labels_for(len(images), soft, seed), images.clone()
    transform = kind(num_classes=None if soft else 5)  # soft labels say how many there are
    found, mixed, params = transform(images, labels, generator=torch.Generator().manual_seed(seed), return_params=True)
    assert torch.equal(images, before)

    def values(row):
        if kind is MixUp:
            return {"lam": params["weight"][row].item()}
        return {"box": params["box"][row].tolist(), "lam_adjusted": params["label_weight"][row].item()}

    expected, expected_labels = as_in_torchvision(kind.__name__, images, labels, values)
    assert_near(found, expected, tolerance=1e-15 if images.dtype == torch.float64 else 0.0)
    assert torch.equal(elsewhere(transform.transform, images, params=params), found)
    assert_near(mixed, expected_labels, tolerance=2e-7)


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


def test_a_choice_of_both_gives_what_each_gives():
    images, labels = random_images((13, 3, 9, 10), torch.float32, 0), labels_for(13, False, 0)
    found, mixed, params = MixUpOrCutMix(num_classes=5)(images, labels, draws=keyed(13), return_params=True)
    ups, cuts = (
        one(num_classes=5)(images, labels, params={name: params[name] for name in (own, "label_weight")})[0]
        for one, own in ((MixUp, "weight"), (CutMix, "box"))
    )
    cut = params["weight"] == 1
    assert cut.any()
    assert not cut.all()
    assert torch.equal(found[cut], cuts[cut])
    assert torch.equal(found[~cut], ups[~cut])
    assert torch.equal(found[-1], images[-1])
    assert torch.allclose(mixed.sum(dim=1), torch.ones(13))
    assert mixed[-1, labels[-1]] == 1
