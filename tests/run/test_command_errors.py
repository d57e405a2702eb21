"""What a command cannot do is told in one line, before any script starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fastload import cli
from fastload.run import defaults

TRAIN = """
import sys
from torch.utils.data import DataLoader

class Failing(list):
    def __getitem__(self, index):
        raise OSError("no such file")

class Exiting(list):
    def __getitem__(self, index):
        sys.exit("no data today")

failing, exiting = DataLoader(Failing([1])), DataLoader(Exiting([1]))
loaders, seventeen, numbers = {"a": failing}, 17, [1, 2, 3]

def make():
    return numbers

def fail():
    raise ValueError("no data today")
"""

NO_SCRIPT = "a script, -m MODULE or -- PROGRAM is missing; see fastload run --help"
NO_TARGET = "a script, -m MODULE or MODULE:NAME is missing; see fastload {} --help"
# A command, its status, and what its line says. What is told of targets is the same for verify, explain and tune.
ERRORS = [
    ("run missing.py --epochs 3", 2, "no such script: missing.py\n"),
    ("run bash -c true", 2, "no such script: bash; to run a program write: fastload run -- bash\n"),
    ("run -- no-such-program", 2, "no such program: no-such-program\n"),
    *((f"run {words}", 2, NO_SCRIPT) for words in ("", "--report", "-m", "--")),
    ("doctor now", 2, "it takes no arguments, got now\n"),
    *((verb, 2, NO_TARGET.format(verb)) for verb in ("verify", "explain", "tune")),
    ("explain -- torchrun train.py", 2, "programs are not supported: name the script that it starts"),
    ("explain missing.py", 2, "no such script: missing.py"),
    ("explain missing.py:name", 2, "no such file: missing.py"),
    ("explain missing:name", 2, "no such module: missing; name a file as path/to/file.py:name"),
    ("explain ending.py:name", 2, "ending.py cannot be imported: SystemExit: 3"),
    ("explain bash train.py", 2, "no such script: bash; name the script that this program starts"),
    ("explain train.py:missing", 2, "train.py has no missing; it has"),
    ("explain train.py:make --more", 2, "train.py:make takes no arguments, got --more"),
    ("explain train.py:fail", 2, "train.py:fail() raised ValueError: no data today"),
    ("explain train.py:seventeen", 2, "explain takes a DataLoader, a dataset, or a function without arguments"),
    ("verify train.py:seventeen", 2, "verify takes a DataLoader, a dataset"),
    ("verify --methods=fork train.py:numbers", 2, "methods=['fork'] needs a seed"),
    ("tune train.py:loaders", 2, "train.py:loaders is of type dict: no DataLoader, nor a function"),
    ("tune train.py:make", 2, "train.py:make() is of type list: no DataLoader, nor a function"),
    ("tune --seconds 1 train.py:failing", 1, "the loader fails as it is: OSError: no such file"),
    ("tune --seconds 1 train.py:exiting", 1, "the loader fails as it is: SystemExit: no data today"),
    ("run --seeding tree train.py", 2, "seeding must be None, 'sample' or 'torch', got seeding='tree'"),
    ("run --fuse=perhaps train.py", 2, "got fuse='perhaps'"),
    ("run --seed 1 --seeding torch train.py", 2, "cannot be combined with seed=1"),
]


@pytest.fixture(autouse=True)
def _in_a_folder_where_no_script_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "ending.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("the script was started"))
    monkeypatch.setattr(cli, "_become", lambda *_: pytest.fail("the script was started"))
    yield
    sys.modules.pop("train", None)  # what is named as an object is imported into this process: here once a test


def line_of(command: str, status: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line that a command says on standard error, without its name; its status is this one."""
    before: Any = torch.utils.data.DataLoader.__init__
    assert cli.main(command.split()) == status
    assert torch.utils.data.DataLoader.__init__ is before
    said = capsys.readouterr().err
    begin = f"fastload {command.split()[0]}: "
    assert said.startswith(begin)
    assert said.count("\n") == 1
    return said.removeprefix(begin)


@pytest.mark.parametrize(("command", "status", "message"), ERRORS)
def test_what_cannot_be_done_is_told_in_one_line(command, status, message, capsys):
    assert message in line_of(command, status, capsys)


@pytest.mark.parametrize("verb", ["run", "verify", "explain", "tune"])
@pytest.mark.parametrize("target", ["train.py", "train.py:loader"])
def test_a_wrong_variable_is_told_by_each_verb(verb, target, monkeypatch, capsys):
    monkeypatch.setenv(defaults.VARIABLE, "fuse=perhaps")
    assert line_of(f"{verb} {target}", 2, capsys).startswith("FASTLOAD_LOADER='fuse=perhaps': fuse must be ")
