"""DALI behind the loader's interface: fastload's order and numbers, DALI's pixels, nothing left over."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from kit.outcomes import outcomes
from kit.resuming import assert_resumes
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets

import fastload
from fastload import ConfigError
from fastload.errors import DatasetError
from fastload.images import dali
from fastload.images.dali import DALILoader, Pipelines, Ticket

needs_dali = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.dali") is None,
    reason="needs NVIDIA DALI: uv run --with nvidia-dali-cuda130 pytest tests/images/test_dali.py",
)


@pytest.fixture
def folder(tmp_path: Path) -> datasets.ImageFolder:
    """24 smooth images of different sizes in three classes: one grey, one to be turned by EXIF, and a PNG."""
    noise = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / f"class {number % 3}"
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
    return datasets.ImageFolder(tmp_path, loader=lambda path: Path(path).read_bytes())


def loader_of(dataset: Any, batch_size: int = 5, **options: Any) -> DALILoader:
    options.setdefault("pipeline", own_pipeline())
    return DALILoader(dataset, batch_size, **{"seed": 3, "shuffle": True, "num_threads": 2} | options)


def numbers(batch: Any) -> list[Any]:
    return [tensor.tolist() for tensor in batch]


def batches(loader: Any) -> list[Any]:
    return [numbers(batch) for batch in loader]


def own_pipeline(**options: Any) -> Any:
    """Return a pipeline: a brightness from the sample's own numbers; those numbers, and what else it is told."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(**options)
    def brightened() -> Any:
        images = fn.decoders.image(dali.source("file"), output_type=types.RGB)
        uniforms = dali.source("uniforms")
        brighter = fn.brightness(fn.resize(images, size=(16, 16)), brightness=0.5 + uniforms[0])
        return brighter, uniforms, dali.source("index"), dali.source("target")

    return brightened


def test_without_dali_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.setitem(sys.modules, "nvidia.dali.fn", None)
    for call, said in (
        (lambda: DALILoader([], pipeline=print), r"needs NVIDIA DALI.*pip install nvidia-dali"),
        (lambda: DALILoader([], pipeline=print, prefetch_queue_depth=0), "prefetch_queue_depth must be"),
        (lambda: dali.source("file"), r"takes one of 'file', .*, while the loader calls it; got 'file'"),
    ):
        with pytest.raises(ConfigError, match=said):
            call()


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
        given: dict[str, Any] = {"batch_size": 5, "seed": 3, "shuffle": True} | options
        targets = fastload.DataLoader(dataset, collate_fn=lambda pairs: [target for _, target in pairs], **given)
        for _ in range(2):
            assert [batch[-1].tolist() for batch in loader] == list(targets)
        assert len(loader) == len(targets)


@needs_dali
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2, "worker_method": "thread"},
        {"num_workers": 2, "persistent_workers": True},
        {"num_threads": 1, "prefetch_queue_depth": 1},
        {"prefetch_queue_depth": 7},
    ],
)
def test_a_state_goes_on_as_without_workers_whatever_the_threads_and_depth(folder, options):
    plain = loader_of(folder)
    loader = loader_of(folder, **options)
    assert [batches(loader) for _ in range(2)] == [batches(plain) for _ in range(2)]
    loader.close()
    assert_resumes(lambda: loader_of(folder, **options), later=lambda: loader_of(folder), view=batches)


@needs_dali
def test_batches_stay_valid_after_their_pipeline(folder):
    loader = loader_of(folder)
    held = list(loader)
    before = [numbers(batch) for batch in held]
    list(loader)
    loader.close()
    del loader
    gc.collect()
    assert [numbers(batch) for batch in held] == before


@needs_dali
@pytest.mark.parametrize("damage", ["cut off", "no image", "broken header", "gone"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_names_itself_in_its_place_and_the_rest_is_loaded(folder, damage, workers):
    whole = batches(loader_of(folder, shuffle=False))
    index = 12
    path = Path(folder.samples[index][0])
    data = path.read_bytes()
    path.write_bytes({"cut off": data[: len(data) // 2], "no image": b"none"}.get(damage, data[:4] + b"\0" * 500))
    if damage == "gone":
        path.unlink()
    loader = loader_of(folder, shuffle=False, num_workers=workers)
    for _ in range(2):
        loader.set_epoch(0)
        found = outcomes(iter(loader), numbers)
        error = found.pop(index // 5)
        assert isinstance(error, FileNotFoundError) == (damage == "gone")
        told = "\n".join([str(error), *getattr(error, "__notes__", ())])
        assert str(path) in told
        assert f"index {index}" in told
        assert found == [batch for number, batch in enumerate(whole) if number != index // 5]
    loader.close()


@needs_dali
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_no_thread_is_left_of_a_loader(folder, options):
    def num_threads() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/task"))

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
def test_the_interpreter_ends_in_the_middle_of_an_epoch(folder, workers, status):
    code = (
        "import sys; from pathlib import Path; from nvidia.dali import fn, pipeline_def\n"
        "from fastload.images.dali import DALILoader, source\n"
        "pairs = [(path.read_bytes(), 1) for path in Path(sys.argv[1]).rglob('*.jpg')]\n"
        "resized = pipeline_def(lambda: fn.resize(fn.decoders.image(source('file')), size=(9, 9)))\n"
        "loader = DALILoader(pairs, 4, pipeline=resized, num_workers=int(sys.argv[2]), num_threads=2)\n"
        "iterator = iter(loader); next(iterator)\n"
        "if sys.argv[3]: raise SystemExit(int(sys.argv[3]))"
    )
    done = subprocess.run([sys.executable, "-c", code, folder.root, workers, status], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (int(status or 0), "", "")


@needs_dali
def test_a_pipeline_gets_each_samples_numbers_whatever_its_batch(folder):
    pairs = [(np.frombuffer(data, dtype=np.uint8) if n % 2 else data, 10 * n) for n, (data, _) in enumerate(folder)]

    def by_index(batch_size: int, epoch: int) -> dict[int, Any]:
        loader = loader_of(pairs, batch_size)
        loader.set_epoch(epoch)
        samples = [sample for batch in loader for sample in zip(*numbers(batch), strict=True)]
        assert all(given == target == 10 * index for _, _, index, given, target in samples)
        assert all(0 <= uniform < 1 for _, uniforms, *_ in samples for uniform in uniforms)
        return {index: (image, uniforms) for image, uniforms, index, *_ in samples}

    one, later = by_index(5, 0), by_index(5, 1)
    assert one == by_index(7, 0)
    assert sorted(one) == list(range(24))
    assert all(one[index][1] != later[index][1] for index in one)


@needs_dali
def test_dalis_own_generators_are_seeded_for_each_epoch(folder):
    from nvidia.dali import fn, pipeline_def

    @pipeline_def
    def noisy() -> Any:
        return fn.random.uniform(shape=[4]), dali.source("index")

    def noise(seed: int, epoch: int) -> list[Any]:
        loader = loader_of(folder, pipeline=noisy, seed=seed)
        loader.set_epoch(epoch)
        return [batch[0].tolist() for batch in loader]

    assert noise(3, 0) == noise(3, 0)
    assert noise(3, 0) != noise(3, 1)
    assert noise(3, 0) != noise(4, 0)


@needs_dali
def test_what_is_no_batch_is_an_error_and_no_hang(folder):
    from nvidia.dali import fn, pipeline_def

    with pytest.raises(DatasetError, match="encoded image"):
        next(iter(loader_of([(1.5, 0)] * 8)))
    for options in ({"exec_dynamic": False}, {"exec_async": False, "exec_pipelined": False}):
        with pytest.raises(ConfigError, match=r"needs DALI's dynamic executor.*leave exec_dynamic.*out of pipeline_"):
            next(iter(loader_of(folder, pipeline=own_pipeline(**options))))
    of_other_sizes = pipeline_def(lambda: fn.decoders.image(dali.source("file")))
    iterator = iter(loader_of(folder, pipeline=of_other_sizes))
    for _ in range(2):
        with pytest.raises((ValueError, RuntimeError), match=r"uniform|dense|shape"):
            next(iterator)


def test_outputs_on_a_device_are_held_until_the_device_has_copied_them_and_targets_do_not_block():
    events = [mock.Mock(**{"query.return_value": False}) for _ in range(5)]  # they come when the test says so
    marks = iter(events)
    streams: Any = SimpleNamespace(compute=None, to_device=torch.clone, mark=lambda stream: next(marks))
    alive = [Pipelines(None, print, {}, streams)]  # type: ignore[arg-type]

    def finish(number: int) -> Tensor:
        targets = torch.tensor([number])
        ticket = Ticket(((), targets, torch.tensor([])), None)  # type: ignore[arg-type]
        ticket.outputs = [torch.full((3,), float(number))]
        images, copied = alive[0].fastload_finish(ticket)
        assert images.tolist() == [float(number)] * 3
        assert copied.tolist() == [number]
        assert copied is not targets, "it went through the streams"
        assert images.data_ptr() not in {outputs[0].data_ptr() for _, outputs in alive[0]._read}
        return images

    def held() -> list[float]:
        return [outputs[0][0].item() for _, outputs in alive[0]._read]

    given = [finish(number) for number in range(3)]  # held, or their memory would serve again
    assert held() == [0, 1, 2]
    events[0].query.return_value = True
    given.append(finish(3))
    assert held() == [1, 2, 3]
    assert not any(event.synchronize.called for event in events)
    given.append(finish(4))  # the device is three batches behind
    assert held() == [2, 3, 4]
    assert [event.synchronize.called for event in events] == [False, True, False, False, False]
    alive.clear()
    gc.collect()
    assert [event.synchronize.called for event in events] == [False, True, True, True, True]
