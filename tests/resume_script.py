"""One rank of a training that test_resume_ranks.py kills: ``resume_script.py FOLDER RANK WORLD_SIZE KIND NUM_WORKERS``.

After each step the ranks meet, as they do for gradients; then each notes the samples of its step in a file of its own,
and rank 0 saves the loader's state. The names of steps go to standard output, for whoever waits for one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kit.datasets import Noisy

import fastload

LENGTH = 94
GLOBAL_BATCH = 8
EPOCHS = 3


def make_loader(kind: str, rank: int, world_size: int, num_workers: int, **options: Any) -> fastload.DataLoader[Any]:
    """Return the loader of a rank; the global batch is the same for every number of ranks."""
    dataset = Noisy(LENGTH)
    if kind == "global batches":
        batches = fastload.DistributedBatchSampler(
            dataset, GLOBAL_BATCH, seed=7, tail="pad", rank=rank, world_size=world_size
        )
        return fastload.DataLoader(dataset, batch_sampler=batches, num_workers=num_workers, **options)
    sampler = fastload.DistributedSampler(dataset, world_size, rank, seed=7, tail="short", order="block", block_size=5)
    return fastload.DataLoader(dataset, GLOBAL_BATCH // world_size, sampler=sampler, num_workers=num_workers, **options)


def hashes(batch: torch.Tensor) -> list[str]:
    """Return a hash of each sample, bit for bit."""
    return [hashlib.blake2b(row.numpy().tobytes(), digest_size=8).hexdigest() for row in batch]


def main(folder: Path, rank: int, world_size: int, kind: str, num_workers: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    loader = make_loader(kind, rank, world_size, num_workers, persistent_workers=num_workers > 1)
    log = os.open(folder / f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for epoch in range(EPOCHS):
        for step, batch in enumerate(loader):
            dist.barrier()
            os.write(log, f"{epoch} {step} {rank} {' '.join(hashes(batch))}\n".encode())
            if rank == 0:
                (folder / "state.part").write_text(json.dumps(loader.state_dict()))
                os.replace(folder / "state.part", folder / "state")
            print(epoch, step, flush=True)
    os.close(log)
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
