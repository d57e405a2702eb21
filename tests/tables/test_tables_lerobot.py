"""Rows of LeRobot's tables are those that `datasets` makes under LeRobot's transform, bit for bit."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import types
from typing import Any

import pytest
import torch
from kit.comparison import difference
from torch.utils.data import Dataset
from torch_settings import default_device, default_dtype

import fastload
from fastload.base import overrides
from fastload.tables import lerobot
from fastload.tables.lerobot import _Table

OVERRIDES = lerobot.OVERRIDES[:2]

pa = pytest.importorskip("pyarrow")
datasets = pytest.importorskip("datasets", minversion="4.0", reason="datasets is older than 4.0, which has Column")

TRANSFORM = """
import torch

def hf_transform_to_torch(items):
    for name, values in items.items():
        if values[0] is not None and not isinstance(values[0], dict):
            items[name] = [value if isinstance(value, str) else torch.tensor(value) for value in values]
    return items
"""
ROWS = [[5], [0, 1, 2, 3], [11, 0, 11], [7, 6], list(range(12))]
NUMBER_OF_NAN = torch.tensor([0x7FA00001], dtype=torch.int32).view(torch.float32).item()
COLUMNS: dict[str, Any] = {
    "action": pa.FixedSizeListArray.from_arrays(pa.array([i / 7 for i in range(36)], pa.float32()), 3),
    "state": pa.array([[i / 3, 1e300] for i in range(12)], pa.list_(pa.float64())),
    "large": pa.array([[i, -i] for i in range(12)], pa.large_list(pa.int16())),
    "index": pa.array([*range(12)], pa.int64()),
    "byte": pa.array([*range(12)], pa.uint8()),
    "timestamp": pa.array([NUMBER_OF_NAN, *range(11)], pa.float32()),
    "above int64": pa.array([*range(12)], pa.uint64()),
    "done": pa.array([i % 5 == 0 for i in range(12)]),
    "task": pa.array([f"task {i}" for i in range(12)]),
    "nulls": pa.array([None, *range(11)], pa.int64()),
    "ragged": pa.array([[0.5] * (1 + i % 3) for i in range(12)]),
    "empty": pa.array([[] if i == 4 else [i] for i in range(12)], pa.list_(pa.int64())),
    "matrix": pa.array([[[i, 1], [2, 3]] for i in range(12)]),
}


@pytest.fixture(scope="module")
def transform():
    """A function that is what LeRobot's is, in a module of its name; and its place in the table of overrides."""
    packages = {name: types.ModuleType(name) for name in ("lerobot", "lerobot.made")}
    packages["lerobot"].__spec__ = None
    made = packages["lerobot.made"]
    exec(TRANSFORM, vars(made))
    sys.modules.update(packages)
    yield made.hf_transform_to_torch
    for name in packages:
        del sys.modules[name]


@pytest.fixture
def installed(transform):
    for one in OVERRIDES:
        one.install()
        assert one.is_installed
    yield transform
    for one in OVERRIDES:
        one.undo()


def table(names=tuple(COLUMNS), *, chunks=(5, 7), mapped=False):
    whole = pa.table({name: COLUMNS[name] for name in names})
    parts, start = [], 0
    for rows in chunks:
        parts.append(whole.slice(start, rows))
        start += rows
    made = datasets.Dataset(pa.concat_tables(parts))
    return made.select([*range(11, -1, -1)]) if mapped else made


def by_datasets(read):
    for one in OVERRIDES:
        one.undo()
    try:
        return read()
    finally:
        for one in OVERRIDES:
            one.install()


@pytest.fixture
def read_here(monkeypatch):
    """The names of the columns that were read from Arrow's memory."""
    names, read = [], _Table.read
    monkeypatch.setattr(_Table, "read", lambda *args: (found := read(*args), names.extend(found))[0])
    return names


@pytest.mark.parametrize(("chunks", "mapped"), [((12,), False), ((5, 7), True), ((1, 0, 11), False)])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_rows_and_rows_with_all_columns_are_those_of_datasets(installed, name, chunks, mapped):
    for names in ([name], [name, "index", "task"]):
        dataset = table(list(dict.fromkeys(names)), chunks=chunks, mapped=mapped)
        dataset.set_transform(installed)

        def read(rows, dataset=dataset):
            try:
                return dataset[name][rows], list(dataset[rows].items())
            except RuntimeError as error:  # a null among them
                return str(error)

        for rows in ROWS:
            assert difference(read(rows), by_datasets(lambda: read(rows))) is None  # noqa: B023


def test_columns_of_numbers_are_read_from_memory_and_others_by_datasets(installed, read_here):
    dataset = table()
    dataset.set_transform(installed)
    for name in COLUMNS:
        dataset[name][[1, 2]]
    assert {*read_here} == {"action", "state", "large", "index", "byte", "timestamp", "ragged", "empty"}


def another_transform(items):
    return {name: [str(value) for value in values] for name, values in items.items()}


@pytest.mark.parametrize(
    "case", ["another transform", "some columns", "no transform", "default dtype", "no list", "bad row"]
)
def test_what_is_not_known_is_left_to_datasets(installed, read_here, case):
    dataset, rows = table(["action", "index"]), [0, 3]
    dataset.set_transform(installed)
    if case == "another transform":
        dataset.set_transform(another_transform)
    elif case == "some columns":
        dataset.set_transform(installed, columns=["action"])
    elif case == "no transform":
        dataset.reset_format()
    elif case == "default dtype":
        torch.set_default_dtype(torch.float64)
    try:
        for read in (lambda: dataset["action"], lambda: dataset):
            if case == "bad row":
                for rows in ([0, 12], [[0], [1, 2]], []):
                    with pytest.raises((IndexError, TypeError, ValueError)) as theirs:
                        by_datasets(lambda: read()[rows])  # noqa: B023
                    with pytest.raises(theirs.type, match=re.escape(str(theirs.value))):
                        read()[rows]
            else:
                key = range(2) if case == "no list" else rows
                assert difference(read()[key], by_datasets(lambda: read()[key])) is None  # noqa: B023
    finally:
        torch.set_default_dtype(torch.float32)
    assert not read_here


@pytest.mark.parametrize("device", [default_device, torch.device])
def test_rows_are_made_on_the_default_device_and_read_from_memory_after_it(installed, read_here, device):
    dataset = table(["index"])
    dataset.set_transform(installed)
    with device("meta"):
        assert dataset["index"][[3]][0].is_meta
    assert not read_here
    assert dataset["index"][[3]] == [torch.tensor(3)]
    assert read_here == ["index"]


def test_a_transform_that_gives_something_else_is_found_at_the_first_rows(installed, monkeypatch):
    made = sys.modules[installed.__module__]
    original = made.hf_transform_to_torch

    def hf_transform_to_torch(items):
        return {name: [value + 1 for value in values] for name, values in original(items).items()}

    hf_transform_to_torch.__module__ = made.__name__
    monkeypatch.setattr(made, "hf_transform_to_torch", hf_transform_to_torch)
    dataset = table(["action", "index"])
    dataset.set_transform(hf_transform_to_torch)
    for _ in range(2):
        assert dataset["index"][[3, 4]] == [torch.tensor(4), torch.tensor(5)]


class Chunks(Dataset):
    """A row and the chunk of actions that begins there, as LeRobot's samples are."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return 8

    def __getitem__(self, index):
        rows = [min(index + step, 11) for step in range(6)]
        return {**self.table[index], "chunk": torch.stack(self.table["action"][rows])}


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "worker_threads": 2}])
def test_batches_are_torchs_in_each_way(transform, options):
    dataset = table(["action", "index"])
    dataset.set_transform(transform)
    expected = list(torch.utils.data.DataLoader(Chunks(dataset), 4))
    assert difference(list(fastload.DataLoader(Chunks(dataset), 4, **options)), expected) is None


VIDEO = """
import torch

def decode_video_frames_torchcodec(
    video_path, timestamps, tolerance_s, log_loaded_timestamps=False, decoder_cache=None, return_uint8=False
):
    decoder = (decoder_cache or _default_decoder_cache).get_decoder(str(video_path))
    found = decoder.get_frames_at(indices=[round(time * decoder.metadata.average_fps) for time in timestamps])
    distances = (torch.tensor(timestamps)[:, None] - found.pts_seconds.float()).abs()
    if not (distances.min(1).values < tolerance_s).all():
        raise ValueError("too far")
    frames = torch.stack([found.data[place] for place in distances.argmin(1)])
    return frames if return_uint8 else (frames / 255.0).type(torch.float32)
"""


class Decoder:
    """As torchcodec's: ten frames a second, bytes with the channels last; also LeRobot's cache of decoders."""

    metadata = types.SimpleNamespace(average_fps=10)

    def __init__(self) -> None:
        self.calls = 0

    def get_decoder(self, path: str) -> Decoder:
        assert path == "a.mp4"
        return self

    def get_frames_at(self, indices: list[int]) -> Any:
        self.calls += 1
        draw = torch.Generator().manual_seed(1)
        frames = torch.randint(0, 256, (12, 5, 7, 3), dtype=torch.uint8, generator=draw)[indices]
        times = torch.tensor(indices, dtype=torch.float64) / 10
        return types.SimpleNamespace(data=frames.permute(0, 3, 1, 2), pts_seconds=times)


@pytest.fixture
def video(transform, monkeypatch, tmp_path):
    """LeRobot's module of videos, whose function is known by its source; and the decoder."""
    path = tmp_path / "video_utils.py"
    path.write_text(VIDEO)
    module = types.ModuleType(lerobot._VIDEO)
    exec(compile(VIDEO, path, "exec"), vars(module))
    module._default_decoder_cache = Decoder()  # type: ignore[attr-defined]
    for name in ("lerobot.datasets", lerobot._VIDEO):
        monkeypatch.setitem(sys.modules, name, module if name == lerobot._VIDEO else types.ModuleType(name))
    source = inspect.getsource(getattr(module, lerobot._DECODE))
    monkeypatch.setattr(lerobot, "_SOURCES", {hashlib.sha256(source.encode()).hexdigest()[:16]})
    monkeypatch.setattr(overrides, "results", {})
    yield module
    lerobot._FRAMES.undo()


@pytest.mark.parametrize("named", [{}, {"return_uint8": True}])
@pytest.mark.parametrize("times", [[0.3], [0.0, 0.0, 0.1], [1.1, 0.2]])
def test_frames_of_videos_are_lerobots_with_their_strides_after_a_comparison(video, times, named):
    theirs = getattr(video, lerobot._DECODE)("a.mp4", times, 0.01, **named)
    lerobot._FRAMES.install()
    for _ in range(2):
        assert difference(getattr(video, lerobot._DECODE)("a.mp4", times, 0.01, **named), theirs) is None
    assert video._default_decoder_cache.calls == 1 + 2 + 1


def test_a_frame_that_is_too_far_is_lerobots_error_and_another_function_stays(video, monkeypatch):
    lerobot._FRAMES.install()
    with pytest.raises(ValueError, match="too far"):
        getattr(video, lerobot._DECODE)("a.mp4", [0.34], 0.01)
    lerobot._FRAMES.undo()
    monkeypatch.setattr(lerobot, "_SOURCES", set())
    assert "is another one than in LeRobot 0.4 to 0.6" in str(lerobot._FRAMES.unavailable_reason())


def test_where_frames_differ_or_torch_makes_other_tensors_lerobots_function_alone_decodes(video, monkeypatch):
    lerobot._FRAMES.install()
    decoder, decode = video._default_decoder_cache, getattr(video, lerobot._DECODE)
    with monkeypatch.context() as patch:
        patch.setattr(lerobot, "alike", lambda *both: False)
        decode("a.mp4", [0.3], 0.01)
    assert decoder.calls == 3
    decode("a.mp4", [0.3], 0.01)
    assert decoder.calls == 4
    with default_dtype(torch.float64):
        decode("a.mp4", [0.3, 0.4], 0.01)
    assert decoder.calls == 5
