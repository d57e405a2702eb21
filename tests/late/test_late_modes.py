"""Which of torch's modes switch the fast ways off: those that may see or change a sample's calls, and no others."""

import contextlib

import pytest
import torch
from comparing import jpeg, opened
from kit.datasets import Made
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload


class Function(TorchFunctionMode):
    """Notes what functions of torch are called, and changes nothing."""

    def __init__(self, noted=None):
        super().__init__()
        self.noted = [] if noted is None else noted

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.noted.append(getattr(func, "__qualname__", repr(func)))
        return func(*args, **kwargs or {})


class Dispatch(TorchDispatchMode):
    """The same of operators."""

    def __init__(self, noted=None):
        super().__init__()
        self.noted = [] if noted is None else noted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.noted.append(str(func))
        return func(*args, **kwargs or {})


CROP = v2.Compose([
    v2.ToImage(), v2.RandomCrop(16), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3),
])  # fmt: skip


def cropped_in(mode):
    """Return a dataset of JPEG files; a mode of the user's may be active while a sample is made."""

    def sample(index):
        with contextlib.nullcontext() if mode is None else mode():
            return CROP(opened(jpeg(40, 31, "RGB", seed=index)))

    return Made(12, sample)


SEEN = {
    "version 2": lambda: v2.Compose([v2.ToImage(), v2.CenterCrop(100), v2.Resize(50)]),
    "version 2 of tensors": lambda: v2.Compose([v2.PILToTensor(), v2.Resize(50), v2.RandomGrayscale(1.0)]),
    "version 2, all": lambda: v2.Compose([
        v2.ToImage(), v2.RandomResizedCrop(90), v2.RandomHorizontalFlip(1.0), v2.ColorJitter(0.5, 0.5, 0.5, 0.1),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3),
    ]),
    "version 1": lambda: v1.Compose([
        v1.RandomResizedCrop(90), v1.RandomHorizontalFlip(1.0), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3),
    ]),
    "version 1 of tensors": lambda: v1.Compose([v1.PILToTensor(), v1.CenterCrop(100), v1.ColorJitter(0.5, 0.5)]),
}  # fmt: skip


@pytest.mark.parametrize("mode", [Function, Dispatch])
@pytest.mark.parametrize("name", SEEN)
def test_a_users_mode_sees_torchvisions_calls_and_no_others(name, mode):
    transform = SEEN[name]()

    def sample(index):
        noted = []
        with mode(noted):
            transform(opened(jpeg(120, 120, "RGB")))
        return noted

    dataset = Made(2, sample)
    expected, found = (
        list(kind(dataset, None, collate_fn=list, num_workers=1, generator=torch.Generator().manual_seed(0), **options))
        for kind, options in ((torch.utils.data.DataLoader, {}), (fastload.DataLoader, {"seeding": "torch"}))
    )
    assert expected[0]
    assert found == expected


THREADS = [{"num_workers": 2, "worker_threads": 3}, {"num_workers": 2, "worker_method": "thread"}]


@pytest.mark.parametrize("options", THREADS, ids=str)
@pytest.mark.parametrize("mode", [None, Function, Dispatch])
def test_worker_threads_cut_first_unless_a_users_mode_may_see_the_calls(options, mode):
    loader = fastload.DataLoader(cropped_in(mode), 4, seed=1, **options)
    late = torch.cat(list(loader))
    whole = torch.cat(list(fastload.DataLoader(cropped_in(mode), 4, seed=1, fuse=False)))
    assert late.equal(whole)
    assert loader.statistics().decoded == {"late, in part" if mode is None else "late, whole": 12}
