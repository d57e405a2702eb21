"""DALI behind the loader's interface: fastload's order and crops, DALI's pixels, nothing left over."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload import ConfigError, DistributedSampler, native
from fastload.errors import DatasetError, StateError
from fastload.images import PackedImages, dali
from fastload.images.dali import DALILoader
from fastload.images.dali.inputs import Files
from fastload.images.dali.pipelines import Pipelines, Ticket
from fastload.pack.description import PackOptions
from fastload.pack.run import pack

needs_dali = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None,
    reason="needs NVIDIA DALI: uv run --with nvidia-dali-cuda130 pytest tests/images/test_dali.py",
)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
MOVED = v1.Compose([v1.RandomCrop(24), v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(), v1.PILToTensor()])
"""Only moves pixels, so that DALI's result is Pillow's."""
RESIZED: dict[str, Any] = {
    "training": v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.PILToTensor()]),
    "bicubic": v2.Compose(
        [
            v2.RandomResizedCrop((20, 28), interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomVerticalFlip(),
            v2.ToImage(),
        ]
    ),
    "evaluation": v1.Compose([v1.Resize(30), v1.CenterCrop(24), v1.PILToTensor()]),
    "crop of a resized image": v1.Compose([v1.Resize((40, 50)), v1.RandomCrop((24, 28)), v1.PILToTensor()]),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder tree: 23 smooth JPEGs of different sizes, one grey, one to be turned by EXIF, and a PNG."""
    found: Path = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(0)
    for number in range(24):
        place = found / f"class {number % 3}"
        place.mkdir(exist_ok=True)
        height, width = noise.integers(30, 90, 2)
        coarse = noise.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
        exif = Image.Exif()
        if number == 7:
            image = image.convert("L")
        if number == 8:
            exif[0x0112] = 6
        image.save(place / f"{number:02}.{'png' if number == 5 else 'jpg'}", exif=exif)
    return found


@pytest.fixture
def folder(root: Path) -> datasets.ImageFolder:
    return datasets.ImageFolder(root, MOVED)


def loader_of(dataset: Any, batch_size: int = 5, **options: Any) -> DALILoader:
    return DALILoader(dataset, batch_size, **{"seed": 3, "shuffle": True, "num_threads": 2} | options)


def fused(dataset: Any, batch_size: int = 5, **options: Any) -> Any:
    return fastload.DataLoader(dataset, batch_size, fuse=True, **{"seed": 3, "shuffle": True} | options)


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(one, other, strict=True)
    )


def num_threads() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/task"))


def own_pipeline(**options: Any) -> Any:
    """Return a pipeline of the user's: crops, and a brightness from the sample's own numbers; and those numbers."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(**options)
    def brightened() -> Any:
        images = fn.decoders.image(dali.source("file"), output_type=types.RGB)
        images = fn.resize(images, size=(16, 16))
        uniforms = dali.source("uniforms")
        return (
            fn.brightness(images, brightness=0.5 + uniforms[0]),
            uniforms,
            dali.source("index"),
            dali.source("target"),
        )

    return brightened


def noisy_pipeline(with_index: bool = True) -> Any:
    """Return a pipeline that draws from DALI's own generators."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def
    def noisy() -> Any:
        drawn = fn.random.uniform(shape=[4])
        return (drawn, dali.source("index")) if with_index else drawn

    return noisy


class Encoded:
    """Pairs of an encoded image and a target."""

    def __init__(self, root: Path) -> None:
        self.files = [path.read_bytes() for path in sorted(root.rglob("*.*"))]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        data = self.files[index]
        return (data if index % 2 else np.frombuffer(data, dtype=np.uint8)), index * 10


def test_without_dali_the_error_says_how_to_get_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.setitem(sys.modules, "nvidia.dali.fn", None)
    with pytest.raises(ConfigError, match=r"needs NVIDIA DALI.*pip install nvidia-dali"):
        DALILoader(folder)


@pytest.mark.skipif(not native.available(), reason="the native library is not built")
def test_the_coefficients_of_a_pack_are_given_as_files(folder, tmp_path):
    pack(folder.root, tmp_path, PackOptions(coefficients=True), workers=1)
    images = PackedImages(tmp_path, folder.transform)
    assert images.coefficients
    assert [Files(images)[index][0] for index in range(len(images))] == [
        Files(folder)[index][0] for index in range(len(images))
    ]


def test_workers_read_the_files_of_folders_and_packs(root, folder, tmp_path):
    pytest.importorskip("pyarrow")
    pack(root, tmp_path / "pack", workers=1)
    images = PackedImages(tmp_path / "pack", target_transform=str)
    files = Files(ConcatDataset([Subset(folder, [3, 1]), images]))
    expected = [(place, folder.targets[place]) for place in (3, 1)]
    expected += [(place, str(target)) for place, target in enumerate(folder.targets)]
    for index, (place, target) in enumerate(expected):
        path = Path(folder.samples[place][0])
        assert files[index] == (path.read_bytes(), target, index)
        assert f"index {index}: " in files.name(index)
        assert path.name in files.name(index)


@needs_dali
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_last": True},
        {"batch_size": 1, "shuffle": None, "batch_sampler": [[0], [1, 2, 3], [*range(4, 20)], [20]]},
    ],
    ids=["last one short", "last one dropped", "growing"],
)
def test_crops_and_flips_are_those_of_the_fused_loader(folder, options):
    for dataset in (folder, ConcatDataset([Subset(folder, range(3, 20, 2)), folder])):
        loader, other = loader_of(dataset, **options), fused(dataset, **options)
        for _ in range(2):
            assert same(list(loader), list(other))
        assert len(loader) == len(other)


@needs_dali
def test_batches_stay_valid_after_their_pipeline(folder):
    loader = loader_of(folder)
    batches = list(loader)
    copies = [(images.clone(), targets.clone()) for images, targets in batches]
    list(loader)
    loader.close()
    del loader
    gc.collect()
    assert same(batches, copies)
    batches[0][0].zero_()  # they are the user's
    assert torch.equal(batches[1][0], copies[1][0])


@needs_dali
def test_iterations_side_by_side_have_their_own_batches(folder):
    loader = loader_of(folder)
    loader.set_epoch(5)
    alone = list(loader)
    loader.set_epoch(5)
    first = iter(loader)
    begun = [next(first)]
    loader.set_epoch(5)
    second = iter(loader)
    pairs = list(zip(first, second, strict=False))
    assert same(begun + [one for one, _ in pairs], alone)
    assert same([other for _, other in pairs] + list(second), alone[:4] + alone[4:][: 5 - len(pairs)])


@needs_dali
@pytest.mark.parametrize("name", RESIZED)
def test_resized_images_differ_from_pillows_by_rounding_alone(root, name):
    folder = datasets.ImageFolder(root, RESIZED[name])
    for (images, targets), (expected, same_targets) in zip(loader_of(folder), fused(folder), strict=True):
        assert images.dtype == torch.uint8
        assert torch.equal(targets, same_targets)
        assert (images.int() - expected.int()).abs().amax() <= 4
        assert (images.int() - expected.int()).abs().double().mean() < 0.5


@needs_dali
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_values_are_scaled_by_dali_as_by_the_transforms(root, dtype):
    scaled = [v2.RandomCrop(24), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(dtype, scale=True)]
    folder = datasets.ImageFolder(root, v2.Compose([*scaled, v2.Normalize(MEAN, STD)]))
    loader = loader_of(folder)
    assert loader._recipe is not None
    assert loader._recipe.tail is None
    for (images, _), (expected, _) in zip(loader, fused(folder), strict=True):
        assert images.dtype == dtype
        torch.testing.assert_close(images, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 4e-3)


@needs_dali
def test_what_dali_does_not_do_is_done_with_the_batch_from_the_same_keys(root):
    tail = [v2.ColorJitter(0.4, 0.4), v2.ToDtype(torch.float32, scale=True), v2.RandomErasing(0.5)]
    folder = datasets.ImageFolder(root, v2.Compose([v2.RandomCrop(24), v2.ToImage(), *tail]))
    for (images, _), (expected, _) in zip(loader_of(folder), fused(folder), strict=True):
        torch.testing.assert_close(images, expected, rtol=0, atol=1.5 / 255)


@needs_dali
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 2, "worker_method": "thread"},
        {"num_workers": 2, "persistent_workers": True},
        {"num_threads": 1, "prefetch_queue_depth": 1},
        {"prefetch_queue_depth": 7},
    ],
)
def test_batches_do_not_depend_on_workers_threads_or_depth(folder, options):
    loader, other = loader_of(folder, **options), fused(folder)
    for _ in range(2):
        assert same(list(loader), list(other))
    loader.close()


@needs_dali
def test_each_rank_has_its_shard(folder):
    for rank in range(2):
        shards = [DistributedSampler(folder, num_replicas=2, rank=rank, seed=3) for _ in range(2)]
        loader = loader_of(folder, shuffle=None, sampler=shards[0])
        assert same(list(loader), list(fused(folder, shuffle=None, sampler=shards[1])))
        loader.set_epoch(4)
        other = fused(folder, shuffle=None, sampler=shards[1])
        other.set_epoch(4)
        assert same(list(loader), list(other))


@needs_dali
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_a_state_goes_on_after_what_was_given_out(folder, options):
    loader = loader_of(folder, **options)
    next(iter(loader))
    whole = list(loader)  # of the second epoch: the first was left
    loader.set_epoch(1)
    iterator = iter(loader)
    given = [next(iterator) for _ in range(2)]
    state = loader.state_dict()
    del iterator
    resumed = loader_of(folder)
    resumed.load_state_dict(state)
    assert same([*given, *resumed], whole)
    with pytest.raises(StateError):
        loader_of(folder, batch_size=7).load_state_dict(state)
    loader.close()


@needs_dali
@pytest.mark.parametrize("damage", ["cut off", "no image", "broken header", "gone"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_a_damaged_file_names_itself_in_its_place_and_the_rest_is_loaded(root, tmp_path, damage, options):
    for path in sorted(root.rglob("*.*")):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    whole = list(loader_of(datasets.ImageFolder(root, MOVED), shuffle=False))
    bad = sorted(tmp_path.rglob("*.jpg"))[12]
    data = bad.read_bytes()
    middle = len(data) // 2
    damaged = {"cut off": data[:middle], "no image": b"none", "broken header": data[:4] + b"\0" * 500, "gone": data}
    bad.write_bytes(damaged[damage])
    folder = datasets.ImageFolder(tmp_path, MOVED)
    if damage == "gone":
        bad.unlink()
    place = [path for path, _ in folder.samples].index(str(bad))
    loader = loader_of(folder, shuffle=False, **options)
    for _ in range(2):
        loader.set_epoch(0)
        iterator = iter(loader)
        found: list[Any] = []
        for _ in range(5):
            try:
                found.append(next(iterator))
            except Exception as error:
                assert isinstance(error, FileNotFoundError) == (damage == "gone")
                told = "\n".join([str(error), *getattr(error, "__notes__", ())])
                assert str(bad) in told
                assert f"index {place}" in told
                found.append(None)
        assert [batch is None for batch in found] == [number == place // 5 for number in range(5)]
        good = [number for number in range(5) if number != place // 5]
        assert same([found[number] for number in good], [whole[number] for number in good])
        with pytest.raises(StopIteration):
            next(iterator)
    loader.close()


@needs_dali
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_nothing_is_left_of_a_loader(folder, options):
    list(loader_of(folder))
    before = num_threads()
    loader = loader_of(folder, **options)
    for _ in islice(loader, 2):
        assert num_threads() > before
    loader.close()
    assert num_threads() == before
    assert len(list(loader)) == 5  # it can be used again
    iterator = iter(loader)
    next(iterator)
    del loader, iterator
    assert num_threads() == before


@pytest.mark.slow
@needs_dali
@pytest.mark.parametrize(("workers", "status"), [("0", ""), ("2", "5")])
def test_the_interpreter_ends_in_the_middle_of_an_epoch(root, workers, status):
    code = (
        "import sys; from torchvision import datasets, transforms as T; from fastload.images.dali import DALILoader\n"
        "folder = datasets.ImageFolder(sys.argv[1], T.Compose([T.RandomResizedCrop(24), T.ToTensor()]))\n"
        "iterator = iter(DALILoader(folder, 4, num_workers=int(sys.argv[2]), num_threads=2)); next(iterator)\n"
        "if sys.argv[3]: raise SystemExit(int(sys.argv[3]))"
    )
    done = subprocess.run([sys.executable, "-c", code, root, workers, status], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (int(status or 0), "", "")


@needs_dali
def test_a_pipeline_of_ones_own_gets_each_samples_numbers_whatever_its_batch(root):
    def by_index(batch_size: int, epoch: int) -> dict[int, tuple[Tensor, ...]]:
        loader = loader_of(Encoded(root), batch_size, pipeline=own_pipeline())
        loader.set_epoch(epoch)
        found = {}
        for images, uniforms, indices, given, targets in loader:
            assert torch.equal(indices * 10, targets)
            assert torch.equal(given, targets)
            assert images.shape[1:] == (16, 16, 3)
            assert bool(((uniforms >= 0) & (uniforms < 1)).all())
            found |= {int(one): (image, own) for one, image, own in zip(indices, images, uniforms, strict=True)}
        return found

    one, other, later = by_index(5, 0), by_index(7, 0), by_index(5, 1)
    assert sorted(one) == list(range(24))
    for index in range(24):
        assert all(map(torch.equal, one[index], other[index]))
        assert not torch.equal(one[index][1], later[index][1])


@needs_dali
def test_dalis_own_generators_are_seeded_for_each_epoch(root):
    def noise(loader: DALILoader, epoch: int) -> Tensor:
        loader.set_epoch(epoch)
        return torch.cat([batch[0] for batch in loader])

    one, other = (loader_of(Encoded(root), pipeline=noisy_pipeline(), seed=seed) for seed in (3, 4))
    first, second = noise(one, 0), noise(one, 1)
    assert torch.equal(noise(one, 0), first)
    assert not torch.equal(first, second)
    assert not torch.equal(noise(other, 0), first)


@needs_dali
def test_a_pipeline_of_ones_own_is_told_the_datasets_crops(root):
    from nvidia.dali import pipeline_def

    @pipeline_def
    def crops() -> Any:
        return tuple(dali.source(name) for name in ("crop_start", "crop_shape", "resized", "mirror"))

    transform = v1.Compose([v1.RandomResizedCrop((24, 20)), v1.RandomHorizontalFlip()])
    start, shape, resized, mirror, _ = next(iter(loader_of(datasets.ImageFolder(root, transform), 24, pipeline=crops)))
    assert bool((start >= 0).all())
    assert bool((shape > 0).all())
    assert resized.tolist() == [[24, 20]] * 24
    assert set(mirror.tolist()) == {0, 1}
    start, shape, *_ = next(iter(loader_of(datasets.ImageFolder(root), 24, pipeline=crops, shuffle=False)))
    sizes = [image.size[::-1] for image, _ in datasets.ImageFolder(root)]
    assert start.tolist() == [[0, 0]] * 24
    assert list(map(tuple, shape.tolist())) == sizes


@needs_dali
def test_a_transform_of_a_dataset_of_pairs_is_its_own_and_what_a_pipeline_cannot_use_is_an_error(root):
    pairs = Encoded(root)
    pairs.transform = len
    assert next(iter(loader_of(pairs, pipeline=own_pipeline())))[0].shape == (5, 16, 16, 3)
    folder = datasets.ImageFolder(root, target_transform=str)
    with pytest.raises(ConfigError, match=r"source\('target'\) is for numbers"):
        next(iter(loader_of(folder, pipeline=own_pipeline())))
    with pytest.raises(DatasetError, match="encoded image"):
        next(iter(loader_of([(1.5, 0)] * 8, pipeline=own_pipeline())))
    with pytest.raises(ConfigError, match="takes nothing from the loader"):
        next(iter(loader_of(pairs, pipeline=noisy_pipeline(with_index=False))))


@needs_dali
@pytest.mark.parametrize("options", [{"exec_dynamic": False}, {"exec_async": False, "exec_pipelined": False}], ids=str)
def test_an_executor_that_uses_the_memory_of_outputs_again_is_refused(root, options):
    with pytest.raises(ConfigError, match=r"needs DALI's dynamic executor.*leave exec_dynamic.*out of pipeline_def"):
        next(iter(loader_of(Encoded(root), pipeline=own_pipeline(**options))))


@needs_dali
def test_images_of_different_sizes_are_an_error_and_no_hang(root):
    from nvidia.dali import fn, pipeline_def

    @pipeline_def
    def decoded() -> Any:
        return fn.decoders.image(dali.source("file"))

    loader = loader_of(Encoded(root), pipeline=decoded)
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(ValueError, match="one shape"):
            next(iterator)


@needs_dali
def test_an_image_smaller_than_its_crop_names_itself(root):
    folder = datasets.ImageFolder(root, v1.Compose([v1.RandomCrop(64), v1.ToTensor()]))
    with pytest.raises(ValueError, match=r"RandomCrop crops to \(64, 64\), got images of"):
        list(loader_of(folder))
    folder = datasets.ImageFolder(root, v1.Compose([v1.CenterCrop(64), v1.ToTensor()]))
    with pytest.raises(ValueError, match=r"larger than the image.*index \d+: .*jpg"):
        list(loader_of(folder))


def refusals() -> Iterator[Any]:
    lambda_, tensor = v1.Lambda(lambda image: image), v1.ToTensor()
    yield v1.Compose([v1.RandomCrop(24), lambda_, tensor]), {}, "DALI cannot call Lambda"
    yield v1.Compose([v1.RandomCrop(24)]), {}, "ends with a PIL image"
    yield v1.Compose([v1.Resize(24), tensor]), {}, r"after Resize\(24\), the last .* different sizes"
    yield v1.Compose([v1.RandomCrop(24, padding=4), tensor]), {}, "after decoding, the last .* different sizes"
    yield v1.Compose([v1.Resize((24, 24), v1.InterpolationMode.HAMMING), tensor]), {}, "DALI has no filter"
    yield MOVED, {"num_threads": 0}, "num_threads must be"
    yield MOVED, {"prefetch_queue_depth": 0}, "prefetch_queue_depth must be"
    yield MOVED, {"device": "meta"}, "device"
    yield MOVED, {"pipeline": 3}, "pipeline must be a function"
    yield v1.Compose([v1.RandomCrop(24), v1.ColorJitter(0.4)]), {"pipeline": print}, "and nothing else, got ColorJitter"


@pytest.mark.parametrize(("transform", "options", "message"), list(refusals()))
def test_what_cannot_be_done_is_said_when_the_loader_is_made(root, transform, options, message):
    with pytest.raises(ConfigError, match=message):
        DALILoader(datasets.ImageFolder(root, transform), **options)


def test_a_transform_inside_a_subset_is_not_passed_by(root):
    transform = v1.Compose([v1.RandomCrop(24), v1.ColorJitter(0.4)])
    with pytest.raises(ConfigError, match="and nothing else, got ColorJitter"):
        DALILoader(Subset(datasets.ImageFolder(root, transform), range(5)), pipeline=print)


def test_other_datasets_need_a_pipeline(root):
    with pytest.raises(ConfigError, match="together with pipeline="):
        DALILoader(Encoded(root))


def test_parts_with_different_transforms_are_refused(root, folder):
    with pytest.raises(ConfigError, match="must have the same transform"):
        DALILoader(ConcatDataset([folder, datasets.ImageFolder(root, RESIZED["training"])]))


def test_source_is_for_pipelines_of_loaders():
    with pytest.raises(ConfigError, match="takes one of 'file'"):
        dali.source("files")
    with pytest.raises(ConfigError, match="while the loader calls it"):
        dali.source("file")


class Event:
    """Comes when the test says so."""

    def __init__(self) -> None:
        self.come = False
        self.waited = False

    def query(self) -> bool:
        return self.come

    def synchronize(self) -> None:
        self.waited = self.come = True


class Streams:
    """As a device's, as far as DALI's batches need them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.copied: list[Tensor] = []

    def to_device(self, leaf: Tensor) -> Tensor:
        self.copied.append(leaf)
        return leaf.clone()

    def mark_compute(self) -> Event:
        self.events.append(Event())
        return self.events[-1]


def finished(pipelines: Pipelines, targets: Tensor) -> list[Any]:
    ticket = Ticket(SimpleNamespace(targets=targets))  # type: ignore[arg-type]
    ticket.outputs = [torch.full((3,), float(targets[0]))]
    return pipelines.fastload_finish(ticket)


def test_outputs_on_a_device_are_held_until_the_device_has_copied_them_and_targets_do_not_block():
    streams = Streams()
    pipelines = Pipelines(None, None, print, {}, streams, reseeded=False)  # type: ignore[arg-type]
    host = [torch.tensor([number]) for number in range(5)]
    given = []
    for number in range(3):
        images, targets = finished(pipelines, host[number])
        given.append((images, targets))
        assert images.tolist() == [float(number)] * 3
        assert targets.tolist() == [number]
        assert targets is not host[number]
    assert [leaf.item() for leaf in streams.copied] == [0, 1, 2]
    held = [outputs[0] for _, outputs in pipelines._read]
    assert [tensor[0].item() for tensor in held] == [0, 1, 2]
    assert not {tensor.data_ptr() for tensor in held} & {images.data_ptr() for images, _ in given}
    streams.events[0].come = True
    del held
    finished(pipelines, host[3])
    assert [outputs[0][0].item() for _, outputs in pipelines._read] == [1, 2, 3]
    assert not any(event.waited for event in streams.events)
    finished(pipelines, host[4])  # the device is three batches behind
    assert [outputs[0][0].item() for _, outputs in pipelines._read] == [2, 3, 4]
    assert [event.waited for event in streams.events] == [False, True, False, False, False]
    del pipelines
    gc.collect()
    assert [event.waited for event in streams.events] == [False, True, True, True, True]
