"""What is recognised and what is not, with the reason; and that nothing is called for it."""

from __future__ import annotations

import copy
import functools
import pkgutil
import random
from dataclasses import replace

import numpy as np
import PIL.Image
import pytest
import torch
from fusion_tools import MEAN, STD, cifar, folder, fused, made, mnist, pixels, planes
from torch import nn
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset
from torchvision import datasets, tv_tensors
from torchvision import transforms as v1
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.models import ResNet18_Weights
from torchvision.transforms import v2

from fastload.errors import ConfigError
from fastload.fusion import FusedDataset, Yields, recognise
from fastload.fusion.changes import Objects
from fastload.fusion.recognition import recognise_transform
from fastload.transforms.sample import State

PIL_RGB = State("PIL", torch.uint8, 3)
UINT8 = State("tensor", torch.uint8, 3)
FLOAT = State("tensor", torch.float32, 3)
IMAGE = State("Image", torch.uint8, 3)

BOTH = [
    ("RandomCrop", ((8, 9), (1, 2)), UINT8, "RandomCrop((8, 9), padding=(1, 2, 1, 2))"),
    ("RandomCrop", (8, None, True, 7), UINT8, "RandomCrop(8, pad_if_needed=True, fill=7)"),
    ("CenterCrop", ([5],), PIL_RGB, "CenterCrop(5)"),
    ("RandomResizedCrop", ((4, 5), (0.5, 1), (1, 1)), UINT8, "RandomResizedCrop((4, 5), scale=(0.5, 1), ratio=(1, 1))"),
    ("Resize", ([256],), PIL_RGB, "Resize(256)"),
    ("RandomVerticalFlip", (0.1,), UINT8, "RandomVerticalFlip(p=0.1)"),
    ("PILToTensor", (), PIL_RGB, "PILToTensor()"),
    ("ConvertImageDtype", (torch.float64,), UINT8, "ConvertImageDtype(dtype=float64)"),
    ("Normalize", ([0.5], [0.25]), FLOAT, "Normalize(0.5, 0.25)"),
    ("ColorJitter", (0.5, (0.1, 0.2)), PIL_RGB, "ColorJitter(brightness=(0.5, 1.5), contrast=(0.1, 0.2))"),
    ("RandomGrayscale", (0.3,), UINT8, "RandomGrayscale(p=0.3)"),
    ("RandAugment", (3, 5), PIL_RGB, "RandAugment(num_ops=3, magnitude=5)"),
    ("TrivialAugmentWide", (), UINT8, "TrivialAugmentWide()"),
    ("RandomErasing", (0.5, (0.1, 0.2), (1, 2), "random"), FLOAT,
     "RandomErasing(scale=(0.1, 0.2), ratio=(1, 2), value=None)"),
]  # fmt: skip

ONE = [
    (v1.ToTensor(), PIL_RGB, "ToTensor()"),
    (v2.ToImage(), UINT8, "ToImage()"),
    (v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True), IMAGE, "ToDtype(float32, scale=True)"),
    (v2.ToDtype({torch.Tensor: torch.float16, "others": None}), UINT8, "ToDtype(float16)"),
    (v2.RandomCrop(9, fill={tv_tensors.Image: 7, "others": 3}), IMAGE, "RandomCrop(9, fill=7)"),
    (v2.RandomCrop(9, fill={tv_tensors.Image: 7, "others": 3}), PIL_RGB, "RandomCrop(9, fill=3)"),
    (v2.Resize(None, max_size=5), UINT8, "Resize(None, max_size=5)"),
    (nn.Identity(), IMAGE, "Identity()"),
    # v2 passes by what it does not take.
    (v2.ToDtype(torch.float32), PIL_RGB, "ToDtype()"),
    (v2.ToPureTensor(), UINT8, "ToPureTensor()"),
    (v2.PILToTensor(), IMAGE, "PILToTensor()"),
    *((getattr(module, name)(*args), state, shown) for module in (v1, v2) for name, args, state, shown in BOTH),
]


@pytest.mark.parametrize(("transform", "state", "shown"), ONE)
def test_transforms_are_known(transform, state, shown):
    found = recognise_transform(transform, state)
    assert (found.reason, found.rest) == (None, ())
    assert [step.shown for step in found.steps] == [shown]
    again = recognise_transform(copy.deepcopy(transform), state)
    assert found == again
    assert hash(found) == hash(again)


def test_containers_are_opened():
    inner = nn.Sequential(v1.RandomHorizontalFlip(), v1.RandomVerticalFlip())
    transform = v2.Compose([v1.Compose([v1.Resize(5), inner]), v1.ToTensor()])
    found = recognise_transform(transform, PIL_RGB)
    assert [type(step).__name__ for step in found.steps] == [
        "Resize", "RandomHorizontalFlip", "RandomVerticalFlip", "ToTensor",
    ]  # fmt: skip
    assert found.state == State("tensor", torch.float32, 3)


def test_a_preset_that_is_known_in_part_stays_whole():
    preset = ResNet18_Weights.DEFAULT.transforms()
    preset.std = [1.0, 0.0, 1.0]
    found = recognise_transform(v1.Compose([v1.RandomHorizontalFlip(), preset, v1.Resize(9)]), PIL_RGB)
    assert [step.shown for step in found.steps] == ["RandomHorizontalFlip()"]
    assert found.rest == ("ImageClassification", "Resize")
    assert len(found.states) == 2
    preset.forward = abs
    assert recognise_transform(preset, PIL_RGB).reason == "its forward was replaced"
    preset = ResNet18_Weights.DEFAULT.transforms()
    preset.resize_size = "large"
    assert "its arguments are not understood" in recognise_transform(preset, PIL_RGB).reason
    # Of a tensor it resizes the tensor, which is another arithmetic.
    assert recognise_transform(ResNet18_Weights.DEFAULT.transforms(), UINT8).steps == ()


class MyCrop(v1.RandomCrop):
    pass


class MyCompose(v1.Compose):
    pass


def hooked():
    flip = v2.RandomHorizontalFlip()
    flip.register_forward_pre_hook(lambda module, args: None)
    return flip


def replaced():
    crop = v1.RandomCrop(3)
    crop.get_params = lambda *args: (0, 0, 3, 3)
    return crop


UNKNOWN = [
    (MyCrop(3), PIL_RGB, "a subclass of RandomCrop"),
    (MyCompose([v1.ToTensor()]), PIL_RGB, "not one of the known transforms"),
    (v1.Lambda(abs), PIL_RGB, "not one of the known transforms"),
    (abs, PIL_RGB, "not one of the known transforms"),
    (v1.RandomApply([v1.ToTensor()]), PIL_RGB, "not one of the known transforms"),
    (hooked(), PIL_RGB, "it has hooks"),
    (v2.Compose([hooked()]), PIL_RGB, "it has hooks"),
    (replaced(), PIL_RGB, "its get_params was replaced"),
    (v1.Normalize(MEAN, STD), PIL_RGB, "takes a tensor, and gets a PIL image"),
    (v2.Normalize(MEAN, STD), UINT8, "takes floats, and gets uint8"),
    (v2.Normalize(MEAN, STD), State("tensor", torch.float32, 1), "3 channels, and the image has 1"),
    (v1.Normalize(MEAN, (0, 1, 1)), FLOAT, "std must not be 0"),
    (v1.ToTensor(), UINT8, "ToTensor does not take a tensor of uint8"),
    (v1.RandomHorizontalFlip(), IMAGE, "of v1 on a tv_tensors.Image"),
    (v2.RandomErasing(), PIL_RGB, "RandomErasing of a PIL image"),
    (v2.RandomErasing(value="random"), UINT8, "with noise, of integers"),
    (v2.RandomErasing(value=(1, 2)), FLOAT, "2 channels, and the image has 3"),
    (v1.RandomCrop(5, fill=(1, 2)), PIL_RGB, "fill for 2 channels"),
    (v1.RandomCrop(5, padding=-1), PIL_RGB, "padding must be"),
    (v1.RandomHorizontalFlip(1.5), PIL_RGB, "p must be a probability"),
    (v1.RandomGrayscale(-0.1), PIL_RGB, "p must be a probability"),
    (v2.RandomCrop(5, fill=(1, 2, 3), padding_mode="edge"), IMAGE, "fill for each channel, and padding_mode='edge'"),
    (v1.Resize(10, max_size=5), PIL_RGB, "max_size must be more than size"),
    (v2.Resize(10, "lanczos"), UINT8, "interpolation must be one of"),
    (v2.RandAugment(magnitude=31), PIL_RGB, "magnitude must be"),
    (v2.ToDtype({tv_tensors.Mask: torch.int64}), IMAGE, "no dtype is given for Image"),
    (v2.ToDtype(torch.int64, scale=True), FLOAT, "torchvision refuses it"),
]  # fmt: skip


@pytest.mark.parametrize(("transform", "state", "reason"), UNKNOWN)
def test_what_is_not_known_stays_with_all_after_it_and_says_why(transform, state, reason):
    found = recognise_transform(nn.Sequential(v2.Identity(), nn.Identity()), state)
    assert len(found.steps) == 2
    found = recognise_transform(v1.Compose([v2.Identity(), transform, v2.Identity()]), state)
    assert len(found.steps) == 1
    assert len(found.rest) == 2
    assert reason in found.reason


def wrapped(function):
    """Return somebody's function that looks like the one that it calls."""

    @functools.wraps(function)
    def turned(image, *args, **kwargs):
        return function(image, *args, **kwargs).rotate(180)

    return turned


REPLACED = {
    "torchvision.transforms.functional.resize": "torchvision.transforms.functional.resize was replaced",
    "torchvision.datasets.folder.pil_loader": "torchvision.datasets.folder.pil_loader was replaced",
    "torchvision.datasets.DatasetFolder.__getitem__": "__getitem__ of ImageFolder was replaced",
    "torchvision.transforms.CenterCrop.forward": "no transform of it is known",
}
OTHERS = [
    lambda function: lambda image, *args, **kwargs: image,
    wrapped,
    lambda function: functools.partial(wrapped(function)),
    lambda function: torch.no_grad()(wrapped(function)),
]


@pytest.mark.parametrize("other", OTHERS, ids=["another", "wrapped", "partial", "decorated"])
@pytest.mark.parametrize("name", REPLACED)
def test_nothing_is_known_while_a_function_of_torchvisions_is_replaced(name, other, monkeypatch, tmp_path):
    dataset = folder(tmp_path, v1.Compose([v1.CenterCrop(3)]))
    monkeypatch.setattr(name, other(pkgutil.resolve_name(name)))
    assert recognise(dataset).reason == REPLACED[name]
    if name.endswith("forward"):
        assert recognise_transform(v1.CenterCrop(3), PIL_RGB).reason == "its forward was replaced"
    monkeypatch.undo()
    assert recognise(dataset).fused


def test_another_transform_of_a_part_of_a_dataset_is_seen():
    part = cifar(v1.ToTensor())
    for dataset in (part, Subset(part, [0]), ConcatDataset([cifar(v1.ToTensor()), Subset(part, [1])])):
        objects = Objects(dataset)
        assert objects.are_the_same()
        part.transform = v1.ToTensor()
        assert not objects.are_the_same()


def test_what_was_added_to_pillows_images_changes_nothing(monkeypatch):
    monkeypatch.setattr(PIL.Image.Image, "thumb", lambda image: image.resize((9, 9)), raising=False)
    assert recognise(cifar(v1.Resize(3))).fused


def test_after_somebody_has_registered_an_opener_of_jpeg_files_nothing_is_known(monkeypatch):
    PIL.Image.preinit()
    monkeypatch.setitem(PIL.Image.OPEN, "JPEG", (lambda *args: None, None))
    assert recognise(cifar(v1.Resize(3))).reason == "Pillow's opener of JPEG files was replaced"


@pytest.mark.parametrize("hook", ["register_module_forward_hook", "register_module_forward_pre_hook"])
def test_with_hooks_on_all_modules_nothing_is_known(hook):
    handle = getattr(nn.modules.module, hook)(lambda *_: None)
    try:
        assert "all modules have hooks" in recognise(cifar(v1.CenterCrop(3))).reason
    finally:
        handle.remove()
    assert recognise(cifar(v1.CenterCrop(3))).fused


class Plain(datasets.CIFAR10):
    def class_names(self):
        return self.classes


class Overriding(datasets.CIFAR10):
    def __getitem__(self, index):
        return super().__getitem__(index)


class Batching(datasets.CIFAR10):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Mixed(Plain):
    targets = property(lambda self: [0])


class MySubset(Subset):
    def __getitem__(self, index):
        return super().__getitem__(index)

    def __getitems__(self, indices):
        return super().__getitems__(indices)


SOURCES = [
    (lambda t: cifar(t), "CIFAR10: 12 images of 32 x 32, RGB"),
    (lambda t: made(Plain, t, data=pixels(2, 32, 32, 3), targets=[0, 1]), "Plain: 2 images"),
    (lambda t: mnist(t), "MNIST: 12 images of 28 x 28, L"),
    (lambda t: mnist(t, kind=datasets.EMNIST), "EMNIST"),
    (lambda t: mnist(t, kind=datasets.QMNIST, compat=True), "QMNIST"),
    (lambda t: planes(datasets.SVHN, t), "SVHN: 12 images of 32 x 32, RGB"),
    (lambda t: planes(datasets.STL10, t), "STL10: 12 images of 96 x 96, RGB"),
]


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize(("make", "shown"), SOURCES)
def test_sources_are_known(make, shown, module):
    dataset = make(module.PILToTensor())
    plan = recognise(dataset)
    assert plan.fused
    assert str(plan.parts[0].source).startswith(shown)
    assert len(recognise(ConcatDataset([dataset, Subset(dataset, [1])])).parts) == 2


@pytest.mark.parametrize("kind", [datasets.ImageFolder, datasets.DatasetFolder])
def test_folders_are_known_by_their_loader(kind, tmp_path, monkeypatch):
    folder(tmp_path)
    more = {} if kind is datasets.ImageFolder else {"extensions": (".jpg", ".png")}
    known = kind(tmp_path, transform=v1.ToTensor(), loader=pil_loader, **more)
    assert str(recognise(known).parts[0].source) == f"{kind.__name__}: 25 files"
    other = kind(tmp_path, transform=v1.ToTensor(), loader=lambda path: pil_loader(path), **more)
    assert "its loader is '" in recognise(other).reason
    by_default = kind(tmp_path, transform=v1.ToTensor(), loader=default_loader, **more)
    assert recognise(by_default).fused
    monkeypatch.setattr("torchvision.get_image_backend", lambda: "accimage")
    assert "'accimage', not 'PIL'" in recognise(by_default).reason


def of(kind, data, targets=None):
    return lambda: made(kind, v1.ToTensor(), data=data, targets=targets)


RGB = pixels(2, 32, 32, 3)

REFUSED = [
    (of(Overriding, RGB), "Overriding overrides __getitem__ of CIFAR10"),
    (of(Batching, RGB), "Batching overrides __getitems__ of CIFAR10"),
    (lambda: made(Mixed, v1.ToTensor(), data=RGB), "Mixed overrides targets of CIFAR10"),
    (lambda: TensorDataset(torch.zeros(3)), "TensorDataset is not one of the known datasets"),
    (lambda: MySubset(cifar(v1.ToTensor()), [0]), "MySubset overrides __getitem__, __getitems__ of Subset"),
    (lambda: ConcatDataset([cifar(v1.ToTensor()), TensorDataset(torch.zeros(3))]), "TensorDataset is not"),
    (lambda: StackDataset(cifar(v1.ToTensor())), "StackDataset is not"),
    (of(datasets.CIFAR10, RGB.astype(float)), "its data are float64 (2, 32, 32, 3), not images of uint8"),
    (of(datasets.CIFAR10, RGB[..., :2]), "its data are uint8 (2, 32, 32, 2), not images of uint8"),
    (of(datasets.CIFAR10, torch.from_numpy(RGB)), "its data is a Tensor, not a ndarray"),
    (of(datasets.MNIST, torch.zeros(2, 28, 28, dtype=torch.uint8, device="meta")), "its data are on meta"),
    (lambda: cifar(), "no transform of it is known"),
    (lambda: cifar(abs), "no transform of it is known"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
def test_what_is_not_known_is_refused_with_the_reason(make, reason):
    plan = recognise(make())
    assert not plan.fused
    assert reason in plan.reason
    assert reason in str(plan)
    assert plan.split(device=True) == (plan, None)


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, value):
        self.calls += 1
        return value


def test_recognition_calls_nothing_and_draws_nothing(tmp_path):
    transform, target = Counting(), Counting()
    dataset = folder(tmp_path, v1.Compose([v1.RandomResizedCrop(9), transform]), target_transform=target)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    plan = recognise(dataset)
    plan.split(device=True)
    str(plan)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    assert transform.calls == target.calls == 0


# -- plans -------------------------------------------------------------------------------------------------------------


STANDARD = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]


class MyBlur:
    def __call__(self, image):
        return image


GRAY, ALONE = v1.RandomGrayscale(), "no one pass can do it between the steps beside it"
TO_FLOATS = [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]
FLOATS = "it gets floats, and only bytes are moved together: put it before the conversion"
ERASE, FLIP = v1.RandomErasing(), v1.RandomHorizontalFlip()


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


@pytest.mark.parametrize(
    ("steps", "place", "runs", "note"),
    [
        ([v2.ToImage(), v2.RandomResizedCrop(9)], 3, "torchvision", "torch's own arithmetic"),
        ([v2.ToImage(), v2.Resize((9, 9))], 3, "torchvision", "torch's own arithmetic"),
        ([v1.Resize(9), v1.ToTensor()], 3, "torchvision", "the images are of different sizes"),
        ([v1.Resize((9, 9)), v1.RandomCrop(9, 1)], 3, "torchvision", "the samples are PIL images"),
        ([v1.RandomCrop(9, 1), v1.ToTensor()], 2, "torchvision", ALONE),
        ([*TO_FLOATS, v1.CenterCrop(9)], 3, "torchvision", ALONE),
        ([*TO_FLOATS, v1.CenterCrop(9)], 4, "torchvision", FLOATS),
        ([*TO_FLOATS, v1.CenterCrop(9), v1.Normalize(MEAN, STD)], 5, "torchvision", ALONE),
        ([v1.CenterCrop(9), *TO_FLOATS, ERASE, v1.Normalize(MEAN, STD)], 5, "torchvision", ALONE),
        ([v1.CenterCrop(9), GRAY, v1.RandomVerticalFlip(), v1.ToTensor()], 4, "torchvision", ALONE),
        ([v1.CenterCrop(9), v1.ToTensor(), v1.RandomErasing()], 4, "values, in place", ""),
        ([v1.ColorJitter(0.4), v1.ToTensor()], 2, "torchvision", "Pillow's own arithmetic"),
        ([GRAY, FLIP, MyBlur(), v1.ToTensor()], 3, "torchvision", "so that MyBlur gets what it would get"),
        ([FLIP, MyBlur(), v1.ToTensor()], 3, "as it is", "not one of the known transforms; it gets a PIL image (RGB)"),
        ([FLIP, MyBlur(), v1.ToTensor()], 4, "as it is", "comes after MyBlur"),
        ([FLIP, MyBlur(), v1.ToTensor()], 5, "as it is", "it is the user's"),
    ],
)  # fmt: skip
def test_each_step_says_where_it_runs_and_why(steps, place, runs, note, tmp_path):
    line = list(recognise(folder(tmp_path, v1.Compose(steps), target_transform=abs)).lines())[place]
    assert (line.runs, line.note) == (runs, note)


def test_parts_that_are_alike_are_one_part_of_the_table(tmp_path):
    photos = folder(tmp_path, v1.Compose(STANDARD))
    small = cifar(v1.Compose([v1.RandomCrop(32, padding=4), v1.ToTensor()]))
    inner = Subset(photos, range(10))
    plan = recognise(ConcatDataset([photos, Subset(small, [1, 2]), photos, inner, Subset(inner, [0, 1, 2])]))
    assert [line.stage for line in plan.lines() if not line.stage.startswith(" ")] == [
        "ImageFolder: 63 files",
        "CIFAR10: 2 images of 32 x 32, RGB",
    ]
    assert [line.runs for line in replace(recognise(small), blocks="native").lines()][1] == "block (native)"
    assert plan.yields is None
    assert not plan.direct


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
