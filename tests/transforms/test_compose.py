"""Compose: the members' parameters and results, in fewer passes; labels; and the names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import batches, keyed, made_images

from fastload import transforms as T
from fastload.base.nesting import tensors_in
from fastload.transforms.affine import warp
from fastload.transforms.base import BatchShape, Transform, shape_of
from fastload.transforms.compose import stages_of

MOMENTS = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
IMAGES = made_images(1, (6, 3, 12, 10))


def test_two_of_a_kind_have_draws_of_their_own_also_in_a_compose_inside_of_another():
    flip, crop = T.RandomHorizontalFlip, T.RandomCrop(8)
    images = made_images(1, (40, 3, 12, 10))
    found, params = T.Compose([flip(), crop, flip()])(images, draws=keyed(40), return_params=True)
    assert list(params) == ["RandomHorizontalFlip", "RandomCrop", "RandomHorizontalFlip 2"]
    assert not torch.equal(params["RandomHorizontalFlip"]["flip"], params["RandomHorizontalFlip 2"]["flip"])
    nested = T.Compose([T.Compose([flip(), crop]), flip()])
    assert torch.equal(nested(images, draws=keyed(40)), found)
    assert crop in list(nested.modules())


def test_conversion_and_normalisation_are_one_pass_within_the_stated_tolerance():
    composed = T.Compose([T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True), T.Normalize(*MOMENTS)])
    changed, params = composed(IMAGES, draws=keyed(6), return_params=True)
    expected = IMAGES
    for member, its_params in zip(composed.transforms, params.values(), strict=True):
        expected = member(expected, params=its_params)
    assert (changed - expected).abs().max() < 1e-6 * (1 + 0.6) / 0.2
    assert "merged: RandomHorizontalFlip + ToDtype + Normalize" in repr(composed)
    floats = T.Compose([T.ToDtype(torch.float32, scale=True), T.Normalize(*MOMENTS)])
    assert torch.equal(floats(IMAGES / 255), T.Normalize(*MOMENTS)(IMAGES / 255))
    last = T.Compose([T.RandomCrop(5, 2), T.RandomHorizontalFlip()], layout="NHWC")
    assert last.shape_after(BatchShape(4, 3, 9, 8)) == BatchShape(4, 3, 5, 5)


@pytest.mark.parametrize("mix", [T.MixUp, T.CutMix])
def test_labels_are_mixed_as_the_images_are(mix):
    composed = T.Compose([T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True), mix(num_classes=6)])
    labels = torch.arange(6)
    changed, soft, params = composed(IMAGES, labels, draws=keyed(6), return_params=True)
    flipped = T.ToDtype(torch.float32, scale=True)(
        T.RandomHorizontalFlip()(IMAGES, params=params["RandomHorizontalFlip"])
    )
    expected, expected_soft = mix(num_classes=6)(flipped, labels, params=params[mix.__name__])
    assert torch.equal(changed, expected)
    assert torch.equal(soft, expected_soft)
    with pytest.raises(TypeError, match=f"{mix.__name__} takes the labels as a tensor, got NoneType; call with"):
        composed(IMAGES)
    unmixed, same = T.Compose([T.RandomHorizontalFlip()])(IMAGES, labels)
    assert same is labels
    assert unmixed.shape == IMAGES.shape


# -- Stages: what is merged, and that merging changes nothing ---------------------------------------------------------


def by_stages_and_alone(images, transforms):
    """Return what a Compose makes, what its members make one after the other, and the parameters, the same ones."""
    draws = keyed(len(images))
    composed = T.Compose(transforms)
    found, params = composed(images, draws=draws, return_params=True)
    assert torch.equal(composed(images, params=params), found)
    assert found.shape == composed.shape_after(shape_of(images))
    for (name, expected), transform in zip(params.items(), transforms, strict=True):
        transform.purpose = name
        images, alone = transform(images, draws=draws, return_params=True)
        assert sorted(alone) == sorted(expected)
        assert all(map(torch.equal, tensors_in(alone), tensors_in(expected)))
    return found, images, params


ANY = st.one_of(
    st.builds(T.RandomCrop, st.integers(3, 8), st.integers(0, 3), st.just(True), st.just(0)),
    st.builds(T.RandomCrop, st.integers(3, 8), pad_if_needed=st.just(True), padding_mode=st.just("edge")),
    st.builds(T.CenterCrop, st.integers(3, 8)),
    st.builds(T.RandomHorizontalFlip),
    st.builds(T.RandomVerticalFlip),
    st.builds(T.Resize, st.integers(3, 8), st.just("nearest")),
    st.builds(T.RandomResizedCrop, st.integers(3, 8), interpolation=st.just("nearest")),
    st.builds(T.ColorJitter, st.just(0.4), st.just(0.4), st.just(0.4)),
    st.builds(T.RandomGrayscale, st.just(0.3)),
    st.builds(T.RandomErasing, st.just(0.5), st.just((0.05, 0.2))),
    st.builds(T.RandomCrop, st.integers(3, 8), st.integers(0, 3), st.just(True), st.just(5)),
    st.builds(T.RandomResizedCrop, st.integers(3, 8)),
    st.builds(T.Cutout, st.integers(1, 5)),
)


@given(images=batches(sides=(3, 9), channels=(1, 3)), transforms=st.lists(ANY, min_size=1, max_size=6))
def test_all_that_is_not_affine_is_equal_bit_for_bit(images, transforms):
    found, expected, _ = by_stages_and_alone(images, transforms)
    assert torch.equal(found, expected)


@settings(max_examples=20)
@given(
    side=st.integers(1, 12),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.bfloat16]),
    turns=st.lists(st.sampled_from([0, 90, 180, 270]), min_size=2, max_size=5),
)
def test_quarter_turns_at_once_are_the_same_one_after_the_other(side, dtype, turns):
    transforms = [T.RandomRotation((degrees, degrees)) for degrees in turns]
    found, expected, _ = by_stages_and_alone(made_images(side, (4, 3, side, side), dtype), transforms)
    assert torch.equal(found, expected)


@given(
    interpolation=st.sampled_from(["nearest", "bilinear"]),
    images=batches(sides=(2, 12), dtypes=(torch.float32, torch.float64)),
    order=st.permutations(range(3)),
    fill=st.sampled_from([0, 0.3]),
)
def test_affine_transforms_are_resampled_once(interpolation, images, order, fill):
    settings = {"interpolation": interpolation, "fill": fill}
    members = [
        T.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), (-5, 5, -3, 3), **settings),
        T.RandomRotation(40, **settings),
        T.RandomAffine(10, **settings),
    ]
    transforms = [members[place] for place in order]
    found, _, params = by_stages_and_alone(images, transforms)
    matrix = torch.eye(3, dtype=torch.float64).expand(len(images), 3, 3)
    for transform, its_params in zip(transforms, params.values(), strict=True):
        matrix = matrix @ transform.matrix(its_params, shape_of(images), images.device)
    assert torch.equal(found, warp(images, matrix, interpolation=interpolation, fill=(float(fill),)))


FLIP, CROP = T.RandomHorizontalFlip(), T.RandomCrop(4, 2)
FILLED, SHRUNK = T.RandomCrop(4, 2, fill=1), T.RandomCrop(4, fill=1)
AFFINE, ROTATION = T.RandomAffine(10), T.RandomRotation(10)
CONVERT, NORMALIZE = T.ToDtype(torch.float32, scale=True), T.Normalize(*MOMENTS)


STAGES: list[tuple[list[Any], list[int]]] = [
    ([CROP, FLIP], [2]),
    ([FLIP, T.RandomVerticalFlip(), AFFINE, ROTATION, FLIP], [2, 2, 1]),
    ([T.RandomResizedCrop(4), FLIP, T.RandomVerticalFlip(), CROP], [1, 3]),
    ([T.Resize(4), CONVERT, NORMALIZE], [1, 2]),
    ([CROP, CONVERT, NORMALIZE, FLIP], [3, 1]),
    ([CONVERT, NORMALIZE, NORMALIZE], [2, 1]),
    ([T.ToDtype(torch.float32), NORMALIZE], [1, 1]),
    ([T.ToDtype(torch.uint8, scale=True), NORMALIZE], [1, 1]),
    ([T.Resize(4, "nearest"), FLIP], [1, 1]),
    ([CROP, Transform(), CROP, FLIP], [1, 1, 2]),
    ([AFFINE, CONVERT, NORMALIZE], [1, 2]),
    # Of other fill values or interpolations:
    ([FILLED, CROP], [1, 1]),
    ([SHRUNK, CROP], [2]),
    ([T.RandomRotation(4, fill=1), ROTATION], [1, 1]),
    ([T.RandomRotation(4, fill=None), ROTATION], [1, 1]),
    ([ROTATION, T.RandomRotation(4, "bilinear")], [1, 1]),
]


def test_neighbours_are_merged_where_they_can_be():
    for members, sizes in STAGES:
        stages = stages_of(members)
        assert list(map(len, stages)) == sizes, members
        assert [member for stage in stages for member in stage] == members


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_floats_are_converted_first_and_then_normalised_in_their_new_dtype(dtype):
    images = made_images(0, (4, 3, 9, 8), torch.float32)
    to_dtype, normalize = T.ToDtype(dtype, scale=True), T.Normalize(*MOMENTS)
    crop = T.RandomCrop(5, 2)
    found, params = T.Compose([crop, to_dtype, normalize])(images, draws=keyed(4), return_params=True)
    assert torch.equal(found, normalize(to_dtype(crop(images, params=params["RandomCrop"]))))
