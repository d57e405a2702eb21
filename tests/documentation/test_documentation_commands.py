"""Every command in README and docs: shell parses it, fastload's parser its own, and these run.

The commands of a page run one after the other in a folder that has what they name (``scripts/``).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documentation_blocks import PAGES, Block, blocks_of

from fastload import cli

SCRIPTS = Path(__file__).parent / "scripts"

# Programs whose commands do not run here: they install, download, measure for hours, or need a cluster. What they name
# of examples and benchmarks is there, as test_documentation_reference.py sees.
NOT_RUN = {"apt-get", "git", "pip", "python", "python3.14t", "ray", "srun", "torchrun", "uv"}
RUN_IN_TEST_CLI = {"fastload run -m package.train", "fastload run -- torchrun --nproc-per-node=2 train.py"}


def shell_of(path: Path) -> list[Block]:
    return [block for block in blocks_of(path) if block.language == "sh"]


def words_of(command: str) -> list[str]:
    """Return the words of a command, from its program on."""
    words = shlex.split(command)
    while re.match(r"[A-Z_]+=", words[0]):
        del words[0]
    return words


WITH_SHELL = [path for path in PAGES if shell_of(path)]

# A command that several pages have runs on the last of them, whose subject it is: README and index come first.
PAGE_OF = {
    command: path
    for path in sorted(WITH_SHELL, key=lambda path: path.stem not in ("README", "index"))
    for block in shell_of(path)
    for command in block.commands
    if words_of(command)[0] == "fastload" and command not in RUN_IN_TEST_CLI
}
WITH_COMMANDS = sorted(set(PAGE_OF.values()))


@pytest.mark.parametrize("path", WITH_SHELL, ids=lambda path: path.stem)
def test_the_shell_can_parse_a_command_and_fastload_understands_its_own(path: Path) -> None:
    for block in shell_of(path):
        done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), f"{block}: {done.stderr}"
        assert block.commands, f"{block}: no command"
        for program, *words in map(words_of, block.commands):
            if program not in NOT_RUN:
                assert program == "fastload", f"{block}: {program} is not in NOT_RUN"
                parse(words, f"{block}: {words}")


def parse(words: list[str], where: str) -> None:
    """Read the words after ``fastload`` as it does, without carrying anything out."""
    parser, verbs = cli._parsers()
    own, _ = cli.split_command(words, verbs)
    try:
        _, unknown = parser.parse_known_args(own)
    except SystemExit as done:  # after --version, and after what the parser printed of an error
        assert done.code == 0, where
        return
    assert unknown == [], where


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", WITH_COMMANDS, ids=lambda path: path.stem)
def test_a_pages_commands_run(path: Path, tmp_path: Path) -> None:
    shutil.copytree(SCRIPTS, tmp_path, dirs_exist_ok=True)
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, check=True)
    # One that a page has twice runs once.
    commands = dict.fromkeys(one for block in shell_of(path) for one in block.commands if PAGE_OF.get(one) == path)
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": places, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    script = "\n".join(["set -ex", *map(shortened, commands)])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def shortened(command: str) -> str:
    """Return a command as it is, or with less to do: it must still do each thing that the page is about."""
    if command.startswith("fastload tune"):
        return command.replace("--seconds 120", "").replace("fastload tune", "fastload tune --seconds 1")
    if command.startswith("fastload verify") and not command.endswith(":dataset"):
        return command.replace("fastload verify", "fastload verify --batches 2")
    return command.replace("torchrun --nproc-per-node=2", "torchrun --nproc-per-node=1")
