"""fastload's coefficient packs: the JPEG files without their Huffman codes, and the same loader as for the files."""

from collections.abc import Iterable
from typing import Any

import fastload
from benchmarks.cases.imagefolder import build_transform
from benchmarks.peers.loaders import Work
from fastload.images import PackedImages
from fastload.pack.options import PackOptions
from fastload.pack.run import pack as pack_folder


def pack(work: Work) -> None:
    pack_folder(str(work.images), str(work.packed), PackOptions(coefficients=True), workers=work.num_workers)


def load(work: Work) -> Iterable[Any]:
    dataset = PackedImages(str(work.packed), build_transform("v1" if work.normalised else "uint8"))
    return fastload.DataLoader(
        dataset, work.batch_size, shuffle=True, num_workers=work.num_workers, drop_last=True, fuse=True
    )
