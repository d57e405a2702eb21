"""``fastload whatif`` on a real recording, and the script run again with the change."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastload import DataLoader, cli, profile, transforms
from fastload.profiling import changes
from fastload.profiling.changes import lines_of
from fastload.profiling.hooks.rerun import ArgumentChange

pytestmark = pytest.mark.slow  # the recording takes ten seconds

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


def whatif(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The same of ``fastload whatif`` where it starts no script: in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(["whatif", *words])
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


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
    assert done.stdout.startswith("the simulation of the recorded run gives ")
    assert "-DataLoader(..., num_workers=1)" in done.stdout


def test_without_workers_every_step_waits_for_both_samples(recording):
    done = whatif("seen", "--num-workers", "0", "--json", folder=recording)
    found = json.loads(done.stdout)
    assert found["simulation"]["trusted"]
    assert (found["version"], found["rerun_ms"]) == (1, None)
    (fix,) = found["fixes"]
    assert fix["settings"] == {"num_workers": 0}
    assert fix["step_ms"]["value"] >= 70.0  # 2 x 30 + 10 ms of sleep, and a sleep is never shorter
    assert fix["speedup"] < 1.0


@pytest.mark.thorough
def test_the_script_runs_again_with_the_change_and_both_numbers_are_told(recording):
    done = fastload("whatif", "seen", "--num-workers", "0", "--rerun", "--json", folder=recording)
    assert done.returncode == 0, done.stderr
    script, _, text = done.stdout.partition("\n")
    assert script == "loaders 0 0 None 2"  # the loader that was profiled has changed, and no other
    found = json.loads(text)
    assert found["rerun_ms"] >= 70.0
    assert (recording / "seen-rerun" / "recording.json").exists()


def test_a_change_that_needs_an_edit_of_the_script_is_not_run_again(recording):
    done = whatif("seen", "--cache", "encoded", "--rerun", folder=recording)
    assert done.returncode == 2
    assert done.stderr == (
        "fastload whatif: --rerun cannot set cache, only num_workers, prefetch_factor, in_order, persistent_workers, "
        "fuse, seeding, engine; make the change in the script, record it again, and use fastload compare\n"
    )


def test_a_recording_that_a_program_made_of_itself_is_not_run_again(recording):
    with profile(folder=recording / "within"):
        list(DataLoader(range(120), 2))
    done = whatif("within", "--num-workers", "1", "--rerun", folder=recording)
    assert (done.returncode, done.stdout) == (2, "")
    assert "but this recording was made by fastload.profile() inside a program; make the change" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rerun"], "--rerun needs a change; set one of num_workers, "),
        (["--rerun", "--uint8", "--num-workers", "2", "--cache", "decoded"], "--rerun cannot set uint8, cache, only "),
        (["--out", "new"], "--out is the folder of the second recording; add --rerun"),
        (["--num-workers", "0", "--prefetch-factor", "4"], "prefetch_factor=4 needs workers, and there are none; set"),
        (["--num-workers", "0", "--persistent-workers"], "persistent_workers=True needs workers, and there are none"),
        (["--num-workers", "-1"], "num_workers must be an integer of at least 0, got -1"),
        (["--uint8"], "uint8 and pin_memory change copies that the loop waits for; none were recorded"),
        (
            ["--decoder-speedup", "2"],
            "decoder_speedup needs the stages of samples, and none were recorded; record with",
        ),
        (["--on-device", "Crop"], "on_device needs the stages of samples, and none were recorded; record with --"),
        (["--cache", "decoded"], "cache=decoded needs the stages of samples, and none were recorded; record with"),
    ],
)
def test_what_cannot_be_done_is_refused_by_one_line_that_says_why(recording, words, message):
    done = whatif("seen", *words, folder=recording)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--prefetch-factor", "4"],
        ["--no-in-order"],
        ["--persistent-workers"],
        ["--engine", "fastload"],
        ["--cache", "encoded"],
        ["--num-workers", "3", "--engine", "fastload", "--no-in-order"],
    ],
    ids=str,
)
def test_a_prediction_has_its_lines_and_what_bounds_the_run_next(recording, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    done = whatif("seen", *words, folder=recording)
    assert done.returncode == 0, done.stderr
    head, _, predicted, then, *change = done.stdout.splitlines()
    assert head.startswith("the simulation of the recorded run gives ")
    # On a busy machine the interval may reach 1.
    assert re.search(r" ms \[[\d.]+-[\d.]+\], [\d.]+x(, may gain nothing)?$", predicted)
    assert change
    assert all(line[0] in "+-#" for line in change)
    assert then.startswith("then limited by ")


def test_a_rank_that_was_not_recorded_is_refused_and_so_is_a_folder_that_is_no_recording(recording):
    done = whatif("seen", "--rank", "3", folder=recording)
    assert done.returncode == 2
    assert done.stderr == "fastload whatif: --rank must be one of the recorded ranks (0), got 3\n"
    done = whatif(".", folder=recording)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("fastload whatif: . is not a recording: ")


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

    match = {"dataset": "builtins.list", "num_workers": 2, "batch_size": 4}
    ArgumentChange(json.dumps({"settings": settings, "match": match})).patch(Module)
    meant = Module.DataLoader([1], 4, num_workers=2, prefetch_factor=3, timeout=7)
    assert {name: meant.given[name] for name in expected} == expected
    for other in (Module.DataLoader((1,), 4, True, 2), Module.DataLoader([1], 5, None, 2), Module.DataLoader([1], 4)):
        assert other.given["prefetch_factor"] is None
        assert other.given["num_workers"] in (0, 2)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Module.DataLoader()


# -- lines to change ---------------------------------------------------------------------------------------------------


BEFORE = {"num_workers": 2, "prefetch_factor": 2, "in_order": True, "engine": "torch", "persistent_workers": False}
FOLDER = "torchvision.datasets.folder.ImageFolder"
SETTINGS: list[dict[str, Any]] = [
    {"num_workers": 4},
    {"prefetch_factor": 8},
    {"in_order": False},
    {"engine": "fastload"},
    {"persistent_workers": True},
    {"pin_memory": True},
    {"uint8": True},
    {"cache": "encoded"},
    {"cache": "decoded"},
    {"decoder_speedup": 2.0},
    {"on_device": ["Normalize", "Mine"]},
    {"fuse": True},
    {"seeding": "torch"},
    {"seeding": "sample"},
]


def lines(settings: dict[str, Any], dataset: str = "__main__.Mine", **before: Any) -> list[str]:
    return lines_of({**BEFORE, **before}, {"num_workers": 2, "dataset": dataset}, settings).split("\n")


def test_every_knob_is_among_those_that_are_tried_here() -> None:
    assert {knob for settings in SETTINGS for knob in settings} == set(changes.SETTINGS)


@pytest.mark.parametrize("dataset", [FOLDER, "torchvision.datasets.cifar.CIFAR10", "__main__.Mine"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_knob_has_lines_or_words_that_fit_on_a_card(settings: dict[str, Any], dataset: str) -> None:
    found = lines(settings, dataset)
    assert any(line.startswith("+") for line in found) or "more than one line" in found[0] or "write it" in found[0]
    assert all(line[0] in "+-#" for line in found)
    assert max(map(len, found)) <= 90


def test_the_loader_is_exchanged_in_the_direction_that_was_asked_for() -> None:
    ours, torchs = "from fastload import DataLoader", "from torch.utils.data import DataLoader"
    assert lines({"engine": "fastload"})[:2] == [f"-{torchs}", f"+{ours}"]
    assert lines({"engine": "torch"}, engine="fastload") == [f"-{ours}", f"+{torchs}"]
    assert lines({"engine": "torch"}) == [""]


def test_keys_are_asked_for_by_a_seed_and_told_to_change_the_augmentation() -> None:
    call, *words = lines({"seeding": "sample"}, engine="fastload", seeding="torch")[1:]
    assert call == "+DataLoader(..., seed=1)"
    assert words[0].startswith("# other augmentation: ")


def test_of_two_knobs_that_change_the_same_line_it_stands_there_once() -> None:
    found = lines({"engine": "fastload", "cache": "decoded", "decoder_speedup": 2.0, "num_workers": 3}, "a.Mine")
    assert found.count("+from fastload import DataLoader") == 1


def test_arguments_and_transforms_that_are_named_exist() -> None:
    arguments = inspect.signature(DataLoader).parameters
    assert {"resident", "batch_transform", "fuse", "device"} <= set(arguments)
    counterparts = {"ToTensor": "ToDtype", "ConvertImageDtype": "ToDtype"}
    for name in [*transforms.__all__, *counterparts]:
        assert counterparts.get(name, name) in transforms.__all__
        (line,) = [line for line in lines({"on_device": [name]}) if "T." in line and line.startswith("+    ")]
        assert line == f"+    T.{counterparts.get(name, name)}(...)"
    assert lines({"on_device": ["Mine"]}) == ["# Mine: write it for a whole batch, on the device, after x.to(device)"]


def test_the_command_that_packs_a_folder_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for settings in ({"cache": "encoded"}, {"cache": "decoded"}):
        command = lines(settings, FOLDER)[0].removeprefix("+").partition("  #")[0].split()
        assert command[:2] == ["fastload", "pack"]
        named = {"FOLDER": str(tmp_path / "none"), "PACKED": str(tmp_path / "packed")}
        assert cli.main([named.get(word, word) for word in command[1:]]) == 1, "it was understood, and finds no folder"
        assert "none" in capsys.readouterr().err
