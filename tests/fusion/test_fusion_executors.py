"""What an executor is asked for: as little as can be, and rows of the images' own shape and dtype."""

from __future__ import annotations

from unittest.mock import Mock

import PIL.Image
import pytest
import torch
from fused_samples import sample
from fusion_tools import cifar, folder, fused
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import native
from fastload.buffers.layout import learn
from fastload.fusion import FusedDataset, recognise
from fastload.images.base import Decoder
from fastload.images.native_jpeg import NativeDecoder
from fastload.native import arrays

needs_library = pytest.mark.skipif(not native.available(), reason="the native library is not built")


@needs_library
@pytest.mark.parametrize(
    ("steps", "calls"),
    [
        ([], 1),
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


@pytest.mark.parametrize(
    ("steps", "cuts"),
    [
        ([v2.RandomResizedCrop(9), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32)], True),
        ([v2.ToImage(), v2.RandomResizedCrop(9), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32)], True),
        ([v2.RandomResizedCrop(9), v2.ColorJitter(0.3), v2.ToImage()], True),
        ([v2.ColorJitter(0.3), v2.RandomResizedCrop(9), v2.ToImage()], False),
    ],
)
def test_only_the_part_that_is_needed_is_asked_for(steps, cuts, tmp_path, monkeypatch):
    sizes, pixels = set(), Decoder.pixels
    monkeypatch.setattr(Decoder, "pixels", lambda self, data, cut: sizes.add(cut.box[2:]) or pixels(self, data, cut))
    dataset = folder(tmp_path, v2.Compose(steps))
    fused(dataset).load([largest(dataset)] * 50, range(50), 0)
    assert len(sizes) > 10 if cuts else len(sizes) == 1


def largest(dataset):
    return [path.endswith("size7.jpg") for path, _ in dataset.samples].index(True)


@needs_library
def test_images_that_pillow_refuses_for_their_size_are_refused(tmp_path, monkeypatch):
    dataset = folder(tmp_path, v1.Compose([v1.CenterCrop(9), v1.ToTensor()]))
    one = FusedDataset(dataset, recognise(dataset), 7, NativeDecoder(), native_blocks=True)
    assert sample(one, largest(dataset))[0].shape == (3, 9, 9)
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    for make in (lambda: dataset[largest(dataset)], lambda: sample(one, largest(dataset))):
        with pytest.raises(PIL.Image.DecompressionBombError):
            make()


def test_images_are_written_into_rows_of_their_own_shape_and_dtype():
    found = fused(cifar(v1.ToTensor()))
    image = torch.rand(3, 32, 32)
    assert found.fits(learn((image, 3)))
    assert found.fits(learn((image, image)))  # where the image lies, whatever the target is
    assert not found.fits(learn((image.double(), 3)))
    assert not found.fits(learn((image[:, :16], 3)))
    assert not found.fits(learn([image, 3]))
    assert not found.fits(learn(image))
