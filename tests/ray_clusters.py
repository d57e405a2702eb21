"""What the tests with Ray share: a cluster on this machine, a dataset of real images, and hashes of batches."""

from __future__ import annotations

import gc
import hashlib
import io
import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastload import DataLoader

ray = pytest.importorskip("ray")

STORE_BYTES = 100 << 20


_open = ExitStack()
_cluster: Any = None


def the_cluster() -> Any:
    """Return the cluster of this process, started if it is not there: that takes ten seconds."""
    global _cluster
    if _cluster is None:
        _cluster = _open.enter_context(cluster_of_two())
    return _cluster


def end_the_cluster() -> None:
    global _cluster
    _cluster = None
    _open.close()


@contextmanager
def cluster_of_two() -> Iterator[Any]:
    """A cluster of two machines, with one processor each, to which this process is connected."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        tests = os.path.dirname(__file__)
        folders = [
            tests,
            *(os.path.join(tests, name) for name in ("workers", "engine")),
            os.environ.get("PYTHONPATH", ""),
        ]
        patch.setenv("PYTHONPATH", os.pathsep.join(folders))
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False},
        )
        made.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield made
        finally:
            # In a process that a later test forks, Ray's objects would wait for threads that are not there.
            gc.collect()
            ray.shutdown()
            made.shutdown()


def jpeg(number: int) -> bytes:
    """Return an image of a size of its own."""
    generator = np.random.RandomState(number)
    pixels = generator.randint(0, 255, (40 + number % 9, 50 + number % 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=80)
    return file.getvalue()


class Images(torch.utils.data.Dataset[Any]):
    """Real JPEG files, and transforms that draw from all three global generators."""

    def __init__(self, length: int = 48, wait_s: float = 0.0) -> None:
        self.files = [jpeg(number) for number in range(length)]
        self.wait_s = wait_s

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.wait_s)
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        left, top = random.randrange(9), int(np.random.randint(9))
        image = image.crop((left, top, left + 32, top + 30)).resize((24, 24))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels + torch.rand(3, 1, 1), index, f"name {index}"


def digest(batches: list[Any]) -> str:
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode() + value.numpy().tobytes())
        elif isinstance(value, (list, tuple)):
            for part in value:
                add(part)
        else:
            found.update(repr(value).encode())

    add(batches)
    return found.hexdigest()


def epochs(dataset: Any = None, number: int = 2, **arguments: Any) -> tuple[str, Any]:
    """Return the hash of some epochs, and the loader's statistics."""
    given = {"batch_size": 8, "shuffle": True, "seed": 5, "num_workers": 2, "overlap_epochs": False, **arguments}
    given["persistent_workers"] = number > 1  # actors take seconds to start
    loader = DataLoader(Images() if dataset is None else dataset, **given)
    batches = [batch for _ in range(number) for batch in loader]
    statistics = loader.statistics()
    loader.close()
    return digest(batches), statistics
