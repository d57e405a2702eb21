"""Settings are tried in a child of the script's process: what is found, and that nothing of the script's changes."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiled import profile, write
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision import datasets, transforms

import fastload
from fastload.cache import shared, store
from fastload.errors import ConfigError
from fastload.late import opener
from fastload.profiling.hooks import trial_runs as trials_module
from fastload.profiling.hooks.trial_runs import TrialRuns
from fastload.profiling.trials import Choice, Trials, chosen, trials_of


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine trials may take longer than a user is made to wait for them; and few rounds will do."""
    monkeypatch.setattr(trials_module, "_MOST_SECONDS", 100.0)
    monkeypatch.setattr(trials_module, "_CPU_SECONDS", 0.2)


class Numbers(Dataset[Any]):
    """Draws, counts what it was asked for, and may do something else first."""

    def __init__(self, first: Any = None) -> None:
        self.first = first
        self.asked = 0

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        if self.first is not None:
            self.first()
        print("a sample")
        return torch.rand(2) + random.random() + index


WITH_CACHE = Choice("fastload", "auto", "torch", "auto")


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(100))


def tried(*loaders: Any, with_stages: bool = False) -> list[dict[str, Any]]:
    """Return the notes of trials with loaders."""
    notes: list[dict[str, Any]] = []
    trials = TrialRuns(
        lambda: list(enumerate(loaders)),
        lambda kind, **what: notes.append({"kind": kind, **what}),
        lambda: None,
        with_stages=with_stages,
    )
    trials.run()
    trials.run()  # once only
    assert [one["kind"] for one in notes] == ["trials"] * len(loaders)
    return notes


def test_in_a_script_that_was_interrupted_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)  # what ended it, as Python says
    assert tried(DataLoader(Numbers())) == [{"kind": "trials", "loader": 0, "reason": "the script was interrupted"}]


def test_an_interrupt_ends_the_trials_and_is_not_told_as_an_error():
    notes: list[Any] = []
    asked = os.pipe()
    dataset = Numbers(lambda: (os.write(asked[1], b"x"), time.sleep(100)))
    loaders = [(0, DataLoader(dataset))]
    trials = TrialRuns(lambda: loaders, lambda *note, **_: notes.append(note), lambda: None, with_stages=False)

    def interrupt() -> None:
        os.read(asked[0], 1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    trials.run()
    thread.join()
    assert notes == []
    for one in asked:
        os.close(one)


def test_each_choice_is_tried_and_what_is_not_possible_has_a_reason():
    (note,) = tried(DataLoader(Numbers(), 16, num_workers=2))
    found = trials_of(note)
    assert Choice("torch", None, None) in found.cpu_ns
    assert Choice("fastload", "auto", "sample") in found.cpu_ns
    assert Choice("fastload", "auto", "torch") in found.cpu_ns
    assert found.reasons.keys() == {Choice("fastload", True, "sample"), WITH_CACHE}
    reason = found.reasons[
        Choice("fastload", True, "sample")
    ]  # the second, where another test has imported torchvision
    assert reason in ("the script does not use torchvision", "Numbers is not one of the known datasets")
    assert found.cache is None
    assert all(len(times) >= 3 and min(times) > 0 for times in found.cpu_ns.values())


def test_of_a_loader_of_ours_what_it_was_set_to_is_tried_too():
    arguments: list[dict[str, Any]] = [{}, {"seed": 1}, {"seeding": "torch"}]
    for asked, seeding in zip(arguments, ("torch", "sample", "torch"), strict=True):
        (note,) = tried(fastload.DataLoader(Numbers(), 16, fuse=False, **asked))
        assert {Choice("fastload", False, seeding), Choice("torch", None, None)} <= trials_of(note).cpu_ns.keys()


@pytest.mark.parametrize("engine", [DataLoader, fastload.DataLoader])
def test_the_stages_of_samples_are_measured_where_the_recording_has_none(engine: Any, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    loader = engine(datasets.FakeData(40, (3, 64, 64), transform=transforms.Compose([transforms.ToTensor()])), 8)
    (note,) = tried(loader, with_stages=True)
    assert trials_of(note).stages_ms["ToTensor"] > 0
    assert list(tmp_path.iterdir()) == []
    assert trials_of(tried(loader)[0]).stages_ms == {}


@pytest.mark.parametrize("given", [{}, {"fuse": True}, {"cache": "64MiB"}])
def test_what_a_cache_spares_of_images_is_measured_and_what_it_takes(given: Any, tmp_path: Path, monkeypatch):
    reason = opener.why_not() or (None if hasattr(os, "memfd_create") else "the system has no memory files")
    if reason is not None:
        pytest.skip(f"nothing is kept here: {reason}")
    monkeypatch.setattr(store, "SETTLED_NS", 0)
    (tmp_path / "a").mkdir()
    rng = np.random.default_rng(0)
    for place in range(4):
        PIL.Image.fromarray(rng.integers(0, 256, (400, 400, 3), dtype=np.uint8)).save(tmp_path / "a" / f"{place}.jpg")
    folder = datasets.ImageFolder(tmp_path, transforms.Compose([transforms.CenterCrop(32), transforms.ToTensor()]))
    loader = fastload.DataLoader(folder, 4, **given) if given else DataLoader(folder, 4)
    found = trials_of(tried(loader)[0])
    before, after = (
        (usual := Choice("fastload", given.get("fuse", "auto"), "sample" if given.get("fuse") else "torch")),
        usual._replace(cache="auto"),
    )
    if "cache" in given:
        assert before not in found.cpu_ns
        assert after in found.cpu_ns
    else:
        assert found.ratio(before, after).value < 0.9
    num_bytes = sum(path.stat().st_size for path in (tmp_path / "a").iterdir())
    assert found.cache is not None
    assert num_bytes / 4 < found.cache.sample_bytes < 2 * num_bytes / 4
    assert found.cache.most_bytes > 0
    if "cache" not in given:
        assert shared.contents() is None  # nothing of it is left in this process
    else:
        shared.forget()


def children() -> str:
    """Return the processes that this thread has started: other tests' servers among them."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()


def test_nothing_of_the_script_changes(capfd):
    dataset = Numbers()
    before = torch.get_rng_state(), random.getstate(), len(os.listdir("/proc/self/fd")), children()
    tried(DataLoader(dataset, 16))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), len(os.listdir("/proc/self/fd")), children())
    assert dataset.asked == 0
    assert capfd.readouterr() == ("", "")


def fail() -> None:
    raise KeyError("no such sample")


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (lambda: time.sleep(3600), "it took longer than 1 s"),
        (fail, "KeyError: 'no such sample'"),
        (lambda: os._exit(3), "the process that ran the trials has died"),
    ],
    ids=["hangs", "fails", "dies"],
)
def test_a_dataset_that_cannot_be_asked_in_a_child_is_a_reason(monkeypatch, first, reason):
    monkeypatch.setattr(trials_module, "_MOST_SECONDS", 1.0)
    (note,) = tried(DataLoader(Numbers(first), 16))
    assert note["reason"] == reason


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (DataLoader(Stream(), 4), "an IterableDataset cannot be asked for a sample again"),
        (DataLoader(Numbers(), batch_size=None), "the dataset makes its batches itself"),
    ],
)
def test_what_cannot_be_tried_has_a_reason(loader, reason):
    assert tried(loader)[0]["reason"] == reason


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--full",), ("--steps", "4", "--warmup", "1")], ids=["full", "ended"])
def test_a_recording_has_the_trials_of_its_loader_and_nothing_is_left_of_them(
    tmp_path: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    path = write(tmp_path, "loader = DataLoader(Slow(), 2)\nfor batch in loader: pass")
    done = profile(tmp_path, path, options=options)
    assert done.status == 0, done.errors
    (rank,) = done.trace.ranks
    assert Choice("fastload", "auto", "sample") in rank.trials[0].cpu_ns
    assert rank.trials[0].stages_ms.keys() == {"collate", "sample"}
    assert list(temporary.glob("fastload-profile-*")) == []
    assert len(rank.steps) == (12 if options == ("--full",) else 5)  # what is tried is no step


# -- what trials say ---------------------------------------------------------------------------------------------------


TORCH = Choice("torch", None, None)
AUTO = Choice("fastload", "auto", "sample")
FUSED = Choice("fastload", True, "sample")


def note(**times: list[int]) -> dict[str, object]:
    choices = {"torch": TORCH, "auto": AUTO, "fused": FUSED}
    return {"cpu_ns": [(choices[name], found) for name, found in times.items()]}


times = st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), min_size=1, max_size=20)


@given(pairs=times)
def test_the_ratio_is_that_of_the_sums_and_lies_in_its_interval(pairs):
    before, after = map(list, zip(*pairs, strict=True))
    found = trials_of(note(torch=before, auto=after)).ratio(TORCH, AUTO)
    assert found.value == pytest.approx(sum(after) / sum(before))
    assert found.low <= found.value <= found.high


def test_equal_rounds_leave_nothing_open():
    assert trials_of(note(torch=[40, 80], auto=[10, 20])).ratio(TORCH, AUTO) == (0.25,) * 3


def test_what_was_not_tried_is_an_error_with_the_reason():
    found = trials_of({**note(torch=[4]), "reasons": [(FUSED, "Custom is no known dataset")]})
    with pytest.raises(ConfigError, match="engine=fastload, fuse=True, seeding=sample: Custom is no known dataset"):
        found.ratio(TORCH, FUSED)
    with pytest.raises(ConfigError, match="an IterableDataset cannot be asked again"):
        trials_of({"reason": "an IterableDataset cannot be asked again"}).ratio(TORCH, AUTO)
    with pytest.raises(ConfigError, match="was not measured: fastload profile does so when the script ends"):
        Trials().ratio(TORCH, AUTO)


@pytest.mark.parametrize(
    ("loader", "settings", "after"),
    [
        ({"engine": "torch"}, {}, TORCH),
        ({"engine": "torch"}, {"engine": "fastload"}, AUTO._replace(seeding="torch")),
        ({"engine": "torch"}, {"engine": "fastload", "seeding": "sample"}, AUTO),
        ({"engine": "torch"}, {"engine": "fastload", "fuse": True}, FUSED),
        ({"engine": "fastload", "fuse": False, "seeding": "sample"}, {"fuse": True}, FUSED),
        ({"engine": "fastload", "fuse": False, "seeding": "torch"}, {}, Choice("fastload", False, "torch")),
        ({"engine": "fastload", "fuse": "auto", "seeding": "sample"}, {"engine": "torch"}, TORCH),
    ],
)
def test_settings_change_what_a_loader_was_set_to(loader, settings, after):
    assert chosen(loader, settings)[1] == after


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fuse": True}, "fuse is an argument of fastload's loader; set engine=fastload too"),
        ({"engine": "fastload", "seeding": "torch", "fuse": True}, "fuse=True needs seeding='sample'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        chosen({"engine": "torch"}, settings)


def test_what_processes_would_cost_is_not_known_of_threads():
    threads = {"engine": "fastload", "fuse": "auto", "seeding": "sample", "num_workers": 2, "worker_method": "thread"}
    assert chosen(threads, {"num_workers": 4, "fuse": True}) == (AUTO, FUSED)
    with pytest.raises(ConfigError, match="engine=torch cannot be predicted from a recording with worker threads"):
        chosen(threads, {"engine": "torch"})
