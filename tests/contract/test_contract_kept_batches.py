"""A batch that the user keeps is his: never overwritten, whatever part of it he keeps, and free to be changed."""

import copy
import functools
import gc
import io
import itertools
import pickle
import queue
import threading
from collections.abc import Callable
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any

import contract_ways as ways
import numpy as np
import pytest
import torch
from contract_harness import as_in_torch, generator
from contract_samples import SamplesOfKind
from kit.datasets import Sized


class _Patterns(Sized):
    """Images whose every element depends on the index, and an array of the same."""

    def __getitem__(self, index: int) -> Any:
        return torch.arange(300).reshape(3, 10, 10) + 1000 * index, np.full(5, index, dtype=np.float32)


# Others are in tests/buffers/test_slots.py.
KEEP: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda images: images,
    "a row": lambda images: images[0],
    "rows in a tuple": lambda images: images.unbind()[1:],
    "its bytes": lambda images: images.view(torch.uint8)[..., 1::8],
    "as an array": lambda images: images.numpy(),
    "by DLPack": lambda images: np.from_dlpack(images)[1],
    "by its storage": lambda images: torch.empty(0, dtype=torch.int64).set_(images.untyped_storage(), 300, (300,)),
    "in a parameter": lambda images: torch.nn.Parameter(images, requires_grad=False),
    "shared": lambda images: images.share_memory_()[1],
}


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize("collate_fn", [None, list], ids=["collated", "as they are"])
def test_only_a_part_or_a_view_of_every_batch_is_kept(load, collate_fn):
    kept: dict[str, list[Any]] = {what: [] for what in KEEP}
    dataset = _Patterns(20 * len(KEEP))
    loader = load(dataset, batch_size=2, collate_fn=collate_fn)
    for what, batch in zip(itertools.cycle(KEEP), loader):
        images, arrays = batch if collate_fn is None else (torch.stack([batch[0][0], batch[1][0]]), batch[1][1])
        kept[what].append((KEEP[what](images), arrays[:1], batch if what == "itself" else None))
    del batch, images, arrays
    gc.collect()
    # The loader goes on in the meantime, in the same buffers if it thinks them free.
    for images, arrays in load(_Patterns(48), batch_size=2, shuffle=True, generator=generator()):
        images.fill_(-1)
        arrays.fill_(-1)
    return kept


@as_in_torch(ways.several)
def test_some_batches_are_kept_in_any_thread_and_others_dropped(load):
    loader = load(_Patterns(200), batch_size=2, shuffle=True, generator=generator())
    handed: queue.Queue[Any] = queue.Queue()
    kept: list[Any] = []

    def keep() -> None:
        # Keeps a row of some batches for a while, and drops the batches themselves, in this thread.
        while (item := handed.get()) is not None:
            step, (images, arrays) = item
            kept.append((images[1] if step % 2 else arrays.numpy()[:1], step))
            if len(kept) > 12:
                kept.pop(step % 12)
            del item, images, arrays

    thread = threading.Thread(target=keep)
    thread.start()
    for _ in range(2):
        for step, batch in enumerate(loader):
            if step % 3:
                handed.put((step, batch))
            del batch
    handed.put(None)
    thread.join()
    return kept


@as_in_torch(ways.several)
def test_batches_and_their_containers_may_be_changed(load):
    loader = load(_Patterns(60), batch_size=2)
    kept: list[Any] = []
    for _ in range(2):
        for images, arrays in loader:
            kept.append((images.mul_(2).add_(1), arrays.numpy()))
            kept[-1][1][:] += 1
            images[0].zero_()
    for batch in load(SamplesOfKind("nested_deeply"), batch_size=3):
        batch["view"].append("more")
        batch["meta"]["id"] = None
        del batch["more"]
        kept.append(batch)
    return kept


@as_in_torch(ways.several)
@pytest.mark.parametrize("closed", [False, True])
def test_batches_live_on_when_loader_and_iterator_are_gone(load, closed):
    loader = load(_Patterns(40), batch_size=2)
    iterator = iter(loader)
    kept = list(itertools.islice(iterator, 7))
    if closed:
        getattr(loader, "close", int)()  # torch's class has no such method
    del iterator, loader
    gc.collect()
    return kept, list(load(_Patterns(40), batch_size=2, shuffle=True, generator=generator()))


@as_in_torch(ways.each_kind)
def test_a_batch_owns_exactly_its_memory(load):
    # So torch.save of one tensor does not write its neighbours.
    tensors = [tensor for batch in load(_Patterns(9), batch_size=3) for tensor in batch]
    return [(tensor.storage_offset(), tensor.untyped_storage().nbytes()) for tensor in tensors]


def _saved_and_loaded(batch: Any) -> Any:
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    return torch.load(file)


_AGAIN: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "deepcopy": copy.deepcopy,
    "torch.save": _saved_and_loaded,
    "to another process": lambda batch: pickle.loads(ForkingPickler.dumps(batch)),
}


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize("what", _AGAIN)
def test_a_batch_can_be_copied_and_sent(load, what, request):
    # The thread that hands out descriptors is started by the first that is asked for.
    request.addfinalizer(functools.partial(resource_sharer.stop, timeout=5))
    kept = [_AGAIN[what](batch) for batch in load(_Patterns(20), batch_size=2)]
    for images, _ in load(_Patterns(20), batch_size=2):
        images.fill_(-1)
    return kept
