"""Every command in README and docs: shell parses it; fastload's own run; of the others it is said why they do not.

The commands of a page run one after the other in a folder that has what they name (``scripts/``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documentation_blocks import PAGES, Block, blocks_of

SCRIPTS = Path(__file__).parent / "scripts"

# Beginnings of commands that do not run here, and why.
NOT_RUN: dict[str, str] = {
    "pip install": "installs packages",
    "apt-get install": "installs packages",
    "uv add": "installs packages",
    'CC="cc -mavx2" uv add': "installs packages",
    "git clone": "there is no address",
    "uv run": "the tests and checks themselves, and examples/train.py, which tests/examples runs",
    "torchrun": "tests/examples runs examples/train.py under torchrun, also as two machines",
    "srun": "there is no cluster",
    "ray start": "there is no cluster",
    "RAY_ADDRESS=": "there is no cluster; tests/examples runs the same on one that it starts",
    "PYTHON_GIL=0 python3.14t": "there is no free-threaded Python",
}


def shell_of(path: Path) -> list[Block]:
    return [block for block in blocks_of(path) if block.language == "sh"]


def why_not(command: str) -> str | None:
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)


WITH_SHELL = [path for path in PAGES if shell_of(path)]

# A command that several pages have runs on the last of them, whose subject it is: README and index come first.
PAGE_OF = {
    command: path
    for path in sorted(WITH_SHELL, key=lambda path: path.stem not in ("README", "index"))
    for block in shell_of(path)
    for command in block.commands
    if why_not(command) is None
}
WITH_COMMANDS = sorted(set(PAGE_OF.values()))


@pytest.mark.parametrize("path", WITH_SHELL, ids=lambda path: path.stem)
def test_the_shell_can_parse_a_pages_commands(path: Path) -> None:
    for block in shell_of(path):
        done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), f"{block}: {done.stderr}"
        assert block.commands, f"{block}: no command"


def test_no_reason_is_left_over() -> None:
    commands = [command for path in WITH_SHELL for block in shell_of(path) for command in block.commands]
    assert [start for start in NOT_RUN if not any(command.startswith(start) for command in commands)] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", WITH_COMMANDS, ids=lambda path: path.stem)
def test_a_pages_commands_run(path: Path, tmp_path: Path) -> None:
    shutil.copytree(SCRIPTS, tmp_path, dirs_exist_ok=True)
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, check=True)
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": places, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for block in shell_of(path):
        for command in block.commands:
            if PAGE_OF.get(command) == path:
                done = subprocess.run(
                    ["bash", "-c", shortened(command)], cwd=tmp_path, env=environment, capture_output=True, text=True
                )
                # On a busy machine a simulation may not reproduce the recorded run, and nothing is predicted: status 1.
                fine = {0, 1} if command.startswith("fastload whatif") else {0}
                assert done.returncode in fine, f"{block}: {command}: {done.stdout[-2000:]} {done.stderr[-4000:]}"


def shortened(command: str) -> str:
    """Return a command as it is, or with less time to take, for one that takes as much as it is given."""
    if command.startswith("fastload tune"):
        return command.replace("--seconds 120", "").replace("fastload tune", "fastload tune --seconds 2")
    return command
