"""What a worker process sends home."""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fakes import Squares
from kit.comparison import difference
from kit.datasets import Made
from torch.utils.data import DataLoader as TorchLoader

import fastload
from fastload.workers import transport
from fastload.workers.transport import use_packets

needs_packets = pytest.mark.skipif(not use_packets(), reason="the memory file is Linux's")
needs_fork = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the limit is inherited")


@needs_fork
def test_samples_too_large_for_a_chunks_place_are_collated_in_a_worker(monkeypatch):
    monkeypatch.setattr(transport, "MAX_CHUNK_BYTES", 100)
    monkeypatch.delenv("FASTLOAD_TRANSPORT", raising=False)
    loader = fastload.DataLoader(Squares(64), 16, num_workers=2, multiprocessing_context="fork", seeding="sample")
    assert difference(list(loader), list(TorchLoader(Squares(64), 16))) is None
    ((reason, number),) = loader.statistics().without_layout_reason.items()
    assert "above 100" in reason
    assert number == 4


_SPAWNED = """
import fastload, torchvision

if __name__ == "__main__":
    assert len(list(fastload.DataLoader(range(8), num_workers=1, multiprocessing_context="spawn"))) == 8
"""


@pytest.mark.thorough
def test_a_spawned_worker_ends_without_a_word_about_what_libraries_it_has_imported(tmp_path):
    # Triton, which torchvision 0.29 imports, reports at the interpreter's end what the collector cannot find.
    (tmp_path / "script.py").write_text(_SPAWNED)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=220)
    assert (done.returncode, done.stderr) == (0, "")


def open_cvthreads(index: int) -> int:
    """In how many threads OpenCV works."""
    return sys.modules["cv2"].getNumThreads()


@needs_fork
def test_opencv_works_in_one_thread_in_each_worker_and_goes_on_as_before_in_this_process():
    opencv = pytest.importorskip("cv2", reason="OpenCV is not installed")
    before = opencv.getNumThreads()
    opencv.setNumThreads(3)
    try:
        for batch in fastload.DataLoader(Made(4, open_cvthreads), 2, num_workers=1, multiprocessing_context="fork"):
            assert batch.tolist() == [1, 1]
        assert opencv.getNumThreads() == 3
    finally:
        opencv.setNumThreads(before)


def _faults_of_20_mb(index: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(5_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@needs_packets
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not glibc's")
def test_memory_that_a_sample_frees_serves_the_next_sample():
    loader = fastload.DataLoader(Made(12, _faults_of_20_mb), None, num_workers=1)
    assert max(list(loader)[8:]) < 100, "4,882 are all pages"  # the first ones find blocks that nobody has touched


_FORKED_WHILE_A_LOCK_IS_HELD = """
import os
import cv2
import numpy
import fastload

class Turned:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        turn = numpy.float32([[1, 0.1, 0], [0.1, 1, 0]])
        return cv2.warpAffine(numpy.ones((600, 800, 3), numpy.uint8), turn, (800, 600))

cv2.setNumThreads(2)
held, told = os.pipe()
os.environ["HELD"] = str(told)
expected = Turned()[0]
os.read(held, 1)
for batch in fastload.DataLoader(Turned(), num_workers=1, multiprocessing_context="fork", timeout=30):
    assert (batch[0].numpy() == expected).all()
"""


@pytest.mark.slow
@needs_fork
def test_a_worker_forked_while_a_thread_of_opencvs_holds_a_lock_uses_opencv(tmp_path):
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc")
    library, source = tmp_path / "hold_opencv.so", Path(__file__).with_name("hold_opencv.c")
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    subprocess.run([sys.executable, "-c", _FORKED_WHILE_A_LOCK_IS_HELD], env=environment, check=True, timeout=120)
