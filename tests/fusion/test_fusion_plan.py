"""The plan says what runs where, why not, and what comes out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fused_samples import sample
from fusion_tools import MEAN, STD, cifar, folder, fused, mnist
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload.errors import ConfigError
from fastload.fusion import FusedDataset, Yields, recognise

STANDARD = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]


class MyBlur:
    def __call__(self, image):
        return image


GRAY, AFTER = v1.RandomGrayscale(), "comes after RandomGrayscale"
TO_FLOATS = [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]
FLOATS = "it gets floats, and only bytes are moved together: put it before ConvertImageDtype"
ERASE = v1.RandomErasing()


def lines(text):
    return [line.rstrip() for line in text.strip("\n").split("\n")]


def test_the_standard_pipeline_is_one_row_and_one_pass(tmp_path):
    plan = recognise(folder(tmp_path, v1.Compose(STANDARD)))
    assert str(plan).split("\n") == lines("""
stage                                                      runs                 note
ImageFolder: 25 files
  read, decode                                             row (Pillow)
  RandomResizedCrop(224)                                   row (Pillow)
  RandomHorizontalFlip()                                   row (Pillow)
  ToTensor()                                               values, in one pass
  Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  values, in one pass
  = image                                                                       tensor of float32 [3, 224, 224]
""")
    here, _ = plan.split(device=True)
    assert [line.runs for line in here.lines()] == ["", *["row (Pillow)"] * 3, "device", "device", ""]
    assert str(here).endswith("tensor of float32 [3, 224, 224]")
    assert (plan.direct, plan.yields) == (True, Yields("tensor", torch.float32, (3, 224, 224)))
    assert (here.direct, here.yields) == (True, Yields("tensor", torch.uint8, (3, 224, 224)))


def test_what_is_not_fused_says_why(tmp_path):
    steps = [v1.RandomResizedCrop(224), v1.ColorJitter(0.4), v1.RandomHorizontalFlip(), MyBlur(), v1.ToTensor()]
    dataset = folder(tmp_path, v1.Compose(steps), target_transform=abs)
    assert str(recognise(dataset)).split("\n") == lines("""
stage                                 runs          note
ImageFolder: 25 files
  read, decode                        row (Pillow)
  RandomResizedCrop(224)              row (Pillow)
  ColorJitter(brightness=(0.6, 1.4))  torchvision   Pillow's own arithmetic
  RandomHorizontalFlip()              torchvision   so that MyBlur gets what it would get
  MyBlur                              as it is      not one of the known transforms; it gets a PIL image (RGB)
  ToTensor                            as it is      comes after MyBlur
  target_transform abs                as it is      it is the user's
""")


@pytest.mark.parametrize(
    ("steps", "place", "runs", "note"),
    [
        ([v2.ToImage(), v2.RandomResizedCrop(9)], 3, "torchvision", "the row crops, and torch resizes the tensor"),
        ([v2.ToImage(), v2.Resize((9, 9))], 3, "torchvision", "torch's own arithmetic"),
        ([v1.Resize(9), v1.ToTensor()], 3, "torchvision", "the images are of different sizes"),
        ([v1.Resize((9, 9)), v1.RandomCrop(9, 1)], 3, "torchvision", "the samples are PIL images"),
        ([v1.RandomCrop(9, 1), v1.ToTensor()], 2, "torchvision", "each image is padded by its own size"),
        ([*TO_FLOATS, v1.CenterCrop(9)], 3, "torchvision", "CenterCrop comes after it"),
        ([*TO_FLOATS, v1.CenterCrop(9)], 4, "torchvision", FLOATS),
        ([*TO_FLOATS, v1.CenterCrop(9), v1.Normalize(MEAN, STD)], 5, "torchvision", "comes after CenterCrop"),
        ([v1.CenterCrop(9), *TO_FLOATS, ERASE, v1.Normalize(MEAN, STD)], 5, "torchvision", "Normalize comes after it"),
        ([v1.CenterCrop(9), GRAY, v1.RandomVerticalFlip(), v1.ToTensor()], 4, "torchvision", AFTER),
        ([v1.CenterCrop(9), v1.ToTensor(), v1.RandomErasing()], 4, "values, in place", ""),
    ],
)  # fmt: skip
def test_each_step_says_where_it_runs_and_why(steps, place, runs, note, tmp_path):
    line = list(recognise(folder(tmp_path, v1.Compose(steps))).lines())[place]
    assert (line.runs, line.note) == (runs, note)


def test_parts_that_are_alike_are_one_part_of_the_table(tmp_path):
    photos = folder(tmp_path, v1.Compose(STANDARD))
    small = cifar(v1.Compose([v1.RandomCrop(32, padding=4), v1.ToTensor()]))
    plan = recognise(ConcatDataset([photos, Subset(small, [1, 2]), photos]))
    assert [line.stage for line in plan.lines() if not line.stage.startswith(" ")] == [
        "ImageFolder: 50 files",
        "CIFAR10: 2 images of 32 x 32, RGB",
    ]
    assert plan.yields is None
    assert not plan.direct


def test_as_many_samples_as_a_subset_has_are_counted(tmp_path):
    photos = folder(tmp_path, v1.Compose(STANDARD))
    inner = Subset(photos, range(10))
    assert "ImageFolder: 3 files" in str(recognise(Subset(inner, [1, 1, 2])))
    assert "ImageFolder: 13 files" in str(recognise(ConcatDataset([inner, Subset(inner, [0, 1, 2])])))


def test_other_executors_are_named():
    plan = replace(recognise(cifar(v1.Compose([v1.RandomCrop(32, padding=4), v1.ToTensor()]))), blocks="native")
    assert [line.runs for line in plan.lines()] == ["", "block (native)", "values, in one pass", ""]


@pytest.mark.parametrize(
    ("steps", "kind", "dtype"),
    [
        ([v1.ToTensor()], "tensor", torch.float32),
        ([v1.PILToTensor()], "tensor", torch.uint8),
        ([v2.ToImage(), v2.ToDtype(torch.float64, scale=True)], "Image", torch.float64),
        ([v2.ToImage(), v2.ToPureTensor()], "tensor", torch.uint8),
        ([v1.CenterCrop(9)], "PIL", torch.uint8),
    ],
)
@pytest.mark.parametrize("make", [cifar, mnist])
def test_it_says_what_a_sample_is(steps, kind, dtype, make):
    dataset = make(v1.Compose([v1.CenterCrop(9), *steps]))
    yields = recognise(dataset).yields
    image = dataset[0][0]
    assert yields.kind == kind
    if kind == "PIL":
        assert yields.shape is None
    else:
        assert (yields.dtype, yields.shape) == (dtype, tuple(image.shape)) == (image.dtype, yields.shape)
    assert type(sample(fused(dataset), 0)[0]) is type(image)


def test_a_plan_of_another_dataset_is_refused():
    dataset = cifar(v1.Compose([v1.CenterCrop(9), v1.ToTensor()]))
    with pytest.raises(ConfigError, match="the plan is of 1 datasets, got 2"):
        FusedDataset(ConcatDataset([dataset, dataset]), recognise(dataset), 0)
    with pytest.raises(ConfigError, match="nothing to fuse in a CIFAR10: no transform of it is known"):
        FusedDataset(cifar(), recognise(cifar()), 0)


def test_an_empty_chunk_is_empty():
    one = fused(cifar(v1.Compose([v1.CenterCrop(9), v1.ToTensor()])))
    assert one.load([], [], 0).images.shape == (0, 3, 9, 9)
    assert one.load([], [], 0).samples() == []


def test_targets_of_any_kind_are_those_of_the_dataset():
    dataset = mnist(v1.ToTensor())
    dataset.targets = dataset.targets.tolist()
    assert fused(dataset).load([3, -1], [3, 11], 0).targets == [3, 11]
    dataset = cifar(v1.ToTensor())
    dataset.targets = torch.arange(12)
    assert all(type(target) is torch.Tensor for target in fused(dataset).load([3, 1], [3, 1], 0).targets)
