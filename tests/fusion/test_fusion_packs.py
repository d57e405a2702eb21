"""A pack that was not encoded again, as files or as pixels, is fused to the samples of the ImageFolder, bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fused_samples import params_of
from fusion_tools import MEAN, PIPELINES, STD, folder, fused, same
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1

import fastload
from fastload import PackError, native
from fastload.fusion import FusedDataset, recognise
from fastload.images import PackedImages
from fastload.images.base import Decoder
from fastload.images.native_jpeg import NativeDecoder
from fastload.pack.description import PackOptions
from fastload.pack.run import pack

NEAREST = v1.InterpolationMode.NEAREST
USUAL = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
needs_library = pytest.mark.skipif(not native.available(), reason="the native library is not built")
# What is done to the pixels does not depend on where they lay; of files, all: test_fusion_equality.py.
PACKED = {
    **{name: PIPELINES[name] for name in sorted(PIPELINES)[::12]},
    "usual": USUAL,
    "samples are PIL images": USUAL[:2],
    "some are padded": [v1.RandomCrop(24, 3, pad_if_needed=True), *USUAL],
    "resized by Pillow": [v1.Resize(20, NEAREST), *USUAL],
}
KINDS = ["files", "pixels", pytest.param("coefficients", marks=needs_library)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    source = root / "source"
    source.mkdir()
    folder(source)
    kinds = {"files": PackOptions(), "pixels": PackOptions(raw=True)}
    if native.available():
        kinds["coefficients"] = PackOptions(coefficients=True)
    for name, options in kinds.items():
        pack(source, root / name, options, workers=1)
    return SimpleNamespace(source=source, **{name: root / name for name in kinds})


def check(one, other, indices, epoch=2):
    """Check that two fused datasets give the same samples, and draw the same parameters."""
    assert params_of(one, indices, indices, epoch) == params_of(other, indices, indices, epoch)
    pairs = zip(one.load(indices, indices, epoch).samples(), other.load(indices, indices, epoch).samples(), strict=True)
    for (image, target), (expected, expected_target) in pairs:
        assert same(image, expected)
        assert target == expected_target


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PACKED)
def test_a_pack_gives_image_folders_fused_samples_by_each_decoder(made, name, kind):
    transform = v1.Compose(PACKED[name])
    images = PackedImages(getattr(made, kind), transform)
    for decoder in (Decoder, NativeDecoder)[: 1 + native.available()]:
        one = FusedDataset(images, recognise(images), 7, rows=decoder())
        check(one, fused(folder(made.source, transform)), range(25))


@needs_library
@pytest.mark.parametrize(("kind", "least"), [("pixels", 25), ("files", 9)])
def test_the_library_makes_every_row_of_pixels_and_of_most_jpeg_files(made, kind, least):
    images = PackedImages(getattr(made, kind), v1.Compose(USUAL))
    rows = NativeDecoder()
    FusedDataset(images, recognise(images), 7, rows=rows).load(range(25), range(25), 0)
    assert rows.counted()["native"] >= least


def test_parts_and_sums_of_packs_are_fused(made):
    transform = v1.Compose(USUAL)
    packs = ConcatDataset([PackedImages(made.files, transform, str), PackedImages(made.pixels, transform, str)])
    folders = ConcatDataset([folder(made.source, transform, target_transform=str)] * 2)
    order = [3, 49, 25, 0, 30]
    check(fused(Subset(packs, order)), fused(Subset(folders, order)), range(5))


def batches(dataset, **options):
    return list(fastload.DataLoader(dataset, 4, shuffle=True, seed=5, **options))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fuse", "workers"), [(True, 0), (True, 2), ("auto", 2), (False, 0)])
def test_the_loaders_batches_are_those_of_image_folder(made, kind, fuse, workers):
    transform = v1.Compose(USUAL)
    found = batches(PackedImages(getattr(made, kind), transform), fuse=fuse, num_workers=workers)
    expected = batches(folder(made.source, transform), fuse=fuse)
    for (images, targets), (its_images, its_targets) in zip(found, expected, strict=True):
        assert torch.equal(images, its_images)
        assert torch.equal(targets, its_targets)


@needs_library
@pytest.mark.parametrize(
    ("fuse", "words", "counted"),
    [
        (True, "packed images (10 of 25 as coefficients)", "native, from coeff"),
        (
            "auto",
            "images      JPEG and PNG files that a sample opens through",
            "late, in part, from coeff",
        ),
    ],
)
def test_the_loader_says_that_it_reads_coefficients(made, fuse, words, counted):
    images = PackedImages(made.coefficients, v1.Compose(USUAL))
    both = ConcatDataset([images, folder(made.source, images.transform)])
    for dataset in (images, Subset(images, range(25)), both):
        loader = fastload.DataLoader(dataset, 5, fuse=fuse)
        list(loader)
        said = loader.explain()
        assert words in said
        assert counted in said
        assert sum(count for by, count in loader.statistics().decoded.items() if "coefficients" in by) == 10


def test_the_plan_says_what_is_packed(made):
    first = {kind: str(recognise(PackedImages(getattr(made, kind), v1.Compose(USUAL)))) for kind in ("files", "pixels")}
    assert "PackedImages: 25 packed files" in first["files"]
    assert "PackedImages: 25 images, packed as pixels" in first["pixels"]


def test_a_class_that_makes_its_images_itself_is_not_known(made):
    class Gray(PackedImages):
        def image(self, index):
            return super().image(index).convert("L").convert("RGB")

    assert recognise(Gray(made.files, v1.Compose(USUAL))).reason == "Gray overrides image of PackedImages"


@pytest.mark.parametrize("kind", ["files", "pixels"])
def test_an_image_that_went_bad_is_named(tmp_path, made, kind):
    pack(made.source, tmp_path / "pack", PackOptions(raw=kind == "pixels"), workers=1)
    images = PackedImages(tmp_path / "pack", v1.Compose(USUAL))
    stored, path = bytes(images.encoded(7)), tmp_path / "pack" / "records"
    path.write_bytes(path.read_bytes().replace(stored, bytes(len(stored))))
    with pytest.raises(PackError, match=f"{images.name(7)} in {path}: its record is damaged") as caught:
        fused(images).load([6, 7], [0, 1], 0)
    assert caught.value.__notes__ == [f"at index 7 of the dataset: {images.samples[7][0]}"]
