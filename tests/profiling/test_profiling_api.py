"""``with fastload.profile(loader)``: a part of a program is recorded, and nothing stays behind."""

from __future__ import annotations

import builtins
import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from profiled import BATCHES, Numbers, indices_of
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_module

import fastload
from fastload import ConfigError, observe
from fastload.cli import main
from fastload.errors import TraceError
from fastload.profiling.page import page
from fastload.profiling.trace import Rank

PATCHED = [
    *(torch_module._BaseDataLoaderIter, torch_module._MultiProcessingDataLoaderIter, torch_module._DatasetKind),
    *(torch_module._utils.worker, torch_module._utils.pin_memory, builtins),
]


def indices(rank: Rank) -> list[list[int]]:
    return [indices_of(step) for step in rank.steps]


def test_only_the_loader_that_was_named_is_recorded_or_all_of_them() -> None:
    one, two = DataLoader(Numbers(), batch_size=4), DataLoader(Numbers(), batch_size=6)
    for wanted, number in [(one, 3), (two, 2), (None, 5)]:
        with fastload.profile(wanted) as recorded:
            for _ in one:
                pass
            list(two)
        (rank,) = recorded.trace().ranks
        assert len(rank.steps) == number


@pytest.mark.parametrize("level", [1, 2])
def test_everything_is_as_before_afterwards(tmp_path: Path, level: int) -> None:
    def found() -> list[Any]:
        functions = [{name: one for name, one in vars(owner).items() if callable(one)} for owner in PATCHED]
        variables = [os.environ.get(name) for name in ("PYTHONPATH", "FASTLOAD_PROFILE")]
        return [*functions, *variables, list(gc.callbacks), observe.listener, threading.active_count()]

    before = found()
    loader = fastload.DataLoader(Numbers(), batch_size=4, num_workers=1, worker_method="thread")
    with pytest.raises(KeyError, match="mine"), fastload.profile(folder=tmp_path, level=level) as recorded:
        list(loader)
        list(DataLoader(Numbers()))
        raise KeyError("mine")
    assert found() == before
    assert "FASTLOAD_PROFILE" not in os.environ
    assert any(any(batch) for batch in indices(recorded.trace().ranks[0])) == (level > 0)


def test_a_recording_that_has_ended_holds_no_file_and_waits_for_no_import(tmp_path: Path) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8").count(f"{tmp_path}/")
        return mapped, len(sys.meta_path)

    before = held()
    for number in range(3):
        with fastload.profile(folder=tmp_path / str(number), level=2):
            list(DataLoader(Numbers(), num_workers=1))
            list(DataLoader(Numbers()))
    assert held() == before


def test_a_folder_that_nobody_named_goes_with_its_recording_and_not_with_a_childs_copy(capfd):
    with fastload.profile() as recorded:
        loader = fastload.DataLoader(Numbers(), batch_size=4, num_workers=1, persistent_workers=True)
        list(loader)
    folder = recorded.folder
    assert folder is not None
    child = os.fork()
    if not child:
        del recorded
        gc.collect()
        os._exit(0 if folder.is_dir() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert indices(recorded.trace().ranks[0]) == BATCHES
    del recorded
    gc.collect()
    assert not folder.exists()
    list(loader)  # its worker is still recorded, and has nothing to say of that
    loader.close()
    assert capfd.readouterr().err == ""


def test_what_persistent_workers_write_after_a_recording_is_no_part_of_it(tmp_path: Path) -> None:
    with fastload.profile(folder=tmp_path) as recorded:
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1, persistent_workers=True)
        list(loader)
        before = recorded.trace().ranks
    assert recorded.trace().ranks == before
    rings = list(tmp_path.glob("*.ring"))
    assert all(ring.stat().st_size < 1 << 17 for ring in rings), "no longer than what was written needs"
    list(loader)  # the worker writes on
    assert recorded.trace().ranks == before


def test_one_recording_at_a_time_in_a_folder_of_its_own(tmp_path: Path) -> None:
    with fastload.profile(folder=tmp_path), pytest.raises(ConfigError, match="already recorded"):
        fastload.profile().__enter__()
    with pytest.raises(ConfigError, match="is not empty"):
        fastload.profile(folder=tmp_path).__enter__()
    for wrong in ({"loader": "train"}, {"loader": Numbers()}, {"level": 3}, {"warmup": -1}, {"warmup": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            fastload.profile(**wrong)  # type: ignore[arg-type]


def test_a_recording_without_a_batch_says_so() -> None:
    with fastload.profile() as recorded:
        pass
    with pytest.raises(TraceError, match=r": no DataLoader was iterated over within the context.* begin the it"):
        recorded.trace()


def test_a_recording_is_explained_here_and_by_fastload_report(tmp_path, capsys):
    loader, folder = DataLoader(Numbers(0.005), batch_size=1), str(tmp_path / "new")
    with fastload.profile(loader, folder=folder) as recorded:
        for _ in range(4):
            list(loader)
    analysis = recorded.analysis()
    (rank,) = analysis.ranks
    assert (rank.num_steps, rank.verdict.cause) == (48, "read")
    assert rank.blame_ms["read"] > 4
    for kind, word in (("--text", "read-bound"), ("--perfetto", "traceEvents"), ("--json", '"num_steps": 48')):
        assert main(["report", folder, kind]) == 0
        assert word in capsys.readouterr().out
    assert main(["report", folder, "--html", "-o", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page").read_text() == page(analysis)
    assert main(["compare", folder, folder]) == 0
    assert "no significant difference" in capsys.readouterr().out
    broken = tmp_path / "broken" / "recording.json"
    broken.parent.mkdir()
    broken.write_text("{")
    for words in (["compare", folder, str(broken.parent)], ["report", str(broken.parent)]):
        assert main(words) == 1
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert said.err.startswith(f"fastload {words[0]}: {broken} cannot be read: ")


def test_a_loader_that_was_begun_before_goes_on_unheard() -> None:
    early = iter(DataLoader(Numbers(), batch_size=4, num_workers=1))
    next(early)
    with fastload.profile() as recorded:
        assert len(list(early)) == 2
        late = iter(DataLoader(Numbers(), batch_size=4, num_workers=1))
        next(late)
    assert len(list(late)) == 2
    (rank,) = recorded.trace().ranks
    assert indices(rank) == BATCHES[:1]


def test_where_workers_are_threads_the_interpreter_is_probed_and_the_probe_ends(tmp_path: Path) -> None:
    def probes() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "fastload_probe"]

    loader = fastload.DataLoader(Numbers(), batch_size=4, num_workers=1, worker_method="thread")
    with fastload.profile(folder=tmp_path) as recorded:
        for _ in loader:
            time.sleep(0.1)
            gc.collect()
        assert len(probes()) == 1
        child = os.fork()
        if not child:
            os._exit(len(probes()))
        assert os.waitpid(child, 0)[1] == 0, "a fork has no thread but the one that forked"
    assert probes() == []
    (rank,) = recorded.trace().ranks
    assert len(rank.probe_ns) >= 2
    assert min(rank.probe_ns) >= -1_000_000
    for step in rank.steps[:-1]:
        assert step.loop_ns is not None
        assert step.loop_cpu_ns is not None
        assert step.loop_ns >= 100_000_000
        assert 0 < step.loop_cpu_ns < step.loop_ns - 80_000_000, "it slept, and collecting garbage took the rest"
