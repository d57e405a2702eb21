"""Loaders that training frameworks make themselves, with their own datasets and transforms, of images with made boxes.

Their networks take no part: the loader is what they would train from. Nothing of theirs is changed but torch's class,
by ``fastload.install``.
"""

import contextlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.utils.data
from PIL import Image

import fastload
from benchmarks.pipelines.source import Source


@contextlib.contextmanager
def _replaced(loader_class: Any) -> Iterator[None]:
    """Let what is constructed inside be of this class: torch's, or fastload's with arguments of its own."""
    if loader_class is torch.utils.data.DataLoader:
        yield
        return
    fastload.install(**getattr(loader_class, "keywords", {}))
    try:
        yield
    finally:
        fastload.uninstall()


def _boxes(number: int) -> list[tuple[int, float, float, float, float]]:
    """Return the objects of an image: class, and centre, width and height as shares of the image's."""
    drawn = random.Random(number)
    found = []
    for _ in range(drawn.randint(0, 6)):
        width, height = drawn.uniform(0.05, 0.4), drawn.uniform(0.05, 0.4)
        x, y = drawn.uniform(width / 2, 1 - width / 2), drawn.uniform(height / 2, 1 - height / 2)
        found.append((drawn.randrange(3), x, y, width, height))
    return found


def ultralytics_yolo(source: Source, loader_class: Any, num_workers: int) -> Any:
    from ultralytics.cfg import get_cfg
    from ultralytics.data import build_dataloader, build_yolo_dataset
    from ultralytics.data.utils import check_det_dataset

    def make(folder: Path) -> None:
        for kind in ("images", "labels"):
            (folder / kind).mkdir()
        for number, (path, _) in enumerate(source.files()):
            shutil.copy(path, folder / "images" / f"{number:06}.jpg")
            lines = [" ".join(map(str, box)) for box in _boxes(number)]
            (folder / "labels" / f"{number:06}.txt").write_text("\n".join(lines))
        names = {0: "a", 1: "b", 2: "c"}
        (folder / "data.yaml").write_text(
            json.dumps({"path": str(source.made / "ultralytics"), "train": "images", "val": "images", "names": names})
        )

    data = check_det_dataset(str(source.folder("ultralytics", make) / "data.yaml"))
    settings = get_cfg(overrides={"imgsz": 640, "task": "detect", "mode": "train"})
    dataset = build_yolo_dataset(settings, data["train"], 16, data, mode="train", stride=32)
    with _replaced(loader_class):
        return build_dataloader(dataset, 16, workers=num_workers, shuffle=True)


def rf_detr(source: Source, loader_class: Any, num_workers: int) -> Any:
    from rfdetr.config import RFDETRNanoConfig, TrainConfig
    from rfdetr.training.module_data import RFDETRDataModule

    def make(folder: Path) -> None:
        images: list[dict[str, Any]] = []
        boxes: list[dict[str, Any]] = []
        for part in ("train", "valid", "test"):
            (folder / part).mkdir()
        for number, (path, _) in enumerate(source.files()):
            name = f"{number:06}.jpg"
            shutil.copy(path, folder / "train" / name)
            with Image.open(path) as image:
                width, height = image.size
            images.append({"id": number, "file_name": name, "width": width, "height": height})
            for kind, x, y, across, down in _boxes(number):
                box = [(x - across / 2) * width, (y - down / 2) * height, across * width, down * height]
                area = box[2] * box[3]
                boxes.append({
                    "id": len(boxes) + 1, "image_id": number, "category_id": kind + 1, "bbox": box, "area": area,
                    "iscrowd": 0,
                })  # fmt: skip
        kinds = [{"id": number + 1, "name": name, "supercategory": "all"} for number, name in enumerate("abc")]
        for part in ("train", "valid", "test"):
            listed = images if part == "train" else []
            found = {"images": listed, "annotations": boxes if listed else [], "categories": kinds}
            (folder / part / "_annotations.coco.json").write_text(json.dumps(found))

    folder = source.folder("rf_detr", make)
    settings = TrainConfig(
        dataset_dir=str(folder),
        output_dir=str(folder),
        batch_size=16,
        grad_accum_steps=1,
        num_workers=num_workers,
        tensorboard=False,
    )
    module = RFDETRDataModule(RFDETRNanoConfig(pretrain_weights=None, num_classes=3), settings)
    module.setup("fit")
    with _replaced(loader_class):
        return module.train_dataloader()
