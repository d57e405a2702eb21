"""Many threads that use many loaders with worker threads at a time give the batches of one loader without workers.

With the GIL this is a short test. On a Python without it the threads do run at a time, and the rounds are more;
``FASTLOAD_STRESS_ROUNDS`` says how many: 100 take about two minutes on two cores.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import getrandbits
from typing import Any

import numpy as np
import PIL.Image
import torch
from image_files import pixels
from kit.datasets import Made
from numpy.random import standard_normal
from torchvision import datasets, transforms

import fastload

HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
ROUNDS = int(os.environ.get("FASTLOAD_STRESS_ROUNDS", "1" if HAS_GIL else "10"))
USERS = 4


def draws(index: int, broken: int = -1) -> Any:
    """Draw from all generators, also by names that were bound before."""
    if index == broken:
        raise KeyError(index)
    drawn = [random.random(), getrandbits(20), random.gauss(0, 1), standard_normal(), np.random.randint(1000)]
    return index, torch.tensor(drawn, dtype=torch.float64), torch.rand(3), torch.dropout(torch.ones(4), 0.5, True)


class Shared:
    """A transform with an image that all samples share: late images may outlive a sample, and be another thread's."""

    def __init__(self, file: Path, steps: Any) -> None:
        self.file, self.steps = file, steps
        self.shared: Any = None

    def __call__(self, image: Any) -> Any:
        shared = self.shared
        if shared is None:
            shared = PIL.Image.open(self.file)
            shared.load()
            self.shared = shared
        part = shared.crop((image.width % 5, 2, 30, 30)).resize((8, 8), PIL.Image.Resampling.BILINEAR)
        return torch.cat([self.steps(image).flatten(), torch.from_numpy(np.array(part)).flatten()])


def _jpeg(side: int, seed: int) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels(side // 4, side // 4, 3, seed=seed)).resize((side, side)).save(file, "JPEG")
    return file.getvalue()


def _collated(samples: list[Any]) -> Any:
    drawn = torch.tensor([random.random(), float(len(samples))])
    return [drawn, *map(torch.stack, list(zip(*samples, strict=True))[1:])]


def loader_of(dataset: Any, num_workers: int = 3, **options: Any) -> fastload.DataLoader[Any]:
    options |= {"worker_method": "thread"} if num_workers else {}
    return fastload.DataLoader(dataset, 4, num_workers=num_workers, shuffle=True, seed=5, **options)


def outcomes(batches: Iterator[Any], most: int = sys.maxsize) -> list[str]:
    """Return hashes of each batch's columns, so that a failure tells which generator it was; or an error's class."""
    found: list[str] = []
    while len(found) < most:
        try:
            columns = next(batches)
        except StopIteration:
            break
        except KeyError as error:
            found.append(type(error).__name__)
        else:
            found.append(" ".join(hashlib.sha256(column.numpy().tobytes()).hexdigest()[:12] for column in columns))
    return found


def two_epochs(make: Callable[..., Any], expected: list[list[str]]) -> None:
    with closing(make(persistent_workers=True)) as loader:
        assert [outcomes(iter(loader)) for _ in range(2)] == expected


def broken_off(make: Callable[..., Any], expected: list[list[str]]) -> None:
    loader = make()
    assert [outcomes(iter(loader), 2), outcomes(iter(loader))] == [expected[0][:2], expected[1]]


def closed_meanwhile(make: Callable[..., Any], expected: list[list[str]]) -> None:
    loader = make(persistent_workers=True, prefetch_factor=4)
    batches = iter(loader)
    assert outcomes(batches, 1) == expected[0][:1]
    loader.close()
    assert outcomes(iter(loader)) == expected[1]
    loader.close()


WAYS = (two_epochs, broken_off, closed_meanwhile)


@contextmanager
def drawing_meanwhile() -> Iterator[None]:
    """Threads of the user's that draw from the process's own generators while worker threads come and go."""
    over = threading.Event()

    def draw(uniform: Any = random.random, bits: Any = random.getrandbits) -> None:
        while not over.wait(0.0005):
            for _ in range(20):
                assert 0 <= uniform() < 1
                assert 0 <= bits(7) < 128
                assert 0 <= np.random.random_sample() < 1

    with ThreadPoolExecutor(2) as threads:
        drawing = [threads.submit(draw) for _ in range(2)]
        try:
            yield
        finally:
            over.set()
    assert [one.result() for one in drawing] == [None, None]


def test_loaders_of_many_threads_give_the_batches_of_one_without_workers(tmp_path):
    for index in range(12):
        (tmp_path / "class").mkdir(exist_ok=True)
        (tmp_path / "class" / f"{index}.jpg").write_bytes(_jpeg(50 + index, seed=index))
    steps = transforms.Compose([transforms.RandomResizedCrop(20), transforms.ToTensor()])
    broken = Made(40, partial(draws, broken=13))
    kinds: list[Callable[..., Any]] = [
        partial(loader_of, Made(40, draws)),
        partial(loader_of, broken),
        partial(loader_of, broken, on_error="skip"),
        partial(loader_of, Made(40, draws), collate_fn=_collated),
        partial(loader_of, datasets.ImageFolder(tmp_path, Shared(tmp_path / "class" / "0.jpg", steps))),
        partial(loader_of, datasets.ImageFolder(tmp_path, steps), fuse=True),
    ]
    expected = []
    for make in kinds:  # before others draw, since without workers samples draw from the process's generators
        alone = make(num_workers=0)
        expected.append([outcomes(iter(alone)), outcomes(iter(alone))])
    assert len({epoch[0] for one in expected for epoch in one}) == 8  # those with a broken sample begin alike

    def use(user: int) -> None:
        for turn in range(ROUNDS * len(WAYS)):
            kind = (user + turn) % len(kinds)
            WAYS[(user + turn // len(kinds)) % len(WAYS)](kinds[kind], expected[kind])

    with drawing_meanwhile(), ThreadPoolExecutor(USERS) as users:
        list(users.map(use, range(USERS)))
