"""The page on object stores: samples read with fsspec over HTTP, several at a time.

The HTTP server is this module's own. It may answer only once as many requests wait as a test asks for.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fsspec
import fsspec.asyn
import pytest
import torch
from image_files import pixels
from PIL import Image
from torchvision.transforms import v2

import fastload

NUM_FILES = 24


class Bucket(torch.utils.data.Dataset[Any]):
    """The dataset of the page: images of any store that fsspec knows."""

    def __init__(self, protocol: str, paths: list[str]) -> None:
        self.protocol, self.paths = protocol, paths
        self.transform = v2.Compose([v2.RandomResizedCrop(16), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        store = fsspec.filesystem(self.protocol)
        data = store.cat_file(self.paths[index])
        return index, self.transform(Image.open(io.BytesIO(data)).convert("RGB"))


class Server(ThreadingHTTPServer):
    """Gives files by their names.

    Args:
        files: by name.
        parties: requests that must wait before any of them is answered.
    """

    request_queue_size = 128

    def __init__(self, files: dict[str, bytes], parties: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files = files
        self.barrier = threading.Barrier(parties)

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.server_port}/{name}" for name in self.files]


class _Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path[1:]
        self.server.barrier.wait(20)
        data = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(files: dict[str, bytes], **options: int) -> Iterator[Server]:
    with Server(files, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """JPEG files by name."""
    fsspec.asyn.get_loop()  # of a thread of its own, which stays, and has descriptors
    found = {}
    for number in range(NUM_FILES):
        buffer = io.BytesIO()
        Image.fromarray(pixels(40, 50, 3, seed=number)).save(buffer, "jpeg")
        found[f"{number}.jpg"] = buffer.getvalue()
    return found


def loaded(dataset: Any, **arguments: Any) -> list[Any]:
    return [repr(batch) for batch in fastload.DataLoader(dataset, 4, shuffle=True, seed=3, **arguments)]


def test_images_are_the_same_where_as_many_requests_wait_at_once_as_there_are_threads(files):
    with serving(files) as server:
        expected = loaded(Bucket("http", server.urls()))
    with serving(files, parties=12) as server:
        assert loaded(Bucket("http", server.urls()), num_workers=2, worker_threads=6) == expected
    assert len(expected) == NUM_FILES // 4
