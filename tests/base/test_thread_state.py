"""User code in a thread finds what it would find in the thread that made this one."""

import contextlib
import contextvars
import decimal

import numpy as np
import pytest
import torch
from kit.datasets import Made
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader as TorchLoader

from fastload import DataLoader

language = contextvars.ContextVar("language", default="none")

loaders = pytest.mark.parametrize(
    ("loader_class", "arguments"),
    [
        pytest.param(TorchLoader, {}, id="torch"),
        pytest.param(DataLoader, {"worker_threads": 2}, id="threads of a process"),
        pytest.param(DataLoader, {"worker_threads": 2, "seed": 1}, id="seeded threads of a process"),
        pytest.param(DataLoader, {"worker_method": "thread"}, id="worker threads"),
        pytest.param(DataLoader, {"worker_method": "thread", "seed": 1}, id="seeded worker threads"),
    ],
)


class OnesAreTwos(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made + 1 if func is torch.ones else made


@contextlib.contextmanager
def speaking(name):
    token = language.set(name)
    try:
        yield
    finally:
        language.reset(token)


@contextlib.contextmanager
def default_device(name):
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


def told(loader_class, tell, **arguments):
    loader = loader_class(Made(4, lambda _: tell()), 2, num_workers=1, collate_fn=list, **arguments)
    return [sample for batch in loader for sample in batch]


def product():
    return (torch.ones(1, 1) @ torch.ones(1, 1)).dtype, torch.is_autocast_cache_enabled()


with torch.device("cpu:0"):
    # Not in torch 2.6, which tells the device that this thread has set alone.
    sees_modes = str(torch.get_default_device()) == "cpu:0"
on_device = [
    (begin, lambda: str(torch.get_default_device()), "cpu:0")
    for begin in (lambda: default_device("cpu:0"), lambda: torch.device("cpu:0"))
    if sees_modes
]


# Each as a context, what tells in a sample whether it holds, and what that says then; in two groups, for some would be
# seen by others' words too.
STATES = [
    [
        (lambda: speaking("Finnish"), language.get, "Finnish"),
        (lambda: decimal.localcontext(prec=3), lambda: str(decimal.Decimal(1) / 7), "0.143"),
        (lambda: np.errstate(divide="raise"), lambda: np.geterr()["divide"], "raise"),
        (lambda: np.printoptions(precision=2), lambda: str(np.array([1 / 3])), "[0.33]"),
        (torch.no_grad, torch.is_grad_enabled, False),
        (lambda: torch.autocast("cpu", torch.float16, cache_enabled=False), product, (torch.float16, False)),
        *on_device[:1],
        (OnesAreTwos, lambda: torch.ones(1).item(), 2.0),
    ],
    [
        (torch.inference_mode, lambda: torch.ones(1).is_inference(), True),
        *on_device[1:],
    ],
]


@loaders
@pytest.mark.parametrize("group", STATES, ids=["one", "other"])
def test_what_the_loop_has_set_holds_in_samples(group, loader_class, arguments):
    def tell():
        return [tell_one() for _, tell_one, _ in group]

    expected = [value for _, _, value in group]
    with contextlib.ExitStack() as stack:
        for begin, _, _ in group:
            stack.enter_context(begin())
        assert told(loader_class, tell, **arguments) == [expected] * 4
    (found, *_) = told(loader_class, tell, **arguments)
    assert not any(one == value for one, value in zip(found, expected, strict=True))


def prepare(worker_id):
    np.seterr(divide="raise")
    torch.set_grad_enabled(False)
    torch.set_default_device("meta")
    language.set(f"of worker {worker_id}")
    decimal.getcontext().prec = 5


def prepared():
    precision = decimal.getcontext().prec
    return np.geterr()["divide"], torch.is_grad_enabled(), torch.rand(1).device.type, language.get(), precision


@loaders
def test_what_the_init_function_sets_holds_in_samples_of_that_worker_and_nowhere_else(loader_class, arguments):
    before = prepared()
    found = told(loader_class, prepared, worker_init_fn=prepare, **arguments)
    assert found == [("raise", False, "meta", "of worker 0", 5)] * 4
    assert prepared() == before


@pytest.mark.parametrize("arguments", [None, {}, {"worker_method": "thread"}], ids=["torch", "process", "thread"])
def test_what_a_sample_sets_is_seen_by_the_next_one_of_its_worker(arguments):
    def longer():
        language.set(language.get() + "!")
        return language.get()

    loader_class = TorchLoader if arguments is None else DataLoader
    assert told(loader_class, longer, **(arguments or {})) == ["none!", "none!!", "none!!!", "none!!!!"]
    assert language.get() == "none"


def test_where_torch_raises_for_want_of_an_accelerator_worker_threads_start(monkeypatch):
    def as_in_torch_2_6():
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", as_in_torch_2_6)
    assert told(DataLoader, language.get, worker_method="thread") == ["none"] * 4
