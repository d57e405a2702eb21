r"""Ultralytics and RF-DETR, killed in the middle of an epoch and resumed as their users do: which batches come again.

They are too heavy for the tests. From the repository's root::

    uv run --with ultralytics python benchmarks/pipelines/killed_clients.py ultralytics fastload
    uv run --with 'rfdetr[train]' --with faster-coco-eval --with pycocotools \
        python benchmarks/pipelines/killed_clients.py rf_detr fastload

``torch`` in the place of ``fastload`` leaves torch's loader. Each line is an epoch: the hashes of its images. RF-DETR
takes minutes on a CPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import fastload

EPOCHS = 3


def _images(folder: Path, count: int) -> list[str]:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    names = [f"{number:03}.jpg" for number in range(count)]
    for name in names:
        Image.fromarray(generator.integers(0, 256, (128, 128, 3), dtype=np.uint8)).save(folder / name)
    return names


class _Notes:
    """Prints each batch, and ends the process as SIGKILL does at one of them."""

    def __init__(self, killed_after: int) -> None:
        self._left = killed_after

    def take(self, epoch: int, images: Any) -> None:
        digest = hashlib.blake2b(images.contiguous().numpy().tobytes(), digest_size=4).hexdigest()
        print(f"\nbatch {epoch} {digest}", flush=True)  # behind what a progress bar has left
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def ultralytics(notes: _Notes, *, resume: bool) -> None:
    from ultralytics import YOLO
    from ultralytics.models.yolo.detect import DetectionTrainer

    class Trainer(DetectionTrainer):  # type: ignore[misc]  # without types
        def preprocess_batch(self, batch: Any) -> Any:
            notes.take(self.epoch, batch["img"])
            return super().preprocess_batch(batch)

    data = Path("data").resolve()
    if resume:
        YOLO("run/weights/last.pt").train(trainer=Trainer, resume=True)
        return
    for name in _images(data / "images", 24):
        (data / "labels").mkdir(exist_ok=True)
        (data / "labels" / name).with_suffix(".txt").write_text("0 0.5 0.5 0.3 0.4")
    (data / "data.yaml").write_text(json.dumps({"path": str(data), "train": "images", "val": "images", "names": ["a"]}))
    settings = {"imgsz": 64, "batch": 4, "workers": 2, "device": "cpu", "val": False, "plots": False, "amp": False}
    place = {"project": str(Path().resolve()), "name": "run", "exist_ok": True}
    YOLO("yolo11n.yaml").train(trainer=Trainer, data=str(data / "data.yaml"), epochs=EPOCHS, **settings, **place)


def rf_detr(notes: _Notes, *, resume: bool) -> None:
    from rfdetr import RFDETRNano
    from rfdetr.training.module_model import RFDETRModelModule

    step = RFDETRModelModule.training_step

    def noted(self: Any, batch: Any, number: int) -> Any:
        notes.take(self.current_epoch, getattr(batch[0], "tensors", batch[0]))
        return step(self, batch, number)

    RFDETRModelModule.training_step = noted
    for part, count in () if resume else (("train", 8), ("valid", 2), ("test", 2)):
        names = list(enumerate(_images(Path("data") / part, count)))
        found = {
            "images": [{"id": number, "file_name": name, "width": 128, "height": 128} for number, name in names],
            "annotations": [
                {"id": number + 1, "image_id": number, "category_id": 1, "bbox": [20, 20, 50, 60], "area": 3000,
                 "iscrowd": 0} for number, _ in names
            ],
            "categories": [{"id": 1, "name": "a", "supercategory": "all"}],
        }  # fmt: skip
        (Path("data") / part / "_annotations.coco.json").write_text(json.dumps(found))
    settings = {"batch_size": 2, "grad_accum_steps": 1, "num_workers": 2, "tensorboard": False, "run_test": False}
    model = RFDETRNano(pretrain_weights=None, num_classes=1, device="cpu", resolution=128)
    more = {"resume": "out/last.ckpt"} if resume else {}
    model.train(dataset_dir="data", output_dir="out", epochs=EPOCHS, device="cpu", seed=3, **settings, **more)


CLIENTS = {"ultralytics": (ultralytics, 9), "rf_detr": (rf_detr, 6)}
"""And the batch of the second epoch at which each is killed."""


def _run(client: str, loader: str, where: Path, killed_after: int, *, resume: bool) -> None:
    where.mkdir(exist_ok=True)
    words = [client, loader, str(killed_after), str(int(resume))]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), *words], cwd=where, capture_output=True, text=True
    )
    if done.returncode != (-signal.SIGKILL if killed_after else 0):
        sys.exit(done.stderr)
    epochs: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("batch "):
            _, epoch, digest = line.split()
            epochs.setdefault(epoch, []).append(digest)
    print("resumed:" if resume else "killed:" if killed_after else "whole:")
    for epoch, digests in epochs.items():
        print(f"  epoch {epoch}: {' '.join(digests)}")


def main() -> None:
    """Train a whole run, one that is killed, and its rest; or, for :func:`_run`, one of them."""
    client, loader, *rest = sys.argv[1:]
    train, killed_after = CLIENTS[client]
    if rest:
        if loader == "fastload":
            fastload.install(seed=1)
        torch.manual_seed(0)  # without it RF-DETR's first epoch was another in each run, with its seed=3 too
        train(_Notes(int(rest[0])), resume=rest[1] == "1")
        return
    with tempfile.TemporaryDirectory() as made:
        _run(client, loader, Path(made) / "whole", 0, resume=False)
        _run(client, loader, Path(made) / "killed", killed_after, resume=False)
        _run(client, loader, Path(made) / "killed", 0, resume=True)


if __name__ == "__main__":
    main()
