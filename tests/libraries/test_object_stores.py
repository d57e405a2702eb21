"""The page on object stores: samples read with fsspec from memory, files and HTTP, several at a time.

The HTTP server is this module's own. It may answer late, with errors that pass, or only once as many requests wait as
a test asks for.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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
BUCKET = "photos"


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
        failures: answers to each name that are a 503, before the file is given.
    """

    request_queue_size = 128

    def __init__(self, files: dict[str, bytes], parties: int = 1, failures: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files, self.failures = files, failures
        self.barrier = threading.Barrier(parties)
        self.asked: Counter[str] = Counter()

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.server_port}/{name}" for name in self.files]


class _Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path[1:]
        self.server.barrier.wait(20)
        self.server.asked[name] += 1
        if self.server.asked[name] <= self.server.failures:
            self.send_error(503)
            return
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


@contextlib.contextmanager
def in_memory(files: dict[str, bytes], folder: Path) -> Iterator[Bucket]:
    store = fsspec.filesystem("memory")
    for name, data in files.items():
        store.pipe_file(f"/{BUCKET}/{name}", data)
    yield Bucket("memory", [f"/{BUCKET}/{name}" for name in files])
    store.rm(f"/{BUCKET}", recursive=True)


@contextlib.contextmanager
def in_a_folder(files: dict[str, bytes], folder: Path) -> Iterator[Bucket]:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    yield Bucket("file", [str(folder / name) for name in files])


@contextlib.contextmanager
def by_http(files: dict[str, bytes], folder: Path) -> Iterator[Bucket]:
    with serving(files) as server:
        yield Bucket("http", server.urls())


STORES = [in_memory, in_a_folder, by_http]


def loaded(dataset: Any, **arguments: Any) -> list[Any]:
    return [repr(batch) for batch in fastload.DataLoader(dataset, 4, shuffle=True, seed=3, **arguments)]


@pytest.mark.parametrize("store", STORES)
def test_images_of_a_store_are_the_same_however_many_are_read_at_a_time(store, files, tmp_path):
    with store(files, tmp_path) as dataset:
        expected = loaded(dataset)
        assert loaded(dataset, num_workers=2) == expected
        assert loaded(dataset, num_workers=2, worker_threads=8) == expected
        assert loaded(dataset, worker_threads=8) == expected
        if store is not in_memory:  # which is each process's own
            started = {"num_workers": 1, "worker_threads": 4, "multiprocessing_context": "forkserver"}
            assert loaded(dataset, **started) == expected


def test_as_many_requests_wait_at_once_as_there_are_threads(files):
    with serving(files, parties=12) as server:
        assert len(loaded(Bucket("http", server.urls()), num_workers=2, worker_threads=6)) == NUM_FILES // 4


def test_errors_of_a_server_that_pass_are_tried_again_with_the_same_random_numbers(files):
    arguments = {"num_workers": 2, "worker_threads": 4}
    with serving(files) as server:
        expected = loaded(Bucket("http", server.urls()), **arguments)
    with serving(files, failures=2) as server:
        again = fastload.retry(attempts=3, wait=0.01)
        assert loaded(Bucket("http", server.urls()), on_error=again, **arguments) == expected
        assert set(server.asked.values()) == {3}


def test_an_error_that_does_not_pass_says_how_often_it_was_tried(files):
    with serving(files, failures=9) as server:
        loader = fastload.DataLoader(
            Bucket("http", server.urls()), 4, worker_threads=2, num_workers=1, on_error=fastload.retry(3, wait=0.01)
        )
        with pytest.raises(Exception, match="503") as caught:
            next(iter(loader))
        assert "on_error has loaded it 3 times" in str(caught.value) + "".join(caught.value.__notes__)
        loader.close()
