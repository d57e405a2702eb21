"""What an executor is asked for is what its interface says: other ones, made plainly here, give the same samples."""

from __future__ import annotations

import io
from unittest.mock import Mock

import numpy as np
import PIL.Image
import pytest
import torch
from fused_samples import sample
from fusion_tools import PIPELINES, cifar, folder, fused, mnist
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import native
from fastload.buffers.layout import learn
from fastload.fusion import FusedDataset, recognise
from fastload.images.native_jpeg import NativeDecoder
from fastload.native import arrays


class PlainRows:
    """Follows the words of images.Decoder; keeps what it was asked for."""

    name = "plain"
    reads_records = False

    def __init__(self):
        self.cuts = []

    def size(self, data):
        image = PIL.Image.open(io.BytesIO(data))
        return image.height, image.width

    def image(self, data):
        return PIL.Image.open(io.BytesIO(data)).convert("RGB")

    def pixels(self, data, cut):
        self.cuts.append(cut)
        whole = np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB"))
        top, left, height, width = cut.box
        part = whole[top : top + height, left : left + width]
        if cut.size != (height, width):
            way = getattr(PIL.Image.Resampling, cut.interpolation.upper())
            part = np.asarray(PIL.Image.fromarray(part).resize(cut.size[::-1], way))
        top, left, height, width = cut.window
        part = part[top : top + height, left : left + width]
        part = part[:, ::-1] if cut.flips[0] else part
        return (part[::-1] if cut.flips[1] else part).copy()

    def row(self, data, cut, values, out):
        assert out.is_contiguous()
        pixels = self.pixels(data, cut)
        for channel, levels in enumerate(values.table):
            out[channel] = levels[torch.from_numpy(pixels[..., channel].astype(np.int64))]


@pytest.mark.skipif(not native.available(), reason="the native library is not built")
@pytest.mark.parametrize(
    ("steps", "calls"),
    [
        ([], 1),
        ([v1.RandomCrop(9, padding=4), v1.RandomHorizontalFlip()], 1),
        ([v1.RandomCrop(9, padding=4), v1.RandomCrop(9, padding=1)], 1),
        ([v2.ToImage(), v2.RandomCrop(9, padding=4, fill=(1, 2, 3)), v2.RandomHorizontalFlip()], 1),
        ([v2.ToImage(), v2.Resize(9, v1.InterpolationMode.NEAREST), v2.RandomHorizontalFlip()], 1),
        # One call for each fill value, and one for the block before the samples are changed alone.
        ([v2.ToImage(), v2.RandomCrop(9, padding=4, fill=1), v2.RandomCrop(9, padding=1, fill=2)], 2),
        ([v1.RandomCrop(9, padding=4), v1.ColorJitter(0.2)], 1),
    ],
)
def test_the_library_makes_blocks_in_as_few_calls_as_can_be(steps, calls, monkeypatch):
    dataset = cifar(v1.Compose([*steps, v2.PILToTensor()]), size=(9, 10))
    counted = Mock(side_effect=arrays.BatchWriter.write, autospec=True)
    monkeypatch.setattr(arrays.BatchWriter, "write", lambda *args, **more: counted(*args, **more))
    FusedDataset(dataset, recognise(dataset), 7, native_blocks=True).load([3, 0], [3, 0], 1)
    assert counted.call_count == calls


@pytest.mark.parametrize("name", [name for name in PIPELINES if "crop" in name or "flip" in name or "eval" in name])
def test_rows_are_asked_for_in_one_form(name, tmp_path_factory):
    dataset = folder(tmp_path_factory.mktemp("images"), v1.Compose(PIPELINES[name]))
    plan, plain = recognise(dataset), PlainRows()
    indices = list(range(len(dataset)))
    one = FusedDataset(dataset, plan, 7, plain).load(indices, indices, 0)
    other = FusedDataset(dataset, plan, 7).load(indices, indices, 0)
    assert torch.equal(one.images, other.images)
    for cut in plain.cuts:
        assert all(type(number) is int for number in (*cut.box, *cut.size, *cut.window))
        assert cut.window[0] + cut.window[2] <= cut.size[0]
        assert cut.window[1] + cut.window[3] <= cut.size[1]


@pytest.mark.parametrize(
    ("steps", "cuts"),
    [
        ([v2.RandomResizedCrop(9), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32)], True),
        ([v2.ToImage(), v2.RandomResizedCrop(9), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32)], True),
        ([v2.RandomResizedCrop(9), v2.ColorJitter(0.3), v2.ToImage()], True),
        ([v2.ColorJitter(0.3), v2.RandomResizedCrop(9), v2.ToImage()], False),
    ],
)
def test_only_the_part_that_is_needed_is_asked_for(steps, cuts, tmp_path):
    dataset = folder(tmp_path, v2.Compose(steps))
    rows = PlainRows()
    fused = FusedDataset(dataset, recognise(dataset), 7, rows)
    largest = [path.endswith("size7.jpg") for path, _ in dataset.samples].index(True)
    fused.load([largest] * 50, range(50), 0)
    sizes = {cut.box[2:] for cut in rows.cuts}
    assert len(sizes) > 10 if cuts else len(sizes) == 1


@pytest.mark.skipif(not native.available(), reason="the native library is not built")
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float32])
def test_dtypes_that_the_library_does_not_write_are_made_of_what_it_does(dtype, tmp_path):
    transform = v1.Compose([v1.RandomCrop(1), v1.PILToTensor(), v1.ConvertImageDtype(dtype)])
    for dataset in (folder(tmp_path, transform), cifar(transform)):
        one, other = (
            FusedDataset(dataset, recognise(dataset), 3, **makers)
            for makers in ({}, {"rows": NativeDecoder(), "native_blocks": True})
        )
        expected, found = (made.load(range(12), range(12), 0).images for made in (one, other))
        assert found.dtype == dtype
        assert torch.equal(found, expected)


# -- the native library ------------------------------------------------------------------------------------------------


NEAREST, EXACT = v1.InterpolationMode.NEAREST, v1.InterpolationMode.NEAREST_EXACT
MORE = {
    "to the nearest pixel": [v2.ToImage(), v2.Resize((20, 24), NEAREST)],
    "crop to the nearest pixel": [v2.ToImage(), v2.RandomResizedCrop((20, 24), interpolation=EXACT), nn.Identity()],
    "nearest, then moved": [v1.PILToTensor(), v1.Resize((25, 30), EXACT), v1.RandomCrop(20), v1.RandomVerticalFlip()],
    "wide": [v1.CenterCrop(20), v1.PILToTensor(), v1.ConvertImageDtype(torch.int16)],
    "wide, of floats": [v1.CenterCrop(20), v1.ToTensor(), v2.ToDtype(torch.int64)],
    "boolean": [v1.CenterCrop(20), v1.PILToTensor(), v2.ToDtype(torch.bool)],
}


@pytest.mark.parametrize("name", [*MORE, *PIPELINES])
def test_the_library_makes_what_is_made_without_it(name, tmp_path_factory):
    if not native.available():
        pytest.skip(f"the native library is not there: {native.why_not()}")
    transform = v1.Compose({**MORE, **PIPELINES}[name])
    made = 0
    made_of = [folder(tmp_path_factory.mktemp("images"), transform), cifar(transform)]
    if "augment" not in name:  # with a fill value for each of three channels
        made_of.append(mnist(transform))
    for dataset in made_of:
        plan = recognise(dataset)
        if not plan.fused or plan.parts[0].pipeline.rest:
            continue  # for images of three channels alone
        indices = range(len(dataset))
        whole = [FusedDataset(dataset, plan, 7, **makers) for makers in ({}, _makers())]
        expected, found = ([one.load(indices, indices, 3).images] for one in whole)
        one, other = ([*images[0]] for images in (expected, found))
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))
        made += 1
    assert made


def test_images_that_pillow_refuses_for_their_size_are_refused(tmp_path, monkeypatch):
    if not native.available():
        pytest.skip(f"the native library is not there: {native.why_not()}")
    dataset = folder(tmp_path, v1.Compose([v1.CenterCrop(9), v1.ToTensor()]))
    largest = [path.endswith("size7.jpg") for path, _ in dataset.samples].index(True)
    fused = FusedDataset(dataset, recognise(dataset), 7, **_makers())
    assert sample(fused, largest)[0].shape == (3, 9, 9)
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    for make in (lambda: dataset[largest], lambda: sample(fused, largest)):
        with pytest.raises(PIL.Image.DecompressionBombError):
            make()


def _makers():
    return {"rows": NativeDecoder(), "native_blocks": True}


def test_images_are_written_into_rows_of_their_own_shape_and_dtype():
    found = fused(cifar(v1.ToTensor()))
    image = torch.rand(3, 32, 32)
    assert found.fits(learn((image, 3)))
    assert found.fits(learn((image, image)))  # where the image lies, whatever the target is
    assert not found.fits(learn((image.double(), 3)))
    assert not found.fits(learn((image[:, :16], 3)))
    assert not found.fits(learn([image, 3]))
    assert not found.fits(learn(image))
