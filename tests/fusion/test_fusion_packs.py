"""A pack that was not encoded again, as files or as pixels, is fused to the samples of the ImageFolder, bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fusion_tools import MEAN, PIPELINES, STD, each_decoder, folder, fused, same
from torch.utils.data import Subset
from torchvision import transforms as v1

import fastload
from fastload import PackError, native
from fastload.fusion import recognise
from fastload.images import PackedImages
from fastload.pack.options import PackOptions
from fastload.pack.run import pack

USUAL = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
needs_library = pytest.mark.skipif(not native.available(), reason="the native library is not built")
# What is done to the pixels does not depend on where they lay; of files, all: test_fusion_equality.py.
PACKED = {**{name: PIPELINES[name] for name in sorted(PIPELINES)[::9]}, "usual": USUAL}
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PACKED)
def test_a_pack_gives_image_folders_fused_samples_by_the_library_and_without_it(made, name, kind):
    transform = v1.Compose(PACKED[name])
    images, indices = PackedImages(getattr(made, kind), transform), range(25)
    expected = fused(folder(made.source, transform)).load(indices, indices, 2)
    for _ in each_decoder():
        found = fused(images).load(indices, indices, 2)
        assert same(found.images, expected.images)
        assert found.targets == expected.targets


@needs_library
@pytest.mark.parametrize(("kind", "least"), [("pixels", 25), ("files", 9)])
def test_the_library_makes_every_row_of_pixels_and_of_most_jpeg_files(made, kind, least):
    one = fused(PackedImages(getattr(made, kind), v1.Compose(USUAL)))
    one.load(range(25), range(25), 0)
    assert one.decoded()["native" if kind == "files" else "native, from pixels"] >= least


def batches(dataset, **options):
    return list(fastload.DataLoader(dataset, 4, shuffle=True, seed=5, **options))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fuse", "workers"), [(True, 2), ("auto", 2), (False, 0)])
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
    for dataset in (images, Subset(images, range(25))):
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
    images = PackedImages(tmp_path / "pack", v1.Compose(USUAL))
    with pytest.raises(PackError, match=f"{images.name(7)} in {path}: its record is damaged") as caught:
        fused(images).load([6, 7], [0, 1], 0)
    assert caught.value.__notes__ == [f"at index 7 of the dataset: {images.samples[7][0]}"]
