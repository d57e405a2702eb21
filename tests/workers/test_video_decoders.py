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


def _load(path, ways):
    torch.set_num_threads(1)  # torch's own threads are not in a forked process
    expected = list(fastload.DataLoader(Clips(path, at_once=False), 8, num_workers=1))
    for options, at_once in ways:
        found = list(fastload.DataLoader(Clips(path, at_once=at_once), 8, **options))
        assert difference(found, expected) is None


WAYS = [{"num_workers": 3, "worker_method": "thread"}, {"num_workers": 1, "worker_threads": 4}]


@pytest.mark.slow
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_threads_share_a_decoder(clip, options):
    # A decoder that two threads use at once ends the process: this one only waits for its end.
    ways = [(options, at_once) for at_once in (False, options.get("worker_method") == "thread")]
    process = multiprocessing.get_context("fork").Process(target=_load, args=(clip, ways))
    process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0


@pytest.fixture
def import_decord(monkeypatch):
    """Return what lets a library be imported, with a class of decoders, after decoders are locked."""

    def imported(reader):
        library = types.ModuleType("decord")
        library.__spec__ = types.SimpleNamespace(_initializing=False)
        library.VideoReader = reader
        monkeypatch.setitem(sys.modules, "decord", library)
        lock_decoders.__wrapped__()

    return imported


def test_one_thread_at_a_time_uses_a_decoder_and_several_use_two(import_decord):
    """With a library that is imported after the threads have begun."""
    using, most, meeting = [], [], threading.Barrier(2)

    class VideoReader:
        def get_batch(self, meets=False):
            using.append(self)
            most.append(using.count(self))
            if meets:
                meeting.wait(30)
            using.remove(self)
            return self[0]

        def __getitem__(self, index):
            return index

    import_decord(VideoReader)
    one, others = VideoReader(), [VideoReader(), VideoReader()]
    threads = [threading.Thread(target=lambda: [one.get_batch() for _ in range(200)]) for _ in range(4)]
    threads += [threading.Thread(target=other.get_batch, args=(True,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * (4 * 200 + 2)
    assert not meeting.broken


def test_a_fork_while_a_thread_uses_a_decoder_leaves_no_lock_held(import_decord):
    began, ends = threading.Event(), threading.Event()

    class VideoReader:
        def next(self, waits=False):
            if waits:
                began.set()
                assert ends.wait(60)
            return 7

    import_decord(VideoReader)
    reader = VideoReader()
    thread = threading.Thread(target=reader.next, args=(True,))
    thread.start()
    assert began.wait(60)
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(reader.next()))
    process.start()
    process.join(60)
    ends.set()
    thread.join(60)
    assert process.exitcode == 7


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
