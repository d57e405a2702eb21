"""MosaicML's Streaming: the JPEGs as they are in its MDS shards, decoded by Pillow."""

from collections.abc import Iterable
from typing import Any

from PIL import Image
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from benchmarks.cases.imagefolder import build_transform
from benchmarks.peers.loaders import Work, image_files


class Images(StreamingDataset):
    """Its dataset with a transform, as in its own StreamingVision."""

    def __init__(self, work: Work) -> None:
        super().__init__(local=str(work.packed), shuffle=True, batch_size=work.batch_size)
        self.image_transform = build_transform("v1" if work.normalised else "uint8")

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return self.image_transform(sample["image"].convert("RGB")), sample["label"]


def pack(work: Work) -> None:
    """Write the shards."""
    with MDSWriter(out=str(work.packed), columns={"image": "jpeg", "label": "int"}) as writer:
        for path, label in image_files(work):
            with Image.open(path) as image:
                writer.write({"image": image, "label": label})


def load(work: Work) -> Iterable[Any]:
    """Return torch's loader of it."""
    clean_stale_shared_memory()  # of a run that was killed; its dataset refuses to start beside it
    return DataLoader(Images(work), batch_size=work.batch_size, num_workers=work.num_workers, drop_last=True)
