"""What Accelerate makes of our loader is our loader, with our arguments."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import accelerate
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher, DataLoaderShard, SkipDataLoader
from kit.datasets import Stream
from kit.libraries import accelerator
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, TensorDataset

import fastload
from fastload.base import overrides
from fastload.options import OPTIONS
from fastload.run import adapters
from fastload.run.adapters import own_arguments

OWN: dict[str, Any] = {
    **{name: option.default for name, option in OPTIONS.items()},
    "seed": 11,
    "chunk_size": 3,
    "worker_method": "thread",
    "seeding": "sample",
    "overlap_epochs": False,
    "device": "cpu",
    "prefetch_to_device": 3,
    "keep_on_host": (1,),
    "channels_last": True,
    "fuse": False,
    "on_error": "skip",
    "max_errors": 7,
}


def stream() -> Iterator[torch.Tensor]:
    return iter(torch.arange(10))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_our_class_and_arguments_survive_preparing_and_skipping(dataset: TensorDataset, num_workers: int) -> None:
    loader = fastload.DataLoader(dataset, batch_size=4, num_workers=num_workers, timeout=0, **OWN)
    prepared = accelerator().prepare(loader)
    assert torch.cat([labels for _, labels in prepared]).tolist() == [0, 1] * 12
    for rest in (accelerate.skip_first_batches(prepared, 2), accelerate.skip_first_batches(loader, 2)):
        assert len(list(rest)) == 4
        inside: Any = getattr(rest, "base_dataloader", rest)
        assert type(inside) is fastload.DataLoader
        assert inside.statistics().batches == 4
        assert own_arguments(inside) == own_arguments(prepared.base_dataloader) == own_arguments(loader) == OWN
        assert inside.prefetch_factor == prepared.base_dataloader.prefetch_factor == loader.prefetch_factor


@pytest.mark.parametrize("shuffle", [False, True])
def test_substitutes_come_from_what_a_share_of_batches_is_a_share_of(shuffle: bool) -> None:
    class Faulty(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            if index % 3 == 0:
                raise OSError(index)
            return super().__getitem__(index)

    faulty = Faulty(torch.arange(24))
    sampler: Any = RandomSampler(faulty) if shuffle else SequentialSampler(faulty)
    shares: Any = [BatchSamplerShard(BatchSampler(sampler, 4, False), 2, rank) for rank in range(2)]
    keyed = fastload.DataLoader(faulty, 4, shuffle=True, seed=3).batch_sampler
    shares += [BatchSamplerShard(keyed, 2, rank) for rank in range(2)]
    for share in shares:
        loader: Any = fastload.DataLoader(faulty, batch_sampler=share, on_error="replace")
        found = torch.cat([numbers for (numbers,) in loader])
        assert len(found) == 12
        assert not any(found % 3 == 0)


def test_a_stream_that_is_skipped_or_dispatched_is_iterated_by_our_class() -> None:
    loader = fastload.DataLoader(Stream(stream), batch_size=2, num_workers=1)
    rest: Any = accelerate.skip_first_batches(loader, 3)
    assert type(rest) is SkipDataLoader
    assert [batch.tolist() for batch in rest] == [[6, 7], [8, 9]]
    assert rest.statistics().batches == 5
    prepared = accelerator().prepare(fastload.DataLoader(Stream(stream), batch_size=2, num_workers=1))
    assert type(prepared) is DataLoaderDispatcher
    assert [batch.tolist() for batch in prepared] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert prepared.base_dataloader.statistics().batches == 5


def test_torchs_loader_stays_torchs_unless_ours_is_installed(dataset: TensorDataset) -> None:
    running = accelerator()
    fastload.DataLoader(dataset)
    torchs: Any = torch.utils.data.DataLoader(dataset, batch_size=4)
    prepared = running.prepare(torchs)
    assert type(prepared) is DataLoaderShard
    assert type(prepared.base_dataloader) is torch.utils.data.DataLoader
    assert type(accelerate.skip_first_batches(prepared, 1).base_dataloader) is torch.utils.data.DataLoader
    fastload.install()
    try:
        prepared = running.prepare(torchs)
        assert type(prepared.base_dataloader) is fastload.DataLoader
        assert len(list(prepared)) == prepared.base_dataloader.statistics().batches == 6
    finally:
        fastload.uninstall()


def test_an_unknown_version_of_accelerate_is_told_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = sys.modules["accelerate.data_loader"]
    entries = [one for one in adapters.OVERRIDES if one.library == module.__name__]
    was_installed = [one for one in entries if one.is_installed]
    for one in entries:
        one.undo()
    with monkeypatch.context() as patch:
        patch.delattr(module, "prepare_data_loader")
        with pytest.warns(
            RuntimeWarning,
            match=r"does not support this version of accelerate .*prepare_data_loader.*fastload\.install\(\)",
        ):
            adapters.adapt(module, fastload.DataLoader)
        assert module.DataLoader is torch.utils.data.DataLoader
    overrides.install_all(was_installed)


_PREPARED = """
prepared = accelerate.Accelerator(cpu=True).prepare(loader)
inside = accelerate.skip_first_batches(prepared, 1).base_dataloader
print(len(list(prepared)), type(inside).__module__, getattr(inside, "chunk_size", None))
"""
_MADE = "loader = fastload.DataLoader(list(range(6)), batch_size=2, chunk_size=1)"
_OURS, _TORCHS = ["3", "fastload.loader", "1"], ["3", "torch.utils.data.dataloader", "None"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([_MADE, "import accelerate", "fastload.DataLoader(range(3))"], _OURS),
        (["fastload.install()", _MADE, "fastload.uninstall()", "import accelerate"], _OURS),
        ([_MADE, "import accelerate"], _TORCHS),
    ],
    ids=["a loader made later", "installed", "imported after"],
)
def test_accelerate_keeps_our_class_where_it_is_imported_before_a_loader_is_made_or_ours_is_installed(
    lines: list[str], expected: list[str]
) -> None:
    said = """
    import fastload, sys, warnings
    heard, warnings.showwarning = [], lambda message, *where: heard.append(str(message))
    finders = list(sys.meta_path)
    """
    told = "print(sum('fastload.install()' in one for one in heard), finders == sys.meta_path)"
    script = "\n".join([textwrap.dedent(said), *lines, _PREPARED, told])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split()
    assert printed[:3] == expected
    assert (printed[3] != "0") == (expected == _TORCHS)
    assert (printed[4] == "True") == ("fastload.install()" not in lines)
