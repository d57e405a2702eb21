"""What is fused and what is not, with the reason; and that nothing of the user's is called for it."""

from __future__ import annotations

import functools
import pkgutil
from unittest.mock import Mock

import PIL.Image
import pytest
import torch
from fusion_tools import MEAN, STD, cifar, folder, made, mnist, pixels
from kit.generators import generator_states
from torch import nn
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.transforms import v2

from fastload.fusion import recognise
from fastload.fusion.transforms import NotFused, read_transform


def reason_of(*steps, size=None):
    with pytest.raises(NotFused) as caught:
        read_transform(v1.Compose(steps), 3, size)
    return str(caught.value)


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


UNKNOWN, FLOATS = "it is not one of the transforms that fuse=True knows", [v1.ToTensor(), v1.Normalize(MEAN, STD)]
NEAREST = v1.InterpolationMode.NEAREST
REASONS = [
    ([MyCrop(3)], f"MyCrop: {UNKNOWN}"),
    ([MyCompose([v1.ToTensor()])], f"MyCompose: {UNKNOWN}"),
    ([v1.CenterCrop(9), v1.Lambda(abs), v1.ToTensor()], f"Lambda: {UNKNOWN}"),
    ([abs], f"abs: {UNKNOWN}"),
    ([v1.ColorJitter(0.4)], f"ColorJitter: {UNKNOWN}"),
    ([hooked()], "RandomHorizontalFlip: it has hooks"),
    ([v2.Compose([hooked()])], "it has hooks"),
    ([replaced()], "RandomCrop: its get_params was replaced"),
    ([v1.Normalize(MEAN, STD)], "Normalize: img should be Tensor Image"),
    ([v2.ToImage(), v2.Normalize(MEAN, STD)], "Normalize: "),
    ([v1.ToTensor(), v1.ToTensor()], "ToTensor: pic should be PIL Image or ndarray"),
    ([v1.ToTensor(), v2.ToDtype(torch.int64, scale=True)], "ToDtype: "),
    ([v2.ToImage(), v1.RandomHorizontalFlip()], "a transform of v1 gets a tv_tensors.Image of v2"),
    ([v1.RandomHorizontalFlip(1.5)], "RandomHorizontalFlip: p must be in"),
    ([v1.Resize(9, NEAREST)], "Resize: interpolation must be one of"),
    ([v1.PILToTensor(), v1.Resize(9)], "Resize: it resizes an image that is a tensor already"),
    ([v1.RandomHorizontalFlip(), v1.RandomResizedCrop(9)], "or was cropped, flipped or resized"),
    ([v1.Resize(9), v1.RandomCrop(5)], "RandomCrop: the images have different sizes there; put RandomResizedCrop"),
    ([v1.CenterCrop(9), v1.RandomCrop(5, fill=(1, 2))], "it has fill for 2 channels, and the images have 3"),
    ([v1.CenterCrop(9), v1.RandomCrop(5, 1, fill=300)], "its fill 300 is not a pixel value at this point"),
    ([v1.CenterCrop(9), *FLOATS, v1.RandomCrop(5, 1)], "its fill 0 is not a pixel value at this point; put it before"),
    ([v1.CenterCrop(9), v1.PILToTensor(), v1.RandomCrop(5, 1, fill=(1, 2, 3))], "v1 pads tensors with one number"),
    ([v1.CenterCrop(9), v1.RandomCrop(5, 1, True, padding_mode="reflect")], "pad_if_needed=True and padding_mode="),
    ([v1.CenterCrop(9), v1.RandomCrop(10)], "RandomCrop crops to (10, 10), got images of (9, 9)"),
    ([v2.RandomErasing()], "RandomErasing: it erases PIL images"),
    ([v2.ToImage(), v2.RandomErasing(value="random")], "RandomErasing: it fills integers with noise"),
    ([v1.ToTensor(), v2.RandomErasing(value=(1, 2))], "it has values for 2 channels, and the images have 3"),
    ([v1.ToTensor(), v1.RandomErasing(), v1.Normalize(MEAN, STD)], "Normalize: it comes after RandomErasing"),
    ([v1.ToTensor()], "the samples have different sizes"),
    ([], "the samples are PIL images"),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "reason"), REASONS)
def test_what_is_not_fused_says_why(steps, reason):
    assert reason in reason_of(*steps)


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
    "torchvision.transforms.CenterCrop.forward": "CenterCrop: its forward was replaced",
}
OTHERS = [
    lambda function: lambda image, *args, **kwargs: image,
    wrapped,
    lambda function: functools.partial(wrapped(function)),
    lambda function: torch.no_grad()(wrapped(function)),
]


@pytest.mark.parametrize("other", OTHERS, ids=["another", "wrapped", "partial", "decorated"])
@pytest.mark.parametrize("name", REPLACED)
def test_nothing_is_fused_while_a_function_of_torchvisions_is_replaced(name, other, monkeypatch, tmp_path):
    dataset = folder(tmp_path, v1.Compose([v1.CenterCrop(3), v1.ToTensor()]))
    monkeypatch.setattr(name, other(pkgutil.resolve_name(name)))
    assert recognise(dataset).reason == REPLACED[name]
    monkeypatch.undo()
    assert recognise(dataset).fused


def test_what_was_added_to_pillows_images_changes_nothing(monkeypatch):
    monkeypatch.setattr(PIL.Image.Image, "thumb", lambda image: image.resize((9, 9)), raising=False)
    assert recognise(cifar(v1.ToTensor())).fused


def test_after_somebody_has_registered_an_opener_of_jpeg_files_nothing_is_fused(monkeypatch):
    PIL.Image.preinit()
    monkeypatch.setitem(PIL.Image.OPEN, "JPEG", (lambda *args: None, None))
    assert recognise(cifar(v1.ToTensor())).reason == "Pillow's opener of JPEG files was replaced"


@pytest.mark.parametrize("hook", ["register_module_forward_hook", "register_module_forward_pre_hook"])
def test_with_hooks_on_all_modules_nothing_is_fused(hook):
    handle = getattr(nn.modules.module, hook)(lambda *_: None)
    try:
        assert "all modules have hooks" in recognise(cifar(v1.ToTensor())).reason
    finally:
        handle.remove()
    assert recognise(cifar(v1.ToTensor())).fused


def derived(kind, *names):
    """Return a class of somebody's own, with a method of its own and others that override those named."""
    methods = dict.fromkeys(names, lambda self, *inputs: None)
    return type("Own", (kind,), {"class_names": lambda self: self.classes, **methods})


class Mixed(datasets.CIFAR10):
    targets = property(lambda self: [0])


def own_subset():
    return derived(Subset, "__getitem__", "__getitems__")(cifar(v1.ToTensor()), [0])


@pytest.mark.parametrize("kind", [datasets.ImageFolder, datasets.DatasetFolder])
def test_folders_are_known_by_their_loader(kind, tmp_path, monkeypatch):
    folder(tmp_path)
    transform = v1.Compose([v1.CenterCrop(9), v1.ToTensor()])
    more = {} if kind is datasets.ImageFolder else {"extensions": (".jpg", ".png")}
    known = kind(tmp_path, transform=transform, loader=pil_loader, **more)
    assert str(recognise(known)).splitlines()[1] == f"{kind.__name__}: 25 files"
    other = kind(tmp_path, transform=transform, loader=lambda path: pil_loader(path), **more)
    assert "its loader is '" in recognise(other).reason
    by_default = kind(tmp_path, transform=transform, loader=default_loader, **more)
    assert recognise(by_default).fused
    monkeypatch.setattr("torchvision.get_image_backend", lambda: "accimage")
    assert "'accimage', not 'PIL'" in recognise(by_default).reason


def of(kind, data, targets=None):
    return lambda: made(kind, v1.ToTensor(), data=data, targets=targets)


RGB = pixels(2, 32, 32, 3)

REFUSED = [
    (of(derived(datasets.CIFAR10, "__getitem__"), RGB), "Own overrides __getitem__ of CIFAR10"),
    (of(derived(datasets.CIFAR10, "__getitems__"), RGB), "Own overrides __getitems__ of CIFAR10"),
    (lambda: made(Mixed, v1.ToTensor(), data=RGB), "Mixed overrides targets of CIFAR10"),
    (lambda: mnist(v1.ToTensor(), kind=datasets.QMNIST, compat=True), "QMNIST overrides __getitem__ of MNIST"),
    (lambda: TensorDataset(torch.zeros(3)), "TensorDataset is not one of the datasets that fuse=True knows"),
    (own_subset, "Own overrides __getitem__, __getitems__ of Subset"),
    (lambda: ConcatDataset([cifar(v1.ToTensor())]), "ConcatDataset is not"),
    (lambda: StackDataset(cifar(v1.ToTensor())), "StackDataset is not"),
    (lambda: cifar(v1.ToTensor(), target_transform=str), "it has a target_transform; map the targets in collate_fn"),
    (of(datasets.CIFAR10, RGB.astype(float)), "its data are float64 (2, 32, 32, 3), not images of uint8"),
    (of(datasets.CIFAR10, RGB[..., :2]), "its data are uint8 (2, 32, 32, 2), not images of uint8"),
    (of(datasets.CIFAR10, torch.from_numpy(RGB)), "its data is a Tensor, not a ndarray"),
    (of(datasets.MNIST, torch.zeros(2, 28, 28, dtype=torch.uint8, device="meta")), "not images of uint8 in memory"),
    (lambda: cifar(), "the samples are PIL images"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
def test_a_dataset_that_is_not_fused_says_why(make, reason):
    plan = recognise(make())
    assert not plan.fused
    assert reason in plan.reason
    assert reason in str(plan)


def test_recognition_calls_nothing_of_the_users_and_draws_nothing(tmp_path):
    transform, target = Mock(), Mock()
    before = generator_states()
    steps = [v1.RandomResizedCrop(9), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.RandomErasing()]
    for dataset in (
        folder(tmp_path, v1.Compose([*steps, transform])),
        folder(tmp_path, v1.Compose(steps), target_transform=target),
        folder(tmp_path, v1.Compose(steps)),
    ):
        plan = recognise(dataset)
        str(plan)
    assert plan.fused
    assert generator_states() == before
    assert not transform.called
    assert not target.called
