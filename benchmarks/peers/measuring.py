"""What runs in a side's own environment: it packs, checks that a side does the whole work, and times it.

Each function takes a side and the same arguments, and returns metric name -> value. It imports nothing but torch, NumPy
and what the side's module imports.
"""

import importlib
import json
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases.fuse import InMemory
from benchmarks.files import make_once, marker_of
from benchmarks.loops import kept, time_epoch
from benchmarks.peers.loaders import Work, image_files
from benchmarks.spec import Measurement, Side

_NUM_WARM_BATCHES = 10  # as in cases/imagefolder.py
_DISTRIBUTIONS = {
    "arrays": "torchvision",
    "coefficients": "torchvision",
    "dali": "nvidia-dali-cuda130",
    "standard": "torchvision",
}


class NotTheWork(Exception):
    """A side gives other batches than the case asks for."""


def pack(side: Side, **arguments: Any) -> Measurement:
    """Make the side's own files in ``packed``, unless they are there."""
    work = _work(**arguments)
    source = json.loads(marker_of(work.images).read_text()) if work.work == "images" else {}
    sizes = {"num_images": work.num_images, "num_workers": work.num_workers}
    recipe = {**sizes, "options": dict(side.options), "images": str(work.images), "of": source}
    make_once(work.packed, recipe, lambda: _module(side).pack(work, **side.options))
    return {}


def check(side: Side, **arguments: Any) -> Measurement:
    """Load an epoch and look at it; the loader is kept, and is warm after that.

    Returns:
        "versions": of Python, torch and the side's library.

    Raises:
        NotTheWork: the first batch has not the shape, dtype or range of values, its labels are not shuffled, or the
            epoch has not each label as often as there are images of it.
    """
    work = _work(**arguments)
    loader = _loader(side, work)
    size = 224 if work.work == "images" else 32
    labels: Counter[int] = Counter()
    for number, (images, its_labels) in enumerate(loader):
        if number == 0:
            _check_batch(torch.as_tensor(images), torch.as_tensor(its_labels), work, size)
        labels.update(torch.as_tensor(its_labels).tolist())
    if work.work == "images":
        expected = Counter(label for _, label in image_files(work))
    else:
        expected = Counter(InMemory(work.num_images).targets)
    _check_labels(labels, expected)
    library = _DISTRIBUTIONS.get(side.package, side.package)
    named = {"python": platform.python_version(), "torch": torch.__version__, library: version(library)}
    return {"versions": named}


def epoch(side: Side, **arguments: Any) -> Measurement:
    """Time an epoch, or several in a row.

    Returns:
        "images/s": of one epoch the steady rate, without its first batches; of several everything, from the first
        ``iter()`` until the end. "first batch ms": from ``iter()``, if the loader does not run on from epoch to epoch.
        "CPU ms/image" and "CPU us/image": of all processes.
    """
    work = _work(**arguments)
    loader = _loader(side, work)
    num_batches = work.num_epochs * (work.num_images // work.batch_size)
    num_warm = max(1, min(_NUM_WARM_BATCHES, num_batches // 3))
    found = time_epoch(Repeated(loader, work.num_epochs), samples_per_batch=work.batch_size, num_warm_batches=num_warm)
    if found["batches"] != num_batches:
        raise NotTheWork(f"an epoch must have {num_batches} batches, got {found['batches']}")
    answer: Measurement = {
        "images/s": found["samples/s steady" if work.num_epochs == 1 else "samples/s"],
        "CPU ms/image": float(str(found["CPU us/sample"])) / 1e3,
        "CPU us/image": found["CPU us/sample"],
    }
    return answer if _runs_on(loader) else {**answer, "first batch ms": found["first batch ms"]}


class Repeated:
    """Several epochs, one after the other."""

    def __init__(self, loader: Iterable[Any], num_epochs: int) -> None:
        self.loader = loader
        self.num_epochs = num_epochs

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.num_epochs):
            yield from self.loader


def _work(*, images: str, packed: str, **others: Any) -> Work:
    return Work(images=Path(images), packed=Path(packed), **others)


def _module(side: Side) -> Any:
    return importlib.import_module(f"benchmarks.peers.loaders.{side.package}")


def _loader(side: Side, work: Work) -> Any:
    return kept("loader", lambda: _module(side).load(work, **side.options))


def _runs_on(loader: object) -> bool:
    """Whether the loader's epochs are parts of one stream, so that the next one's batches may be there already."""
    return getattr(loader, "runs_on", False)


def _check_batch(images: torch.Tensor, labels: torch.Tensor, work: Work, size: int) -> None:
    shape = (work.batch_size, 3, size, size)
    dtype = torch.float32 if work.normalised else torch.uint8
    if tuple(images.shape) != shape or images.dtype != dtype:
        raise NotTheWork(f"a batch must be {dtype} of shape {shape}, got {images.dtype} of shape {tuple(images.shape)}")
    # A hundred crops of photographs have nearly black and nearly white pixels; normalised: -2.1 and 2.2 to 2.7.
    darkest, brightest = float(images.min()), float(images.max())
    low, high = ((-2.6, -1.5), (1.8, 2.8)) if work.normalised else ((0, 30), (225, 255))
    if not (low[0] <= darkest <= low[1] and high[0] <= brightest <= high[1]):
        raise NotTheWork(
            f"the values of a {work.values} batch must go from {low} to {high}, got {darkest:g} to {brightest:g}"
        )
    if tuple(labels.shape) != shape[:1] or labels.is_floating_point():
        raise NotTheWork(
            f"labels must be integers of shape {shape[:1]}, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.tolist() == sorted(labels.tolist()):
        raise NotTheWork("images must be shuffled, but the first batch's labels are in ascending order")


def _check_labels(found: Counter[int], expected: Counter[int]) -> None:
    if found != expected:
        raise NotTheWork(
            f"an epoch must be each of {expected.total()} images once, got {found.total()} images, and "
            f"{(found - expected).total()} of them with labels that should not be there so often"
        )
