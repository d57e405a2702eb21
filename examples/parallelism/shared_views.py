"""Views of one tensor sent to a spawned process: "bad value(s) in fds_to_keep", then and now.

    python examples/parallelism/shared_views.py

When the notes were written torch sent a file descriptor for each view, the same one each time (pytorch#31571); now it
has one Python object for a storage, which is pickled once.

Measured (torch 2.13, CPython 3.11): views arrive, also after ``deepcopy``; a view of 128 bytes maps 1,064, its clone
128; both loaders work.
"""

import copy
import os
from multiprocessing.reduction import DupFd
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import fastload

ROWS = 133


def pieces() -> list[Tensor]:
    """Return the notes' example: numbers 0 to 132, in pieces of 16."""
    return list(torch.arange(ROWS).split(16))


def receive(tensors: list[Tensor], answer: Any) -> None:
    """Answer with the sum, and the bytes that were mapped for it."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    answer.put((int(sum(tensor.sum() for tensor in tensors)), sum(storages.values())))


def send(*parcels: list[Tensor]) -> list[str]:
    """Send each list of tensors to a process that is started anew, all at once, and return what came of them."""
    context = mp.get_context("spawn")
    answers = [context.SimpleQueue() for _ in parcels]
    processes = [context.Process(target=receive, args=parcel) for parcel in zip(parcels, answers, strict=True)]
    for process in processes:
        process.start()
    said = []
    for process, answer in zip(processes, answers, strict=True):
        process.join(60)
        if process.exitcode is None:
            process.kill()
            process.join()
        if process.exitcode == 0:
            total, num_bytes = answer.get()
            said.append(f"arrived: sum {total}, {num_bytes} bytes mapped")
        else:
            said.append(f"the process ended with {process.exitcode}")
    return said


class _Twice:
    """Is sent as two copies of one file descriptor, as torch once sent two pieces of one tensor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, ((DupFd(self.descriptor), DupFd(self.descriptor)),)


def send_a_descriptor_twice() -> str:
    """Return what CPython says to it."""
    ours, theirs = os.pipe()
    try:
        process = mp.get_context("spawn").Process(target=print, args=(_Twice(ours),))
        process.start()
        process.join()
    except ValueError as error:
        return f"ValueError: {error}"
    finally:
        os.close(ours)
        os.close(theirs)
    return "nothing"


class Pieces(Dataset[Tensor]):
    """A dataset of numbers that keeps pieces of one tensor."""

    def __init__(self) -> None:
        self.pieces = pieces()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Tensor:
        return self.pieces[index // 16][index % 16]


def load(make: Any) -> str:
    """Load the dataset with a worker that is started anew, and return what came of it."""
    loader = make(Pieces(), batch_size=50, num_workers=1, multiprocessing_context="spawn")
    return f"loaded: sum {sum(int(batch.sum()) for batch in loader)}"


def main() -> None:
    """Send and load."""
    print(f"pieces: {len(pieces())}")
    names = ("pieces of one tensor", "their deepcopy", "one piece alone", "a clone of it")
    parcels = (pieces(), copy.deepcopy(pieces()), pieces()[:1], [pieces()[0].clone()])
    for name, said in zip(names, send(*parcels), strict=True):
        print(f"{name}: {said}")
    print(f"one descriptor, twice: {send_a_descriptor_twice()}")
    print(f"torch's loader: {load(TorchDataLoader)}")
    print(f"fastload's loader: {load(fastload.DataLoader)}")


if __name__ == "__main__":
    main()
