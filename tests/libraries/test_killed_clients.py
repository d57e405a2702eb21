"""Training scripts of real libraries, killed in the middle of an epoch and started again: the very same batches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

COMMON = """
import hashlib, json, os, sys
from pathlib import Path
import torch
import fastload

class Images(torch.utils.data.Dataset):
    # Images as a transform of the sample's would draw them.
    def __len__(self):
        return 44
    def __getitem__(self, index):
        return torch.rand(3, 32, 32), index % 3

left = int(sys.argv[1])  # batches until the kill

def note(epoch, step, images):
    global left
    digest = hashlib.blake2b(images.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
    print("batch", epoch, step, digest, flush=True)
    left -= 1
    if not left:
        sys.stdin.read()

def save(checkpoint):
    torch.save(checkpoint, "last.part")
    os.replace("last.part", "last.pt")
"""

TIMM = """
import timm, timm.optim
from timm.data import create_loader
from torchvision.datasets import FakeData

def main():
    # As timm's train.py, which is resumed at epochs, with the loader's state beside the model's.
    fastload.install(seed=1)
    model = timm.create_model("resnet18", num_classes=10)
    optimizer = timm.optim.create_optimizer_v2(model, lr=0.01)
    loader = create_loader(
        FakeData(44, (3, 40, 40), 10), input_size=(3, 32, 32), batch_size=4, is_training=True, num_workers=2,
        device=torch.device("cpu"), persistent_workers=True, use_prefetcher=False, color_jitter=0.4,
    )
    start, done = 0, 0
    if Path("last.pt").exists():
        last = torch.load("last.pt", weights_only=True)
        model.load_state_dict(last["model"])
        optimizer.load_state_dict(last["optimizer"])
        loader.load_state_dict(last["loader"])
        start, done = last["epoch"], last["done"]
    for epoch in range(start, 3):
        for step, (images, labels) in enumerate(loader, done):
            note(epoch, step, images)
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            save(states | {"epoch": epoch, "done": step + 1})
        done = 0
"""

TRANSFORMERS = """
import transformers

def collate(samples):
    images, labels = zip(*samples)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}

class Trainer(transformers.Trainer):
    def training_step(self, model, inputs, *rest):
        per_epoch = len(self.callback_handler.train_dataloader)
        note(*divmod(self.state.global_step, per_epoch), inputs["pixel_values"])
        return super().training_step(model, inputs, *rest)

def main():
    fastload.install(seed=1)
    config = transformers.ResNetConfig(hidden_sizes=[4, 4, 4, 4], depths=[1, 1, 1, 1], embedding_size=4, num_labels=3)
    arguments = transformers.TrainingArguments(
        "out", use_cpu=True, per_device_train_batch_size=4, num_train_epochs=3, save_steps=1, report_to="none",
        disable_tqdm=True, logging_strategy="no", dataloader_num_workers=2, remove_unused_columns=False,
    )
    trainer = Trainer(
        transformers.ResNetForImageClassification(config), arguments, train_dataset=Images(), data_collator=collate
    )
    trainer.train(resume_from_checkpoint=any(Path("out").glob("checkpoint-*")))
"""

TORCHDATA = """
from torchdata.stateful_dataloader import StatefulDataLoader

def main():
    fastload.install(seed=1)
    loader = StatefulDataLoader(Images(), batch_size=4, shuffle=True, num_workers=2)
    start, done = 0, 0
    if Path("last.pt").exists():
        last = torch.load("last.pt", weights_only=True)
        loader.load_state_dict(last["loader"])
        start, done = last["epoch"], last["done"]
    for epoch in range(start, 3):
        for step, (images, _) in enumerate(loader, done):
            note(epoch, step, images)
            save({"loader": loader.state_dict(), "epoch": epoch, "done": step + 1})
        done = 0
"""

END = """
if __name__ == "__main__":
    torch.manual_seed(0)
    main()
"""

KILLED_AFTER = 16
"""Batches: in the middle of the second epoch, of eleven."""


class Script:
    """A training in a folder of its own, which prints a line for each batch: epoch, step, and a hash of the images."""

    def __init__(self, folder: Path, text: str) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "train.py").write_text(COMMON + textwrap.dedent(text) + END)

    def run(self, killed_after: int = 0) -> list[str]:
        """Return its batches; if a number is given, of a process that is killed while it trains with that batch."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        batches = []
        with (self.folder / "errors").open("w") as errors:
            command = [sys.executable, "train.py", str(killed_after)]
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdin=pipe, stdout=pipe, stderr=errors, text=True
            )
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            for line in process.stdout:
                if line.startswith("batch "):
                    batches.append(line.strip())
                    if len(batches) == killed_after:
                        process.kill()
        code = process.wait()
        assert code == (-signal.SIGKILL if killed_after else 0), (self.folder / "errors").read_text()
        return batches


@pytest.mark.parametrize(
    "text", [TIMM, TRANSFORMERS, TORCHDATA], ids=["timm", "transformers, an image classifier", "torchdata"]
)
def test_a_training_that_was_killed_goes_on_with_the_same_batches(text: str, tmp_path: Path) -> None:
    whole = Script(tmp_path / "whole", text).run()
    assert len(whole) == len(set(whole)) == 33
    script = Script(tmp_path / "killed", text)
    assert script.run(KILLED_AFTER) == whole[:KILLED_AFTER]
    # The step that was under way is in no checkpoint.
    assert script.run() == whole[KILLED_AFTER - 1 :]
