"""Three ways for ranks to find each other: environment variables, an address, a file.

    python examples/parallelism/init_methods.py                    # two ranks, all three in turn
    python examples/parallelism/init_methods.py --method file

| way | what each rank needs | what it must reach | for |
| --- | --- | --- | --- |
| ``env://`` | RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in its environment | rank 0's port | torchrun, Slurm |
| ``tcp://host:port`` | rank and size as arguments | rank 0's port | your own launcher |
| ``file:///path`` | rank and size as arguments | a file that did not exist | one machine; NFS with locks |

Missing in the notes: a file that a killed run left behind breaks the next one, and the port must not be taken by
another process between choosing it and listening.

Measured: all three work, one after the other in the same two processes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

METHODS = ("env", "tcp", "file")


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port that no other process gets, and rank 0 can listen on.

    The socket is bound but does not listen; with SO_REUSEADDR, which torch's store sets too, another socket can.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def join(method: str, rank: int, world_size: int, port: int, folder: str) -> None:
    """Create the process group in one of the three ways."""
    limit = datetime.timedelta(seconds=60)
    if method == "env":
        told = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in told.items()})
        dist.init_process_group("gloo", init_method="env://", timeout=limit)
    elif method in ("tcp", "file"):
        where = f"tcp://127.0.0.1:{port}" if method == "tcp" else (Path(folder) / "meeting").as_uri()
        dist.init_process_group("gloo", init_method=where, timeout=limit, rank=rank, world_size=world_size)
    else:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")


def meet(rank: int, methods: tuple[str, ...], world_size: int, ports: tuple[int, ...], folder: str) -> dict[str, float]:
    """Create a group in each way; return the sum over all ranks of rank + 1, which needs all ranks."""
    sums = {}
    for method, port in zip(methods, ports, strict=True):
        join(method, rank, world_size, port, folder)
        value = torch.tensor(rank + 1.0)
        dist.all_reduce(value)
        sums[method] = value.item()
        dist.destroy_process_group()  # nothing else refers to the group: this waits for its threads
    if rank == 0:
        for method, total in sums.items():
            print(f"{method}://: {world_size} ranks, sum {total:g}", flush=True)
    return sums


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=METHODS, help="only this one")
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    methods = METHODS if args.method is None else (args.method,)
    with tempfile.TemporaryDirectory() as folder, reserved_port() as first, reserved_port() as second:
        ports = {"env": first, "tcp": second, "file": 0}
        told = (methods, args.ranks, tuple(ports[method] for method in methods), folder)
        mp.spawn(meet, told, nprocs=args.ranks)  # type: ignore[attr-defined, no-untyped-call]


if __name__ == "__main__":
    main()
