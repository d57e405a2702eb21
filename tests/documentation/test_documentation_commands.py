"""Every command in README and docs: shell parses it, fastload's parser its own, and these run; others are listed whole.

The commands of a page run one after the other in a folder that has what they name (``scripts/``).
"""

from __future__ import annotations

import json
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

# Commands that do not run here, whole, and why.
NOT_RUN: dict[str, list[str]] = {
    "installs packages": [
        "pip install ./fastload",
        "pip install nvidia-dali-cuda130",
        'pip install "ray[train]"',
        "pip install uv",
        "pip uninstall -y fastload torch-fastload",
        "apt-get install -y gcc libjpeg-dev zlib1g-dev",
        "uv add ./fastload",
        'CC="cc -mavx2" uv add pillow-simd',
        "uv run --no-project --isolated --with . --with torch==2.6.0 --with torchvision==0.21.0 --with pytest "
        "--with pytest-timeout --with pytest-xdist --with hypothesis pytest tests/contract",
        "uv run -m benchmarks.release --out dist",
    ],
    "there is no address": [
        "git clone ADDRESS_OF_THE_REPOSITORY fastload",
        "git clone URL fastload && cd fastload",
    ],
    "runs these tests": [
        "pip install uv && uv run pytest",
        "uv run pytest tests/documentation",
        "uv run pytest tests/transforms",
    ],
    ".ci/run builds the site": [
        "uv run --only-group docs mkdocs build --strict",
        "uv run --only-group docs mkdocs serve",
    ],
    "tests/test_benchmarks.py runs it": ["uv run python -m benchmarks.figures"],
    "measures for minutes or hours": [
        "uv run python -m benchmarks.engine --data DIR",
        "uv run python -m benchmarks.engine --data DIR --rows benchmarks/rows/engine.csv",
        "uv run python -m benchmarks.engine --data DIR --rows benchmarks/rows/engine.csv tiny",
        "uv run python -m benchmarks.peers --data DIR --envs ENVS",
        "uv run python -m benchmarks.peers.install ENVS",
        "uv run python -m benchmarks.profiling.zoo",
        "uv run --with-requirements benchmarks/pipelines/requirements.txt python -m benchmarks.pipelines --data DIR",
    ],
    "tests/examples runs examples/train.py under torchrun, also as two machines": [
        "pip install uv && uv run torchrun --nproc-per-node=2 examples/train.py",
        "uv run torchrun --nproc-per-node=2 examples/train.py",
        "uv run torchrun --nproc-per-node=2 examples/train.py --out runs/1",
        "uv run torchrun --nproc-per-node=2 examples/train.py --out runs/2",
        "uv run torchrun --nproc-per-node=2 examples/train.py --data-dir DIR",
        "uv run torchrun --nproc-per-node=8 examples/train.py --data-dir DIR --recipe imagenet-resnet50 --fuse "
        "--workers 8 --precision bf16 --channels-last --compile --out runs/1",
        "torchrun --nproc-per-node=8 train.py",
        "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 --rdzv-id=1 "
        "examples/train.py",
    ],
    "tests/examples/test_minimal.py runs it, in ranks like torchrun's": [
        "uv run python examples/minimal.py",
        "uv run torchrun --nproc-per-node=2 examples/minimal.py --out runs/1",
    ],
    "there is no cluster": [
        "srun --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64 bash -c 'torchrun "
        "--nnodes=$SLURM_NNODES --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
        "--rdzv-endpoint=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):29500 examples/train.py'",
        "RAY_ADDRESS=auto torchrun --nproc-per-node=8 examples/train.py --worker-method ray --workers 16 --out runs/1",
        "ray start --head --port=6379",
        "ray start --address=HEAD:6379",
    ],
    "tests/examples runs it on a cluster that it starts": [
        "RAY_ADDRESS=auto python examples/ray_train.py --ranks 8 --workers 16 --max-failures 3 "
        "--out s3://bucket/runs/1",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 uv run python examples/ray_train.py --ranks 2 --out runs/1",
    ],
    "tests/test_cli.py runs such": [
        "fastload run -m package.train",
        "fastload run -- torchrun --nproc-per-node=2 train.py",
    ],
    "downloads a dataset": [
        "uv run python examples/train.py --dataset cifar10 --data-dir DIR --download --resident auto",
    ],
    "there is no free-threaded Python": [
        "PYTHON_GIL=0 python3.14t train.py",
    ],
}
REASONS = {command: why for why, commands in NOT_RUN.items() for command in commands}


def shell_of(path: Path) -> list[Block]:
    return [block for block in blocks_of(path) if block.language == "sh"]


def in_one_line(command: str) -> str:
    return " ".join(command.replace("\\\n", " ").split())


def left_out_because(command: str) -> str | None:
    return REASONS.get(in_one_line(command))


WITH_SHELL = [path for path in PAGES if shell_of(path)]

# A command that several pages have runs on the last of them, whose subject it is: README and index come first.
PAGE_OF = {
    command: path
    for path in sorted(WITH_SHELL, key=lambda path: path.stem not in ("README", "index"))
    for block in shell_of(path)
    for command in block.commands
    if left_out_because(command) is None
}
WITH_COMMANDS = sorted(set(PAGE_OF.values()))


def test_no_reason_is_left_over() -> None:
    commands = {in_one_line(one) for path in WITH_SHELL for block in shell_of(path) for one in block.commands}
    assert sorted(set(REASONS) - commands) == []


@pytest.mark.parametrize("path", WITH_SHELL, ids=lambda path: path.stem)
def test_the_shell_can_parse_a_command_which_runs_or_is_listed_and_fastload_understands_its_own(path: Path) -> None:
    for block in shell_of(path):
        done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), f"{block}: {done.stderr}"
        assert block.commands, f"{block}: no command"
        for command in block.commands:
            words = [one for one in shlex.split(command) if not re.match(r"[A-Z_]+=", one)]
            if left_out_because(command) is None:
                assert words[0] == "fastload", f"{block}: {command!r} is no command of fastload, and not in NOT_RUN"
                parse(words[1:], f"{block}: {command}")


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
    commands = {one: str(block) for block in shell_of(path) for one in block.commands if PAGE_OF.get(one) == path}
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": places, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("in_one_interpreter.py"), tmp_path, *map(shortened, commands)],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    statuses = json.loads(done.stdout)
    assert len(statuses) == len(commands)
    for number, (command, where) in enumerate(commands.items()):
        said = (tmp_path / f"{number}.out").read_text()
        assert statuses[number] == 0, f"{where}: {command}: {said[-4000:]}"


def shortened(command: str) -> str:
    """Return a command as it is, or with less to do: it must still do each thing that the page is about."""
    if command.startswith("fastload tune"):
        return command.replace("--seconds 120", "").replace("fastload tune", "fastload tune --seconds 1")
    if command.startswith("fastload verify") and not command.endswith(":dataset"):
        return command.replace("fastload verify", "fastload verify --batches 2")
    return command.replace("torchrun --nproc-per-node=2", "torchrun --nproc-per-node=1")
