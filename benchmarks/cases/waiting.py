"""Files that take 20 ms to come: a server on this machine that answers late, and a sleep as the control.

Claim: two worker processes with ``worker_threads=16`` load ten times what torch's loader does with two workers, and as
much as it does with 32 workers, in 0.3 of their memory. Where nothing waits, two threads take as long as one.

The server needs a few percent of a core for each thousand requests. Each thread keeps its connection.

Meaningless if: other work runs on the cores.
"""

import asyncio
import dataclasses
import http.client
import io
import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.cases.imagefolder import build_transform
from benchmarks.files import image_files
from benchmarks.loops import make_loader, time_epoch
from benchmarks.process_memory import read_tree_memory
from benchmarks.spec import TORCH, Case, Measurement, Metric, Side, rates


async def _answer(
    files: list[bytes], delay_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests ``GET /number`` of one connection, each after the delay."""
    try:
        while line := await reader.readline():
            while await reader.readline() not in (b"\r\n", b""):
                pass
            await asyncio.sleep(delay_s)
            data = files[int(line.split()[1][1:])]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            await writer.drain()
    except ConnectionError:
        pass  # a worker has ended
    finally:
        writer.close()


def _serve(paths: list[str], delay_s: float, port: Connection) -> None:
    """Serve the files until the parent closes its end of ``port``, over which the server's port is sent."""
    files = [Path(path).read_bytes() for path in paths]

    async def serve() -> None:
        def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
            return _answer(files, delay_s, reader, writer)

        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        port.send(server.sockets[0].getsockname()[1])
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(port.fileno(), ended.set)
        await ended.wait()

    asyncio.run(serve())


@contextmanager
def server(paths: list[str], delay_s: float) -> Iterator[tuple[int, int]]:
    """Run a process that serves the files; give its port and process id."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_serve, args=(paths, delay_s, its))
    process.start()
    its.close()
    assert process.pid is not None
    try:
        yield ours.recv(), process.pid
    finally:
        ours.close()
        process.join()


class WaitingImages(torch.utils.data.Dataset[Any]):
    """JPEG files, again and again until there are ``num_samples``: from a server at ``port``, or after a sleep."""

    def __init__(self, paths: list[str], port: int | None, delay_s: float, num_samples: int) -> None:
        self.paths, self.port, self.delay_s, self.num_samples = paths, port, delay_s, num_samples
        self.transform = build_transform("v1")
        self.connections: threading.local | None = None

    def __len__(self) -> int:
        return self.num_samples

    def _read(self, number: int) -> bytes:
        if self.port is None:
            time.sleep(self.delay_s)
            return Path(self.paths[number]).read_bytes()
        if self.connections is None:
            self.connections = threading.local()
        connection = getattr(self.connections, "one", None)
        if connection is None:
            connection = self.connections.one = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", f"/{number}")
        return bytes(connection.getresponse().read())

    def __getitem__(self, index: int) -> Any:
        data = self._read(index % len(self.paths))
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB"))


def epoch(
    side: Side,
    *,
    image_root: str,
    num_images: int,
    batch_size: int,
    delay_ms: float,
    served: bool,
) -> Measurement:
    """Time an epoch, the workers persistent and started, and read the memory of all processes in its middle.

    "PSS MiB" counts the loader's processes: this one and its workers.
    """
    paths = [str(path) for path, _ in image_files(Path(image_root))]
    if served:
        with server(paths, delay_ms / 1e3) as (port, server_pid):
            return _epoch(side, WaitingImages(paths, port, delay_ms / 1e3, num_images), batch_size, server_pid)
    return _epoch(side, WaitingImages(paths, None, delay_ms / 1e3, num_images), batch_size)


def _epoch(side: Side, dataset: WaitingImages, batch_size: int, server_pid: int | None = None) -> Measurement:
    torch.manual_seed(0)
    side = dataclasses.replace(side, options={"num_workers": 2, **side.options})
    loader = make_loader(side, dataset, batch_size=batch_size, shuffle=True, persistent_workers=True)
    memory_mib = 0.0
    for number, _batch in enumerate(loader):  # starts the workers
        if number == len(loader) // 2:
            memory_mib = read_tree_memory().pss_mib
            if server_pid is not None:
                memory_mib -= read_tree_memory(server_pid).pss_mib
    measured = time_epoch(loader, samples_per_batch=batch_size, num_warm_batches=10)
    return {**measured, "PSS MiB": memory_mib}


FASTLOAD_16 = Side(
    name="fastload, 16 threads", package="fastload", options={"worker_threads": 16}, compared_with="torch"
)
TORCH_32 = Side(name="torch, 32 workers", package="torch", options={"num_workers": 32, "prefetch_factor": 2})
FASTLOAD_BESIDE_32 = dataclasses.replace(FASTLOAD_16, compared_with=TORCH_32.name)
ONE_THREAD = Side(name="fastload, 1 thread", package="fastload")
TWO_THREADS = Side(
    name="fastload, 2 threads", package="fastload", options={"worker_threads": 2}, compared_with="fastload, 1 thread"
)


def _case(
    name: str, sides: tuple[Side, ...], sizes: tuple[int, int], goal: float, *, delay_ms: float = 20.0,
    least_memory: float | None = None,
) -> Case:  # fmt: skip
    """Return a case; ``sizes``: images, as a rule and under ``--quick``."""
    return Case(
        name=f"waiting-{name}",
        measure="benchmarks.cases.waiting:epoch",
        metrics=(*rates(goal, None), Metric(name="PSS MiB", least_ratio=least_memory)),
        arguments={"num_images": sizes[0], "batch_size": 16, "delay_ms": delay_ms, "served": "server" in name},
        quick={"num_images": sizes[1]},
        sides=sides,
        fresh_process=True,
        needs_images=True,
    )


CASES = (
    *(_case(kind, (TORCH, FASTLOAD_16), (800, 480), 10.0) for kind in ("server", "sleep")),
    *(
        _case(f"{kind}-32-workers", (TORCH_32, FASTLOAD_BESIDE_32), (3200, 1600), 1.0, least_memory=1 / 0.3)
        for kind in ("server", "sleep")
    ),
    _case("nothing", (ONE_THREAD, TWO_THREADS), (4000, 1600), 0.97, delay_ms=0.0),
)
