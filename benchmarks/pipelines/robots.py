"""LeRobot's training samples: frames of videos, and a chunk of actions; its own writer makes the episodes.

LeRobot pins torch, so these pipelines have an environment of their own: Python 3.12 and ``lerobot[dataset]``.
"""

from pathlib import Path
from typing import Any

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from benchmarks.pipelines.source import Source

_FPS, _HEIGHT, _WIDTH, _JOINTS = 30, 480, 640, 14
_EPISODES, _FRAMES = 8, 100
_FIFTY = {"action": [step / _FPS for step in range(50)]}


def lerobot_actions(source: Source, loader_class: Any, num_workers: int) -> Any:
    return loader_class(_episodes(source, 1, _FIFTY, return_uint8=True), 8, shuffle=True, num_workers=num_workers)


def lerobot_cameras(source: Source, loader_class: Any, num_workers: int) -> Any:
    return loader_class(_episodes(source, 3, _FIFTY, return_uint8=True), 8, shuffle=True, num_workers=num_workers)


def lerobot_history(source: Source, loader_class: Any, num_workers: int) -> Any:
    before = [-1 / _FPS, 0]
    times = {_camera(0): before, "observation.state": before, "action": _FIFTY["action"][:16]}
    return loader_class(_episodes(source, 1, times), 32, shuffle=True, num_workers=num_workers)


def lerobot_frames(source: Source, loader_class: Any, num_workers: int) -> Any:
    return loader_class(_episodes(source, 1, None), 32, shuffle=True, num_workers=num_workers)


def _camera(number: int) -> str:
    return f"observation.images.camera{number}"


def _episodes(source: Source, num_cameras: int, times: Any, **options: Any) -> LeRobotDataset:
    def make(folder: Path) -> None:
        joints = {"dtype": "float32", "shape": (_JOINTS,), "names": [f"joint{number}" for number in range(_JOINTS)]}
        frame = {"dtype": "video", "shape": (_HEIGHT, _WIDTH, 3), "names": ["height", "width", "channels"]}
        features = {"observation.state": joints, "action": joints}
        features |= {_camera(number): frame for number in range(num_cameras)}
        dataset = LeRobotDataset.create("made/episodes", fps=_FPS, features=features, root=folder / "set")
        random = np.random.default_rng(0)
        for _ in range(_EPISODES):
            for step in range(_FRAMES):
                row = {name: random.standard_normal(_JOINTS, np.float32) for name in ("observation.state", "action")}
                images = {_camera(number): _image(random, step, number) for number in range(num_cameras)}
                dataset.add_frame({**row, **images, "task": "move"})
            dataset.save_episode()
        dataset.finalize()

    root = source.folder(f"episodes{num_cameras}", make) / "set"
    return LeRobotDataset("made/episodes", root=root, delta_timestamps=times, **options)


def _image(random: np.random.Generator, step: int, camera: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return moving gradients with noise."""
    rows, columns = np.mgrid[:_HEIGHT, :_WIDTH]
    planes = [columns * 0.3 + 3 * step, rows * 0.4 + 2 * step, (rows + columns) * 0.2 + 5 * step + 40 * camera]
    return (np.stack(planes, axis=-1) % 256 + random.normal(0, 3, (_HEIGHT, _WIDTH, 3))).clip(0, 255).astype(np.uint8)
