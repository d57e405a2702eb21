"""LeRobot's frames in its training's loader: equal batches, the rate in turns, and one kill with a resume.

Run it from the repository's root: LeRobot wants an older torch, so in an environment of its own::

    uv run --isolated --no-project --python 3.11 --with . --with lerobot python benchmarks/pipelines/lerobot_frames.py

The episodes are made here: images as PNG files in the table, no videos. The loader is the one of ``lerobot-train``.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.utils import cycle

import fastload

KILLED_AFTER = 15
ROUNDS = 5


def _episodes(folder: Path) -> LeRobotDataset:
    features = {
        "observation.image": {"dtype": "image", "shape": (96, 96, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (6,), "names": None},
        "action": {"dtype": "float32", "shape": (6,), "names": None},
    }
    if not folder.exists():
        made = LeRobotDataset.create("local/made", fps=10, features=features, root=folder, use_videos=False)
        generator = np.random.default_rng(0)
        for _ in range(12):
            for _ in range(60):
                made.add_frame({
                    "observation.image": generator.integers(0, 256, (96, 96, 3), dtype=np.uint8),
                    "observation.state": generator.random(6, dtype=np.float32),
                    "action": generator.random(6, dtype=np.float32),
                    "task": "push",
                })  # fmt: skip
            made.save_episode()
        made.finalize()
    return LeRobotDataset("local/made", root=folder, delta_timestamps={"action": [0.1 * step for step in range(8)]})


def _loader(kind: Any, dataset: Any, num_workers: int, **more: Any) -> Any:
    settings = {"batch_size": 16, "shuffle": True, "drop_last": False, "num_workers": num_workers}
    return kind(dataset, **settings, prefetch_factor=2 if num_workers else None, **more)


def _digest(batch: dict[str, Any]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for name, value in batch.items():
        found.update(name.encode())
        found.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
    return found.hexdigest()


def _train(folder: Path, killed_after: int) -> None:
    """Take 60 steps of LeRobot's endless loader, with the loader's state in the checkpoint of each step."""
    fastload.install(seed=1)
    loader = _loader(torch.utils.data.DataLoader, _episodes(folder), 2)
    step, last = 0, Path("last.json")
    if last.exists():
        saved = json.loads(last.read_text())
        step = saved["step"]
        loader.load_state_dict(saved["loader"])
    batches = cycle(loader)
    while step < 60:
        print("batch", step, _digest(next(batches)), flush=True)
        step += 1
        if step == killed_after:
            sys.stdin.read()
        Path("part.json").write_text(json.dumps({"step": step, "loader": loader.state_dict()}))
        os.replace("part.json", last)


def _run(folder: Path, where: Path, killed_after: int = 0) -> list[str]:
    where.mkdir(exist_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), str(folder), str(killed_after)]
    with subprocess.Popen(
        command,
        cwd=where,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": ""},
    ) as process:
        assert process.stdout is not None
        batches = []
        for line in process.stdout:
            batches += [line] if line.startswith("batch ") else []
            if killed_after and len(batches) == killed_after:
                process.kill()
    assert process.returncode == (-signal.SIGKILL if killed_after else 0)
    return batches


def _compare(dataset: Any, num_workers: int) -> dict[str, Any]:
    sides = {"torch": torch.utils.data.DataLoader, "fastload": fastload.DataLoader}
    digests, rates, firsts = {}, {name: [] for name in sides}, {name: [] for name in sides}  # type: ignore[var-annotated]
    for name, kind in sides.items():
        torch.manual_seed(0)
        digests[name] = [_digest(batch) for batch in _loader(kind, dataset, num_workers)]
    for number in range(ROUNDS):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            begun = time.perf_counter()
            iterator = iter(_loader(sides[name], dataset, num_workers))
            next(iterator)
            first = time.perf_counter()
            count = sum(len(batch["index"]) for batch in iterator)
            rates[name].append(count / (time.perf_counter() - first))
            firsts[name].append(1e3 * (first - begun))
    return {
        "num_workers": num_workers,
        "equal batches": digests["torch"] == digests["fastload"],
        "frames/s": {name: round(statistics.median(one)) for name, one in rates.items()},
        "first batch ms": {name: round(statistics.median(one)) for name, one in firsts.items()},
        "n": ROUNDS,
    }


def main() -> None:
    """Measure, or train for :func:`_run`."""
    if len(sys.argv) == 3:
        _train(Path(sys.argv[1]), int(sys.argv[2]))
        return
    from importlib.metadata import version

    print({name: version(name) for name in ("lerobot", "torch")})
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "episodes"
        dataset = _episodes(folder)
        for num_workers in (2, 0):
            print(json.dumps(_compare(dataset, num_workers)))
        whole = _run(folder, Path(made) / "whole")
        killed = _run(folder, Path(made) / "killed", KILLED_AFTER)
        rest = _run(folder, Path(made) / "killed")
        same = killed == whole[:KILLED_AFTER] and rest == whole[KILLED_AFTER - 1 :]
        print(f"killed after batch {KILLED_AFTER} of {len(whole)}, resumed: {'the same batches' if same else 'OTHER'}")


if __name__ == "__main__":
    main()
