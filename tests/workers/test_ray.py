"""Ray's workers: the batches are those of local processes, whoever makes them and whoever is lost on the way."""

from __future__ import annotations

import hashlib
import io
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastload import DataLoader

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]

STORE_BYTES = 100 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two machines, with one processor each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]))
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False},
        )
        made.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
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
    given = {"batch_size": 8, "shuffle": True, "seed": 5, "num_workers": 2, **arguments}
    loader = DataLoader(Images() if dataset is None else dataset, **given)
    batches = [batch for _ in range(number) for batch in loader]
    statistics = loader.statistics()
    loader.close()
    return digest(batches), statistics


@pytest.fixture(scope="module")
def expected() -> str:
    return epochs()[0]


@pytest.mark.parametrize("share_memory", [True, False])
def test_batches_are_those_of_local_processes(cluster, expected, share_memory):
    found, statistics = epochs(worker_method="ray", ray_options={"share_memory": share_memory})
    assert found == expected
    remote = statistics.remote
    assert remote["sharing_memory"] == (remote["workers"] if share_memory else 0)
    assert remote["tasks"] > 0
    assert (remote["bytes"] == 0) == share_memory
    assert remote["bytes_under_way"] == 0
