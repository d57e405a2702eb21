"""Two torchrun agents, as on two machines, over loopback: one training of four ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scripts import REPOSITORY, run_as_torchrun

pytestmark = pytest.mark.slow

RECORDED = Path("tests/examples/recorded.py")
TRAINING = ("examples/train.py", "--epochs", "2", "--limit-batches", "3", "--batch-size", "8", "--workers", "1")
_LIMIT_S = 300.0
_FIRST_PORT = 20_000


def free_port(first: int) -> int:
    """Return a port from ``first`` on on which nobody listens, of those that the system gives to nobody by itself."""
    for port in range(first, 32_000):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def run_agents(folder: Path, num_nodes: int, ranks_per_node: int) -> list[str]:
    """Run a training with an agent for each node, until all have ended with status 0.

    Args:
        folder: where the records go.
        num_nodes: how many nodes it has.
        ranks_per_node: ranks on each.

    Returns:
        What each agent wrote to its output.
    """
    torchruns = ("RANK", "WORLD_SIZE", "MASTER_", "GROUP_", "LOCAL_", "ROLE_", "TORCHELASTIC_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(torchruns)}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    agents: list[subprocess.Popen[bytes]] = []
    try:
        port = free_port(_FIRST_PORT + os.getpid() % 10_000)
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--nnodes={num_nodes}", f"--nproc-per-node={ranks_per_node}", "--local-addr=127.0.0.1"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={folder.name}"),
            *(str(RECORDED), str(folder), *TRAINING),
        ]
        for node in range(num_nodes):
            # To files: nobody reads a pipe while another agent is waited for.
            with (folder / f"out-{node}").open("wb") as out, (folder / f"err-{node}").open("wb") as err:
                agents.append(
                    subprocess.Popen(
                        command, cwd=REPOSITORY, env=environment, stdout=out, stderr=err, start_new_session=True
                    )
                )
        deadline = time.monotonic() + _LIMIT_S
        for agent in agents:
            agent.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass  # the assert below shows what was written
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()  # it ends its ranks, which are in sessions of their own
        for agent in agents:
            try:
                agent.wait(15)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
    written = [file.read_text() for file in sorted(folder.glob("*-*"))]
    assert [agent.returncode for agent in agents] == [0] * len(agents), "\n".join(written)
    return [(folder / f"out-{node}").read_text() for node in range(num_nodes)]


def records(folder: Path) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """Return who the four ranks were, and the digests of the batches that each was given."""
    of_ranks = [[json.loads(line) for line in (folder / f"rank-{rank}").read_text().splitlines()] for rank in range(4)]
    return [lines[0] for lines in of_ranks], [lines[1:] for lines in of_ranks]


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_two_agents_train_one_network_with_the_samples_of_four_ranks_on_one_machine(tmp_path: Path) -> None:
    apart, together = tmp_path / "apart", tmp_path / "together"
    apart.mkdir()
    together.mkdir()
    outputs = run_agents(apart, 2, 2)
    run_as_torchrun(RECORDED, str(together), *TRAINING, folder=tmp_path, num_ranks=4)

    ranks, batches = records(apart)
    assert [(rank["LOCAL_RANK"], rank["WORLD_SIZE"], rank["GROUP_RANK"]) for rank in ranks] == [
        ("0", "4", "0"),
        ("1", "4", "0"),
        ("0", "4", "1"),
        ("1", "4", "1"),
    ]
    assert ranks[0]["agent"] == ranks[1]["agent"] != ranks[2]["agent"] == ranks[3]["agent"]
    assert sum("done in" in output for output in outputs) == 1  # rank 0 alone speaks

    assert batches == records(together)[1]
    assert all(len(of_rank) >= 2 * 3 for of_rank in batches)
    flat = [batch for of_rank in batches for batch in of_rank[:3]]
    assert len(flat) == len(set(flat))  # each rank has samples of its own
