"""Colours in at most two launches: run by Triton's interpreter on the CPU, they are those of torch's operations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import TOLERANCES, coloured, keyed, made_images
from triton_kernels import CHAIN, VALUES, allow, check_close

from fastload.transforms.auto import RandAugment, TrivialAugmentWide
from fastload.transforms.auto_operations import AUTOCONTRAST, BRIGHTNESS, EQUALIZE, OPERATIONS
from fastload.transforms.base import BatchShape
from fastload.transforms.compose import Compose
from fastload.transforms.jitter import ColorJitter
from fastload.transforms.tensors import memory_format_of
from fastload.transforms.values import ToDtype

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
JITTERS = {
    "all": ColorJitter(0.4, 0.4, 0.4, 0.1),
    "strong": ColorJitter((0.2, 2), (0.2, 2), (0, 3), 0.5),
    "blends": ColorJitter(0.4, 0.4, 0.4),
    "contrast": ColorJitter(contrast=(0, 2)),
    "no contrast": ColorJitter(brightness=0.9, saturation=0.9, hue=0.3),
    "hue": ColorJitter(hue=0.5),
    "nothing": ColorJitter(),
}


def launched(transform, images, params):
    """Return what the kernels make of images, and the names of those that were launched."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        launches = allow(monkeypatch)
        return transform(images, params=params), launches


def check_near(found, expected, levels):
    """uint8: a level that is rounded the other way is 1 apart, and the steps after it may make that more."""
    assert found.dtype == expected.dtype
    limit = levels if found.dtype == torch.uint8 else TOLERANCES[found.dtype]
    assert (found.double() - expected.double()).abs().max() <= limit


def test_nearly_every_level_is_the_same_one_whatever_the_order():
    images = made_images(0, (24, 3, 9, 11))
    expected, params = JITTERS["all"](images, draws=keyed(24), return_params=True)
    found, launches = launched(JITTERS["all"], images, params)
    assert launches == ["grey_sums", "changed"]
    assert (
        len(
            {
                (*order, place)
                for order, place in zip(params["order"].tolist(), params["before_hue"].tolist(), strict=True)
            }
        )
        > 12
    )
    assert (found != expected).float().mean() < 1e-3
    check_near(found, expected, 4)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)  # the interpreter takes its time
@given(
    images=coloured(dtypes=DTYPES, most=4, sides=(1, 13)),
    jitter=st.sampled_from(sorted(JITTERS)),
    values=st.sampled_from(sorted(set(VALUES) - {"nothing"})),
    dtype=st.sampled_from(DTYPES[1:]),
)
def test_jittered_images_are_those_of_torchs_operations(images, jitter, values, dtype):
    if values == "floats" and images.dtype == torch.uint8:
        values = "normalized"
    transform = JITTERS[jitter]
    expected, params = transform(images, draws=keyed(len(images)), return_params=True)
    before = images.clone()
    found, launches = launched(transform, images, params)
    assert launches == ["grey_sums", "changed"][jitter in ("no contrast", "hue", "nothing") :]
    check_near(found, expected, 4)
    assert found.is_contiguous(memory_format=memory_format_of(images))
    composed = Compose([transform, *VALUES[values](images.shape[1], dtype)])
    changed, launches = launched(
        composed, images, composed.draw_for(keyed(len(images)), images.shape) | {"ColorJitter": params}
    )
    assert launches[-1] == "changed"
    assert len(launches) <= 2
    # What changes the values is given the same levels: they are compared above, and rounded alike.
    check_close(changed, Compose(composed.transforms[1:])(found), images.dtype, values)
    assert torch.equal(images, before)


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["contiguous", "channels_last", "strided"])
def test_nearly_all_levels_are_the_same_ones(memory):
    images = made_images(0, (6, 3, 70, 50), memory=memory)  # several blocks for each image, and a last that is not full
    for jitter in (JITTERS["all"], JITTERS["strong"]):
        expected, params = jitter(images, draws=keyed(6), return_params=True)
        found, _ = launched(jitter, images, params)
        assert (found != expected).float().mean() < 1e-3
        check_near(found, expected, 4)


def test_the_mean_of_many_pixels_is_exact_for_levels():
    images = made_images(0, (2, 3, 150, 161))  # more blocks than partial sums
    jitter = JITTERS["contrast"]
    expected, params = jitter(images, draws=keyed(2), return_params=True)
    found, _ = launched(jitter, images, params)
    assert (found != expected).float().mean() < 1e-3


@pytest.mark.parametrize(
    ("dtype", "channels", "memory"),
    [
        (torch.uint8, 3, "contiguous"),
        (torch.uint8, 1, "contiguous"),
        (torch.uint8, 3, "channels_last"),
        (torch.float16, 3, "contiguous"),
        (torch.bfloat16, 3, "channels_last"),
        (torch.float32, 3, "contiguous"),
        (torch.float32, 1, "contiguous"),
    ],
)
def test_the_colours_of_policies_are_those_of_torchs_operations(dtype, channels, memory):
    num = 3 * len(OPERATIONS)
    images = made_images(0, (num, channels, 9, 11), dtype, memory)
    policy = TrivialAugmentWide(fill=0.5)
    numbers = torch.arange(num) % len(OPERATIONS)
    table = torch.tensor(policy.magnitudes(9, 11), dtype=torch.float32)
    bins = torch.tensor([3, 17, 30]).repeat_interleave(len(OPERATIONS))
    signs = torch.where((torch.arange(num) % 2 == 0) | (numbers > BRIGHTNESS + 3), 1.0, -1.0)
    step = policy._step(numbers.numpy(), (signs * table[numbers, bins]).double().numpy(), BatchShape(*images.shape))
    before = images.clone()
    expected = policy.transform(images, step)
    found, launches = launched(lambda given, params: policy.transform(given, params), images, step)
    assert launches == ["grey_sums", "changed"]
    check_near(found, expected, 1)
    assert torch.equal(images, before)
    others = (numbers < BRIGHTNESS) | (numbers == AUTOCONTRAST) | (numbers == EQUALIZE)
    assert torch.equal(found[others], expected[others])
    assert (found != expected).float().mean() < (0.005 if dtype == torch.uint8 else 1)


@pytest.mark.parametrize("shape", [(4, 3, 2, 9), (4, 3, 1, 1), (4, 1, 9, 2)])
def test_images_without_inner_pixels_have_no_sharpness(shape):
    images = made_images(0, shape)
    policy = TrivialAugmentWide()
    step = policy._step(torch.full((4,), 9).numpy(), torch.full((4,), 0.9).double().numpy(), BatchShape(*images.shape))
    found, _ = launched(lambda given, params: policy.transform(given, params), images, step)
    assert torch.equal(found, images)


@pytest.mark.parametrize(("policy", "steps"), [(RandAugment(3), 3)])
def test_a_policy_takes_two_launches_a_step(policy, steps):
    images = made_images(0, (8, 3, 12, 10))
    expected, params = policy(images, draws=keyed(8), return_params=True)
    found, launches = launched(policy, images, params)
    assert launches == ["grey_sums", "changed"] * steps
    assert ((found.int() - expected.int()).abs() > 1).float().mean() < 0.02


def test_no_step_leaves_the_images_in_memory_of_their_own(on_cpu):
    images = made_images(0, (2, 3, 5, 5))
    found = RandAugment(0)(images)
    assert torch.equal(found, images)
    assert found.data_ptr() != images.data_ptr()


def test_a_jitter_and_the_usual_values_are_two_launches_in_either_layout(on_cpu):
    images = made_images(0, (4, 3, 12, 10))
    chain = [ColorJitter(0.4, 0.4, 0.4, 0.1), *CHAIN[2:]]
    first = Compose([*CHAIN[:2], *chain])(images, draws=keyed(4))
    assert on_cpu == ["transformed", "grey_sums", "changed"]
    last = Compose([*CHAIN[:2], *chain], layout="NHWC")(images.permute(0, 2, 3, 1).contiguous(), draws=keyed(4))
    assert last.dtype == torch.bfloat16
    assert torch.equal(first, last.permute(0, 3, 1, 2))
    text = "in at most two launches with Triton: ColorJitter + ToDtype + Normalize"
    assert text in repr(Compose(chain))


def test_what_the_kernels_cannot_take_goes_the_other_way(on_cpu):
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1)
    assert jitter(made_images(0, (4, 3, 12, 10), torch.float64)).dtype == torch.float64
    with pytest.raises(TypeError, match="1 or 3 channels, got 4"):
        jitter(made_images(0, (4, 4, 12, 10)))
    assert not on_cpu
    chain = Compose([jitter, ToDtype(torch.float64, scale=True)])
    assert chain(made_images(0, (4, 3, 12, 10))).dtype == torch.float64
    assert on_cpu == ["grey_sums", "changed"], "the jitter alone"


def test_parameters_of_another_batch_are_refused(on_cpu):
    jitter = ColorJitter(0.4)
    _, params = jitter(made_images(0, (3, 3, 12, 10)), return_params=True)
    with pytest.raises(ValueError, match="parameters for 3 samples, got 4 images"):
        jitter.transform(made_images(0, (4, 3, 12, 10)), params)
