"""Files of a recording become steps with what stands between them; files of slow samples are named."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import fastload
from fastload.errors import TraceError
from fastload.profiling.analyze import analyze
from fastload.profiling.hooks.fetching import file_of
from fastload.profiling.reader import CARRYING, _carried_task, read_trace
from fastload.profiling.recording import SETTINGS_FILE
from fastload.profiling.ring import Record, RecordKind, Ring
from fastload.profiling.trace import Span
from fastload.profiling.workers import parts_of


def epoch(iterator: int, begun: int, ended: int, *processes: int, loader: int = 5) -> dict[str, Any]:
    about = {"iterator": iterator, "loader": loader, "processes": list(processes)}
    return {"kind": "epoch", **about, "begun": begun, "ended": ended}


def recording(folder: Path, records: list[tuple[int, ...]], lines: list[dict[str, Any]] | None = None) -> str:
    """Write a recording of one process; records are kind, small, begun, ended, then their numbers."""
    settings = {"command": ["train.py"], "warmup": 0, "recorded": "2026-01-02T03:04:05+00:00"}
    (folder / SETTINGS_FILE).write_text(json.dumps(settings), encoding="utf-8")
    known = [
        {"kind": "process", "pid": 7, "parent": 1, "rank": None, "cores": 2},
        {"kind": "loader", "number": 5, "num_workers": 1},
        *(lines or []),
    ]
    (folder / "7-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in known), encoding="utf-8")
    ring = Ring(str(folder / "7-1-7.ring"), 1000, is_main=True)
    for kind, small, begun, ended, *numbers in records:
        ring.write(kind, 0, small, begun, ended, *numbers)
    return str(folder)


TWO_PASSES: list[tuple[int, ...]] = [
    (RecordKind.WAIT, 1, 12, 20, 0, 0),
    (RecordKind.COPY, 1, 25, 30, 4096),
    (RecordKind.WAIT, 0, 40, 55, 0, 0),
    (RecordKind.WAIT, 1, 81, 90, 1, 0),
    (RecordKind.COPY, 2, 91, 92, 8),
    (RecordKind.WAIT, 0, 95, 96, 1, 0),
]
THEIR_NOTES = [epoch(0, 0, 10), epoch(1, 70, 80)]


def test_passes_become_steps_with_their_batches_and_copies_and_the_wait_for_an_end_is_no_part_of_the_loop(tmp_path):
    begun = {"kind": "begun", "versions": {"torch": "2.13.0"}, "hook_ns": 100.0, "rank": None}
    about = {"kind": "loader", "number": 5, "timeout": float("inf")}  # a number that JSON has not
    notes = [begun, {"kind": "file", "index": 3, "path": "a.jpg"}, *THEIR_NOTES, about]
    trace = read_trace(recording(tmp_path, TWO_PASSES, notes))
    assert trace.ranks[0].files == {3: "a.jpg"}
    assert trace.ranks[0].loaders[5]["timeout"] == "Infinity"
    analyze(trace).to_json()
    assert trace.versions == {"torch": "2.13.0"}
    (rank,) = trace.ranks
    assert [step.ending for step in rank.steps] == [Span(40, 55), Span(95, 96)]
    assert [step.loop_ns for step in rank.steps] == [70 - 20 - 15, 95 - 90]
    assert [step.first for step in rank.steps] == [True, True]
    assert [step.copy_ns for step in rank.steps] == [5, 1]
    assert [(step.batch.iterator, step.batch.loader) for step in rank.steps] == [(0, 5), (1, 5)]
    assert trace.recorded == "2026-01-02T03:04:05+00:00"


def test_what_a_broken_pass_left_behind_is_not_taken_for_a_batch_that_was_handed_out_later(tmp_path):
    records = [
        (RecordKind.ARRIVE, 0, 2, 3, 0, 0, 0, -1),
        (RecordKind.DISPATCH, 0, 5, 6, 0, 0, 0, 0, 4),
        (RecordKind.ARRIVE, 0, 20, 21, 0, 0, 0, -1),
        (RecordKind.WAIT, 1, 10, 25, 0, 0),
    ]
    worker = tmp_path / "8-1-8.ring"
    folder = recording(tmp_path, records, [epoch(0, 0, 1, 8)])
    Ring(str(worker), 10, is_main=True).write(RecordKind.WORK, 0, 0, 8, 19, -1, 0, 5, 0, 0)
    (tmp_path / "8-1.jsonl").write_text('{"kind": "process", "pid": 8, "rank": null, "cores": 2}\n', encoding="utf-8")
    (rank,) = read_trace(folder).ranks
    (task,) = rank.steps[0].batch.tasks
    assert (task.begun, task.dispatched, task.arrived) == (8, 6, 21)


# -- files of slow samples --------------------------------------------------------------------------------------------


class Folder:
    """A dataset as torchvision's folders are."""

    def __init__(self, number: int) -> None:
        self.samples = [(f"{index}.jpg", 0) for index in range(number)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02 if index % 50 == 7 else 0.0001)
        return index


def test_the_files_of_the_slowest_samples_are_noted_and_few_others(tmp_path):
    with fastload.profile(folder=tmp_path) as recorded:
        for _ in range(2):
            list(DataLoader(Folder(400), batch_size=200))
    (rank,) = recorded.trace().ranks
    assert {index for index in range(400) if index % 50 == 7} <= set(rank.files)
    assert len(rank.files) < 300
    assert all(path == f"{index}.jpg" for index, path in rank.files.items())
    slowest = recorded.analysis().ranks[0].slow_samples
    assert len({sample.file for sample in slowest}) == len(slowest), "a sample of several epochs is listed once"
    assert {(index, f"{index}.jpg") for index in range(400) if index % 50 == 7} <= {
        (sample.index, sample.file) for sample in slowest
    }


class Hostile:
    """A dataset whose attributes do what they like."""

    @property
    def samples(self) -> Any:
        raise AssertionError("a property was asked")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("__getattr__ was asked")


def test_a_dataset_without_a_list_of_files_names_none_and_runs_no_code():
    assert file_of(Hostile(), 0) is None
    assert file_of([1, 2], 0) is None
    odd = Folder(2)
    assert (file_of(odd, 5), file_of(odd, -3), file_of(odd, -1)) == (None, None, "1.jpg")
    odd.samples = [(3, "x"), ()]  # type: ignore[list-item]
    assert (file_of(odd, 0), file_of(odd, 1)) == (None, None)


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "epoch", "iterator": 0, "processes": [[]]},
        {"kind": "epoch", "processes": [8]},
        {"kind": "begun"},
        {"kind": "file", "path": "a.jpg"},
        {"signal": "a note of no kind"},
    ],
)
def test_notes_that_fastload_did_not_write_are_an_error_that_names_the_folder(tmp_path, line):
    with pytest.raises(TraceError, match=r"is damaged, or another version of fastload recorded it: .*; record again"):
        read_trace(recording(tmp_path, TWO_PASSES, [line]))


def test_a_note_that_a_process_could_not_end_is_left_out_and_another_that_is_no_json_is_an_error(tmp_path):
    read_trace(recording(tmp_path, TWO_PASSES, THEIR_NOTES))
    notes = tmp_path / "7-1.jsonl"
    text = notes.read_text()
    notes.write_text(text + '{"kind": "epo')
    assert read_trace(str(tmp_path))
    notes.write_text('{"kind": "epo\n' + text)
    with pytest.raises(TraceError, match=r"7-1.jsonl, line 1, is not JSON: .*; record again"):
        read_trace(str(tmp_path))


# -- tasks of workers on other machines --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy_ns", "parts"), [(600, {"sample": 600, f"stage:{CARRYING}": 300}), (1200, {"sample": 900})]
)
def test_what_a_task_takes_beyond_its_work_is_a_stage_of_its_own_unless_its_clock_runs_ahead(busy_ns, parts):
    task = _carried_task(Record(RecordKind.CARRIED, 0, 3, 1000, 1900, 1, 2, busy_ns, 8, 4))
    assert (task.worker, task.num_samples) == (3, 8)
    assert +Counter(parts_of(task, 0.0)) == parts
