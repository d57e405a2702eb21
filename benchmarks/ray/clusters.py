"""A cluster of several nodes on this machine, the datasets, and hashes of batches."""

import contextlib
import hashlib
import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import transforms

ROOT = Path(__file__).parents[2]
STORE_BYTES = 300 << 20


@contextlib.contextmanager
def cluster_of(num_nodes: int) -> Iterator[Any]:
    """Start a head and nodes; this process is connected to the head, which has no processors."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(num_nodes):
            cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


class Photos(torch.utils.data.Dataset[Any]):
    """Real JPEG files, read again and again, with random transforms."""

    def __init__(self, folder: Path, length: int = 6000, wait_s: float = 0.0) -> None:
        self.files = sorted(str(file) for file in folder.rglob("*") if file.suffix.lower() in (".jpeg", ".jpg"))
        if not self.files:
            raise SystemExit(f"{folder} has no JPEG files")
        self.length, self.wait_s = length, wait_s
        self.transform = transforms.Compose(
            [transforms.RandomResizedCrop(96), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.wait_s:
            time.sleep(self.wait_s)
        image = Image.open(self.files[index % len(self.files)]).convert("RGB")
        noise = torch.rand(1), random.random(), float(np.random.rand())
        return self.transform(image), index, *noise


class Digest:
    """The hash of batches, one after the other."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.num_batches = 0

    def add(self, batch: Iterable[torch.Tensor]) -> None:
        self.num_batches += 1
        for value in batch:
            self._hash.update(f"{value.dtype} {tuple(value.shape)}".encode() + value.numpy().tobytes())

    def __str__(self) -> str:
        return self._hash.hexdigest()[:16]
