"""Given the same parameters, a fused sample equals what torchvision's own objects make, bit for bit.

The parameters belong to the sample, whatever chunk or process it is in. Files are opened, and asked for, before the
first of them is read; each is closed, and an error is its sample's.
"""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from fused_samples import params_of, reference, sample
from fusion_tools import PIPELINES, cifar, each_decoder, files, folder, fused, mnist, planes, same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload.fusion import dataset as fused_dataset
from fastload.fusion.sources import Files
from fastload.keys.seeding import sample_id


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
@settings(max_examples=50)
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
@settings(max_examples=50)
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


def test_a_file_that_cannot_be_read_raises_what_the_dataset_raises_and_names_it(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "no_image.jpg").write_bytes(b"nothing")
    (tmp_path / "a" / "cut.jpg").write_bytes(files()["size5.jpg"][:900])
    (tmp_path / "a" / "large.jpg").write_bytes(files()["size7.jpg"])
    (tmp_path / "a" / "gone.jpg").touch()
    dataset = folder(tmp_path, v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()]))
    (tmp_path / "a" / "gone.jpg").unlink()
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 64 * 48)
    one = fused(dataset)
    for index, (path, _) in enumerate(dataset.samples):
        with pytest.raises((OSError, PIL.Image.DecompressionBombError)) as expected:
            dataset[index]
        with pytest.raises(type(expected.value)) as found:
            sample(one, index)
        assert found.value.__notes__ == [f"at index {index} of the dataset: {path}"]
        assert getattr(found.value, "filename", None) == getattr(expected.value, "filename", None)


def test_a_folder_whose_lists_are_shared_gives_the_same(root):
    dataset = folder(root, v1.Compose(PIPELINES["v1, eval"]))
    dataset.samples, dataset.targets = fastload.share(dataset.samples), fastload.share(dataset.targets)
    assert compared(dataset) == 25


NAMES = ["v1, resized crop", "v2, resize, crop, flips", "v1, erase by noise", "v2, pad"]


@given(
    name=st.sampled_from(NAMES),
    arrays=st.booleans(),
    indices=st.lists(st.integers(0, 11), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    epoch=st.integers(0, 5),
)
@settings(max_examples=40)
def test_a_sample_is_the_same_in_whatever_chunk(root, name, arrays, indices, cuts, epoch):
    transform = v1.Compose(PIPELINES[name])
    one = fused(cifar(transform, size=(45, 53)) if arrays else folder(root, transform))
    whole = one.load(indices, indices, epoch)
    bounds = sorted({0, len(indices), *(cut for cut in cuts if cut < len(indices))})
    parts = [
        one.load(indices[first:last], indices[first:last], epoch).images for first, last in itertools.pairwise(bounds)
    ]
    assert torch.equal(whole.images, torch.cat(parts))


def test_epochs_seeds_ids_and_repeats_give_other_parameters():
    dataset = cifar(v1.Compose([v1.RandomResizedCrop(9), v1.ToTensor()]))
    drawn = {
        str(params_of(fused(dataset, seed), dataset, 3, identity, epoch))
        for seed in (0, 1)
        for epoch in (0, 1)
        for identity in (3, 4, sample_id(3, 20, 12))
    }
    assert len(drawn) == 12


def test_two_steps_of_a_kind_draw_independently():
    dataset = cifar(v1.Compose([v1.RandomHorizontalFlip(), v1.RandomHorizontalFlip(), v1.ToTensor()]))
    one = fused(dataset)
    given_ = [params_of(one, dataset, 0, identity, 0) for identity in range(400)]
    first, second = (np.array([values[place]["flip"] for values in given_]) for place in (0, 1))
    assert 140 < (first == second).sum() < 260


CHAIN = v1.Compose([v1.Resize((9, 9)), v1.PILToTensor()])


def loaded(files: Any, indices: list[int]) -> torch.Tensor:
    return fused(files).load(indices, range(len(indices)), 0).images


def refuses(*args: Any) -> None:
    raise OSError(errno.EINVAL, "no advice here")


def test_all_files_of_a_part_are_asked_for_before_its_first_is_read_if_that_is_possible(tmp_path, monkeypatch):
    if not Path("/proc/self/fd").exists() or not hasattr(os, "posix_fadvise"):
        pytest.skip("needs Linux")
    files, events, read = folder(tmp_path, CHAIN), [], Files.data

    def name_of(file: Any) -> str:
        return Path(os.readlink(f"/proc/self/fd/{file}")).name

    def advise(file: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, 3)  # of the whole file, POSIX_FADV_WILLNEED
        events.append(f"ask {name_of(file)}")

    def data(self: Files, file: Any) -> Any:
        events.append(f"read {name_of(file.fileno())}")
        return read(self, file)

    monkeypatch.setattr(fused_dataset, "_FILES", 3)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(Files, "data", data)
    before = len(os.listdir("/proc/self/fd"))
    order = [4, 1, 9, 0, 2]
    expected = loaded(files, order)
    names = [Path(files.samples[index][0]).name for index in order]
    asked, read_ = ([f"{what} {name}" for name in names] for what in ("ask", "read"))
    assert events == [*asked[:3], *read_[:3], *asked[3:], *read_[3:]]
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.setattr(os, "posix_fadvise", refuses)
    assert torch.equal(loaded(files, order), expected)
    monkeypatch.delattr(os, "posix_fadvise")
    assert torch.equal(loaded(files, order), expected)
    assert torch.equal(expected, torch.stack([files[index][0] for index in order]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_in_the_place_of_a_file_is_an_error_and_waited_for_by_nobody(tmp_path):
    files = folder(tmp_path, CHAIN)
    path = files.samples[3][0]
    Path(path).unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="a named pipe") as caught:
        loaded(files, [3])
    assert caught.value.filename == path
