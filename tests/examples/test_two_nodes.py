"""Two torchrun agents, as on two machines, over loopback: one training of four ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripts import REPOSITORY
from trainings import Training, samples

pytestmark = pytest.mark.slow

SCRIPT = Path("examples/train.py")
TRAINING = ("--epochs", "2", "--limit-batches", "3", "--batch-size", "8", "--workers", "1", "--debug-samples")
_LIMIT_S = 300.0


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
    """Run a training with an agent for each node, until all have ended with status 0; return what each printed."""
    torchruns = ("RANK", "WORLD_SIZE", "MASTER_", "GROUP_", "LOCAL_", "ROLE_", "TORCHELASTIC_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(torchruns)}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    port = free_port(20_000 + os.getpid() % 10_000)
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={num_nodes}", f"--nproc-per-node={ranks_per_node}", "--local-addr=127.0.0.1"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={folder.name}"),
        *(str(SCRIPT), *TRAINING, str(folder / "apart")),
    ]
    agents: list[subprocess.Popen[bytes]] = []
    try:
        for node in range(num_nodes):
            with (folder / f"out-{node}").open("wb") as out:  # nobody reads a pipe while another agent is waited for
                agents.append(
                    subprocess.Popen(
                        command, cwd=REPOSITORY, env=environment, stdout=out, stderr=out, start_new_session=True
                    )
                )
        deadline = time.monotonic() + _LIMIT_S
        for agent in agents:
            agent.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()  # it ends its ranks, which are in sessions of their own
        for agent in agents:
            agent.wait(30)
    printed = [(folder / f"out-{node}").read_text() for node in range(num_nodes)]
    assert [agent.returncode for agent in agents] == [0] * num_nodes, "\n".join(printed)
    return printed


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_two_agents_train_one_network_with_the_samples_of_four_ranks_on_one_machine(tmp_path: Path) -> None:
    outputs = run_agents(tmp_path, 2, 2)
    assert sum("done in" in output for output in outputs) == 1  # rank 0 alone speaks
    with Training(tmp_path, *TRAINING, str(tmp_path / "together"), ranks=4) as training:
        training.finish()
    apart = samples(tmp_path, 4, "apart")
    assert apart == samples(tmp_path, 4, "together")
    assert sorted(apart) == list(range(6))
    (first,) = apart[0]
    assert len(first) == len(set(first)) == 8  # each rank has samples of its own
