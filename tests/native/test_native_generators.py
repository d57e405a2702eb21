"""The native library gives generators the states that their own seeding gives them, bit for bit."""

from __future__ import annotations

import ctypes
import itertools
import random
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jpeg_files import SOURCES, compiler, use_level

from fastload import native
from fastload.base import overrides
from fastload.keys import preserving, seeding
from fastload.keys.seeding import BATCH, SAMPLE, Keys, words
from fastload.native import generators
from fastload.native.generators import Run, States

IDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=35)
RANGES = st.builds(
    lambda start, step, length: range(start, start + step * length, step),
    st.integers(0, 2**61),
    st.integers(1, 2**40),
    st.integers(0, 20),
)


KEYS = st.builds(Keys, st.integers(-(2**127), 2**127 - 1), st.integers(0, 2**40), st.sampled_from([SAMPLE, BATCH]))


class Three:
    """Three generators of our own, and what seeds them quickly."""

    def __init__(self) -> None:
        self.random, self.numpy, self.torch = random.Random(0), np.random.RandomState(0), torch.Generator()
        self.states = States(self.random, self.numpy, self.torch)
        self.run = Run(self.states)

    def step(self) -> int:
        with self.states.lock:
            status: int = self.run.step_locked(self.run.handle)
        self.random.gauss_next = None  # type: ignore[attr-defined]  # as seeding.py does
        return status

    def seed(self, key: bytes) -> Three:
        """Seed by the generators' own functions."""
        for_random, for_numpy, for_torch = words(key)
        self.random.seed(for_random)
        self.numpy.seed(for_numpy)
        self.torch.manual_seed(for_torch)
        return self

    def draw(self) -> None:
        """Draw odd numbers of Gaussians, so that each generator keeps one."""
        self.random.gauss()
        self.numpy.standard_normal()
        torch.randn(1, generator=self.torch)

    def now(self) -> tuple[Any, ...]:
        kind, numbers, *rest = self.numpy.get_state()
        return self.random.getstate(), (kind, numbers.tolist(), *rest), self.torch.get_state().tolist()


@pytest.fixture(autouse=True)
def _usable():
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("states are installed with the GIL alone")
    assert seeding.slow_seeding_reason() is None, "states cannot be installed here"


FIRST, SECOND = Keys(1, 2, SAMPLE), Keys(1, 3, SAMPLE)


@settings(max_examples=20)
@pytest.mark.parametrize("level", native.LEVELS)
@given(runs=st.lists(st.tuples(KEYS, IDS | RANGES), min_size=1, max_size=3), most=st.integers(1, 35))
@example(runs=[(FIRST, range(5, 2**61, 3)), (FIRST, range(26, 2**61, 3))], most=7)  # they follow each other
@example(runs=[(keys, ids) for keys in (FIRST, SECOND) for ids in (range(9), range(1, 9), range(1, 9), [2, 2])], most=1)
def test_each_sample_has_the_state_of_its_key_and_the_ids_that_are_left_are_those_without_a_step(level, runs, most):
    use_level(level)
    three, slow = Three(), Three()
    for keys, ids in runs:
        assert three.run.begin(keys.prefix, ids)
        for identity in ids[:most]:
            assert three.step() == 0
            assert three.now() == slow.seed(keys.key(identity)).now()
            three.draw()
        if len(ids) > most:
            assert three.run.left(ids)[0] == ids[most]
        elif isinstance(ids, list):
            assert three.run.left(ids) == []
            assert three.step() == -1


_MADE = """
#include "generators.c"
FASTLOAD_EXPORT void made(const uint64_t digests[2][LANES], int level, uint32_t rows[LANES][ROW])
{
    static struct room room;
    struct run run = {.room = &room};
    fastload_limit_level(level);
    fastload_generators_prepare(&run);
    memcpy(room.digests, digests, sizeof room.digests);
    make_states(&room);
    memcpy(rows, room.rows, sizeof room.rows);
}
"""


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the library's sources are not installed")
def test_a_seed_of_random_that_fits_32_bits_is_an_array_of_one_word(tmp_path):
    # One key in four billions has such a seed, so it is given to the function that makes states of keys.
    source, library = tmp_path / "made.c", tmp_path / "made.so"
    source.write_text(_MADE)
    files = [source, SOURCES / "processor.c"]
    subprocess.run([compiler(), "-O1", "-shared", "-fPIC", f"-I{SOURCES}", *files, "-o", library], check=True)
    digests = np.random.default_rng(0).integers(0, 2**64, (2, 16), dtype=np.uint64)
    digests[0, [0, 3, 7, 8, 15]] = [0, 1, 2**32 - 1, 2**32, 5]
    rows = np.zeros((16, 3, 624), dtype=np.uint32)
    for level, lane in itertools.product(range(len(native.LEVELS)), range(16)):
        if lane == 0:
            ctypes.CDLL(str(library)).made(digests.ctypes, level, rows.ctypes)
        three = Three().seed(digests[:, lane].tobytes())
        for_torch = three.torch.get_state()[24 : 24 + 8 * 624].view(torch.int64)
        words = list(three.random.getstate()[1][:-1]), three.numpy.get_state()[1].tolist(), for_torch.tolist()
        assert tuple(rows[lane].tolist()) == words


def test_ids_that_need_more_than_64_bits_are_left_to_others():
    for ids in ([0, 2**63], [-(2**63) - 1, 0], range(2**62, 2**63), range(0, 2**63, 2**62)):
        assert not Three().run.begin(FIRST.prefix, ids)


def test_without_the_lock_nothing_is_written_while_another_thread_is_there():
    three, stop = Three(), threading.Event()
    before = three.now()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        three.run.begin(FIRST.prefix, [7])
        assert three.run.step(three.run.handle) == 1
        assert three.now() == before
        assert three.step() == 0
        assert three.now() == Three().seed(FIRST.key(7)).now()
    finally:
        stop.set()
        thread.join()


def test_generators_of_other_classes_are_refused():
    usual, own = np.random.RandomState(0), type("MyRandom", (random.Random,), {})
    other = np.random.RandomState(np.random.PCG64(0))
    for for_random, for_numpy in ((own(0), usual), (random.SystemRandom(), usual), (random.Random(0), other)):
        with pytest.raises(TypeError, match=r"must be a random\.Random and a RandomState of an MT19937"):
            States(for_random, for_numpy, torch.Generator())


@pytest.fixture
def unknown():
    """Forget what was found, before and after."""

    def forget() -> None:
        generators._offsets.cache_clear()
        generators.unavailable_reason.cache_clear()
        overrides.results.pop((seeding.OVERRIDES[0].path,), None)
        seeding._known_states = None

    forget()
    yield
    forget()


NOT_KNOWN = "not laid out as in the known versions"
DIFFERENT = "seeds its generators differently than the native library"


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(
    ("module", "name", "result", "reason"),
    [
        *((generators, f"_{name}_offset", None, NOT_KNOWN) for name in ("random", "gauss", "torch")),
        (seeding, "words", (1, 2, 3), DIFFERENT),  # noticed before any state is installed
    ],
)
def test_generators_that_are_laid_out_or_seeded_in_another_way_are_seeded_slowly(
    monkeypatch, module, name, result, reason
):
    monkeypatch.setattr(module, name, lambda *_: result)
    monkeypatch.setattr(seeding, "_known_states", None)
    assert reason in (seeding.slow_seeding_reason() or "")
    if reason is NOT_KNOWN:
        with pytest.raises(RuntimeError, match=reason):
            States(random.Random(0), np.random.RandomState(0), torch.Generator())
    else:
        monkeypatch.undo()
        seeding._known_states = None
    with preserving.preserved_global_generators():
        seed_next = seeding.GlobalSeeder().each(FIRST, [3, 4])
        assert type(seed_next).__name__ == "partial"  # one by one
        for identity in (3, 4):
            seed_next()
            found = random.getstate(), np.random.rand(), torch.rand(1)
            seeding.seed_global_generators(FIRST.key(identity))
            assert found == (random.getstate(), np.random.rand(), torch.rand(1))
