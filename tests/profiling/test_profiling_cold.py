"""``fastload profile --cold``: files are taken out of the page cache before workers open them."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import pytest
from profiled import profile, write

from fastload.profiling.hooks.cold import drop
from fastload.profiling.recording import read_settings

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system has no posix_fadvise")

SIZE = 256 << 10

SCRIPT = """
FOLDER = sys.argv[1]

class Files(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        with open(f"{FOLDER}/{index}", "rb") as file:
            return len(file.read())

if __name__ == "__main__":
    print(sum(int(batch.sum()) for batch in DataLoader(Files(), batch_size=4, num_workers=int(sys.argv[2]))))
"""


def written(folder: Path, number: int) -> Path:
    """Write files of 256 KiB that are on the disk and in memory; return their folder."""
    folder.mkdir()
    for name in range(number):
        with (folder / str(name)).open("wb") as file:
            file.write(os.urandom(SIZE))
            os.fsync(file.fileno())
    return folder


def is_dropped(path: Path) -> bool:
    """Whether reading a file that was in memory asks the device for it again."""
    before = _from_device()
    path.read_bytes()
    return _from_device() > before


def _from_device() -> int:
    return int(Path("/proc/self/io").read_text().split("read_bytes: ")[1].split()[0])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files that a device has to be asked for once they are out of memory; a file system in memory has none."""
    folder = written(tmp_path / "files", 40)
    if not Path("/proc/self/io").exists():
        pytest.skip("this system does not tell how much was read from a device")
    (folder / "0").read_bytes()
    drop(str(folder / "0"))
    if not is_dropped(folder / "0"):
        pytest.skip("the folder for temporary files keeps them in memory")
    return folder


def test_what_is_no_ordinary_file_is_left_alone(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    drop(str(tmp_path / "pipe"))  # nobody writes to it: waiting for someone would be for ever
    drop(os.devnull)
    with pytest.raises(FileNotFoundError):
        drop(str(tmp_path / "nothing"))


def test_a_file_in_use_keeps_its_contents(tmp_path: Path):
    path = written(tmp_path / "files", 1) / "0"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        before = bytes(mapped)
        drop(str(path))
        assert bytes(mapped) == before


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_with_cold_every_file_comes_from_the_device(tmp_path: Path, files: Path, workers: int):
    read = {}
    for name, options in {"warm": (), "cold": ("--cold",)}.items():
        folder = tmp_path / name
        script = write(folder, SCRIPT)
        done = profile(folder, script, files, workers, options=("--full", "--warmup", "0", *options))
        assert done.status == 0, done.errors
        assert done.output.strip() == str(40 * SIZE)
        read[name] = sum(task.device_bytes or 0 for step in done.trace.ranks[0].steps for task in step.batch.tasks)
        assert ("hits in the page cache" in done.trace.missing) == bool(options)
        told = json.loads((done.folder / "profile.json").read_text(encoding="utf-8"))["ranks"][0]["workers"]
        assert (told["cache_hit"] is None) == bool(options)
        assert read_settings(str(done.folder))["cold"] == bool(options)
    assert read["warm"] < 40 * SIZE / 4
    assert read["cold"] >= 40 * SIZE
