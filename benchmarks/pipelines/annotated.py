"""Images with masks and boxes, and images through OpenCV."""

from pathlib import Path
from typing import Any

import albumentations as A  # noqa: N812  (its documentation's name)
import cv2
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2
from PIL import Image, ImageDraw
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.ops import masks_to_boxes
from torchvision.transforms import v2

from benchmarks.cases.imagefolder import MEAN, STD
from benchmarks.pipelines.images import OwnDataset
from benchmarks.pipelines.source import Source


class OpenCvImages(OwnDataset):
    def __getitem__(self, index: int) -> Any:
        path, label = self.files[index]
        image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        return self.transform(image=image)["image"], label


def albumentations(source: Source, loader_class: Any, num_workers: int) -> Any:
    transform = A.Compose(
        [
            A.RandomResizedCrop(size=(224, 224)),
            A.HorizontalFlip(p=0.5),
            A.RandomBrightnessContrast(p=0.5),
            A.Normalize(mean=MEAN, std=STD),
            ToTensorV2(),
        ]
    )
    dataset = OpenCvImages(source.files(), transform)
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers)


class Segmentation(OwnDataset):
    """Its files are pairs of an image's and a mask's."""

    def __getitem__(self, index: int) -> Any:
        image_path, mask_path = self.files[index]
        image = Image.open(image_path).convert("RGB")
        return self.transform(image, tv_tensors.Mask(Image.open(mask_path)))


class SegmentationOfTensors(OwnDataset):
    def __getitem__(self, index: int) -> Any:
        image_path, mask_path = self.files[index]
        image = tv_tensors.Image(Image.open(image_path).convert("RGB"))
        return self.transform(image, tv_tensors.Mask(Image.open(mask_path)))


def segmentation(source: Source, loader_class: Any, num_workers: int, dataset_class: Any = Segmentation) -> Any:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(256, scale=(0.5, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    dataset = dataset_class(_with_masks(source), transform)
    return loader_class(dataset, batch_size=16, shuffle=True, num_workers=num_workers)


def segmentation_tensors(source: Source, loader_class: Any, num_workers: int) -> Any:
    return segmentation(source, loader_class, num_workers, SegmentationOfTensors)


class Detection(OwnDataset):
    """As in torchvision's tutorial on object detection: a mask image whose values are the objects' numbers."""

    def __getitem__(self, index: int) -> Any:
        image_path, mask_path = self.files[index]
        image = Image.open(image_path).convert("RGB")
        mask = torch.from_numpy(np.array(Image.open(mask_path)))
        numbers = torch.unique(mask)[1:]  # the first is the background
        masks = (mask == numbers[:, None, None]).to(torch.uint8)
        target = {
            "boxes": tv_tensors.BoundingBoxes(masks_to_boxes(masks), format="XYXY", canvas_size=tuple(mask.shape)),
            "masks": tv_tensors.Mask(masks),
            "labels": numbers.to(torch.int64),
            "image_id": index,
        }
        return self.transform(image, target)


def list_collate(batch: list[Any]) -> Any:
    return tuple(zip(*batch, strict=True))


def detection(source: Source, loader_class: Any, num_workers: int) -> Any:
    transform = v2.Compose(
        [
            v2.RandomIoUCrop(),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.RandomPhotometricDistort(p=0.5),
            v2.SanitizeBoundingBoxes(),
            v2.ToDtype(torch.float32, scale=True),
            v2.ToPureTensor(),
        ]
    )
    dataset = Detection(_with_masks(source), transform)
    return loader_class(dataset, batch_size=8, shuffle=True, num_workers=num_workers, collate_fn=list_collate)


def _with_masks(source: Source) -> list[tuple[Path, Path]]:
    def make(folder: Path) -> None:
        """Draw three ellipses, of the values 1 to 3, for each image."""
        generator = np.random.default_rng(0)
        for number, (path, _) in enumerate(source.files()):
            with Image.open(path) as image:
                mask = Image.new("L", image.size)
            draw = ImageDraw.Draw(mask)
            for value in (1, 2, 3):
                # A column each, so that no object hides another.
                left, right = (np.array([value - 0.95, value - 0.05]) * mask.width / 3).tolist()
                top = generator.uniform(0, 0.5) * mask.height
                draw.ellipse((left, top, right, top + 0.45 * mask.height), fill=value)
            mask.save(folder / f"{number}.png")

    masks = source.folder("masks", make)
    return [(path, masks / f"{number}.png") for number, (path, _) in enumerate(source.files())]


class Yolo(Dataset[Any]):
    """Letterbox to 640, HSV jitter and flip; labels in memory: class, x, y, width, height as shares of the image."""

    size = 640

    def __init__(self, files: list[tuple[Path, int]]) -> None:
        cv2.setNumThreads(0)
        self.files = files
        generator = np.random.default_rng(0)
        self.labels = [
            generator.uniform(0.1, 0.5, (int(num_boxes), 5)).astype(np.float32)
            for num_boxes in generator.integers(1, 8, len(files))
        ]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = cv2.imread(str(self.files[index][0]))
        height, width = image.shape[:2]
        ratio = self.size / max(height, width)
        new_width, new_height = round(width * ratio), round(height * ratio)
        image = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
        left, top = (self.size - new_width) // 2, (self.size - new_height) // 2
        right, bottom = self.size - new_width - left, self.size - new_height - top
        image = cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114))
        labels = self.labels[index].copy()
        labels[:, 1] = (labels[:, 1] * new_width + left) / self.size
        labels[:, 2] = (labels[:, 2] * new_height + top) / self.size
        gains = np.random.uniform(-1, 1, 3) * (0.015, 0.7, 0.4) + 1
        hue, saturation, value = cv2.split(cv2.cvtColor(image, cv2.COLOR_BGR2HSV))
        steps = np.arange(256, dtype=np.float64)
        image = cv2.merge(
            (
                cv2.LUT(hue, (steps * gains[0] % 180).astype(np.uint8)),
                cv2.LUT(saturation, np.clip(steps * gains[1], 0, 255).astype(np.uint8)),
                cv2.LUT(value, np.clip(steps * gains[2], 0, 255).astype(np.uint8)),
            )
        )
        image = cv2.cvtColor(image, cv2.COLOR_HSV2BGR)
        if np.random.random() < 0.5:
            image = np.fliplr(image)
            labels[:, 1] = 1 - labels[:, 1]
        image = np.ascontiguousarray(image.transpose(2, 0, 1)[::-1])
        boxes = torch.zeros(len(labels), 6)
        boxes[:, 1:] = torch.from_numpy(labels)
        return torch.from_numpy(image), boxes, str(self.files[index][0])

    @staticmethod
    def collate_fn(batch: list[Any]) -> Any:
        images, boxes, paths = zip(*batch, strict=True)
        for number, of_image in enumerate(boxes):
            of_image[:, 0] = number
        return torch.stack(images), torch.cat(boxes), paths


def yolo(source: Source, loader_class: Any, num_workers: int) -> Any:
    dataset = Yolo(source.files())
    return loader_class(dataset, batch_size=16, shuffle=True, num_workers=num_workers, collate_fn=Yolo.collate_fn)
