"""Mixing and packing beside other libraries: time to the first batch and to go on at a late step, padding, lost rows.

    python -m benchmarks.packing [--python OTHER] [--repetitions N] [--step N] [SIDE ...]

Each side runs in a process of its own, in turns. ``--python``: the interpreter of trl and Grain, if it is another
(``uv venv V && uv pip install --python V/bin/python trl grain``). A side packs 200,000 documents (lognormal lengths,
median 245 tokens) of a ``datasets.Dataset`` on disk to 8,192 tokens, or mixes three sources of 500,000 rows to batches
of 8 and goes on at step 100,000 in the same number of ranks, one; wrong rows are repeated or lost in 200 batches.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow

BUDGET, DOCUMENTS, ROWS, BATCH, COMPARED = 8192, 200_000, 500_000, 8, 200
WEIGHTS = [0.6, 0.3, 0.1]


def make_data(folder: Path) -> None:
    """Write documents, and three sources of rows that are numbered through."""
    lengths = np.minimum(np.random.default_rng(0).lognormal(np.log(245), 0.8, DOCUMENTS).astype(np.int64) + 1, BUDGET)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = pyarrow.ListArray.from_arrays(offsets, np.arange(offsets[-1], dtype=np.int32) % 50_000)
    datasets.Dataset(pyarrow.table({"input_ids": lists})).save_to_disk(str(folder / "documents"))
    for number in range(3):
        rows = {"row": range(number * ROWS, (number + 1) * ROWS)}
        datasets.Dataset.from_dict(rows).save_to_disk(str(folder / f"source{number}"))


def load(folder: Path, name: str) -> Any:
    """Return one of the datasets."""
    return datasets.load_from_disk(str(folder / name))


def fastload_packs(folder: Path, step: int) -> dict[str, float]:
    """Lengths from Arrow, windows of 4,096, two workers."""
    from fastload import DataLoader, PackedBatchSampler, collate_packed, token_lengths

    documents = load(folder, "documents").with_format("numpy")
    since = time.perf_counter()
    sampler = PackedBatchSampler(documents, BUDGET, token_lengths(documents), packs_per_step=8)
    loader: Any = DataLoader(documents, batch_sampler=sampler, collate_fn=collate_packed, num_workers=2)
    next(iter(loader))
    first_s = time.perf_counter() - since
    return {"first batch s": first_s, "padding %": 100 * (1 - sampler.efficiency())}


def trl_packs(folder: Path, step: int) -> dict[str, float]:
    """Its best fit decreasing, in batches of 1,000 rows, before training."""
    from trl import pack_dataset

    documents = load(folder, "documents")
    since = time.perf_counter()
    packed = pack_dataset(documents, BUDGET, map_kwargs={"load_from_cache_file": False}).with_format("numpy")
    packed[0]
    first_s = time.perf_counter() - since
    tokens = np.diff(packed.data.column("input_ids").combine_chunks().offsets.to_numpy()).sum()
    return {"first batch s": first_s, "padding %": 100 * (1 - tokens / (len(packed) * BUDGET))}


def grain_packs(folder: Path, step: int) -> dict[str, float]:
    """Its best fit with 64 bins, in the process."""
    import grain
    from grain import experimental

    documents = load(folder, "documents").with_format("numpy")
    since = time.perf_counter()
    rows = grain.MapDataset.source(documents).shuffle(seed=1).to_iter_dataset()
    packs = iter(experimental.BestFitPackIterDataset(rows, length_struct={"input_ids": BUDGET}, num_packing_bins=64))
    first = next(packs)
    first_s = time.perf_counter() - since
    filled = np.mean([(pack["input_ids_segment_ids"] > 0).sum() for pack in [first, *itertools.islice(packs, 1999)]])
    return {"first batch s": first_s, "padding %": 100 * (1 - float(filled) / BUDGET)}


def gone_on(make: Any, step: int) -> dict[str, float]:
    """Iterate to a step, load its state into another loader, and compare what follows there with what does here."""
    since = time.perf_counter()
    loader = make()
    iterator = iter(loader)
    next(iterator)
    first_s = time.perf_counter() - since
    for _ in range(step - 1):
        next(iterator)
    state = loader.state_dict()
    expected = [row for batch in itertools.islice(iterator, COMPARED) for row in batch["row"].tolist()]
    loader = make()
    since = time.perf_counter()
    loader.load_state_dict(state)
    iterator = iter(loader)
    found = next(iterator)["row"].tolist()
    resume_s = time.perf_counter() - since
    found += [row for batch in itertools.islice(iterator, COMPARED - 1) for row in batch["row"].tolist()]
    return {"first batch s": first_s, "resume s": resume_s, "wrong rows": len(set(expected) ^ set(found))}


def fastload_mix(folder: Path, step: int) -> dict[str, float]:
    """A mixture in packs of about 8 rows: all lengths are 1 or 2."""
    from fastload import DataLoader, Mixture, PackedBatchSampler

    parts = {str(number): load(folder, f"source{number}") for number in range(3)}
    lengths = {name: np.arange(ROWS, dtype=np.int32) % 2 + 1 for name in parts}

    def make() -> Any:
        mixture = Mixture(parts, dict(zip(parts, WEIGHTS, strict=True)), lengths=lengths, num_samples=3 * ROWS)
        return DataLoader(mixture, batch_sampler=PackedBatchSampler(mixture, 12, packs_per_step=1, seed=1))

    return gone_on(make, step)


def interleave(folder: Path, step: int, *, streaming: bool = False) -> dict[str, float]:
    """``interleave_datasets`` in a ``StatefulDataLoader`` without workers."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        parts = [load(folder, f"source{number}") for number in range(3)]
        parts = [one.to_iterable_dataset() if streaming else one for one in parts]
        mixed = datasets.interleave_datasets(parts, WEIGHTS, seed=1, stopping_strategy="all_exhausted")
        return StatefulDataLoader(mixed, batch_size=BATCH)

    return gone_on(make, step)


SIDES: dict[str, Any] = {
    one.__name__: one for one in (fastload_packs, trl_packs, grain_packs, fastload_mix, interleave)
}
SIDES["interleave_streams"] = functools.partial(interleave, streaming=True)


def main() -> None:
    """Run the sides in turns, and print median, least and most of each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sides", nargs="*", default=list(SIDES))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--step", type=int, default=100_000)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder:
        print(json.dumps(SIDES[asked.sides[0]](Path(asked.folder), asked.step)))
        return
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        for _, side in itertools.product(range(asked.repetitions), asked.sides):
            python = asked.python if side in ("trl_packs", "grain_packs") else sys.executable
            command = [python, __file__, side, "--folder", folder, "--step", str(asked.step)]
            said = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
            for name, value in json.loads(said.splitlines()[-1]).items():
                found.setdefault((side, name), []).append(value)
    for (side, name), values in found.items():
        spread = f"{min(values):.3g} to {max(values):.3g}, n={len(values)}"
        print(f"{side:20} {name:14} {statistics.median(values):8.3g}  ({spread})")


if __name__ == "__main__":
    main()
