"""Grain: ArrayRecord files, decoded by Pillow, torchvision's transforms, batches of NumPy's arrays."""

import io
import itertools
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import grain
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from benchmarks.cases.imagefolder import build_transform
from benchmarks.peers.loaders import Work, image_files


def pack(work: Work) -> None:
    """Write a file of records: pickled pairs of a JPEG's bytes and its label."""
    writer = ArrayRecordWriter(_path(work), "group_size:1")
    for path, label in image_files(work):
        with open(path, "rb") as stream:
            writer.write(pickle.dumps((stream.read(), label)))
    writer.close()


class Decode(grain.transforms.Map):
    """A record -> (image, label)."""

    def __init__(self, values: str) -> None:
        self.transform = build_transform("v1" if values == "float32" else "uint8")

    def map(self, record: bytes) -> Any:
        data, label = pickle.loads(record)
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB")).numpy(), label


class Epochs:
    """One iterator that repeats the records for ever, in a new order each time: its processes start only once."""

    runs_on = True

    def __init__(self, work: Work) -> None:
        self.num_batches = work.num_images // work.batch_size
        records = grain.MapDataset.source(grain.sources.ArrayRecordDataSource([_path(work)]))
        images = records.seed(0).shuffle().repeat().map(Decode(work.values)).to_iter_dataset()
        # Batched after that: each worker reads 500 elements ahead, and 500 batches do not fit into memory.
        batches = images.batch(work.batch_size, drop_remainder=True)
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=work.num_workers)
        self.iterator = iter(batches.mp_prefetch(options))

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.iterator, self.num_batches)


def load(work: Work) -> Iterable[Any]:
    """Return the epochs."""
    return Epochs(work)


def _path(work: Work) -> str:
    return str(work.packed / "images.array_record")
