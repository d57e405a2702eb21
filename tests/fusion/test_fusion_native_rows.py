"""Rows made by the native library equal the unfused pipeline's, over files of real kinds and real files.

The made files are those of several encoders' settings. Real ones are used where ``FASTLOAD_BENCH_DATA`` names a folder
for ImageFolder; ``FASTLOAD_TEST_CROPS`` says how many samples of it are compared, 1,000 if nothing.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fused_samples import params_of
from fusion_tools import MEAN, STD, same, unfused
from PIL import Image
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import native
from fastload.fusion import FusedDataset, recognise
from fastload.images.native_jpeg import NativeDecoder

BICUBIC = v1.InterpolationMode.BICUBIC
CHUNK = 20
LEAST_SHARE = 0.95


@pytest.fixture(autouse=True)
def library() -> None:
    reason = native.why_not()
    if reason is not None:
        required = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")
        (pytest.fail if required else pytest.skip)(f"the native library cannot be used: {reason}")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of small tensors: torch's threads would wait for one another longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def photo(rng: np.random.Generator, height: int, width: int) -> Image.Image:
    """Return slow and fast waves, an edge and noise."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x * rng.uniform(0.01, 0.5) + y * rng.uniform(0.01, 0.5)) for _ in range(3)]
    image = 128 + 70 * np.stack(waves, axis=-1) + rng.normal(0, 10, (height, width, 3))
    image[height // 2 :, width // 3 :] += rng.uniform(-80, 80, 3)
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


def kinds() -> dict[str, dict[str, Any]]:
    """Return what Pillow's encoder can be told, by name."""
    exif = Image.Exif()
    exif[0x0112] = 6
    found: dict[str, dict[str, Any]] = {
        f"quality {quality}, {subsampling}{', progressive' * progressive}": {
            "quality": quality,
            "subsampling": subsampling,
            "progressive": progressive,
        }
        for quality, subsampling, progressive in itertools.product(
            (30, 75, 96), ("4:4:4", "4:2:2", "4:2:0"), (False, True)
        )
    }
    return found | {
        "optimized": {"optimize": True, "quality": 85},
        "restart every row": {"restart_marker_rows": 1},
        "restart every 5 units": {"restart_marker_blocks": 5, "subsampling": 2},
        "restart, progressive": {"restart_marker_rows": 2, "progressive": True},
        "tables of another program": {"qtables": "web_high", "subsampling": 0},
        "16-bit tables": {"qtables": [[300 + i for i in range(64)]] * 2},
        "turned by EXIF": {"exif": exif},
        "profile and comment": {"icc_profile": bytes(70000), "comment": b"\xff\xd8\xff\xc0" * 9},
        "RGB without a transform": {"keep_rgb": True},
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of JPEG files of all kinds; one of them, CMYK, is none for the library."""
    root: Path = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    sides = itertools.cycle([(375, 500), (33, 47), (500, 333), (224, 224), (131, 97), (8, 300), (401, 16)])

    def save(place: str, name: str, image: Image.Image, **options: Any) -> None:
        (root / place).mkdir(exist_ok=True)
        image.save(root / place / f"{name.replace(':', '')}.jpg", "JPEG", **options)

    for name, options in kinds().items():
        save("pillow", name, photo(rng, *next(sides)), **options)
    save("pillow", "grey", photo(rng, 140, 190).convert("L"))
    save("pillow", "grey, progressive", photo(rng, 65, 71).convert("L"), progressive=True)
    save("pillow", "CMYK", photo(rng, 99, 88).convert("CMYK"))
    for side in (1, 2, 15, 16, 17):
        save("small", f"{side} wide", photo(rng, 40, side), subsampling=2)
        save("small", f"{side} tall", photo(rng, side, 40), subsampling=1)
    (root / "torchvision").mkdir()
    for quality in (50, 75, 100):
        pixels = torch.from_numpy(np.array(photo(rng, *next(sides)))).permute(2, 0, 1)
        file = torch.ops.image.encode_jpeg(pixels, quality)
        (root / "torchvision" / f"{quality}.jpg").write_bytes(file.numpy().tobytes())
    return root


def pipeline(rng: np.random.Generator) -> tuple[str, Any]:
    """Draw a pipeline, and a size of its results."""
    size = (224, 224) if rng.random() < 0.3 else tuple(int(side) for side in rng.integers(1, 260, 2))
    scale = (0.001, 1.0) if rng.random() < 0.3 else (0.08, 1.0)
    to_float = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    chains: dict[str, Any] = {
        "uint8": [v1.RandomResizedCrop(size, scale), v1.RandomHorizontalFlip(), v1.PILToTensor()],
        "float32": [v1.RandomResizedCrop(size, scale), v1.RandomHorizontalFlip(), *to_float],
        "bicubic": [v1.RandomResizedCrop(size, scale, interpolation=BICUBIC), v1.RandomHorizontalFlip(), *to_float],
        "bfloat16": [
            v2.RandomResizedCrop(size, scale),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.bfloat16, scale=True),
            v2.Normalize(MEAN, STD),
        ],
        "a part as it is": [v1.RandomCrop(size, pad_if_needed=True), v1.RandomVerticalFlip(), v1.PILToTensor()],
        "for evaluation": [v1.Resize(max(size) + 20), v1.CenterCrop(size), *to_float],
    }
    name = str(rng.choice(list(chains)))
    return name, v1.Compose(chains[name])


def compare(root: Path, num_samples: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """Compare samples of a folder in random order; return how many of each pipeline, and who made them."""
    rng = np.random.default_rng(seed)
    dataset = datasets.ImageFolder(root)
    decoder, decoded, counts = NativeDecoder(), Counter[str](), Counter[str]()
    order: list[int] = []
    for first in range(0, num_samples, CHUNK):
        if len(order) < CHUNK:
            order += rng.permutation(len(dataset)).tolist()
        indices, order = order[:CHUNK], order[CHUNK:]
        ids = range(first, first + CHUNK)
        name, dataset.transform = pipeline(rng)
        fused = FusedDataset(dataset, recognise(dataset), seed, decoder)
        loaded = fused.load(indices, ids, 0).samples()
        decoded.update(decoder.counted())
        given = params_of(fused, indices, ids, 0)
        assert not decoder.counted(), "drawing must make no rows"
        assert given == params_of(FusedDataset(dataset, recognise(dataset), seed), indices, ids, 0)
        for index, (image, target), values in zip(indices, loaded, given, strict=True):
            expected = unfused(dataset, dataset, index, values)
            assert same(image, expected), (dataset.samples[index], dataset.transform, values)
            assert target == dataset.targets[index]
        counts[name] += len(indices)
    return counts, decoded


def test_random_crops_of_made_files_of_all_kinds_equal_the_unfused_pipelines(made):
    counts, decoded = compare(made, 600, 1)
    assert len(counts) == 6
    # What is smaller than the crop is padded, from the whole image.
    assert set(decoded) == {"native", "pillow (colors)"}
    assert decoded["native"] >= LEAST_SHARE * decoded.total()
    assert decoded.total() == counts.total()


@pytest.mark.timeout(3600)  # tens of thousands, if one asks for them
def test_random_crops_of_real_files_equal_the_unfused_pipelines(capsys):
    root = os.environ.get("FASTLOAD_BENCH_DATA")
    if not root:
        pytest.skip("FASTLOAD_BENCH_DATA names no folder of JPEG files for ImageFolder")
    counts, decoded = compare(Path(root), int(os.environ.get("FASTLOAD_TEST_CROPS", "1000")), 2)
    with capsys.disabled():
        print(f"\n{counts.total()} samples of {root} are equal; decoded by: {dict(decoded)}")
    assert decoded["native"] >= LEAST_SHARE * counts.total(), decoded


@pytest.mark.thorough
def test_a_build_without_the_library_draws_and_makes_the_same(made, tmp_path):
    """In processes of their own: nothing of the other way can be left over there."""
    code = (
        "import fastload, sys, torch; from fastload import native; from torchvision import datasets, transforms as v1\n"
        "torch.set_num_threads(1)\n"
        "chain = v1.RandomResizedCrop(40), v1.RandomHorizontalFlip(), v1.ColorJitter(0.2), v1.ToTensor()\n"
        "dataset = datasets.ImageFolder(sys.argv[1], v1.Compose(chain))\n"
        "loader = fastload.DataLoader(dataset, 8, shuffle=True, seed=5, fuse=True)\n"
        "torch.save((native.available(), list(loader)), sys.argv[2])"
    )
    for wish in "10":
        environment = {**os.environ, "FASTLOAD_NATIVE": wish}
        subprocess.run([sys.executable, "-c", code, str(made), str(tmp_path / wish)], check=True, env=environment)
    (has_library, expected), (has_none, found) = (torch.load(tmp_path / wish) for wish in "10")
    assert (has_library, has_none) == (True, False)
    for batches in zip(expected, found, strict=True):
        assert all(itertools.starmap(torch.equal, zip(*batches, strict=True)))
