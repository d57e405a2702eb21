"""Images through libraries that bring a dataset or a loader of their own."""

from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import timm.data as timm_data
import torch.utils.data
import webdataset

from benchmarks.pipelines.images import TRAINING
from benchmarks.pipelines.source import Source


def timm(source: Source, loader_class: Any, num_workers: int) -> Any:
    # timm makes the loader itself: its class is replaced as fastload.install() does, which takes no arguments.
    with mock.patch.object(torch.utils.data, "DataLoader", loader_class):
        return timm_data.create_loader(
            timm_data.create_dataset("", root=str(source.images), split="train", is_training=True),
            input_size=(3, 224, 224),
            batch_size=32,
            is_training=True,
            num_workers=num_workers,
            use_prefetcher=False,
            color_jitter=None,
        )


def hf_images(source: Source, loader_class: Any, num_workers: int) -> Any:
    def make(folder: Path) -> None:
        columns: dict[str, list[Any]] = {"image": [], "label": []}
        for path, label in source.files():
            columns["image"].append({"bytes": path.read_bytes(), "path": path.name})
            columns["label"].append(label)
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        datasets.Dataset.from_dict(columns, features=features).save_to_disk(folder)

    def transform(examples: dict[str, Any]) -> dict[str, Any]:
        pixel_values = [TRAINING(image.convert("RGB")) for image in examples["image"]]
        return {"pixel_values": pixel_values, "label": examples["label"]}

    dataset = datasets.load_from_disk(str(source.folder("hf_images", make))).with_transform(transform)
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers)


def _identity(value: Any) -> Any:
    return value


def _webdataset(source: Source) -> Any:
    def make(folder: Path) -> None:
        with webdataset.ShardWriter(str(folder / "%04d.tar"), maxcount=len(source.files()) // 4, verbose=0) as writer:
            for number, (path, label) in enumerate(source.files()):
                writer.write({"__key__": f"{number:06d}", "jpg": path.read_bytes(), "cls": label})

    shards = sorted(map(str, source.folder("webdataset", make).iterdir()))
    # A seed, since webdataset else draws the order from the clock.
    return (
        webdataset.WebDataset(shards, shardshuffle=100, seed=0)
        .shuffle(1000, seed=0)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(TRAINING, _identity)
    )


def webdataset_pipeline(source: Source, loader_class: Any, num_workers: int) -> Any:
    return loader_class(_webdataset(source).batched(32), batch_size=None, num_workers=num_workers)


def webdataset_loader(source: Source, loader_class: Any, num_workers: int) -> Any:
    return loader_class(_webdataset(source), batch_size=32, num_workers=num_workers)
