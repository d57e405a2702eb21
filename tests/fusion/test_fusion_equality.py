"""Given the same parameters, a fused sample equals what torchvision's own objects make, bit for bit."""

from __future__ import annotations

import PIL.Image
import pytest
import torch
from fused_samples import reference, sample
from fusion_tools import MEAN, PIPELINES, STD, cifar, each_decoder, files, folder, fused, mnist, planes, same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload

NORMALISED = [v1.ToTensor(), v1.Normalize(MEAN, STD)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


def compared(dataset, *, epoch=0):
    """Compare all samples, by the library and without it; returns how many there were."""
    indices = list(range(len(dataset)))
    for name in each_decoder():
        one = fused(dataset)
        for (image, target), index in zip(one.load(indices, indices, epoch).samples(), indices, strict=True):
            assert same(image, reference(one, dataset, index, index, epoch)), (index, name)
            its = dataset.targets[index] if hasattr(dataset, "targets") else dataset.labels[index]
            assert target == its
    return len(indices)


@pytest.mark.parametrize("name", PIPELINES)
def test_files_and_arrays_equal_torchvisions_samples(name, root):
    transform = v1.Compose(PIPELINES[name])
    assert compared(folder(root, transform), epoch=1) == 25
    assert compared(cifar(transform, size=(41, 37)), epoch=3) == 12


@given(
    name=st.sampled_from(sorted(PIPELINES)),
    size=st.tuples(st.integers(1, 45), st.integers(1, 45)),
    epoch=st.integers(0, 1000),
)
@settings(max_examples=100)
def test_images_of_any_size_equal_torchvisions_samples(name, size, epoch):
    dataset = cifar(v1.Compose(PIPELINES[name]), size=size, count=2, seed=epoch)
    plan = fastload.fusion.recognise(dataset)
    if plan.fused:
        compared(dataset, epoch=epoch)
    else:  # too small for the crop, or padding
        with pytest.raises((ValueError, IndexError, RuntimeError, ZeroDivisionError)):
            for _ in range(20):  # where it depends on what is drawn
                dataset[0], dataset[1]


@given(
    padding=st.sampled_from([None, 0, 1, 5, (1, 2), (2, 1, 0, 3)]),
    mode=st.sampled_from(["constant", "constant", "edge", "reflect", "symmetric"]),
    fill=st.sampled_from([0, 77, (1, 2, 3)]),
    module=st.sampled_from([v1, v2]),
    moves=st.lists(st.sampled_from(["RandomHorizontalFlip", "RandomVerticalFlip", "CenterCrop"]), max_size=3),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    resized=st.booleans(),
)
@settings(max_examples=100)
def test_crops_and_flips_equal_torchvisions(padding, mode, fill, module, moves, size, resized):
    crop = module.RandomCrop(size, padding, fill=fill if mode == "constant" else 0, padding_mode=mode)
    center = {"CenterCrop": ((5, 12),)}
    steps = [crop, *(getattr(module, move)(*center.get(move, ())) for move in moves), module.PILToTensor()]
    steps = [module.Resize((9, 11)), *steps] if resized else steps
    compared(cifar(module.Compose(steps), size=(19, 15) if resized else (9, 11), count=3))


GREY, COLORED = (datasets.MNIST, datasets.FashionMNIST, datasets.EMNIST), (datasets.SVHN, datasets.STL10)


@pytest.mark.parametrize("kind", [*GREY, *COLORED])
@pytest.mark.parametrize("module", [v1, v2])
def test_arrays_of_any_class_equal_torchvisions_samples(kind, module):
    make = mnist if kind in GREY else planes
    moved = [module.RandomCrop(28, padding=4, fill=3), module.RandomHorizontalFlip()]
    for steps in (moved, [module.RandomResizedCrop(20)], [module.Resize((32, 32)), *moved]):
        transform = module.Compose([*steps, module.PILToTensor(), module.ConvertImageDtype(torch.float32)])
        dataset = make(kind=kind, transform=transform)
        dataset.__class__ = type("Plain", (kind,), {"class_names": lambda self: self.classes})
        compared(dataset)


def test_subsets_give_the_leaves_samples(root):
    for leaf in (folder(root, v1.Compose(PIPELINES["v1, eval"])), cifar(v1.Compose(PIPELINES["v1, eval"]))):
        one = fused(Subset(Subset(leaf, [5, 3, 3, 0, -1]), torch.tensor([4, 1, 0])))
        samples = one.load([2, 0, -3], [7, 8, 9], 2).samples()
        for (image, target), place, identity in zip(samples, [5, len(leaf) - 1, len(leaf) - 1], [7, 8, 9], strict=True):
            assert same(image, reference(one, leaf, place, identity, 2))
            assert target == leaf.targets[place]
        with pytest.raises(IndexError):
            sample(one, 3)
        with pytest.raises(IndexError):
            sample(fused(leaf), len(leaf))


def test_targets_of_any_kind_are_those_of_the_dataset():
    dataset = mnist(v1.ToTensor())
    dataset.targets = dataset.targets.tolist()
    assert fused(dataset).load([3, -1], [3, 11], 0).targets == [3, 11]
    dataset = cifar(v1.ToTensor())
    dataset.targets = torch.arange(12)
    assert all(type(target) is torch.Tensor for target in fused(dataset).load([3, 1], [3, 1], 0).targets)
    assert sample(fused(planes(datasets.STL10, v1.ToTensor(), labels=False)), 3)[1] is None


def test_an_empty_chunk_is_empty():
    one = fused(cifar(v1.Compose([v1.CenterCrop(9), v1.ToTensor()])))
    assert one.load([], [], 0).images.shape == (0, 3, 9, 9)
    assert one.load([], [], 0).samples() == []


def test_a_file_that_cannot_be_read_raises_what_the_dataset_raises_and_names_it(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "no_image.jpg").write_bytes(b"nothing")
    (tmp_path / "a" / "cut.jpg").write_bytes(files()["size7.jpg"][:900])
    (tmp_path / "a" / "gone.jpg").touch()
    dataset = folder(tmp_path, v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()]))
    (tmp_path / "a" / "gone.jpg").unlink()
    one = fused(dataset)
    for index, (path, _) in enumerate(dataset.samples):
        with pytest.raises(OSError) as expected:
            dataset[index]
        with pytest.raises(type(expected.value)) as found:
            sample(one, index)
        assert found.value.__notes__ == [f"at index {index} of the dataset: {path}"]
        assert found.value.filename == expected.value.filename


def test_images_that_pillow_refuses_for_their_size_are_refused(root, monkeypatch):
    dataset = folder(root, v1.Compose([v1.CenterCrop(9), v1.ToTensor()]))
    largest = [path.endswith("size7.jpg") for path, _ in dataset.samples].index(True)
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    for make in (lambda: dataset[largest], lambda: sample(fused(dataset), largest)):
        with pytest.raises(PIL.Image.DecompressionBombError):
            make()


def test_a_folder_whose_lists_are_shared_gives_the_same(root):
    dataset = folder(root, v1.Compose(PIPELINES["v1, eval"]))
    dataset.samples, dataset.targets = fastload.share(dataset.samples), fastload.share(dataset.targets)
    assert compared(dataset) == 25


@pytest.mark.parametrize("arrays", [True, False])
def test_rows_are_written_into_the_tensor_that_is_given(root, arrays):
    transform = v1.Compose([v1.RandomResizedCrop(8), *NORMALISED])
    one = fused(cifar(transform) if arrays else folder(root, transform))
    slot = torch.full((10, 3, 8, 8), torch.nan)
    loaded = one.load([4, 2], [4, 2], 0, out=slot[3:5])
    assert loaded.images.data_ptr() == slot[3:5].data_ptr()
    assert torch.equal(slot[3], sample(one, 4)[0])
    assert torch.equal(slot[4], sample(one, 2)[0])
    assert slot.isnan().sum() == 8 * 3 * 8 * 8
