"""What the native library makes of files and arrays is what Pillow and torch make, whatever the transforms."""

from __future__ import annotations

import PIL.Image
import pytest
import torch
from fused_samples import sample
from fusion_tools import PIPELINES, cifar, folder, mnist
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import native
from fastload.fusion import FusedDataset, recognise
from fastload.images.native_jpeg import NativeDecoder

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
