"""JPEG files to images on the device: nvJPEG, through torchvision and through fastload, and fastload's workers.

No claim: whether decoding on the device pays is to be seen. The files are made, of photographs' sizes, and have smooth
colours with noise, so that they are about as long as photographs. "torchvision nvJPEG": ``decode_jpeg`` of whole
batches; "fastload nvJPEG": ``fastload.images.decode_batch``; "fastload workers": a loader whose workers decode the same
files, with ``device=``. All give images [3, H, W], uint8, on the device.

Meaningless if: there are fewer cores than workers. DALI is not measured: it does not fit into what can be carried to a
machine without a network.
"""

import io
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset

from benchmarks.gpu.made_data import noise
from benchmarks.gpu.measuring import CannotMeasure, measuring, seconds_of
from benchmarks.loops import describe, kept, make_loader
from benchmarks.spec import Measurement, Side
from fastload import images


class Files(Dataset[torch.Tensor]):
    """Files in memory, each decoded by ``fastload.images.decode``."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return images.decode(self.files[index])


def _files(num_files: int, size: list[int]) -> list[bytes]:
    found = []
    for number in range(num_files):
        height, width = size
        coarse = Image.fromarray(noise(1, 3, height // 8 + 1, width // 8 + 1, seed=number)[0].permute(1, 2, 0).numpy())
        image = Image.blend(
            coarse.resize((width, height), Image.Resampling.BICUBIC),
            Image.fromarray(noise(1, 3, height, width, seed=number)[0].permute(1, 2, 0).numpy()),
            0.1,
        )
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


@measuring
def files(
    side: Side, *, device: str, num_files: int, size: list[int], batch_size: int, num_workers: int
) -> Measurement:
    where = torch.device(device)
    made: list[bytes] = kept("files", lambda: _files(num_files, size))
    statistics: dict[str, Any] = {}
    if side.name == "fastload workers":
        loader = kept(
            side.name,
            lambda: make_loader(
                side,
                Files(made),
                batch_size=batch_size,
                num_workers=num_workers,
                persistent_workers=True,
                device=device,
            ),
        )

        def work() -> None:
            for _batch in loader:
                pass
            statistics.update(describe(loader))

    else:
        if where.type != "cuda":
            raise CannotMeasure("not applicable: nvJPEG needs a CUDA device")
        batches = [made[start : start + batch_size] for start in range(0, num_files, batch_size)]
        if side.name == "fastload nvJPEG":

            def work() -> None:
                for batch in batches:
                    images.decode_batch(batch, where)

        else:
            from torchvision.io import ImageReadMode, decode_jpeg

            def work() -> None:
                for batch in batches:
                    tensors = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in batch]
                    decode_jpeg(tensors, ImageReadMode.RGB, device=where)

    return {"images/s": num_files / seconds_of(work, where), "statistics": statistics}
