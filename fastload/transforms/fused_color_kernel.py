"""The kernels behind ``fastload.transforms.fused_color``; imported only where they are used, since they need Triton.

::

    images ─> grey_sums: of the images that contrast meets ─partial sums─> changed: all steps, arithmetic ─> result

A program makes some pixels of one sample, all of its channels, so the kind of a step is one for the whole program.
Steps are rounded as torch's operations are: what torch rounds once is ``fma``, quotients are IEEE's, and nothing else
may be joined, for which ``enable_fp_fusion`` is off. Images of uint8 are cut off to whole levels after each step.
"""

# Triton's decorators have no types, and what is in a kernel has types of Triton's.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from . import auto_operations as policy
from .arithmetic import Operation
from .fused_kernel import TYPES as TYPES

# Kinds of steps. The first three are numbered as in ColorJitter's parameters.
BRIGHTNESS = tl.constexpr(0)
CONTRAST = tl.constexpr(1)
SATURATION = tl.constexpr(2)
HUE = tl.constexpr(3)
SHARPNESS = tl.constexpr(4)
POSTERIZE = tl.constexpr(5)
SOLARIZE = tl.constexpr(6)
NOTHING = tl.constexpr(7)
# Those of the policies' operations from brightness on: colour, contrast, sharpness, posterize, solarize.
FIRST = tl.constexpr(policy.BRIGHTNESS)
KINDS = tl.constexpr((0, 2, 1, 4, 5, 6))
LINE = tl.constexpr(int(Operation.LINE))
MOMENTS = tl.constexpr(int(Operation.MOMENTS))
TINY = tl.constexpr(2.0**-126)


@triton.jit
def _step(sample, turn, steps, num_blends: tl.constexpr):
    """Return a step's kind, factor, and 1 - factor: of ColorJitter, or of a policy for a negative ``num_blends``."""
    if num_blends < 0:
        operation = tl.load(steps[0] + sample)
        factor = tl.load(steps[1] + sample).to(tl.float32)
        kind = tl.full((), NOTHING, tl.int32)
        for known in tl.static_range(6):
            kind = tl.where(operation == FIRST + known, KINDS[known], kind)
        exact = 1.0 + factor.to(tl.float64)  # which has more digits than a float32
        rest = (1.0 - exact).to(tl.float32)
        factor = tl.where(kind <= SHARPNESS, exact.to(tl.float32), factor)
    else:
        before = tl.load(steps[1] + sample).to(tl.int32)
        kind = tl.full((), NOTHING, tl.int32)
        if num_blends > 0:
            place = tl.where(before < turn, turn - 1, turn)
            kind = tl.load(steps[0] + sample * num_blends + tl.minimum(place, num_blends - 1)).to(tl.int32)
        if steps[5] is not None:
            kind = tl.where(before == turn, HUE, kind)
        factor = tl.full((), 1.0, tl.float32)
        for known in tl.static_range(4):
            if steps[2 + known] is not None:
                factor = tl.where(kind == known, tl.load(steps[2 + known] + sample).to(tl.float32), factor)
        rest = 1.0 - factor
    return kind, factor, rest


@triton.jit
def _loaded(images, places, mask):
    """Return values as float32."""
    values = tl.load(images + places, mask=mask, other=0)
    if values.dtype == tl.uint8:
        values = values.to(tl.int32)
    return values.to(tl.float32)


@triton.jit
def _pixels(images, place, apart, mask, channels: tl.constexpr):
    """Return the three channels of pixels; one channel three times if there is one."""
    red = _loaded(images, place, mask)
    green, blue = red, red
    if channels == 3:
        green = _loaded(images, place + apart, mask)
        blue = _loaded(images, place + 2 * apart, mask)
    return red, green, blue


@triton.jit
def _grey(red, green, blue, levels: tl.constexpr, channels: tl.constexpr):
    """Return the grey level; ``levels``: whole ones."""
    grey = red
    if channels == 3:
        grey = tl.fma(blue, 0.114, tl.fma(green, 0.587, red * 0.2989))
        if levels:
            grey = tl.floor(grey)
    return grey


@triton.jit
def _mixed(value, other, factor, rest, levels: tl.constexpr):
    mixed = tl.fma(other, rest, value * factor)
    if levels:
        return tl.floor(tl.minimum(tl.maximum(mixed, 0.0), 255.0))
    return tl.minimum(tl.maximum(mixed, 0.0), 1.0)


@triton.jit
def _turned(red, green, blue, turn, levels: tl.constexpr):
    """Return the colours with their hue turned: see ``color.adjust_hue``, whose roundings these are."""
    if levels:
        red, green, blue = red * (1.0 / 255), green * (1.0 / 255), blue * (1.0 / 255)
    value = tl.maximum(tl.maximum(red, green), blue)
    spread = value - tl.minimum(tl.minimum(red, green), blue)
    saturation = tl.div_rn(spread, tl.maximum(value, TINY))
    spread = tl.maximum(spread, TINY)
    red, green, blue = tl.div_rn(value - red, spread), tl.div_rn(value - green, spread), tl.div_rn(value - blue, spread)
    hue = tl.where(green == 0.0, red + 2.0 - blue, green + 4.0 - red)
    hue = tl.where(red == 0.0, blue - green, hue) * (1.0 / 6.0) + 1.0
    hue = hue - tl.floor(hue) + turn
    hue = (hue - tl.floor(hue)) * 6.0
    sector = tl.floor(hue)
    part = (hue - sector) * saturation
    rest = 1.0 - saturation
    half = sector * 0.5
    middle = tl.where(half == tl.floor(half), part + rest, 1.0 - part) * value
    middle = tl.minimum(tl.maximum(middle, 0.0), 1.0)
    lowest = tl.minimum(tl.maximum(rest * value, 0.0), 1.0)
    red = _by_sector(sector, 2.5, lowest, middle, value, levels)
    green = _by_sector(sector, 1.5, value, middle, lowest, levels)
    blue = _by_sector(sector, 3.5, value, middle, lowest, levels)
    return red, green, blue


@triton.jit
def _by_sector(sector, centre: tl.constexpr, inner, middle, outer, levels: tl.constexpr):
    distance = tl.abs(sector - centre)
    colour = tl.where(distance < 1.0, inner, tl.where(distance < 2.0, middle, outer))
    if levels:
        colour = tl.floor(colour * (256 - 1e-3))
    return colour


@triton.jit
def _posterized(value, bits, levels: tl.constexpr):
    if levels:
        return (value.to(tl.int32) & ((255 << (8 - bits)) & 255)).to(tl.float32)
    many = (1 << bits).to(tl.float32)
    return tl.div_rn(tl.minimum(tl.maximum(tl.floor(value * many), 0.0), many - 1.0), many)


@triton.jit
def _changed_by(red, green, blue, step, mean, kinds: tl.constexpr, dtype: tl.constexpr, channels: tl.constexpr):
    """Return the channels after a step: kind, factor, 1 - factor. Sharpness is not one of them.

    ``kinds``: whether there may be hues, and steps of policies.
    """
    levels: tl.constexpr = dtype == tl.uint8
    kind, factor, rest = step
    if channels == 1:  # which have neither saturation nor hue
        kind = tl.where((kind == SATURATION) | (kind == HUE), NOTHING, kind)
    if (kind == BRIGHTNESS) | (kind == CONTRAST) | (kind == SATURATION):
        grey = _grey(red, green, blue, levels, channels)
        other = tl.where(kind == SATURATION, grey, tl.where(kind == CONTRAST, mean, 0.0))
        red = _mixed(red, other, factor, rest, levels)
        green = _mixed(green, other, factor, rest, levels)
        blue = _mixed(blue, other, factor, rest, levels)
    if kinds[0]:  # noqa: SIM102 - what depends on constants alone is not compiled
        if kind == HUE:
            red, green, blue = _turned(red, green, blue, factor, levels)
    if kinds[1]:
        if kind == POSTERIZE:
            bits = factor.to(tl.int32)
            red, green, blue = (
                _posterized(red, bits, levels),
                _posterized(green, bits, levels),
                _posterized(blue, bits, levels),
            )
        elif kind == SOLARIZE:
            bound: tl.constexpr = 255.0 if levels else 1.0
            if levels:
                least = tl.minimum(tl.maximum(tl.ceil(factor * 255.0), 0.0), 255.0)
            else:
                least = factor.to(dtype).to(tl.float32)
            red = tl.where(red >= least, bound - red, red)
            green = tl.where(green >= least, bound - green, green)
            blue = tl.where(blue >= least, bound - blue, blue)
    return red, green, blue


@triton.jit
def _sharpened(images, place, width, stride, value, step, inside, levels: tl.constexpr):
    """Return a channel blended with a smoothed one, if the step says so and where pixels have all neighbours."""
    kind, _, rest = step
    if kind == SHARPNESS:
        total = tl.full(value.shape, 0.0, tl.float32)
        for col in tl.static_range(3):
            at = place + (col - 1) * stride
            above, below = _loaded(images, at - width * stride, inside), _loaded(images, at + width * stride, inside)
            total = total + (above + _loaded(images, at, inside) + below)
        smooth = tl.fma(value, 4.0, total) * (1.0 / 13.0)
        if levels:
            smooth = tl.floor(smooth + 0.5)
        sharp = tl.fma(smooth - value, rest, value)
        if levels:
            sharp = tl.floor(tl.minimum(tl.maximum(sharp, 0.0), 255.0))
        else:
            sharp = tl.minimum(tl.maximum(sharp, 0.0), 1.0)
        value = tl.where(inside, sharp, value)
    return value


@triton.jit
def _computed(number, channel: tl.constexpr, factors, summands, operation: tl.constexpr):
    """Return the values of a channel after the arithmetic; factors and summands: one, or one for each channel."""
    of: tl.constexpr = channel if len(factors) > 1 else 0
    factor, summand = factors[of], summands[of]
    if operation == LINE:
        number = tl.fma(number, factor, summand)
    elif operation == MOMENTS:
        number = tl.div_rn(number - summand, factor)
    return number


@triton.jit
def grey_sums(
    images,
    out,  # [N, parts], float64
    steps,  # parameters: see fused_color
    shape,  # number of pixels; distances in memory between pixels and between channels
    config: tl.constexpr,  # see fused_color.changed
):
    """Sum some of the grey levels that contrast meets, for the samples that have it."""
    num_blends: tl.constexpr = config[0]
    turns: tl.constexpr = config[1]
    channels: tl.constexpr = config[2]
    block: tl.constexpr = config[3]
    parts: tl.constexpr = config[4]
    levels: tl.constexpr = images.dtype.element_ty == tl.uint8
    kinds: tl.constexpr = (config[0] < config[1], config[0] < 0)
    num, stride, apart = shape
    program = tl.program_id(0)
    sample = (program // parts).to(tl.int64)
    part = program % parts
    found = sample < 0
    for turn in range(turns):
        found = found | (_step(sample, turn, steps, num_blends)[0] == CONTRAST)
    blocks = (num + block - 1) // block
    blocks = tl.where(found, (blocks + parts - 1) // parts, 0)
    images += sample * num * channels
    total = tl.full((block,), 0.0, tl.float32)
    for number in range(blocks):
        pixel = (part * blocks + number) * block + tl.arange(0, block)
        there = pixel < num
        red, green, blue = _pixels(images, pixel * stride, apart, there, channels)
        before = sample >= 0
        for turn in range(turns):
            kind, factor, rest = _step(sample, turn, steps, num_blends)
            before = before & (kind != CONTRAST)
            step = (tl.where(before, kind, NOTHING), factor, rest)
            red, green, blue = _changed_by(red, green, blue, step, 0.0, kinds, images.dtype.element_ty, channels)
        total += tl.where(there, _grey(red, green, blue, levels, channels), 0.0)
    tl.store(out + program, tl.sum(total.to(tl.float64), 0))


@triton.jit
def changed(
    images,
    out,
    sums,  # of grey_sums; None: no sample has contrast
    steps,
    shape,  # number of pixels; distances between pixels and between channels; height and width
    per_channel,  # factors and summands: one, or one for each channel
    config: tl.constexpr,
):
    """Make a block of one sample's pixels: all steps, then the arithmetic."""
    num_blends: tl.constexpr = config[0]
    turns: tl.constexpr = config[1]
    channels: tl.constexpr = config[2]
    block: tl.constexpr = config[3]
    parts: tl.constexpr = config[4]
    operation: tl.constexpr = config[5]
    via: tl.constexpr = config[6]
    levels: tl.constexpr = images.dtype.element_ty == tl.uint8
    kinds: tl.constexpr = (config[0] < config[1], config[0] < 0)
    num, stride, apart, height, width = shape
    factors, summands = per_channel
    blocks = (num + block - 1) // block
    sample = (tl.program_id(0) // blocks).to(tl.int64)
    pixel = tl.program_id(0) % blocks * block + tl.arange(0, block)
    there = pixel < num
    mean = 0.0
    if sums is not None:
        total = tl.sum(tl.load(sums + sample * parts + tl.arange(0, parts)), 0).to(tl.float32)
        mean = tl.div_rn(total, tl.full((), 0.0, tl.float32) + num)
    images += sample * num * channels
    out += sample * num * channels
    place = pixel * stride
    red, green, blue = _pixels(images, place, apart, there, channels)
    if num_blends < 0:
        step = _step(sample, 0, steps, num_blends)
        row, col = pixel // width, pixel % width
        inside = there & (row > 0) & (row < height - 1) & (col > 0) & (col < width - 1)
        red = _sharpened(images, place, width, stride, red, step, inside, levels)
        if channels == 3:
            green = _sharpened(images, place + apart, width, stride, green, step, inside, levels)
            blue = _sharpened(images, place + 2 * apart, width, stride, blue, step, inside, levels)
    for turn in range(turns):
        step = _step(sample, turn, steps, num_blends)
        red, green, blue = _changed_by(red, green, blue, step, mean, kinds, images.dtype.element_ty, channels)
    for channel in tl.static_range(channels):
        number = red if channel == 0 else green if channel == 1 else blue
        if not levels:
            number = number.to(images.dtype.element_ty).to(via).to(tl.float32)
        number = _computed(number, channel, factors, summands, operation)
        if operation < LINE and out.dtype.element_ty == tl.uint8:
            number = number.to(tl.int32)
        tl.store(out + place + channel * apart, number.to(out.dtype.element_ty), mask=there)
