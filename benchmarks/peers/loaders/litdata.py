"""LitData: the JPEGs as they are in chunks of its own, decoded by torchvision.io."""

import os
import shutil
from collections.abc import Iterable
from functools import partial
from typing import Any

from PIL import Image
from torch import Tensor

from benchmarks.peers.loaders import Work, image_files
from benchmarks.peers.loaders.standard import tensor_transform


def pack(work: Work) -> None:
    """Write the chunks."""
    scratch = work.packed / "scratch"
    # Unless they are set, its cache is the system's temporary folder, in which it deletes "data" and "chunks".
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(scratch / "chunks")
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = str(scratch / "data")
    import litdata

    litdata.optimize(fn=_read, inputs=image_files(work), output_dir=str(work.packed), chunk_bytes="64MB", num_workers=1)
    shutil.rmtree(scratch, ignore_errors=True)


def _read(item: tuple[str, int]) -> dict[str, Any]:
    path, label = item
    return {"image": Image.open(path), "label": label}


def load(work: Work) -> Iterable[Any]:
    """Return its loader."""
    import litdata

    dataset = litdata.StreamingDataset(
        str(work.packed), shuffle=True, drop_last=True, transform=partial(_transformed, tensor_transform(work))
    )
    return litdata.StreamingDataLoader(
        dataset, batch_size=work.batch_size, num_workers=work.num_workers, shuffle=True, drop_last=True
    )


def _transformed(transform: Any, sample: dict[str, Any]) -> tuple[Tensor, int]:
    return transform(sample["image"]), sample["label"]
