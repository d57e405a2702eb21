"""What the pages' examples take for granted: a folder of images, a dataset, a model, a loader."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import datasets, transforms

import fastload
from fastload import DataLoader

torch.set_num_threads(1)
mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def make_images(folder, count=24):
    """Write smooth JPEG files into a folder for each of two classes."""
    draws = np.random.default_rng(0)
    for name in ("cat", "dog"):
        Path(folder, name).mkdir(parents=True)
        for place in range(count):
            small = Image.fromarray(draws.integers(0, 256, (6, 8, 3), dtype=np.uint8))
            small.resize((80, 60), Image.Resampling.BICUBIC).save(Path(folder, name, f"{place}.jpg"), quality=90)


make_images("train")
root = "train"
transform = transforms.Compose(
    [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)
dataset = folder = datasets.ImageFolder(root, transform)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, seed=1)
