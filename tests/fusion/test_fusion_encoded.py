"""``decoder="nvjpeg"``, with a stand-in for it on the CPU: the crops of other decoders, and whole batches decoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fusion_tools import MEAN, STD, cifar, folder
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import ConfigError, DataLoader, native
from fastload.engine import fusing
from fastload.errors import DatasetError
from fastload.fusion.encoded import packed, unpacked
from fastload.images import Cut, PackedImages, nvjpeg
from fastload.images.torchvision_io import decode_jpegs
from fastload.pack.description import PackOptions
from fastload.pack.run import pack

# And how far a value may be from the other decoders': what is resized may be a level off; by "bicubic" two, for its
# weights enlarge what the first of the two passes has rounded.
CHAINS: dict[str, tuple[Any, float]] = {
    "moved": (
        v1.Compose(
            [v1.Resize(30), v1.RandomCrop(24), v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(), v1.PILToTensor()]
        ),
        1,
    ),
    "image": (v2.Compose([v2.Resize((30, 28)), v2.CenterCrop(24), v2.ToImage()]), 1),
    "bicubic": (
        v2.Compose([v2.RandomResizedCrop((20, 28), interpolation=v2.InterpolationMode.BICUBIC), v2.ToImage()]),
        2,
    ),
    "padded on the device": (
        v1.Compose([v1.Resize(30), v1.CenterCrop(24), v1.PILToTensor(), v1.RandomCrop(24, padding=4)]),
        1,
    ),
    "normalised": (
        v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        1.01 / 255 / min(STD),
    ),
}
WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "kept": {"num_workers": 2, "persistent_workers": True, "chunk_size": 3},
}


@pytest.fixture(autouse=True)
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the CPU stand in for a device with nvJPEG; return how many files it was given in each call."""
    sizes: list[int] = []

    def decode_batch(files: Sequence[Any], device: Any, *, counts: dict[str, int], name: Any) -> list[Tensor]:
        sizes.append(len(files))
        return nvjpeg._batch(files, device, counts, name)

    def on_device(files: Sequence[Any], device: Any) -> list[Tensor]:
        return decode_jpegs(files, torch.device("cpu"))

    monkeypatch.setattr(nvjpeg, "decode_batch", decode_batch)
    monkeypatch.setattr(nvjpeg, "_on_device", on_device)
    monkeypatch.setattr(nvjpeg, "why_not", lambda: None)
    monkeypatch.setattr(fusing, "does_steps", lambda _: True)
    monkeypatch.setattr(fusing, "decodes", lambda _: True)
    return sizes


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("images")
    folder(place)
    return place


def loader_of(dataset: Any, **options: Any) -> DataLoader[Any]:
    given = {"shuffle": True, "seed": 3, "fuse": True, "decoder": "nvjpeg", "device": "cpu", **options}
    return DataLoader(dataset, 4, **given)


def plain(dataset: Any) -> DataLoader[Any]:
    return DataLoader(dataset, 4, shuffle=True, seed=3, fuse=True, decoder="pillow")


def check(found: DataLoader[Any], expected: DataLoader[Any], tolerance: float) -> None:
    count = 0
    for _ in range(2):
        for (images, targets), (others, labels) in zip(found, expected, strict=True):
            assert type(images) is Tensor
            assert (images.dtype, images.shape) == (others.dtype, others.shape)
            assert (images.double() - others.double()).abs().max() <= tolerance
            assert torch.equal(targets, labels)
            count += len(images)
    assert count
    found.close()


@pytest.mark.parametrize("chain", CHAINS)
def test_batches_are_those_of_other_decoders_but_for_rounding(root, chain, decoded):
    transform, tolerance = CHAINS[chain]
    dataset = folder(root, transform)
    check(loader_of(dataset), plain(dataset), tolerance)
    assert sum(decoded) == 2 * len(dataset)
    assert max(decoded) == 4  # whole batches


@pytest.mark.parametrize("way", WAYS)
def test_whoever_reads_the_files(root, way):
    transform, tolerance = CHAINS["normalised"]
    dataset = ConcatDataset([Subset(folder(root, transform), range(7)), folder(root, transform)])
    check(loader_of(dataset, **WAYS[way]), plain(dataset), tolerance)


@pytest.mark.parametrize("options", [{"channels_last": True}, {"fixed_buffers": True, "drop_last": True}], ids=str)
def test_batches_lie_as_they_are_asked_to(root, options):
    dataset = folder(root, CHAINS["normalised"][0])
    loader = loader_of(dataset, **options)
    for (images, _), (others, _) in zip(loader, plain(dataset), strict=False):
        assert images.is_contiguous(memory_format=torch.channels_last) == ("channels_last" in options)
        assert (images - others).abs().max() <= CHAINS["normalised"][1]


def test_targets_are_transformed_and_transforms_of_whole_batches_come_last(root):
    dataset = folder(root, CHAINS["moved"][0])
    dataset.target_transform = lambda target: target + 100
    loader = loader_of(dataset, batch_transform=lambda batch: (batch[0].float() + 1, batch[1]))
    for (images, targets), (others, labels) in zip(loader, plain(dataset), strict=True):
        assert (images - 1 - others.float()).abs().max() <= 1
        assert torch.equal(targets, labels)
        assert targets.min() >= 100


def test_it_is_counted_and_explained_what_decoded(root):
    dataset = folder(root, CHAINS["normalised"][0])
    loader = loader_of(dataset)
    list(loader)
    counts = loader.statistics().decoded
    assert counts["nvjpeg"] > 0
    assert sum(counts.values()) == len(dataset)
    words = loader.explain()
    assert "row (nvJPEG, on the device)" in words
    assert "\ndecoder     nvjpeg: whole batches on cpu; what it cannot decode, Pillow does" in words


@pytest.mark.parametrize("damage", [-200, 10], ids=["no end", "no header"])
def test_a_file_that_is_damaged_is_an_error_at_its_batch_that_names_it_and_the_next_one_comes(damage, tmp_path):
    dataset = folder(tmp_path, CHAINS["moved"][0])
    place = next(place for place, (path, _) in enumerate(dataset.samples) if path.endswith("size7.jpg"))
    file = Path(dataset.samples[place][0])
    file.write_bytes(file.read_bytes()[:damage])
    batches = iter(loader_of(dataset, shuffle=False))
    for _ in range(place // 4):
        next(batches)
    with pytest.raises(OSError) as caught:
        next(batches)
    assert f"at index {place} of the dataset: {file}" in caught.value.__notes__
    assert place // 4 + 1 < len(dataset) // 4, "there is a batch behind it"
    assert len(next(batches)[0]) == 4


UNKNOWN = v1.Lambda(lambda image: image)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([v1.RandomResizedCrop(24), UNKNOWN, v1.ToTensor()], "Lambda is called in the workers"),
        ([v1.ColorJitter(0.3), v1.RandomCrop(24), v1.ToTensor()], "is done in the workers"),
        ([v1.RandomHorizontalFlip(), v1.PILToTensor()], "different sizes; crop or resize all of them to one"),
        (
            [v2.Resize((24, 24), interpolation=v2.InterpolationMode.LANCZOS), v2.ToImage()],
            "has another filter than 'bilinear' and 'bicubic'",
        ),
    ],
    ids=["unknown", "colours", "sizes", "filter"],
)
def test_what_the_device_cannot_do_is_refused(root, steps, words):
    with pytest.raises(ConfigError, match=f"(?s)decoder='nvjpeg' decodes files on the device.*{words}.*'auto'"):
        iter(loader_of(folder(root, v1.Compose(steps))))


def test_images_in_memory_are_refused():
    with pytest.raises(ConfigError, match="lie in memory: there are no files"):
        iter(loader_of(cifar(v1.Compose([v1.RandomCrop(28), v1.ToTensor()]))))


def test_a_crop_that_is_larger_than_its_image_names_the_sample(root):
    dataset = folder(root, v1.Compose([v1.CenterCrop(1000), v1.PILToTensor()]))
    with pytest.raises(DatasetError, match="the crop is larger than the image") as caught:
        next(iter(loader_of(dataset)))
    assert any("of the dataset" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_error": "skip"}, "use on_error='raise', got 'skip'"),
        ({"collate_fn": list}, "collate_fn gets"),
        ({"keep_on_host": (0,)}, "keep_on_host keeps the images"),
        ({"resident": "host"}, "resident='host' keeps"),
    ],
    ids=str,
)
def test_arguments_that_leave_the_device_no_batches_are_refused(root, options, words):
    with pytest.raises(ConfigError, match=f"decoder='nvjpeg' cannot be used: .*{words}"):
        loader_of(folder(root, CHAINS["moved"][0]), **options)


def test_arguments_of_the_device_are_checked_first(root):
    with pytest.raises(ConfigError, match=r"keep_on_host must be a collection of keys or places.*got keep_on_host=3"):
        loader_of(folder(root, CHAINS["moved"][0]), keep_on_host=3)


def test_a_device_without_nvjpeg_is_refused(root, monkeypatch):
    monkeypatch.setattr(nvjpeg, "why_not", lambda: "torchvision was built without it")
    with pytest.raises(ConfigError, match="torchvision was built without it, or decoder='auto'"):
        loader_of(folder(root, CHAINS["moved"][0]))


def test_a_cut_and_its_file_travel_as_one():
    cut = Cut((1, 2, 30, 40), (24, 20), "bicubic", (3, 0, 10, 20), (True, False))
    found, index, data = unpacked(packed(cut, -3, b"a file"))
    assert (found, index, bytes(data)) == (cut, -3, b"a file")


@pytest.mark.skipif(not native.available(), reason="the native library is not built")
def test_a_device_gets_the_files_of_coefficients(tmp_path):
    source = tmp_path / "images"
    source.mkdir()
    transform = CHAINS["normalised"][0]
    plain = folder(source, transform)
    pack(source, tmp_path / "pack", PackOptions(coefficients=True), workers=1)
    images = PackedImages(tmp_path / "pack", transform)
    assert images.coefficients
    options: dict[str, Any] = {"fuse": True, "decoder": "nvjpeg", "device": "cpu", "seed": 1}
    found, expected = (list(DataLoader(one, 5, **options)) for one in (images, plain))
    for (one, targets), (other, its_targets) in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(targets, its_targets)
