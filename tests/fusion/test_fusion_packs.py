"""A pack that was not encoded again, as files or as pixels, is fused to the samples of the ImageFolder, bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fusion_tools import MEAN, PIPELINES, STD, each_decoder, folder, fused, same
from kit.comparison import difference
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
LEAST = {
    "files": ("native", 9),
    "pixels": ("native, from pixels", 25),
    "coefficients": ("native, from coefficients", 9),
}
"""How the library makes rows of the usual pipeline, and how many at least."""
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
    for decoder in each_decoder():
        one = fused(images)
        found = one.load(indices, indices, 2)
        assert same(found.images, expected.images)
        by, least = LEAST[kind] if decoder == "native" and name == "usual" else ("pillow", 0)
        assert one.decoded().get(by, 0) >= least
        assert found.targets == expected.targets


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fuse", "workers"), [(True, 2), ("auto", 2), (False, 0)])
def test_the_loaders_batches_are_those_of_image_folder(made, kind, fuse, workers):
    transform, options = v1.Compose(USUAL), {"shuffle": True, "seed": 5, "fuse": fuse}
    found = fastload.DataLoader(PackedImages(getattr(made, kind), transform), 4, num_workers=workers, **options)
    assert difference(list(found), list(fastload.DataLoader(folder(made.source, transform), 4, **options))) is None


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
