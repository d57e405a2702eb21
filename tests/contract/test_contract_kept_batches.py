"""A batch that the user keeps is his: never overwritten, whatever part of it he keeps, and free to be changed."""

import copy
import functools
import gc
import io
import itertools
import multiprocessing
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
from contract_datasets import Squares, identity
from contract_harness import as_in_torch, generator
from contract_samples import SamplesOfKind
from kit.datasets import Sized


class _Patterns(Sized):
    """Images whose every element depends on the index, and an array of the same."""

    def __getitem__(self, index: int) -> Any:
        return torch.arange(300).reshape(3, 10, 10) + 1000 * index, np.full(5, index, dtype=np.float32)


@as_in_torch(ways.everywhere)
def test_all_batches_kept_in_a_list(load):
    loader = load(_Patterns(120), batch_size=2, shuffle=True, generator=generator())
    return [list(loader), list(loader)]


KEEP: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda images: images,
    "a row": lambda images: images[0],
    "the last element": lambda images: images[-1, -1, -1, -1],
    "every second row": lambda images: images[:, :, ::2],
    "rows in a tuple": lambda images: images.unbind()[1:],
    "another shape": lambda images: images.view(-1)[5:900],
    "transposed": lambda images: images.transpose(1, 3),
    "its bytes": lambda images: images.view(torch.uint8)[..., 1::8],
    "detached": lambda images: images.detach(),
    "its data": lambda images: images.data[1],
    "as an alias": lambda images: torch.ops.aten.alias(images),
    "an expanded row": lambda images: images[1].expand(4, 3, 10, 10),
    "as an array": lambda images: images.numpy(),
    "a slice as an array": lambda images: images[1, :2].numpy()[:, 3:],
    "an array of the array": lambda images: np.asarray(images)[::-1][1:],
    "by DLPack": lambda images: np.from_dlpack(images)[1],
    "by DLPack and back": lambda images: torch.from_dlpack(np.from_dlpack(images))[0],
    "an array and a tensor of it": lambda images: torch.from_numpy(images.numpy()[1]),
    "a memory view": lambda images: np.frombuffer(memoryview(images.numpy()).cast("B"), dtype=np.int64),
    "by its storage": lambda images: torch.empty(0, dtype=torch.int64).set_(images.untyped_storage(), 300, (300,)),
    "in a parameter": lambda images: torch.nn.Parameter(images, requires_grad=False),
    "shared": lambda images: images.share_memory_()[1],
    "a copy": lambda images: images.clone(),
    "a list of rows": lambda images: [image[0] for image in images],
}


if torch.__version__.startswith("2.6."):
    del KEEP["by DLPack and back"]  # NumPy hands read-only arrays only to a newer DLPack than this torch's


@as_in_torch(ways.each_kind)
def test_only_a_part_or_a_view_of_every_batch_is_kept(load):
    kept: dict[str, list[Any]] = {what: [] for what in KEEP}
    for what, (images, _) in zip(itertools.cycle(KEEP), load(_Patterns(20 * len(KEEP)), batch_size=2)):
        kept[what].append(KEEP[what](images))
    del images
    gc.collect()
    # The loader goes on in the meantime, in the same buffers if it thinks them free.
    for images, _ in load(_Patterns(48), batch_size=2, shuffle=True, generator=generator()):
        images.fill_(-1)
    return kept


@as_in_torch(ways.several)
def test_some_batches_are_kept_and_others_dropped(load):
    loader = load(_Patterns(200), batch_size=2, shuffle=True, generator=generator())
    kept = []
    for _ in range(2):
        for step, (images, arrays) in enumerate(loader):
            if step % 7 == 3:
                kept.append((images[1], step))
            if step % 11 == 5:
                kept.append((arrays.numpy()[:1], step))
            if len(kept) > 12:
                kept.pop(step % 12)
    return kept


@as_in_torch(ways.several)
def test_batches_may_be_changed_in_place(load):
    loader = load(_Patterns(60), batch_size=2)
    kept = []
    for _ in range(2):
        for images, arrays in loader:
            kept.append((images.mul_(2).add_(1), arrays.numpy()))
            kept[-1][1][:] += 1
            images[0].zero_()
    return kept


@as_in_torch(ways.several)
def test_containers_of_a_batch_may_be_changed(load):
    seen = []
    for batch in load(SamplesOfKind("nested_deeply"), batch_size=3):
        batch["view"].append("more")
        batch["meta"]["id"] = None
        del batch["more"]
        seen.append(batch)
    return seen


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


@as_in_torch(ways.several)
def test_batches_are_handed_to_another_thread(load):
    handed: queue.Queue[Any] = queue.Queue()
    kept: list[Any] = []

    def keep() -> None:
        # Keeps a row of most batches, and drops the batches themselves, in this thread.
        while (item := handed.get()) is not None:
            step, images = item
            if step % 3:
                kept.append(images[step % 2])
            del item, images

    thread = threading.Thread(target=keep)
    thread.start()
    for step, (images, _) in enumerate(load(_Patterns(200), batch_size=2)):
        handed.put((step, images))
        del images
    handed.put(None)
    thread.join()
    return kept


@as_in_torch(ways.several)
def test_objects_and_arrays_of_a_custom_collate_function_are_kept(load):
    loader = load(_Patterns(120), batch_size=2, collate_fn=identity)
    kept = []
    for step, batch in enumerate(loader):
        kept.append([batch[0][0][1], batch[1][1][:2], batch[0][1]][step % 3])
    loader = load(_Patterns(60), batch_size=2, collate_fn=identity)
    for batch in loader:
        batch[0][0].fill_(-1)
        batch[1][1][:] = -1
    return kept


# What else one does with a batch.


@as_in_torch(ways.each_kind)
def test_a_batch_owns_exactly_its_memory(load):
    # So torch.save of one tensor does not write its neighbours.

    sizes = []
    for batch in load(SamplesOfKind("dict_plain"), batch_size=3):
        for tensor in (batch["image"], batch["label"]):
            sizes.append((tensor.storage_offset(), tensor.untyped_storage().nbytes()))
    return sizes


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize("what", ["pickle", "deepcopy", "torch.save", "to another process"])
def test_a_batch_can_be_copied_and_sent(load, what, request):
    if what == "to another process":
        # The thread that hands out descriptors is started by the first that is asked for.
        request.addfinalizer(functools.partial(resource_sharer.stop, timeout=5))

    def again(batch: Any) -> Any:
        if what == "pickle":
            return pickle.loads(pickle.dumps(batch))
        if what == "deepcopy":
            return copy.deepcopy(batch)
        if what == "torch.save":
            file = io.BytesIO()
            torch.save(batch, file)
            file.seek(0)
            return torch.load(file)
        return pickle.loads(ForkingPickler.dumps(batch))

    kept = [again(batch) for batch in load(_Patterns(20), batch_size=2)]
    for images, _ in load(_Patterns(20), batch_size=2):
        images.fill_(-1)
    return kept


def _total(batch: Any, sender: Any) -> None:
    torch.set_num_threads(1)  # the threads of its parent's are not here
    sender.send((int(batch[0].sum()), float(batch[1].sum())))
    sender.close()


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_PERSISTENT))
def test_a_forked_child_reads_a_kept_batch(load):
    context = multiprocessing.get_context("fork")
    totals = []
    iterator = iter(load(_Patterns(40), batch_size=2))
    for batch in itertools.islice(iterator, 3):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_total, args=(batch, sender))
        child.start()
        totals.append(receiver.recv())
        child.join()
        receiver.close()
        sender.close()
        totals.append((child.exitcode, batch))
    return totals, list(iterator)


@as_in_torch(ways.each_kind)
def test_a_batch_takes_part_in_a_computation_with_gradients(load):
    weight = torch.ones(3, requires_grad=True)
    losses = []
    for vectors, squares in load(Squares(10), batch_size=4):
        loss = ((vectors @ weight) - squares).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return losses, weight.grad
