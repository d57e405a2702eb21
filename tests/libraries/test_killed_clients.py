"""Trainings of real clients that are killed in the middle of an epoch, and go on from their last checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# Each script trains two epochs. After every step it writes a checkpoint, and a line about what it was trained with. It
# kills itself behind the checkpoint of step KILLED, and goes on from the last checkpoint that it finds.
COMMON = """
import json, os, signal, sys
import torch
from torchvision.datasets import FakeData

steps = open("steps.jsonl", "a")

def trained(step, images):
    steps.write(json.dumps([step, images.double().sum((1, 2, 3)).tolist()]) + "\\n")
    steps.flush()

def checkpoint_is_there(step):
    if step == int(os.environ.get("KILLED", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
"""

# As timm's train.py: its loader, its network, an epoch after the other.
TIMM = """
import timm
from timm.data import create_loader

loader = create_loader(
    FakeData(20, (3, 40, 40), 10), input_size=(3, 32, 32), batch_size=4, is_training=True, num_workers=2,
    device=torch.device("cpu"), use_prefetcher=False, persistent_workers=False,
)
network = timm.create_model("resnet10t", num_classes=10)
begun, step = 0, 0
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    network.load_state_dict(saved["network"])
    loader.load_state_dict(saved["loader"])
    begun, step = saved["epoch"], saved["step"]
for epoch in range(begun, 2):
    for images, labels in loader:
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        step += 1
        trained(step, images)
        saved = {"network": network.state_dict(), "loader": loader.state_dict(), "epoch": epoch, "step": step}
        torch.save(saved, "next.pt")
        os.replace("next.pt", "last.pt")
        checkpoint_is_there(step)
"""

# An image classifier in the Trainer of transformers, which skips by itself what an epoch has had.
TRANSFORMERS = """
import transformers
import torchvision.transforms.v2 as v2

transform = v2.Compose([v2.ToImage(), v2.Resize((32, 32)), v2.ToDtype(torch.float32, scale=True)])

class Images(torch.utils.data.Dataset):
    images = FakeData(20, (3, 40, 40), 10, transform)
    def __len__(self):
        return 20
    def __getitem__(self, index):
        image, label = self.images[index]
        return {"pixel_values": image, "labels": int(label)}

class Trainer(transformers.Trainer):
    def training_step(self, network, inputs, *more):
        trained(self.state.global_step + 1, inputs["pixel_values"])
        return super().training_step(network, inputs, *more)

class Killer(transformers.TrainerCallback):
    def on_save(self, arguments, state, control, **more):
        checkpoint_is_there(state.global_step)

sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
network = transformers.ViTForImageClassification(
    transformers.ViTConfig(image_size=32, patch_size=16, num_labels=10, **sizes)
)
arguments = transformers.TrainingArguments(
    "trained", num_train_epochs=2, per_device_train_batch_size=4, save_steps=1, use_cpu=True, report_to="none",
    dataloader_num_workers=2, remove_unused_columns=False, disable_tqdm=True, logging_strategy="no",
)
trainer = Trainer(network, arguments, train_dataset=Images(), callbacks=[Killer()])
trainer.train(resume_from_checkpoint=os.path.exists("trained/checkpoint-1") or None)
"""


def _run(folder: Path, killed: int = 0) -> int:
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "KILLED": str(killed)}
    command = [sys.executable, "-W", "ignore", "-m", "fastload.cli", "run", "--seed", "7", "train.py"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def _steps(folder: Path) -> list[tuple[int, list[float]]]:
    lines = (folder / "steps.jsonl").read_text().splitlines()
    return [(step, images) for step, images in map(json.loads, lines)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("library", "text"),
    [("timm", TIMM), ("transformers", TRANSFORMERS)],
    ids=["timm", "transformers"],
)
def test_a_training_that_is_killed_twice_has_the_batches_that_it_would_have_had(
    library: str, text: str, tmp_path: Path
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
        (folder / "train.py").write_text(COMMON + textwrap.dedent(text))
    assert _run(whole) == 0
    for killed in (3, 7):  # in the first epoch of five steps, and in the second
        assert _run(cut, killed) == -signal.SIGKILL
        assert [step for step, _ in _steps(cut)] == list(range(1, killed + 1))
    assert _run(cut) == 0
    assert _steps(cut) == _steps(whole)
    assert len({tuple(images) for _, images in _steps(whole)}) == 10, "each step has other images"
