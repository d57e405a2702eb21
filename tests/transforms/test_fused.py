"""The kernel, run by Triton's interpreter on the CPU, gives what torch's operations give; and it compiles for GPUs."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from references import batches, keyed, made_images
from triton_kernels import MEAN, STD, VALUES, allow, check_close

from fastload.native.arrays import AxisStep, StepKind
from fastload.transforms import fused, proof
from fastload.transforms.arithmetic import Arithmetic, Operation
from fastload.transforms.base import DTYPES, BatchShape
from fastload.transforms.compose import Compose
from fastload.transforms.crop import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from fastload.transforms.tensors import memory_format_of
from fastload.transforms.values import Normalize, ToDtype, ToNormalized

SERVED = proof.served
MOVING = {
    "crop": lambda channels: RandomCrop(6, padding=3),
    "filled": lambda channels: RandomCrop((5, 7), padding=(1, 2, 3, 4), fill=tuple(range(20, 20 + channels))),
    "small": lambda channels: RandomCrop((4, 3)),
    "needed": lambda channels: RandomCrop(12, pad_if_needed=True, fill=0.4),
    "edge": lambda channels: RandomCrop(9, padding=6, padding_mode="edge"),
    "reflect": lambda channels: RandomCrop((7, 6), padding=3, padding_mode="reflect"),
    "symmetric": lambda channels: RandomCrop((7, 6), padding=4, padding_mode="symmetric"),
    "center": lambda channels: CenterCrop((5, 11)),
    "across": lambda channels: RandomHorizontalFlip(),
    "down": lambda channels: RandomVerticalFlip(),
}


@pytest.fixture
def on_cpu(monkeypatch):
    """Have the kernels take images of the CPU, and count their launches."""
    return allow(monkeypatch)


@pytest.mark.slow
@given(
    images=batches(sides=(4, 13)),
    moving=st.lists(st.sampled_from(sorted(MOVING)), max_size=3),
    values=st.sampled_from(sorted(VALUES)),
    dtype=st.sampled_from(DTYPES[1:]),
)
def test_a_compose_gives_what_it_gives_elsewhere(images, moving, values, dtype):
    assume(moving or values != "nothing")
    channels = images.shape[1]
    if values == "floats" and images.dtype == torch.uint8:
        images = images.half()
    composed = Compose([*(MOVING[name](channels) for name in moving), *VALUES[values](channels, dtype)])
    try:
        expected, params = composed(images, draws=keyed(len(images)), return_params=True)
    except ValueError:  # a crop of more than there is
        reject()
    before = images.clone()
    with pytest.MonkeyPatch.context() as monkeypatch:
        launches = allow(monkeypatch)
        found = composed(images, params=params)
    assert found.dtype == expected.dtype
    assert found.is_contiguous(memory_format=memory_format_of(images)) or not launches
    check_close(found, expected, images.dtype, values)
    assert torch.equal(images, before)
    if moving and torch.float64 not in (images.dtype, dtype):
        assert launches


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_kernel_proves_itself_and_a_chain_is_one_launch_in_either_layout(on_cpu, monkeypatch, dtype):
    monkeypatch.setattr(proof, "served", SERVED)
    monkeypatch.setattr(proof, "_reasons", {})
    images = made_images(0, (3, 3, 12, 10))
    for each in ("nothing", "to", "normalized", "together"):
        chain = [RandomCrop(8, 2, fill=9), RandomHorizontalFlip(), *VALUES[each](3, dtype)]
        first = Compose(chain)(images, draws=keyed(3))
        last = Compose(chain, layout="NHWC")(images.permute(0, 2, 3, 1).contiguous(), draws=keyed(3))
        assert last.is_contiguous()
        assert torch.equal(first, last.permute(0, 3, 1, 2))
    assert len(on_cpu) == 8
    assert proof.refusals(torch.device("cpu")) == []
    assert proof.in_words(torch.device("cpu")) != []


def test_what_the_kernel_cannot_take_goes_the_other_way(on_cpu):
    crop, normalize = RandomCrop(8, 2), Normalize(MEAN[:3], STD[:3])
    floats = made_images(0, (4, 3, 12, 10), torch.float32)
    assert Compose([crop, normalize])(floats.requires_grad_()).requires_grad
    assert Compose([crop, normalize])(floats.detach().double()).dtype == torch.float64
    same = floats.detach()
    assert Compose([ToDtype(torch.float32)])(same) is same
    torch.compiler.reset()
    composed = Compose([crop, normalize])
    params = composed.draw_for(keyed(4), BatchShape(4, 3, 12, 10))
    compiled = torch.compile(composed.transform, fullgraph=True, backend="eager")
    found = compiled(same, params)
    assert not on_cpu
    assert torch.equal(found, composed.transform(same, params))
    assert len(on_cpu) == 1


@pytest.mark.usefixtures("on_cpu")
def test_errors_of_the_members_are_the_same():
    for values, error, message in (
        (Normalize(MEAN[:3], STD[:3]), TypeError, r"got torch\.uint8; put ToDtype"),
        (ToNormalized(MEAN, STD), ValueError, "has mean and std for 4 channels, got images of 3"),
        (RandomCrop(8, 2, fill=(1, 2)), ValueError, "fill must be one number, or one for each"),
        (RandomCrop(9), ValueError, "RandomCrop crops to"),
        (RandomCrop(8, 2, fill=300), ValueError, r"fill must be in \[0, 255\]"),
    ):
        with pytest.raises(error, match=message):
            Compose([RandomCrop(8), values, RandomHorizontalFlip()])(made_images(0, (4, 3, 12, 10)))


def test_the_switch_the_device_and_the_version_of_triton_decide(monkeypatch):
    can_run = fused._can_run_triton.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(fused.torch.version, "cuda", "13.0")
        for version, runs in (("3.5.1", False), ("3.6.0", True), ("3.10.0", True)):
            patch.setattr("triton.__version__", version)
            assert can_run() == runs
        patch.setattr(fused.torch.version, "cuda", None)
        assert not can_run()
    monkeypatch.setattr(fused, "_can_run_triton", lambda: True)
    monkeypatch.setattr(fused, "_capability", lambda device: (7, 5) if device.index else (9, 0))
    monkeypatch.delenv("FASTLOAD_TRITON", raising=False)
    devices = [torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")]
    assert [fused.available(device) for device in devices] == [True, False, False]
    monkeypatch.setenv("FASTLOAD_TRITON", "0")
    assert not fused.available(devices[0])
    monkeypatch.setenv("FASTLOAD_TRITON", "yes")
    with pytest.raises(ValueError, match="FASTLOAD_TRITON must be 0 or 1, got 'yes'"):
        fused.available(devices[0])


@pytest.mark.parametrize("shape", [(4, 1, 1, 20), (1, 4, 1, 20), (1, 1, 4, 20), (1, 1, 20, 4)])
def test_images_may_span_more_than_32_bits_count(on_cpu, shape):
    # Strides that 32 bits hold, and products that they do not. Memory that is not touched is not taken.
    strides = [2**30 if side == 4 else 1 if side == 20 else 0 for side in shape]
    images = torch.empty(3 * 2**30 + 20, dtype=torch.uint8).as_strided(shape, strides)
    images.copy_(made_images(0, shape))
    flip = [AxisStep(StepKind.FLIP, torch.ones(shape[0], dtype=torch.bool), 0, shape[3])]
    found = fused.transformed(images, [], flip, shape[2:], None, Arithmetic(Operation.COPY, torch.uint8), pytest.fail)
    assert torch.equal(found, images.flip(3))


@pytest.mark.parametrize("size", [(32, 32), (224, 224), (1, 1), (7, 1000), (5, 100_000)])
def test_tiles_cover_the_result_once(size):
    for pixel, planes in itertools.product((1, 3), (1, 256)):
        (rows, cols), strips, programs = fused._tiles(size, pixel, planes)
        across, down = -(-size[1] * pixel // cols), -(-size[0] // (rows * strips))
        assert programs == planes * across * down
        assert rows & (rows - 1) == cols & (cols - 1) == 0
