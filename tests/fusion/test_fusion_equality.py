"""Given the same parameters, a fused sample equals what torchvision's own objects make, bit for bit."""

from __future__ import annotations

import functools
import random
import warnings

import numpy as np
import PIL.Image
import pytest
import torch
from fused_samples import params_of, reference_of, sample, sample_with
from fusion_tools import MEAN, PIPELINES, STD, cifar, files, folder, forced, fused, mnist, planes, same, unfused
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets, tv_tensors
from torchvision import transforms as v1
from torchvision.models import ResNet18_Weights
from torchvision.transforms import v2

import fastload
from fastload import native
from fastload.fusion import FusedDataset, recognise
from fastload.images.native_jpeg import NativeDecoder
from fastload.keys import seeding


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


LIBRARY = {"rows": NativeDecoder(), "native_blocks": True} if native.available() else {}


def compared(dataset, *, epoch=0):
    """Compare all samples, also those that the native library makes; returns how many there were."""
    one = fused(dataset)
    assert not any(part.pipeline.rest for part in one.plan.parts)
    yields, image = one.plan.yields, unfused(dataset, dataset, 0, params_of(one, [0], [0], epoch)[0])
    assert yields.kind == ("Image" if isinstance(image, tv_tensors.Image) else "tensor")
    assert (yields.dtype, yields.shape or image.shape) == (image.dtype, image.shape)
    indices = list(range(len(dataset)))
    samples = one.load(indices, indices, epoch).samples()
    parameters = params_of(one, indices, indices, epoch)
    for index, ((image, target), values) in enumerate(zip(samples, parameters, strict=True)):
        expected = unfused(dataset, dataset, index, values)
        assert same(image, expected), (index, values)
        by_functions, its_target = reference_of(one, index, values)
        assert same(by_functions, expected), (index, values)
        assert target == its_target
    by_library = FusedDataset(dataset, one.plan, one.seed, **LIBRARY).load(indices, indices, epoch).samples()
    assert all(same(image, its) for (image, _), (its, _) in zip(by_library, samples, strict=True))
    return len(indices)


@pytest.mark.parametrize("name", PIPELINES)
def test_files_and_arrays_equal_torchvisions_samples(name, root):
    transform = v1.Compose(PIPELINES[name])
    assert compared(folder(root, transform), epoch=1) == 25
    assert compared(cifar(transform, size=(21, 37)), epoch=3) == 12


@given(
    name=st.sampled_from(sorted(PIPELINES)),
    size=st.tuples(st.integers(1, 45), st.integers(1, 45)),
    epoch=st.integers(0, 1000),
)
@settings(max_examples=150)
def test_images_of_any_size_equal_torchvisions_samples(name, size, epoch):
    transform = v1.Compose(PIPELINES[name])
    dataset = cifar(transform, size=size, count=2, seed=epoch)
    try:
        compared(dataset, epoch=epoch)
    except (ValueError, IndexError, RuntimeError, ZeroDivisionError) as error:  # too small for the crop, or padding
        with pytest.raises(type(error)):
            for _ in range(20):  # where it depends on what is drawn
                dataset[0], dataset[1]


@given(
    data=st.data(),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    mode=st.sampled_from(["bilinear", "bicubic", "nearest"]),
    flips=st.tuples(st.booleans(), st.booleans()),
    tensors=st.booleans(),
)
@settings(max_examples=200)
def test_any_part_of_any_photo_resized_to_any_size_equals_torchvisions(root, data, size, mode, flips, tensors):
    interpolation = v1.InterpolationMode(mode)
    crop = [v2.RandomResizedCrop(size, interpolation=interpolation)]
    steps = [v2.ToImage(), *crop] if tensors else [*crop, v2.ToImage()]
    dataset = folder(root, v1.Compose([*steps, v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]))
    index = data.draw(st.integers(0, len(dataset) - 1))
    width, height = dataset.loader(dataset.samples[index][0]).size
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    values = ((None, box) if tensors else (box, None)) + flips
    expected = unfused(dataset, dataset, index, values)
    for one in (fused(dataset), FusedDataset(dataset, recognise(dataset), 7, **LIBRARY)):
        assert same(sample_with(one, index, values)[0], expected)


@given(
    padding=st.sampled_from([None, 0, 1, 5, (1, 2), (2, 1, 0, 3)]),
    mode=st.sampled_from(["constant", "constant", "edge", "reflect", "symmetric"]),
    fill=st.sampled_from([0, 77, (1, 2, 3)]),
    module=st.sampled_from([v1, v2]),
    moves=st.lists(st.sampled_from(["RandomHorizontalFlip", "RandomVerticalFlip", "CenterCrop"]), max_size=3),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
@settings(max_examples=150)
def test_gathered_crops_and_flips_equal_torchvisions(padding, mode, fill, module, moves, size):
    crop = module.RandomCrop(size, padding, fill=fill if mode == "constant" else 0, padding_mode=mode)
    center = {"CenterCrop": ((5, 12),)}
    steps = [crop, *(getattr(module, move)(*center.get(move, ())) for move in moves), module.PILToTensor()]
    dataset = cifar(module.Compose(steps), size=(9, 11), count=3)
    assert fused(dataset).plan.parts[0].stages.head == len(steps)
    compared(dataset)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: mnist(t),
        lambda t: mnist(t, kind=datasets.FashionMNIST),
        lambda t: planes(datasets.SVHN, t),
        lambda t: planes(datasets.STL10, t),
        lambda t: planes(datasets.STL10, t, labels=False),
    ],
)
@pytest.mark.parametrize("module", [v1, v2])
def test_all_sources_equal_torchvisions_samples(make, module):
    crop = [module.RandomCrop(28, padding=4), module.RandomHorizontalFlip()]
    compared(make(module.Compose([*crop, module.PILToTensor(), module.ConvertImageDtype(torch.float32)])))
    compared(make(module.Compose([*crop, module.ColorJitter(0.3, 0.3, 0.3, 0.1), module.PILToTensor()])))
    compared(make(module.Compose([module.RandomResizedCrop(20), module.TrivialAugmentWide(), module.PILToTensor()])))


@pytest.mark.parametrize("compat", [True, False])
def test_qmnist_gives_the_targets_that_it_gives(compat):
    dataset = mnist(v1.ToTensor(), kind=datasets.QMNIST, compat=compat)
    dataset.targets = torch.arange(12 * 8).view(12, 8)
    for index in range(12):
        target, expected = sample(fused(dataset), index)[1], dataset[index][1]
        assert type(target) is type(expected)
        assert np.array_equal(target, expected)


@pytest.mark.parametrize("name", ["v1, resized crop, flip", "v2, eval", "tensors, jitter"])
def test_nested_datasets_give_the_leaves_samples(name, root):
    transform = v1.Compose(PIPELINES[name])
    photos, small = folder(root, transform), cifar(transform, size=(40, 41))
    dataset = ConcatDataset([Subset(photos, [5, 3, 3]), Subset(ConcatDataset([small, photos]), [30, 0, 11]), small])
    leaves = [(photos, 5), (photos, 3), (photos, 3), (photos, 18), (small, 0), (small, 11)]
    leaves += [(small, index) for index in range(12)]
    one = fused(dataset)
    indices = [17, 3, *range(17), -1, -18]
    samples = one.load(indices, range(19 + 2), 2).samples()
    parameters = params_of(one, indices, range(19 + 2), 2)
    for index, (image, target), values in zip(indices, samples, parameters, strict=True):
        leaf, place = leaves[index]
        assert same(image, unfused(dataset, leaf, place, values))
        assert target == leaf[place][1] == dataset[index][1]


def test_parts_of_different_transforms_and_types_are_loaded_together(root):
    dataset = ConcatDataset([folder(root, v1.Resize((4, 5))), cifar(v2.ToImage()), mnist(v1.ToTensor())])
    one = fused(dataset)
    assert one.plan.yields is None
    for index in [0, 24, 25, 36, 37, 48]:
        assert same(sample(one, index)[0], dataset[index][0], layout=True)


def test_row_and_tensor_have_the_layout_of_the_unfused_sample(root):
    for steps in PIPELINES.values():
        dataset = folder(root, v1.Compose([*steps, v2.Lambda(lambda image: image)]))
        one = fused(dataset)
        values = params_of(one, [4], [4], 0)[0]
        image = sample(one, 4)[0]
        expected = dataset.loader(dataset.samples[4][0])
        for transform, given_ in zip(steps, values, strict=True):
            expected = forced(transform, expected, given_)
        assert same(image, expected, layout=True)


def test_without_antialiasing_a_pil_image_is_resized_with_it(root):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision says that it is always applied to PIL images
        compared(folder(root, v2.Compose([v2.RandomResizedCrop(20, antialias=False), v2.ToImage()])))


def test_a_file_that_cannot_be_read_raises_what_the_dataset_raises_and_names_it(root, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "no_image.jpg").write_bytes(b"nothing")
    (tmp_path / "a" / "cut.jpg").write_bytes(files()["size7.jpg"][:900])
    dataset = folder(tmp_path, v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()]))
    one = fused(dataset)
    for index, (path, _) in enumerate(dataset.samples):
        with pytest.raises(OSError) as expected:
            dataset[index]
        with pytest.raises(type(expected.value)) as found:
            sample(one, index)
        assert any(path in note for note in found.value.__notes__)
    (tmp_path / "a" / "cut.jpg").unlink()
    with pytest.raises(FileNotFoundError):
        sample(one, [path.endswith("cut.jpg") for path, _ in dataset.samples].index(True))


def test_an_index_beyond_the_end_is_an_index_error(root):
    for dataset in (cifar(v1.ToTensor()), folder(root, v1.Compose(PIPELINES["v1, eval"]))):
        with pytest.raises(IndexError):
            sample(fused(dataset), len(dataset))
        with pytest.raises(IndexError):
            sample(fused(Subset(dataset, [0])), 1)
        with pytest.raises(IndexError):
            sample(fused(ConcatDataset([dataset])), len(dataset))


def test_a_folder_whose_lists_are_shared_gives_the_same(root):
    dataset = folder(root, v1.Compose(PIPELINES["v1, eval"]))
    dataset.samples, dataset.targets = fastload.share(dataset.samples), fastload.share(dataset.targets)
    assert compared(dataset) == 25


def test_rows_are_written_into_the_tensor_that_is_given(root):
    dataset = folder(root, v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor(), v1.Normalize(MEAN, STD)]))
    one = FusedDataset(dataset, recognise(dataset), 7)
    slot = torch.full((10, 3, 8, 8), torch.nan)
    loaded = one.load([4, 2], [4, 2], 0, out=slot[3:5])
    assert loaded.images.data_ptr() == slot[3:5].data_ptr()
    assert torch.equal(slot[3], sample(one, 4)[0])
    assert torch.equal(slot[4], sample(one, 2)[0])
    assert slot.isnan().sum() == 8 * 3 * 8 * 8


@pytest.mark.parametrize("behind", [[], [lambda image: image.mean(0)]], ids=["alone", "something unknown behind it"])
def test_the_preset_of_torchvisions_weights_makes_the_same_samples(behind, tmp_path):
    preset = functools.partial(ResNet18_Weights.DEFAULT.transforms, crop_size=24, resize_size=30)
    dataset = folder(tmp_path, v1.Compose([preset(), *behind]) if behind else preset())
    one = fused(dataset)
    indices = range(len(dataset))
    for (image, target), index in zip(one.load(indices, indices, 0).samples(), indices, strict=True):
        expected, its = dataset[index]
        assert torch.equal(image, expected)
        assert target == its


# -- unknown transforms ------------------------------------------------------------------------------------------------


class Seen:
    """Keeps what it gets."""

    def __init__(self):
        self.images = []

    def __call__(self, image):
        self.images.append(image)
        return image


@pytest.mark.parametrize(
    "steps",
    [
        [v1.RandomHorizontalFlip(1.0)],
        [v1.Resize(20), v1.CenterCrop(18)],
        [v1.CenterCrop(50), v1.RandomVerticalFlip(1.0)],  # pads some
        [v1.Resize((20, 21)), v1.ToTensor()],
        [v1.Resize((20, 21)), v1.PILToTensor()],
        [v1.ToTensor(), v1.CenterCrop(15), v1.Normalize([0.5], [0.5])],
        [v2.ToImage()],
        [v2.Resize((20, 21)), v2.ToImage(), v2.RandomHorizontalFlip(1.0)],
        [v2.ToImage(), v2.Resize((20, 21)), v2.ToDtype(torch.float32, scale=True)],
        [v2.ToImage(), v2.ToDtype(torch.float32), v2.ToPureTensor(), v2.Resize(20, antialias=True)],
    ],
)
@pytest.mark.parametrize("arrays", [True, False])
def test_it_gets_what_it_would_have_got(steps, arrays, tmp_path):
    seen = Seen()
    transform = v1.Compose([*steps, seen, v1.Lambda(lambda image: image)])
    dataset = cifar(transform) if arrays else folder(tmp_path, transform)
    one = fused(dataset)
    indices = range(len(dataset))
    one.load(indices, indices, 0)
    found, seen.images = seen.images, []
    for index in indices:
        dataset[index]
    assert len(found) == len(seen.images) == len(dataset)
    for mine, expected in zip(found, seen.images, strict=True):
        assert same(mine, expected, layout=True)
        if isinstance(mine, PIL.Image.Image):
            assert mine.info == expected.info


def drawing(image):
    return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


def test_what_draws_first_draws_what_it_draws_in_the_unfused_loader():
    """Behind what draws from keys of its own, the user's transform finds its generators fresh."""
    dataset = cifar(v1.Compose([v1.CenterCrop(20), drawing]))
    loader = fastload.DataLoader(dataset, batch_size=4, shuffle=True, seed=11)
    expected, targets = next(iter(loader))
    one = fused(dataset, seed=11)
    indices = targets.tolist()
    assert torch.equal(torch.stack(one.load(indices, indices, 0).images), expected)


def test_a_target_transform_is_kept_and_seeded():
    def noisy(target):
        return target + random.random()

    dataset = cifar(v1.Compose(PIPELINES["v1, pad"]), target_transform=noisy)
    one = fused(dataset, seed=1)
    assert one.plan.direct
    targets = one.load([3, 8], [3, 8], 2).targets
    for target, index in zip(targets, [3, 8], strict=True):
        seeding.seed_global_generators(seeding.Keys(1, 2, seeding.SAMPLE).key(index))
        assert target == index + random.random()


def test_nothing_is_seeded_where_nothing_of_the_users_is_called():
    keys = []
    fused(cifar(v1.Compose(PIPELINES["v1, pad"]))).load([1, 2], [1, 2], 0, seed=keys.append)
    assert keys == []


def test_parts_have_their_own_unknown_transforms():
    first, second = cifar(v1.Compose([v1.CenterCrop(20), abs_of])), cifar(v1.Compose([v1.CenterCrop(9), size_of]))
    one = fused(ConcatDataset([first, second]))
    assert [image for image, _ in one.load([0, 12, 1], [0, 12, 1], 0).samples()] == ["RGB", (9, 9), "RGB"]


def test_the_error_of_an_unknown_transform_is_its_own():
    with pytest.raises(ZeroDivisionError):
        sample(fused(cifar(v1.Compose([v1.CenterCrop(20), lambda image: 1 / 0]))), 3)


def abs_of(image):
    return image.mode


def size_of(image):
    return image.size
