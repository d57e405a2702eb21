"""The kernels behind ``fastload.transforms.device_draws``; imported only where they are used, since they need Triton.

Their numbers are those of ``fastload.sampling.order.Permutation`` and ``fastload.keys.philox``, bit for bit. What says
which numbers are next lies in the device's memory: see ``device_draws.EpochState``.
"""

# Triton's decorators have no types, and what is in a kernel has types of Triton's.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from .draws import BEFORE as _BEFORE
from .draws import FLAG as _FLAG
from .draws import INTEGER as _INTEGER
from .draws import ORDER as _ORDER

# Of the state.
ROW = tl.constexpr(0)
FIRST = tl.constexpr(1)
STRIDE = tl.constexpr(2)
KEY = tl.constexpr(3)
ROUND_KEYS = tl.constexpr(4)

# Kinds of draws, beside uniform numbers.
INTEGER = tl.constexpr(_INTEGER)
FLAG = tl.constexpr(_FLAG)
ORDER = tl.constexpr(_ORDER)
BEFORE = tl.constexpr(_BEFORE)


@triton.jit
def _unsigned(number, like):
    """Return an integer as uint64, in the shape of a tensor."""
    return tl.full(like.shape, number, tl.uint64)


@triton.jit
def _mixed(words, key):
    mixed = (words ^ key) * _unsigned(0x9E3779B97F4A7C15, words)
    mixed = (mixed ^ (mixed >> 32)) * _unsigned(0xA24BAED4963EE407, words)
    return mixed >> 32


@triton.jit
def _network(words, keys, low_bits: tl.constexpr, high_bits: tl.constexpr, rounds: tl.constexpr):
    """Return what a Feistel network of two halves makes of words."""
    low_mask = _unsigned((1 << low_bits) - 1, words)
    high_mask = _unsigned((1 << high_bits) - 1, words)
    low, high = words & low_mask, words >> low_bits
    for number in range(0, rounds, 2):
        high = high ^ (_mixed(low, tl.load(keys + number).to(tl.uint64, bitcast=True)) & high_mask)
        low = low ^ (_mixed(high, tl.load(keys + number + 1).to(tl.uint64, bitcast=True)) & low_mask)
    return (high << low_bits) | low


@triton.jit(do_not_specialize=["start", "count"])
def order(
    out,  # [count], int64: indices into the dataset
    state,
    start,  # the first of the rows, counted from the state's
    count,
    length,
    config: tl.constexpr,  # bits of the halves, rounds, block
):
    """Write the indices of the next rows of an epoch."""
    low_bits: tl.constexpr = config[0]
    high_bits: tl.constexpr = config[1]
    rounds: tl.constexpr = config[2]
    block: tl.constexpr = config[3]
    place = tl.program_id(0) * block + tl.arange(0, block)
    there = place < count
    position = tl.load(state + FIRST) + tl.load(state + STRIDE) * (tl.load(state + ROW) + start + place)
    words = tl.where(there, position % length, 0).to(tl.uint64)
    keys = state + ROUND_KEYS
    words = _network(words, keys, low_bits, high_bits, rounds)
    # Walk the cycle, as long as one of the block is outside.
    end = (tl.full(words.shape, 0, tl.int64) + length).to(tl.uint64)
    outside = words >= end
    while tl.sum(outside.to(tl.int32), 0) > 0:
        words = tl.where(outside, _network(words, keys, low_bits, high_bits, rounds), words)
        outside = words >= end
    tl.store(out + place, words.to(tl.int64), mask=there)


@triton.jit
def _philox(a, b, c, d, first, second):
    """Return four words, in uint64, of counters and a key: Philox4x32-10."""
    low = _unsigned(0xFFFFFFFF, a)
    for _ in tl.static_range(10):
        low_product, high_product = a * _unsigned(0xD2511F53, a), c * _unsigned(0xCD9E8D57, a)
        a = (high_product >> 32) ^ b ^ first
        c = (low_product >> 32) ^ d ^ second
        b, d = high_product & low, low_product & low
        first = (first + _unsigned(0x9E3779B9, a)) & low
        second = (second + _unsigned(0xBB67AE85, a)) & low
    return a, b, c, d


@triton.jit
def _unit(sample, key, purpose: tl.constexpr, block: tl.constexpr, which: tl.constexpr):
    """Return uniform numbers in [0, 1), of some block and those behind it."""
    low = _unsigned(0xFFFFFFFF, sample)
    words = _philox(
        _unsigned(block + which // 2, sample),
        _unsigned(purpose, sample),
        sample & low,
        sample >> 32,
        key & low,
        key >> 32,
    )
    if which % 2 == 0:
        bits = (words[0] >> 5 << 26) | (words[1] >> 6)
    else:
        bits = (words[2] >> 5 << 26) | (words[3] >> 6)
    return bits.to(tl.float64) * 1.1102230246251565e-16  # 2**-53


@triton.jit
def _before(sample, key, draw: tl.constexpr, element: tl.constexpr):
    """Return how many of an order's chosen elements come before an element."""
    purpose: tl.constexpr = draw[1]
    block: tl.constexpr = draw[2]
    mine = _unit(sample, key, purpose, block, element)
    count = tl.full(sample.shape, 0, tl.int64)
    for other in tl.static_range(draw[3]):
        if draw[4] & (1 << other) != 0:
            if other < element:  # of two that are the same the first comes before
                count += (_unit(sample, key, purpose, block, other) <= mine).to(tl.int64)
            elif other > element:
                count += (_unit(sample, key, purpose, block, other) < mine).to(tl.int64)
    return count


@triton.jit(do_not_specialize=["count"])
def drawn(
    rows,  # [count], int64: the samples
    outs,  # for each draw [count], of the dtype that it is stored in
    state,
    count,
    draws: tl.constexpr,  # for each: kind, purpose, block of words, which unit of it, two numbers: see draws.Planned
    block: tl.constexpr,
):
    """Write uniform numbers, integers, flags and orders of samples."""
    place = tl.program_id(0) * block + tl.arange(0, block)
    there = place < count
    sample = tl.load(rows + place, mask=there, other=0).to(tl.uint64)
    key = _unsigned(0, sample) + tl.load(state + KEY).to(tl.uint64, bitcast=True)
    for number in tl.static_range(len(draws)):
        out = outs[number]
        if draws[number][0] == ORDER:
            for element in tl.static_range(draws[number][3]):
                if draws[number][4] & (1 << element) != 0:
                    turn = _before(sample, key, draws[number], element)
                    value = tl.full(sample.shape, element, tl.int64)
                    tl.store(out + place * draws[number][5] + turn, value.to(out.dtype.element_ty), mask=there)
        elif draws[number][0] == BEFORE:
            value = _before(sample, key, draws[number], draws[number][5])
            tl.store(out + place, value.to(out.dtype.element_ty), mask=there)
        else:
            unit = _unit(sample, key, draws[number][1], draws[number][2], draws[number][3])
            if draws[number][0] == INTEGER:
                value = tl.minimum((unit * draws[number][4]).to(tl.int64), draws[number][4] - 1)
            elif draws[number][0] == FLAG:
                # A number beside a comparison would become a float32.
                value = unit < tl.full(unit.shape, draws[number][4], tl.float64)
            elif draws[number][4] == 0.0 and draws[number][5] == 1.0:
                value = unit
            else:
                value = unit * (draws[number][5] - draws[number][4]) + draws[number][4]
            tl.store(out + place, value.to(out.dtype.element_ty), mask=there)
