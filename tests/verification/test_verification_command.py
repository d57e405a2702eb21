"""``fastload verify``, end to end: scripts and objects, exit statuses, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.scripts import TRAIN

from fastload import cli
from fastload.verification.subject import why_not_imported


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def verify(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastload.cli", "verify", *words]
    return subprocess.run(command, capture_output=True, text=True)


def culprits_in(told: str) -> set[str]:
    """Return the places of what is to blame, in the JSON of a report that is not well."""
    found = json.loads(told)
    assert found["ok"] is False
    assert {check["difference"]["leaf"] for check in found["checks"] if check["difference"]} == {"[0]"}
    return {check["culprit"]["place"] for check in found["checks"] if check["culprit"]}


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_scripts_loader_is_verified_in_place_of_going_on(folder: Path):
    done = verify("--batches", "2", "--seed=0", "--methods=fork,spawn", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deterministic: 13 equal" in done.stdout
    assert "1 spawn" in done.stdout
    assert "the script's own words" in done.stdout
    assert "trained" not in done.stdout
    assert "went on" not in done.stdout


@pytest.mark.slow
def test_a_scripts_loader_without_a_seed_is_compared_with_torchs(folder: Path):
    done = verify("train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 batches of two epochs equal torch's, bit for bit" in done.stdout
    assert "\nfastload verify: 12 batches of two epochs equal torch's" in done.stdout
    assert "trained" not in done.stdout


@pytest.mark.slow
def test_a_script_with_a_broken_stage_ends_with_status_1_and_pure_json(folder: Path):
    options = ["--batches=2", "--seed=0", "--methods=inline", "--loader=2", "--json", "-"]
    done = verify(*options, "train.py", "--bad", "--warm-up")
    assert done.returncode == 1, done.stdout + done.stderr
    assert culprits_in(done.stdout) == {"dataset.transform, stage 3 of 3"}
    assert "the script's own words" in done.stderr


def test_an_object_of_a_file_is_verified_with_its_json_in_a_file(folder: Path, capsys: Any):
    options = ["--batches=2", "--seed=0", "--methods", "inline", "--batch-size", "4", "--json", "out.json"]
    assert cli.main(["verify", *options, "train.py:make"]) == 1
    assert "first stage that differs: Noise() (dataset.transform, stage 3 of 3)" in capsys.readouterr().out
    assert culprits_in(Path("out.json").read_text()) == {"dataset.transform, stage 3 of 3"}


@pytest.mark.slow
def test_a_script_that_iterates_no_loader_ends_with_status_2(folder: Path):
    Path("idle.py").write_text("import torch; print('idle')")
    done = verify("idle.py")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "fastload verify: idle.py did not iterate over a DataLoader; give it arguments that make it train, or name a "
        "loader as MODULE:NAME"
    ]
    Path("broken.py").write_text("raise SystemExit(7)")
    done = verify("broken.py")
    assert done.returncode == 2
    assert "broken.py ended with status 7 before it iterated over a loader" in done.stderr


def test_a_script_without_a_guard_is_not_spawned(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    assert "the script has no `if __name__ == '__main__':`" in (why_not_imported(str(script)) or "")
    script.write_text("def main(): ...\nif '__main__' == __name__:\n    main()\n")
    assert why_not_imported(str(script)) is None
