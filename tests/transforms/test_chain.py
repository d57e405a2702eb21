"""Stages: what is merged, and that merging changes nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import batches, halfway, keyed, made_images, resampled

from fastload.transforms.affine import RandomAffine, RandomRotation
from fastload.transforms.base import BatchShape, Transform, shape_of
from fastload.transforms.compose import Compose, ComposeStage, OnePass, Resized, Warped, stages_of
from fastload.transforms.crop import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from fastload.transforms.erasing import Cutout
from fastload.transforms.resize import RandomResizedCrop, Resize


def one_after_the_other(images, transforms, draws):
    """Return the images after each transform alone, with the parameters of its name in a Compose."""
    params = []
    for name, transform in zip(Compose(transforms)._names, transforms, strict=True):
        transform.purpose = name
        images, its_params = transform(images, draws=draws, return_params=True)
        params.append(its_params)
    return images, params


def by_stages(images, transforms, draws):
    images, params = Compose(transforms)(images, draws=draws, return_params=True)
    return images, list(params.values())


def check_params(found, expected):
    assert [sorted(one) for one in found] == [sorted(one) for one in expected]
    for one, other in zip(found, expected, strict=True):
        for name in one:
            assert torch.equal(one[name], other[name])


MOVING = st.one_of(
    st.builds(RandomCrop, st.integers(3, 8), st.integers(0, 3), st.just(True), st.just(0)),
    st.builds(RandomCrop, st.integers(3, 8), pad_if_needed=st.just(True), padding_mode=st.just("edge")),
    st.builds(CenterCrop, st.integers(3, 8)),
    st.builds(RandomHorizontalFlip),
    st.builds(RandomVerticalFlip),
    st.builds(Resize, st.integers(3, 8), st.just("nearest")),
    st.builds(RandomResizedCrop, st.integers(3, 8), interpolation=st.just("nearest")),
)


ANY = st.one_of(
    MOVING,
    st.builds(RandomCrop, st.integers(3, 8), st.integers(0, 3), st.just(True), st.just(5)),
    st.builds(RandomResizedCrop, st.integers(3, 8)),
    st.builds(Cutout, st.integers(1, 5)),
)


@given(images=batches(sides=(3, 9)), transforms=st.lists(ANY, min_size=1, max_size=6))
def test_all_that_is_not_affine_is_equal_bit_for_bit(images, transforms):
    draws = keyed(len(images))
    expected, expected_params = one_after_the_other(images, transforms, draws)
    found, params = by_stages(images, transforms, draws)
    assert torch.equal(found, expected)
    assert found.shape == Compose(transforms).shape_after(shape_of(images, "NCHW"))
    check_params(params, expected_params)
    assert [member for stage in stages_of(transforms) for member in stage.members] == transforms


TURNS = st.one_of(
    st.sampled_from([0, 90, 180, 270]).map(lambda degrees: RandomRotation((degrees, degrees))),
    st.builds(RandomHorizontalFlip),
    st.builds(RandomVerticalFlip),
)


@given(
    side=st.integers(1, 12),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.bfloat16]),
    transforms=st.lists(TURNS, min_size=2, max_size=5),
)
def test_flips_and_quarter_turns_at_once_are_the_same_one_after_the_other(side, dtype, transforms):
    images = made_images(side, (4, 3, side, side), dtype)
    assert len(stages_of(transforms)) == 1
    draws = keyed(4)
    expected, expected_params = one_after_the_other(images, transforms, draws)
    found, params = by_stages(images, transforms, draws)
    assert torch.equal(found, expected)
    check_params(params, expected_params)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@given(
    images=batches(sides=(2, 12), dtypes=(torch.float32, torch.float64)),
    order=st.permutations(range(4)),
    fill=st.sampled_from([0, 0.3]),
)
def test_affine_transforms_are_resampled_once(interpolation, images, order, fill):
    settings = {"interpolation": interpolation, "fill": fill}
    members = [
        RandomAffine(20, (0.1, 0.2), (0.8, 1.2), (-5, 5, -3, 3), **settings),
        RandomRotation(40, **settings),
        RandomHorizontalFlip(),
        RandomVerticalFlip(),
    ]
    transforms = [members[place] for place in order]
    [stage] = stages_of(transforms)
    assert type(stage) is Warped
    shape = shape_of(images, "NCHW")
    found, params = by_stages(images, transforms, keyed(len(images)))
    matrix = torch.eye(3, dtype=torch.float64).expand(len(images), 3, 3)
    for transform, its_params in zip(transforms, params, strict=True):
        matrix = matrix @ transform.matrix(its_params, shape, images.device)
    expected = resampled(images, matrix, interpolation, fill)
    far = (found.double() - expected).abs() > (1e-9 if images.dtype == torch.float64 else 1e-4)
    if interpolation == "nearest":
        far &= ~halfway(matrix, images)[:, None]
    assert not far.any()


def kinds(transforms):
    return [(type(stage), len(stage.members)) for stage in stages_of(transforms)]


def test_neighbours_are_merged_where_they_can_be():
    flip, other_flip = RandomHorizontalFlip(), RandomVerticalFlip()
    crop, affine, rotation = RandomCrop(4, 2), RandomAffine(10), RandomRotation(10)
    resized, resize = RandomResizedCrop(4), Resize(4)
    assert kinds([]) == []
    assert kinds([crop]) == [(OnePass, 1)]
    assert kinds([crop, flip]) == [(OnePass, 2)]
    assert kinds([flip, other_flip, affine, flip, rotation]) == [(Warped, 5)]
    assert kinds([crop, flip, affine, flip, crop]) == [(OnePass, 2), (Warped, 2), (OnePass, 1)]
    assert kinds([resized, flip]) == [(Resized, 2)]
    assert kinds([resized, flip, other_flip, crop]) == [(Resized, 2), (OnePass, 2)]
    assert kinds([resized, other_flip]) == [(Resized, 1), (OnePass, 1)]
    assert kinds([resize, flip]) == [(Resized, 1), (OnePass, 1)]
    assert kinds([Resize(4, "nearest"), flip]) == [(OnePass, 2)]
    assert kinds([crop, Transform(), crop, flip]) == [(OnePass, 1), (ComposeStage, 1), (OnePass, 2)]


def test_neighbours_of_other_fill_values_interpolations_or_layouts_are_not_merged():
    assert kinds([RandomCrop(4, 2, fill=1), RandomCrop(4, 2)]) == [(OnePass, 1), (OnePass, 1)]
    assert kinds([RandomCrop(4, fill=1), RandomCrop(4, 2)]) == [(OnePass, 2)]
    assert kinds([RandomRotation(4, fill=1), RandomRotation(4)]) == [(Warped, 1), (Warped, 1)]
    assert kinds([RandomRotation(4, fill=None), RandomRotation(4)]) == [(Warped, 1), (Warped, 1)]
    assert kinds([RandomRotation(4), RandomRotation(4, "bilinear")]) == [(Warped, 1), (Warped, 1)]
    assert kinds([RandomHorizontalFlip(), RandomVerticalFlip(layout="NHWC")]) == [(OnePass, 1), (OnePass, 1)]


def test_stages_work_in_the_layout_of_their_members():
    images = made_images(0, (4, 3, 9, 8))
    for layout, batch in (("NCHW", images), ("NHWC", images.permute(0, 2, 3, 1))):
        composed = Compose([RandomCrop(5, 2, layout=layout), RandomHorizontalFlip(layout=layout)])
        found = composed(batch, draws=keyed(4))
        if layout == "NCHW":
            expected = found
    assert torch.equal(found.permute(0, 3, 1, 2), expected)
    assert composed.shape_after(BatchShape(4, 3, 9, 8)) == BatchShape(4, 3, 5, 5)
