"""Order and draws on a device, in Triton's interpreter: the same numbers as the host's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton_kernels

from fastload.errors import ConfigError
from fastload.keys.seeding import BATCH, Keys
from fastload.sampling.order import Keyed
from fastload.transforms import device_draws
from fastload.transforms.affine import RandomAffine, RandomRotation
from fastload.transforms.auto import RandAugment
from fastload.transforms.base import BatchShape, Transform, tensor_of
from fastload.transforms.compose import Compose
from fastload.transforms.crop import (
    AlternatingFlip,
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from fastload.transforms.device_draws import EpochState, draws_there
from fastload.transforms.draws import Draws, Order, to_integers
from fastload.transforms.erasing import RandomErasing
from fastload.transforms.jitter import (
    ColorJitter,
    GaussianBlur,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from fastload.transforms.mix import MixUp
from fastload.transforms.values import ToNormalized
from fastload.work import Shard

CPU = torch.device("cpu")
SEED = 7


class Asking(Transform):
    """Asks for all that a device draws, in several calls."""

    draws_on_device = True

    def draw(self, stream, shape):
        units = stream.uniform(count=3)
        return {
            "flag": tensor_of(stream.chance(0.1), torch.bool),
            "first": tensor_of(units[:, 0], torch.float64),
            "second": tensor_of(to_integers(units[:, 1], 10**9), torch.int64),
            "third": tensor_of(units[:, 2]),
            "range": tensor_of(stream.uniform(-0.3, 1.7)),
            "wide": tensor_of(stream.uniform(-0.3, 1.7), torch.float64),
            "integer": tensor_of(stream.integers(7), torch.int64),
            "same": tensor_of(stream.same(2), torch.int64),
        }


class Ordering(Transform):
    """Asks for orders, and for what is behind them in the stream. Changes nothing."""

    draws_on_device = True

    def draw(self, stream, shape):
        three, four = stream.order(3), stream.order(4)
        return {
            "three": tensor_of(three.of([0, 1, 2]), torch.int64),
            "none": tensor_of(three.of([]), torch.int64),
            "of four": tensor_of(four.of([0, 2, 3])),
            "before": tensor_of(four.before(1, [0, 2, 3]), torch.int64),
            "behind it": tensor_of(stream.uniform()),
        }

    def transform(self, images, params):
        return images


def state_of(length, epoch=0, shard=None):
    state, shard = EpochState(Keyed(length, SEED).of(0), CPU), shard or Shard(length=length)
    begin(state, length, epoch, shard)
    return state


def begin(state, length, epoch, shard):
    key = Keys(SEED, epoch, BATCH).key(0)
    state.begin(Keyed(length, SEED).of(epoch), key, shard.position(0), shard.stride)


@pytest.fixture
def wide(monkeypatch):
    """Have a program make many numbers: the interpreter takes as long for each."""
    monkeypatch.setattr(device_draws, "_BLOCK", 1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("length", [60_000, 1_000_000, (1 << 40) + 3])
def test_a_million_indices_and_draws_are_the_hosts(on_cpu, wide, length):
    num, start = min(length, 1_000_000), 0 if length <= 1_000_000 else length - 1_000_000
    state = state_of(length, epoch=3)
    rows = state.rows(start, num)
    assert np.array_equal(rows.numpy(), Keyed(length, SEED).at(3, np.arange(start, start + num)))
    check_draws(state, rows, epoch=3)
    assert on_cpu == ["order", "drawn"]


def check_draws(state, rows, epoch, transform=None):
    transform = Asking() if transform is None else transform
    shape = BatchShape(len(rows), 3, 32, 32)
    host = Draws(Keys(SEED, epoch, BATCH).key(0), rows.numpy())
    expected = transform.draw_for(host, shape)
    draws = state.draws(rows)
    found = draws.finished(transform.draw_for(draws, shape))
    check_params(found, expected)


def check_params(found, expected):
    # Which samples were chosen the host does not know, where the device has drawn.
    wanted = {name: values for name, values in expected.items() if not name.startswith("rows")}
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        if isinstance(values, dict):
            check_params(found[name], values)
        else:
            assert found[name].dtype == values.dtype
            assert torch.equal(found[name], values), name


@pytest.mark.parametrize("length", [1, 2, 5, 600, 70_000])
def test_each_row_of_an_epoch_comes_once(on_cpu, length):
    state = state_of(length)
    num = min(length, 600)
    found = torch.cat([state.rows(start, min(256, num - start)) for start in range(0, num, 256)])
    assert np.array_equal(found.numpy(), Keyed(length, SEED).at(0, np.arange(num)))
    check_draws(state, found, epoch=0)


@pytest.mark.parametrize("shard", [Shard(length=100, rank=2, num_ranks=3), Shard(length=100, base=40, tail="drop")])
def test_a_rank_has_its_own_rows_and_a_resumed_epoch_its_last(on_cpu, shard):
    state = state_of(100, 5, shard)
    rows = state.rows(0, 20)
    assert np.array_equal(rows.numpy(), Keyed(100, SEED).at(5, shard.positions(0, 20)))
    assert np.array_equal(state.rows(3, 4).numpy(), rows[3:7].numpy()), "again, after an error"


def test_what_is_captured_once_goes_on_in_each_replay(on_cpu):
    # A CUDA graph runs the same launches again: the same tensors, and no value of the host's.
    state, out = state_of(1000), torch.empty(64, dtype=torch.int64)
    replay = [state.queue_rows for _ in range(3)]
    found = []
    for launch in replay:
        launch(out)
        found.append(out.clone())
    assert np.array_equal(torch.cat(found).numpy(), Keyed(1000, SEED).at(0, np.arange(192)))
    begin(state, 1000, 1, Shard(length=1000))
    state.queue_rows(out)
    assert np.array_equal(out.numpy(), Keyed(1000, SEED).at(1, np.arange(64)))


def test_the_draws_of_a_compose_are_one_launch_and_the_hosts(on_cpu):
    chain = Compose(
        [RandomCrop(32, 4), RandomHorizontalFlip(), RandomVerticalFlip(0.3), CenterCrop(30), ToNormalized([0.4], [0.3])]
    )
    assert draws_there(chain)
    state = state_of(500)
    check_draws(state, state.rows(0, 300), 0, chain)
    assert on_cpu == ["order", "drawn"]
    images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
    draws = state.draws(state.rows(0, 8))
    chain(images, draws=draws)
    assert on_cpu[2:] == ["order", "drawn", "transformed"]


CHOOSING = [
    RandomGrayscale(0.3),
    RandomInvert(),
    RandomEqualize(),
    RandomAutocontrast(),
    RandomSolarize(0.4),
    RandomPosterize(3),
    RandomAdjustSharpness(2.0),
]
COLOURS = [
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    ColorJitter(0.4, saturation=(0.0, 1.0)),
    ColorJitter(contrast=0.4, hue=0.5),
    ColorJitter(hue=0.1),
    ColorJitter(),
    Ordering(),
    GaussianBlur(3),
    RandomRotation(30),
    *CHOOSING,
]


@pytest.mark.slow
@pytest.mark.parametrize("transform", [Ordering(), COLOURS[0], CHOOSING[0]])
def test_a_million_orders_and_colours_are_the_hosts(on_cpu, wide, transform):
    state = state_of(1_000_000, epoch=3)
    check_draws(state, state.rows(0, 1_000_000), 3, transform)
    assert on_cpu == ["order", "drawn"]


@pytest.mark.parametrize("transform", [pytest.param(COLOURS[0], marks=pytest.mark.slow), *COLOURS[1:]])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_colours_are_drawn_for_there_and_images_changed_as_by_the_hosts_draws(on_cpu, transform, dtype):
    assert draws_there(Compose([RandomHorizontalFlip(), transform]))
    state = state_of(500)
    rows = state.rows(0, 40)
    check_draws(state, rows, 0, transform)
    images = torch.randint(0, 256, (40, 3, 6, 7), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    images = images if dtype == torch.uint8 else images.to(dtype) / 255
    expected = transform(images, draws=Draws(Keys(SEED, 0, BATCH).key(0), rows.numpy()))
    assert torch.equal(transform(images, draws=state.draws(rows)), expected)


def test_an_order_of_equal_numbers_is_that_of_the_elements(on_cpu, monkeypatch):
    kernels = triton_kernels.interpreted("device_draws_kernel")
    monkeypatch.setattr(kernels, "_philox", constant_words)
    order = Order(np.tile(np.arange(4), (5, 1)))
    draws = state_of(100).draws(torch.arange(5))
    planned = draws.stream("any").order(4)
    found = tensor_of(planned.of([0, 2, 3]), torch.int64), tensor_of(planned.before(2, [0, 1, 3]), torch.int64)
    draws.finished(found)
    assert np.array_equal(found[0].numpy(), order.of([0, 2, 3]))
    assert np.array_equal(found[1].numpy(), order.before(2, [0, 1, 3]))


def constant_words(a, *others):
    return a * 0, a * 0, a * 0, a * 0


@pytest.mark.parametrize("transform", [RandomErasing(), AlternatingFlip(), MixUp(), RandAugment(), RandomAffine(5)])
def test_other_transforms_are_drawn_for_on_the_host(on_cpu, transform):
    assert not draws_there(Compose([RandomHorizontalFlip(), transform]))
    state = state_of(50)
    with pytest.raises((TypeError, ConfigError)):
        transform.draw_for(state.draws(state.rows(0, 5)), BatchShape(5, 3, 9, 9))


class Darker(RandomHorizontalFlip):
    """A user's, which draws a logarithm too."""

    def draw(self, stream, shape):
        return super().draw(stream, shape) | {"factor": tensor_of(np.log(stream.uniform(1.0, 2.0)))}


class Both(Transform):
    """A user's, which draws beside its member."""

    def __init__(self):
        super().__init__()
        self.member = RandomHorizontalFlip()

    def draw(self, stream, shape):
        return {"order": tensor_of(stream.permutation(3))}


@pytest.mark.parametrize("kind", [Darker, Both])
def test_classes_derived_from_those_that_a_device_draws_for_are_not(kind):
    assert not draws_there(kind())
    assert not draws_there(Compose([RandomHorizontalFlip(), kind()]))
    assert draws_there(type("Same", (RandomHorizontalFlip,), {})())


def test_rows_that_were_interrupted_or_queued_by_others_do_not_shift_the_next_ones(on_cpu, monkeypatch):
    state = state_of(1000)
    expected = Keyed(1000, SEED).at(0, np.arange(10))
    queue = EpochState._queue

    def interrupted(self, out, start):
        queue(self, out, start)
        raise KeyboardInterrupt

    for call in (lambda: state.rows(0, 10), lambda: state.queue_rows(torch.empty(10, dtype=torch.int64))):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(EpochState, "_queue", interrupted)
            call()
        assert state.rows(0, 10).tolist() == expected.tolist()
    state.queue_rows(torch.empty(10, dtype=torch.int64))
    assert state.rows(0, 10).tolist() == expected.tolist()


def test_a_flag_is_compared_in_double_precision(on_cpu):
    """0.1 in single precision is larger, and lets through what this sample draws."""
    rows, key = torch.tensor([425462283]), bytes(range(16))
    state = EpochState(Keyed(2**40, SEED).of(0), CPU)
    state.begin(Keyed(2**40, SEED).of(0), key)
    flip, shape = RandomHorizontalFlip(0.1), BatchShape(1, 3, 4, 4)
    draws = state.draws(rows)
    found = draws.finished(flip.draw_for(draws, shape))
    assert torch.equal(found["flip"], flip.draw_for(Draws(key, rows.numpy()), shape)["flip"])
