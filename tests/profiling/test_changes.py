"""The lines that a what-if says to change: they name what the package has, or say in words what to do."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from fastload import DataLoader, cli, transforms
from fastload.profiling import changes
from fastload.profiling.changes import lines_of

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
