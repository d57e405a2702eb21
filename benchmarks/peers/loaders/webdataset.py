"""WebDataset: tar files of the JPEGs as they are, read in order, shuffled in a buffer."""

from collections.abc import Iterable
from typing import Any

import webdataset

from benchmarks.cases.imagefolder import build_transform
from benchmarks.peers.loaders import Work, image_files

_FILES_PER_SHARD = 250


def pack(work: Work) -> None:
    """Write the files in a shuffled order, as its documentation advises: the buffer mixes neighbours only."""
    import random

    files = image_files(work)
    random.Random(0).shuffle(files)
    # Each worker must get as many images as the other.
    per_shard = min(_FILES_PER_SHARD, len(files) // work.num_workers)
    with webdataset.ShardWriter(str(work.packed / "%06d.tar"), maxcount=per_shard, verbose=0) as writer:
        for number, (path, label) in enumerate(files):
            with open(path, "rb") as stream:
                writer.write({"__key__": f"{number:08d}", "jpg": stream.read(), "cls": label})


def load(work: Work) -> Iterable[Any]:
    """Return its loader; the batches are made in the workers."""
    transform = build_transform("v1" if work.normalised else "uint8")
    shards = sorted(map(str, work.packed.glob("*.tar")))
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(1000)
        .decode("pilrgb")
        .to_tuple("jpg", "cls")
        .map_tuple(transform, int)
        .batched(work.batch_size, partial=False)
    )
    return webdataset.WebLoader(dataset, batch_size=None, num_workers=work.num_workers)
