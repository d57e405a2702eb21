"""``fastload whatif`` on a real recording, and the script run again with the change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastload.profiling.hooks.changing import Changing

SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        time.sleep(0.03)
        return torch.zeros(4)

class Quick(Slow):
    def __getitem__(self, index):
        return torch.zeros(4)

other = DataLoader(Quick(), 2, num_workers=0)
loader = DataLoader(Slow(), 2, True, num_workers=1)
print("loaders", other.num_workers, loader.num_workers, loader.prefetch_factor, loader.batch_size)
for batch in loader:
    time.sleep(0.01)
"""


def fastload(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fastload.cli", *words], cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whatif")
    (folder / "train.py").write_text(SCRIPT)
    done = fastload("profile", "--full", "--warmup", "5", "--out", "seen", "train.py", folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "loaders 0 1 2 2\n"
    return folder


def test_it_names_what_helps(recording):
    done = fastload("whatif", "seen", folder=recording)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("observed ")
    assert "-DataLoader(..., num_workers=1)" in done.stdout


def test_without_workers_every_step_waits_for_both_samples(recording):
    done = fastload("whatif", "seen", "--num-workers", "0", "--json", folder=recording)
    found = json.loads(done.stdout)
    assert found["simulation"]["trusted"]
    assert found["rerun_ms"] is None
    (fix,) = found["fixes"]
    assert fix["settings"] == {"num_workers": 0}
    assert fix["step_ms"]["value"] >= 70.0  # 2 x 30 + 10 ms of sleep, and a sleep is never shorter
    assert fix["speedup"] < 1.0


def test_the_script_runs_again_with_the_change_and_both_numbers_are_told(recording):
    done = fastload("whatif", "seen", "--num-workers", "0", "--rerun", "--json", folder=recording)
    assert done.returncode == 0, done.stderr
    script, _, text = done.stdout.partition("\n")
    assert script == "loaders 0 0 None 2"  # the loader that was profiled has changed, and no other
    found = json.loads(text)
    assert found["rerun_ms"] >= 70.0
    assert (recording / "seen-rerun-1" / "recording.json").exists()


def test_a_change_that_needs_an_edit_of_the_script_is_not_run_again(recording):
    done = fastload("whatif", "seen", "--cache", "encoded", "--rerun", folder=recording)
    assert done.returncode == 2
    assert done.stderr == (
        "fastload whatif: --rerun changes num_workers, prefetch_factor, in_order, persistent_workers, engine from "
        "outside; set one of these, and nothing else\n"
    )


def test_a_folder_that_is_no_recording_is_told_in_one_line(recording):
    done = fastload("whatif", ".", folder=recording)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "fastload whatif: . is no recording: it has no recording.json; make one with fastload profile\n"
    )


def test_a_rank_that_was_not_recorded_is_refused(recording):
    done = fastload("whatif", "seen", "--rank", "3", folder=recording)
    assert done.returncode == 2
    assert done.stderr == "fastload whatif: --rank must be one of those recorded (0), got 3\n"


class Loader:
    """Stands for a module's DataLoader."""

    def __init__(self, dataset, batch_size=1, shuffle=None, num_workers=0, *, prefetch_factor=None, timeout=0):
        self.given = {
            "dataset": dataset,
            "batch_size": batch_size,
            "shuffle": shuffle,
            "num_workers": num_workers,
            "prefetch_factor": prefetch_factor,
            "timeout": timeout,
        }


class Notes:
    """Stands for a recorder."""

    def __init__(self):
        self.kinds = []

    def note(self, kind, **what):
        self.kinds.append(kind)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_workers": 5}, {"num_workers": 5, "prefetch_factor": 3, "timeout": 7}),
        ({"prefetch_factor": 8}, {"num_workers": 2, "prefetch_factor": 8, "timeout": 7}),
        ({"num_workers": 0}, {"num_workers": 0, "prefetch_factor": None, "timeout": 0}),
    ],
)
def test_only_the_loader_that_is_meant_is_changed(settings, expected):
    class Module:
        DataLoader = type("DataLoader", (Loader,), {"__init__": Loader.__init__})

    notes = Notes()
    match = {"dataset": "builtins.list", "num_workers": 2, "batch_size": 4}
    Changing(json.dumps({"settings": settings, "match": match}), notes).hook(Module)
    meant = Module.DataLoader([1], 4, num_workers=2, prefetch_factor=3, timeout=7)
    assert {name: meant.given[name] for name in expected} == expected
    for other in (Module.DataLoader((1,), 4, True, 2), Module.DataLoader([1], 5, None, 2), Module.DataLoader([1], 4)):
        assert other.given["prefetch_factor"] is None
        assert other.given["num_workers"] in (0, 2)
    assert notes.kinds == ["changed"]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Module.DataLoader()
