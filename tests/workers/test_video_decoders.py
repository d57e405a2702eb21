"""Datasets that keep decoders of video: threads take turns at a decoder, and workers inherit none of LeRobot's."""

import multiprocessing
import os
import sys
import threading
import types

import pytest
import torch
from kit.comparison import difference
from torch.utils.data import Dataset

import fastload
from fastload.workers.video_decoders import lock_decoders


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    encoders = pytest.importorskip("torchcodec.encoders")
    path = str(tmp_path_factory.mktemp("clips") / "clip.mp4")
    frames = torch.arange(48 * 3 * 64 * 96).view(48, 3, 64, 96).div(97).to(torch.uint8)
    try:
        encoders.VideoEncoder(frames, frame_rate=30).to_file(path)
    except (ImportError, RuntimeError) as error:
        if os.environ.get("FASTLOAD_REQUIRE_FFMPEG"):
            raise
        pytest.skip(f"torchcodec needs the libraries of FFmpeg: {error}")
    return path


class Clips(Dataset):
    """Two frames of one file, by a decoder that the dataset keeps: from its beginning, or from its first sample."""

    def __init__(self, path, *, at_once=True):
        self.path, self.decoder = path, None
        if at_once:
            self._open()

    def _open(self):
        from torchcodec.decoders import VideoDecoder

        self.decoder = VideoDecoder(self.path, seek_mode="approximate")

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.decoder is None:
            self._open()
        return self.decoder.get_frames_at([index * 7 % 48, (index * 11 + 5) % 48]).data, self.decoder[index % 48]


def _load(path, options, at_once):
    torch.set_num_threads(1)  # torch's own threads are not in a forked process
    expected = list(fastload.DataLoader(Clips(path, at_once=False), 8, num_workers=1))
    found = list(fastload.DataLoader(Clips(path, at_once=at_once), 8, **options))
    assert difference(found, expected) is None


THREADS = {"num_workers": 3, "worker_method": "thread"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "at_once"), [(THREADS, False), (THREADS, True), ({"num_workers": 1, "worker_threads": 4}, False)]
)
def test_threads_share_a_decoder(clip, options, at_once):
    # A decoder that two threads use at once ends the process: this one only waits for its end.
    process = multiprocessing.get_context("fork").Process(target=_load, args=(clip, options, at_once))
    process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0


class VideoReader:
    """As decord's. Notes how many use it at once, and tells others while it is used."""

    def __init__(self):
        self.using, self.most = 0, 0
        self.begun, self.meeting = threading.Event(), threading.Barrier(1)

    def next(self):
        self.using += 1
        self.most = max(self.most, self.using)
        self.begun.set()
        self.meeting.wait(60)
        self.using -= 1
        return self[0]

    def __getitem__(self, index):
        return 7


METHODS = ("next", "__getitem__")


@pytest.fixture
def reader(monkeypatch):
    """Return a class of decoders of a library that is imported after decoders are locked."""
    library = types.ModuleType("decord")
    library.__spec__ = types.SimpleNamespace(_initializing=False)
    library.VideoReader = type("VideoReader", (VideoReader,), {name: vars(VideoReader)[name] for name in METHODS})
    monkeypatch.setitem(sys.modules, "decord", library)
    lock_decoders.__wrapped__()
    return library.VideoReader


def test_one_thread_at_a_time_uses_a_decoder_several_use_two_and_a_fork_finds_no_lock_held(reader):
    one, others, used = reader(), [reader(), reader()], reader()
    others[0].meeting = others[1].meeting = threading.Barrier(2)
    used.meeting = threading.Barrier(2)
    threads = [threading.Thread(target=lambda: [one.next() for _ in range(200)]) for _ in range(4)]
    threads += [threading.Thread(target=other.next) for other in [*others, used]]
    for thread in threads:
        thread.start()
    assert used.begun.wait(60)
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(used[0]))
    process.start()
    process.join(60)
    used.meeting.wait(60)
    for thread in threads:
        thread.join(60)
    assert process.exitcode == 7
    assert [decoder.most for decoder in (one, *others, used)] == [1] * 4


class Cache:
    """As LeRobot's: decoders by path."""

    def __init__(self):
        self.max_size = 100
        self.opened = {}


class OfLeRobot(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        cache = sys.modules["lerobot.datasets.video_utils"]._default_decoder_cache
        return len(cache.opened), cache.max_size


@pytest.mark.parametrize("options", [{}, {"worker_threads": 2}], ids=str)
def test_workers_begin_with_an_empty_cache_of_lerobots_decoders(monkeypatch, options):
    library = types.ModuleType("lerobot.datasets.video_utils")
    library._default_decoder_cache = cache = Cache()
    cache.opened["clip.mp4"], cache.max_size = object(), 5
    monkeypatch.setitem(sys.modules, "lerobot", types.ModuleType("lerobot"))
    monkeypatch.setitem(sys.modules, library.__name__, library)
    batches = list(fastload.DataLoader(OfLeRobot(), 2, num_workers=2, **options))
    assert [(opened.tolist(), sizes.tolist()) for opened, sizes in batches] == [([0, 0], [5, 5])] * 2
    assert library._default_decoder_cache is cache
    assert len(cache.opened) == 1


def test_a_loader_says_which_library_decodes_its_videos_and_how_to_measure_it(reader):
    words = str(fastload.DataLoader(range(4)).explain())
    assert "by decord are decoded as with torch's loader; `fastload profile --level 2` measures" in words
