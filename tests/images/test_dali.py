"""DALI behind the loader's interface: fastload's order and numbers, DALI's pixels, nothing left over."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.datasets import Made
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets

import fastload
from fastload import ConfigError
from fastload.errors import DatasetError, StateError
from fastload.images import dali
from fastload.images.dali import DALILoader, Pipelines, Ticket

needs_dali = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None,
    reason="needs NVIDIA DALI: uv run --with nvidia-dali-cuda130 pytest tests/images/test_dali.py",
)


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


def encoded(path: str) -> bytes:
    return Path(path).read_bytes()


@pytest.fixture
def folder(root: Path) -> datasets.ImageFolder:
    return datasets.ImageFolder(root, loader=encoded)


def loader_of(dataset: Any, batch_size: int = 5, **options: Any) -> DALILoader:
    options.setdefault("pipeline", own_pipeline())
    return DALILoader(dataset, batch_size, **{"seed": 3, "shuffle": True, "num_threads": 2} | options)


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(all(map(torch.equal, x, y)) for x, y in zip(one, other, strict=True))


def targets_of(samples: list[Any]) -> Tensor:
    return torch.tensor([target for _, target in samples])


def num_threads() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/task"))


def own_pipeline(**options: Any) -> Any:
    """Return a pipeline: a brightness from the sample's own numbers; and those numbers."""
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


def encoded_files(root: Path) -> Made:
    """Return a dataset of pairs: an encoded image and a target."""
    files = [path.read_bytes() for path in sorted(root.rglob("*.*"))]

    def pair(index: int) -> tuple[Any, int]:
        data = files[index]
        return (data if index % 2 else np.frombuffer(data, dtype=np.uint8)), index * 10

    return Made(len(files), pair)


def test_without_dali_the_error_says_how_to_get_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.setitem(sys.modules, "nvidia.dali.fn", None)
    with pytest.raises(ConfigError, match=r"needs NVIDIA DALI.*pip install nvidia-dali"):
        DALILoader(folder, pipeline=print)


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
def test_the_order_is_that_of_the_loader(folder, options):
    for dataset in (folder, ConcatDataset([Subset(folder, range(3, 20, 2)), folder])):
        loader = loader_of(dataset, **options)
        for epoch in range(2):
            given: dict[str, Any] = {"batch_size": 5, "seed": 3, "shuffle": True} | options
            other = fastload.DataLoader(dataset, collate_fn=targets_of, **given)
            other.set_epoch(epoch)
            assert all(torch.equal(batch[-1], found) for batch, found in zip(loader, other, strict=True))
        assert len(loader) == len(other)


@needs_dali
def test_batches_stay_valid_after_their_pipeline(folder):
    loader = loader_of(folder)
    batches = list(loader)
    copies = [[tensor.clone() for tensor in batch] for batch in batches]
    list(loader)
    loader.close()
    del loader
    gc.collect()
    assert same(batches, copies)
    batches[0][0].zero_()  # they are the user's
    assert torch.equal(batches[1][0], copies[1][0])


@needs_dali
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2, "worker_method": "thread"},
        {"num_workers": 2, "persistent_workers": True},
        {"num_threads": 1, "prefetch_queue_depth": 1},
        {"prefetch_queue_depth": 7},
    ],
)
def test_batches_do_not_depend_on_workers_threads_or_depth(folder, options):
    loader, other = loader_of(folder, **options), loader_of(folder)
    for _ in range(2):
        assert same(list(loader), list(other))
    loader.close()
    other.close()


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
    whole = list(loader_of(datasets.ImageFolder(root, loader=encoded), shuffle=False))
    bad = sorted(tmp_path.rglob("*.jpg"))[12]
    data = bad.read_bytes()
    middle = len(data) // 2
    damaged = {"cut off": data[:middle], "no image": b"none", "broken header": data[:4] + b"\0" * 500, "gone": data}
    bad.write_bytes(damaged[damage])
    folder = datasets.ImageFolder(tmp_path, loader=encoded)
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
        "import sys; from pathlib import Path; from nvidia.dali import fn, pipeline_def\n"
        "from fastload.images.dali import DALILoader, source\n"
        "pairs = [(path.read_bytes(), 1) for path in Path(sys.argv[1]).rglob('*.jpg')]\n"
        "resized = pipeline_def(lambda: fn.resize(fn.decoders.image(source('file')), size=(9, 9)))\n"
        "loader = DALILoader(pairs, 4, pipeline=resized, num_workers=int(sys.argv[2]), num_threads=2)\n"
        "iterator = iter(loader); next(iterator)\n"
        "if sys.argv[3]: raise SystemExit(int(sys.argv[3]))"
    )
    done = subprocess.run([sys.executable, "-c", code, root, workers, status], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (int(status or 0), "", "")


@needs_dali
def test_a_pipeline_gets_each_samples_numbers_whatever_its_batch(root):
    def by_index(batch_size: int, epoch: int) -> dict[int, tuple[Tensor, ...]]:
        loader = loader_of(encoded_files(root), batch_size)
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
    from nvidia.dali import fn, pipeline_def

    @pipeline_def
    def noisy() -> Any:
        return fn.random.uniform(shape=[4]), dali.source("index")

    def noise(loader: DALILoader, epoch: int) -> Tensor:
        loader.set_epoch(epoch)
        return torch.cat([batch[0] for batch in loader])

    one, other = (loader_of(encoded_files(root), pipeline=noisy, seed=seed) for seed in (3, 4))
    first, second = noise(one, 0), noise(one, 1)
    assert torch.equal(noise(one, 0), first)
    assert not torch.equal(first, second)
    assert not torch.equal(noise(other, 0), first)


@needs_dali
def test_samples_that_are_no_encoded_images_are_an_error():
    with pytest.raises(DatasetError, match="encoded image"):
        next(iter(loader_of([(1.5, 0)] * 8)))


@needs_dali
@pytest.mark.parametrize("options", [{"exec_dynamic": False}, {"exec_async": False, "exec_pipelined": False}], ids=str)
def test_an_executor_that_uses_the_memory_of_outputs_again_is_refused(root, options):
    with pytest.raises(ConfigError, match=r"needs DALI's dynamic executor.*leave exec_dynamic.*out of pipeline_def"):
        next(iter(loader_of(encoded_files(root), pipeline=own_pipeline(**options))))


@needs_dali
def test_images_of_different_sizes_are_an_error_and_no_hang(root):
    from nvidia.dali import fn, pipeline_def

    @pipeline_def
    def decoded() -> Any:
        return fn.decoders.image(dali.source("file"))

    loader = loader_of(encoded_files(root), pipeline=decoded)
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises((ValueError, RuntimeError), match=r"uniform|dense|shape"):
            next(iterator)


def test_source_is_for_pipelines_of_loaders():
    with pytest.raises(ConfigError, match=r"takes one of 'file', .*, while the loader calls it; got 'file'"):
        dali.source("file")


def test_a_depth_of_zero_is_refused(folder):
    with pytest.raises(ConfigError, match="prefetch_queue_depth must be"):
        DALILoader(folder, pipeline=print, prefetch_queue_depth=0)


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

    compute = None

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.copied: list[Tensor] = []

    def to_device(self, leaf: Tensor) -> Tensor:
        self.copied.append(leaf)
        return leaf.clone()

    def mark(self, stream: Any) -> Event:
        self.events.append(Event())
        return self.events[-1]


def finished(pipelines: Pipelines, targets: Tensor) -> list[Any]:
    ticket = Ticket(((), targets, torch.tensor([])), None)  # type: ignore[arg-type]
    ticket.outputs = [torch.full((3,), float(targets[0]))]
    return pipelines.fastload_finish(ticket)


def test_outputs_on_a_device_are_held_until_the_device_has_copied_them_and_targets_do_not_block():
    streams = Streams()
    pipelines = Pipelines(None, print, {}, streams)  # type: ignore[arg-type]
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
