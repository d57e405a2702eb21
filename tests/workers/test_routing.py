"""Worker threads draw what processes draw, and leave the process's own generators alone."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import pickle
import random
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import routing_captures
import scipy.stats
import torch
from kit.datasets import Sized
from kit.generators import generator_states
from torch.utils.data import get_worker_info

import fastload
from fastload.errors import ConfigError, DatasetError
from fastload.keys import preserving, seeding
from fastload.workers import routing, torch_routing
from fastload.workers.routing import ThreadGenerators

KEYS = [bytes([number] * 16) for number in range(4)]


def in_thread(work: Callable[[ThreadGenerators], Any], **arguments: Any) -> Any:
    """Return what ``work`` returns in a routed thread; raise what it raises."""
    results: list[Any] = []

    def run() -> None:
        generators = ThreadGenerators()
        try:
            with generators.active(**arguments):
                results.append((work(generators), None))
        except BaseException as error:
            results.append((None, error))

    with installed():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    result, error = results[0]
    if error is not None:
        raise error
    return result


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """A context in which names are exchanged."""
    routing.install()
    yield
    routing.uninstall()


def seeded(draw: Callable[[], Any]) -> list[Any]:
    """Return what is drawn from the process's generators after each key."""
    found = []
    with preserving.preserved_global_generators():
        for key in KEYS:
            seeding.seed_global_generators(key)
            found.append(plain(draw()))
    return found


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def same_in_thread(draw: Callable[[], Any], **arguments: Any) -> None:
    expected = seeded(draw)
    before = generator_states()

    def work(generators: ThreadGenerators) -> list[Any]:
        found = []
        for key in KEYS:
            generators.seed(key)
            found.append(plain(draw()))
        return found

    assert in_thread(work, **arguments) == expected
    assert generator_states() == before


def shuffled(shuffle: Callable[[Any], None]) -> list[int]:
    items = list(range(20))
    shuffle(items)
    return items


def reseeded_numpy() -> Any:
    np.random.seed(5)
    state = np.random.get_state()
    first = np.random.randn(3)
    np.random.set_state(state)
    return first, np.random.randn(3)


def reseeded_random() -> Any:
    random.seed("text")
    state = random.getstate()
    first = random.gauss(0, 1)
    random.setstate(state)
    return first, random.gauss(0, 1), random._inst.gauss_next


def reseeded_torch() -> Any:
    seen = [torch.initial_seed(), torch.get_rng_state().tolist()]
    with torch.random.fork_rng(devices=[]):
        seen.append(torch.rand(2))
        torch.manual_seed(9)
        seen += [torch.rand(2), torch.random.initial_seed()]
    seen.append(torch.rand(2))
    state = torch.random.get_rng_state()
    seen.append(torch.rand(2))
    torch.set_rng_state(state)
    return [*seen, torch.rand(2)]


ones = torch.ones(6)
half = ones / 2
functional = torch.nn.functional

DRAWS: dict[str, Callable[[], Any]] = {
    "random": lambda: [random.random(), random.getrandbits(70), random.randbytes(3), random.uniform(1, 2)],
    "gauss, an odd number": lambda: [random.gauss(0, 1), random.normalvariate(0, 1), np.random.randn()],
    "shuffle and choices": lambda: [
        shuffled(random.shuffle),
        random.choices(range(9), k=4),
        random.sample(range(9), 3),
    ],
    "random seeded": reseeded_random,
    "numpy": lambda: [np.random.rand(2), np.random.randn(3), np.random.normal(size=2), np.random.choice(9, 4)],
    "numpy permutations": lambda: [np.random.permutation(9), shuffled(np.random.shuffle), np.random.randint(9, size=3)],
    "numpy's old names": lambda: [np.random.sample(2), np.random.ranf(), np.random.random_sample(), np.random.bytes(3)],
    "numpy seeded": reseeded_numpy,
    "torch": lambda: [
        torch.rand(2),
        torch.randn(2),
        torch.randint(9, (3,)),
        torch.randperm(7),
        torch.normal(0.0, ones),
    ],
    "torch in place": lambda: [
        getattr(torch.empty(3), name)() for name in ("uniform_", "normal_", "exponential_", "cauchy_", "log_normal_")
    ],
    "torch in place, more": lambda: [
        torch.empty(3).bernoulli_(0.5),
        torch.empty(3).geometric_(0.5),
        torch.empty(3).random_(0, 99),
        torch.empty((), dtype=torch.int64).random_(),
    ],
    "torch's distributions": lambda: [
        torch.multinomial(ones, 3),
        torch.bernoulli(half),
        half.bernoulli(),
        torch.poisson(ones),
        torch.binomial(ones * 9, half),
        torch.distributions.Beta(0.3, 0.4).sample(),
        torch.distributions.Dirichlet(ones).sample((2,)),
        torch.distributions.Gamma(ones, ones).rsample(),
        torch.distributions.MultivariateNormal(ones, torch.eye(6)).sample(),
    ],
    "like": lambda: [torch.rand_like(ones), torch.randn_like(ones), torch.randint_like(ones, 9)],
    "out": lambda: [torch.rand(3, out=torch.empty(3)), torch.randperm(3, out=torch.empty(3, dtype=torch.int64))],
    "a generator of the user's": lambda: torch.rand(2, generator=torch.Generator().manual_seed(3)),
    "the default generator by name": lambda: torch.rand(2, generator=torch.default_generator),
    "dropout": lambda: [
        functional.dropout(ones),
        torch.dropout(ones, 0.5, True),
        functional.alpha_dropout(ones, training=True),
        functional.dropout2d(torch.ones(1, 6, 1, 1)),
        torch.nn.Dropout()(ones.clone().requires_grad_()),
        functional.rrelu(-ones, training=True),
        functional.gumbel_softmax(ones),
        functional.fractional_max_pool2d(torch.rand(1, 1, 6, 6), 2, output_size=3),
    ],
    "modules": lambda: [
        torch.nn.Linear(3, 2).weight,
        torch.nn.init.trunc_normal_(torch.empty(3)),
        torch.nn.init.orthogonal_(torch.empty(3, 3)),
        torch.nn.LSTM(2, 2, 2, dropout=0.5)(torch.ones(2, 1, 2))[0],
        functional.scaled_dot_product_attention(*[torch.ones(1, 2, 3, 4)] * 3, dropout_p=0.5),
        torch.nn.MultiheadAttention(4, 2, dropout=0.5)(*[torch.ones(3, 1, 4)] * 3)[0],
    ],
    "aten's own operators": lambda: [torch.ops.aten.rand([2]), torch.ops.aten.randperm.default(4)],
    "torch seeded": reseeded_torch,
    "names bound before": routing_captures.draw_by_names,
    "objects that others ask for": lambda: [
        np.random.mtrand._rand.rand(),
        np.random.get_bit_generator().state["state"]["pos"],
        random._inst.gauss(0, 1),
        scipy.stats.uniform.rvs(random_state=np.random),
    ],
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_thread_draws_what_the_process_draws_and_leaves_its_generators_alone(draw):
    same_in_thread(draw)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning")
def test_torchscript_draws_are_routed_too():
    module = torch.jit.trace(torch.nn.Dropout().eval(), ones).train()
    script = torch.jit.script(torch.nn.Sequential(torch.nn.Dropout()))
    assert routing._check({"dataset": script})
    assert routing._check({"dataset": {"transform": functools.partial(map, module)}})
    assert not routing._check({"dataset": torch.nn.Dropout()})
    same_in_thread(lambda: script(ones), scripted=True)


def test_an_operator_that_cannot_be_routed_is_an_error_that_names_it():
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    values = [torch.ones(1, 1, 2, 4)] * 3
    with torch_routing.OperatorRouting(torch.Generator()):
        operator(*values)  # no dropout: nothing is drawn
        with pytest.raises(DatasetError, match=r"flash_attention_for_cpu.*worker_method='multiprocessing'"):
            operator(*values, 0.5)


def test_another_bit_generator_chosen_for_the_process_is_used_by_threads_too():
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        expected = []
        for key in KEYS:
            np.random.seed(seeding.words(key)[1])
            expected.append(np.random.rand())

        def work(generators: ThreadGenerators) -> list[float]:
            return [generators.seed(key) or np.random.rand() for key in KEYS]

        assert in_thread(work) == expected
    finally:
        np.random.set_bit_generator(before)


def originals() -> list[Any]:
    """Return what routing changes: names, in the modules that have the functions and in another one."""
    functions = [random.shuffle, random.seed, random._inst, np.random.rand, np.random.mtrand._rand]
    functions += [torch.manual_seed, torch.random.get_rng_state, torch.utils.data.get_worker_info]
    return [*functions, *map(vars(routing_captures).get, routing_captures.NAMES)]


def test_everything_is_as_it_was_when_the_last_pool_of_threads_has_ended():
    before = originals()
    for _ in range(2):
        routing.install()
        routing.install()
        routing.uninstall()
        meanwhile = originals()
        routing.uninstall()
        assert not [one for one, other in zip(before, meanwhile, strict=True) if one is other]
        assert all(one is other for one, other in zip(before, originals(), strict=True))


@pytest.mark.parametrize("remake", [lambda thing: pickle.loads(pickle.dumps(thing)), copy.deepcopy])
def test_copies_of_the_hidden_objects_and_of_functions_are_plain_and_have_the_state(remake):
    with installed(), preserving.preserved_global_generators():
        for routed_object, kind, draw in (
            (random._inst, random.Random, lambda thing: thing.random()),
            (np.random.mtrand._rand, np.random.RandomState, lambda thing: thing.rand()),
        ):
            copied = remake(routed_object)
            assert type(copied) is kind
            assert draw(copied) == draw(routed_object)
        pickled = pickle.dumps([random.random, np.random.rand, torch.random.manual_seed])
    *draws, seed = pickle.loads(pickled)
    assert all(0 <= draw() < 1 for draw in draws)
    assert seed is torch.random.manual_seed


class Lazy(types.ModuleType):
    """Is loaded when it is first used."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


def test_modules_that_were_not_loaded_and_names_that_others_have_exchanged_are_let_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    monkeypatch.setattr(routing_captures, "gauss", routing_captures.gauss)  # what is put back behind the test
    with installed():
        monkeypatch.setattr(routing_captures, "gauss", print)
    assert routing_captures.gauss is print


def test_a_module_imported_while_threads_live_goes_on_working_and_is_routed_the_next_time(monkeypatch):
    module: Any = types.ModuleType("imported_meanwhile")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with installed():
        exec("from random import random; from numpy.random import rand", vars(module))
    assert module.random is not random.random
    with preserving.preserved_global_generators():
        random.seed(4)
        assert module.random() == random.Random(4).random()
    for _ in range(2):
        same_in_thread(lambda: [module.random(), float(module.rand())])


@pytest.mark.parametrize("held", routing_captures.HELD, ids=lambda held: held[0])
@pytest.mark.parametrize("options", [{"worker_method": "thread"}, {"worker_threads": 2}], ids=str)
def test_what_is_held_by_no_name_is_an_error_before_the_first_sample(held, options):
    path, dataset, name = held
    loader = fastload.DataLoader(dataset, num_workers=1, seed=1, **options)
    words = rf"{re.escape(path)} holds {re.escape(name)}, .* by the name {re.escape(name)} they have their own"
    with pytest.raises(ConfigError, match=words):
        next(iter(loader))
    assert dataset.asked == 0
    assert random.random.__self__ is seeding.random_generator  # type: ignore[attr-defined]


def test_a_child_process_that_a_worker_thread_forks_draws_from_its_own_plain_generators():
    def work(generators: ThreadGenerators) -> bytes:
        generators.seed(KEYS[0])
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, f"{routing._active_random.generator is None} {random.random()}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            return pipe.read()

    plain_again, drawn = in_thread(work).split()
    assert plain_again == b"True"
    assert float(drawn) != random.Random(seeding.words(KEYS[0])[0]).random()  # random seeds itself in a child


class Seeds(Sized):
    def __getitem__(self, index: int) -> tuple[int, int, float]:
        rng = getattr(get_worker_info(), "rng", None)
        generator = None if rng is None else torch.random.thread_safe_generator()
        assert rng is None or rng.random_generator.getstate() == random.getstate()
        return torch.initial_seed(), index, torch.rand((), generator=generator).item()


def test_the_info_and_the_init_function_of_a_thread_have_generators_of_its_own():
    """``torch.random.thread_safe_generator`` is the thread's own too."""
    drawn = []

    def draw(worker_id: int) -> None:
        drawn.append((random.random(), random.gauss(0, 1), float(np.random.randn()), *torch.rand(2).tolist()))

    threads = {"num_workers": 3, "worker_method": "thread", "chunk_size": 1, "worker_init_fn": draw}
    expected, found = (
        fastload.DataLoader(Seeds(24), 5, seed=11, generator=torch.Generator(), **options) for options in ({}, threads)
    )
    with preserving.preserved_global_generators():
        whole, before = plain(list(expected)), generator_states()
        assert plain(list(found)) == whole
        assert generator_states() == before
    assert len(set(drawn)) == 3


def test_nothing_is_routed_for_a_dataset_that_draws_nothing_or_with_torchs_seeding():
    original = random.random
    for arguments in ({}, {"seeding": "torch"}):
        iterator = iter(fastload.DataLoader(range(9), num_workers=1, worker_method="thread", **arguments))
        assert random.random is original
        next(iterator)
        iterator._shutdown_workers()
