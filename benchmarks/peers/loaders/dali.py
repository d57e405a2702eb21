"""NVIDIA DALI on the CPU: files, a decoder that decodes the crop alone, resize, crop_mirror_normalize."""

from collections.abc import Iterable, Iterator
from typing import Any

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIClassificationIterator

from benchmarks.peers.loaders import MEAN, STD, Work, image_files


class Epochs:
    """DALI's iterator. While one epoch ends, it fills its queues for the next."""

    runs_on = True

    def __init__(self, work: Work) -> None:
        pipe = _pipeline(work, batch_size=work.batch_size, num_threads=work.num_workers, device_id=None)
        self.iterator = DALIClassificationIterator(pipe, reader_name="Reader", last_batch_policy=LastBatchPolicy.DROP)

    def __iter__(self) -> Iterator[Any]:
        for [batch] in self.iterator:
            yield batch["data"], batch["label"].squeeze(-1)
        self.iterator.reset()


@pipeline_def
def _pipeline(work: Work) -> Any:
    files = image_files(work)
    data, labels = fn.readers.file(
        files=[path for path, _ in files],
        labels=[label for _, label in files],
        random_shuffle=True,
        name="Reader",
    )
    images = fn.decoders.image_random_crop(data, random_aspect_ratio=(3 / 4, 4 / 3), random_area=(0.08, 1.0))
    images = fn.resize(images, size=(224, 224))
    if work.normalised:
        values = {
            "dtype": types.FLOAT,
            "mean": [255 * value for value in MEAN],
            "std": [255 * value for value in STD],
        }
    else:
        values = {"dtype": types.UINT8}
    images = fn.crop_mirror_normalize(images, mirror=fn.random.coin_flip(), output_layout="CHW", **values)
    return images, labels


def load(work: Work) -> Iterable[Any]:
    """Return the iterator over a pipeline with ``work.num_workers`` threads."""
    return Epochs(work)
