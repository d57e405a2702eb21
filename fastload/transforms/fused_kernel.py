"""The kernels behind ``fastload.transforms.fused``; the only module that imports Triton, and only where it is used.

::

    place in the result ─(steps of each axis, the last first)─> place in the source ─> load ─> arithmetic ─> store

A program makes a tile of one sample's result: some rows, and of each some numbers that are adjacent in memory. What
depends on a row or a column alone is computed once for the tile, so that little more than an addition, a load and the
arithmetic is left for each number, and a warp writes adjacent bytes.

NOTE [The layout of loads]
Triton gives each load and store of a tile the layout that suits its addresses. Those of the source are consecutive in
no dimension that Triton can see: then 3.6 lays a warp along the rows and 3.7 along the columns. The store needs the
columns, so with 3.6 every number would go through shared memory, and the kernel would need twice the registers.
Therefore the addresses are said to be consecutive in pairs along the columns, and to be multiples of one byte alone:
the first decides the layout, the second keeps Triton from loading two numbers at once, which would be wrong.
"""

# Triton's decorators have no types, and what is in a kernel has types of Triton's.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..native.arrays import StepKind
from .arithmetic import Operation

OFFSET = tl.constexpr(int(StepKind.OFFSET))
EDGE = tl.constexpr(int(StepKind.EDGE))
REFLECT = tl.constexpr(int(StepKind.REFLECT))
SYMMETRIC = tl.constexpr(int(StepKind.SYMMETRIC))
FLIP = tl.constexpr(int(StepKind.FLIP))
MAP = tl.constexpr(int(StepKind.MAP))
COPY = tl.constexpr(int(Operation.COPY))
LINE = tl.constexpr(int(Operation.LINE))

TYPES = {
    torch.uint8: tl.uint8,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


@triton.jit
def _source(place, inside, sample, kinds: tl.constexpr, values, numbers):
    """Return where places of the result are in the source, and which are there at all.

    Steps come in the order in which a place of the result meets them: the last member's first.
    """
    for step in tl.static_range(len(kinds)):
        first = numbers[2 * step]
        second = numbers[2 * step + 1]
        if kinds[step] == FLIP:
            flipped = tl.load(values[step] + sample)
            place = tl.where(flipped != 0, second - 1 - place, place)
        elif kinds[step] == MAP:
            inside = inside & (place >= 0) & (place < second)
            place = tl.load(values[step] + sample * first + place, mask=inside, other=-1).to(tl.int32)
            inside = inside & (place >= 0)
        else:
            place = place + first
            if kinds[step] != OFFSET:
                place = place + tl.load(values[step] + sample).to(tl.int32)
            if kinds[step] == EDGE:
                place = tl.minimum(tl.maximum(place, 0), second - 1)
            elif kinds[step] == REFLECT:
                place = second - 1 - tl.abs(second - 1 - tl.abs(place))
            elif kinds[step] == SYMMETRIC:
                place = tl.where(place < 0, -1 - place, place)
                place = tl.where(place >= second, 2 * second - 1 - place, place)
            else:
                inside = inside & (place >= 0) & (place < second)
    return place, inside


@triton.jit
def _of_channel(values, channel):
    """Return each channel's value: the tuple holds one for each, or one for all."""
    found = values[0]
    for other in tl.static_range(1, len(values)):
        found = tl.where(channel == other, values[other], found)
    return found


@triton.jit
def _tile(height, width, rows, layout: tl.constexpr, tile_cols: tl.constexpr):
    """Return what the program makes: sample, channels, columns, positions in a row, their number, rows, and offset.

    A row of the result has all channels of its pixels, or one; the offset is that of its first row in memory.
    """
    channels: tl.constexpr = layout[0]
    channels_last: tl.constexpr = layout[1]
    program = tl.program_id(0)
    if channels_last:
        length = width * channels
    else:
        length = width
    across = (length + tile_cols - 1) // tile_cols
    down = (height + rows - 1) // rows
    at = program % across * tile_cols + tl.arange(0, tile_cols)
    program = program // across
    top = program % down * rows
    program = program // down
    if channels_last:
        sample = program.to(tl.int64)
        channel = at % channels
        col = at // channels
    else:
        sample = (program // channels).to(tl.int64)
        channel = program % channels
        col = at
    return sample, channel, col, at, length, top, program.to(tl.int64) * height * length


@triton.jit
def _filled(bits, fill, many: tl.constexpr, row_inside, col_inside, channels_last: tl.constexpr):
    """Return the bits of a tile, with those of the fill value where a row or a column has no source."""
    # By bits, not by booleans, of which a thread has more than predicates: two instructions for each number.
    dtype: tl.constexpr = bits.dtype
    if bits.dtype != tl.int64:
        bits = bits.to(tl.int32)
    row_mask = tl.where(row_inside, -1, 0).to(bits.dtype)
    col_mask = tl.where(col_inside, -1, 0).to(bits.dtype)
    outside = _spread(fill, many, channels_last, bits.shape[0], bits.shape[1]).to(bits.dtype)
    bits = outside ^ ((bits ^ outside) & (row_mask[:, None] & col_mask[None, :]))
    return bits.to(dtype)


@triton.jit
def _computed(bits, factor, summand, many: tl.constexpr, arithmetic: tl.constexpr, channels_last: tl.constexpr):
    """Return a tile of values after the arithmetic: operation, dtype of the images, and dtype that they go by."""
    operation: tl.constexpr = arithmetic[0]
    if operation == COPY:
        number = bits
    else:
        if arithmetic[1] == tl.uint8:
            number = bits.to(tl.int32).to(tl.float32)
        else:
            number = bits.to(arithmetic[1], bitcast=True).to(arithmetic[2]).to(tl.float32)
        if operation >= LINE:
            by = _spread(factor, many, channels_last, bits.shape[0], bits.shape[1])
            more = _spread(summand, many, channels_last, bits.shape[0], bits.shape[1])
            if operation == LINE:
                number = tl.fma(number, by, more)
            else:
                number = tl.div_rn(number - more, by)
    return number


@triton.jit(do_not_specialize=["strips"])  # it follows the number of samples, and the last batch may have fewer
def transformed(
    images,  # as integers of the same size: their bits
    out,
    rows,  # steps along the rows: a tensor or None for each, and two numbers for each
    cols,
    shape,  # strides of the images (sample, channel, row, column); their height and width; those of the result
    per_channel,  # bits of the fill value, factors, summands: one, or one for each channel
    strips,
    config: tl.constexpr,  # see fused.transformed
):
    """Make ``strips`` strips of tile_rows rows each, and of each row the same tile_cols numbers."""
    row_kinds: tl.constexpr = config[0]
    col_kinds: tl.constexpr = config[1]
    filled: tl.constexpr = config[2]
    arithmetic: tl.constexpr = config[3]
    layout: tl.constexpr = config[4]
    wide: tl.constexpr = config[5]
    tile_rows: tl.constexpr = config[6]
    tile_cols: tl.constexpr = config[7]
    strides, source_height, source_width, height, width = shape
    fills, factors, summands = per_channel
    sample, channel, col, at, length, top, start = _tile(height, width, tile_rows * strips, layout, tile_cols)
    there = at < length

    # Positions are clamped to the source, so that loads need no mask: replacing unused values is cheaper. Nor can wrong
    # parameters read other memory.
    source_col, col_inside = _source(col, there, sample, col_kinds, cols[0], cols[1])
    source_col = tl.minimum(tl.maximum(source_col, 0), source_width - 1)
    if wide:
        source_col, channel = source_col.to(tl.int64), channel.to(tl.int64)
    column = images + sample * strides[0] + (source_col * strides[3] + channel * strides[1])
    target = out + start + at

    fill = _of_channel(fills, channel)
    factor = _of_channel(factors, channel)
    summand = _of_channel(summands, channel)
    for strip in range(strips):
        row = top + strip * tile_rows + tl.arange(0, tile_rows)
        row_there = row < height
        source_row, row_inside = _source(row, row_there, sample, row_kinds, rows[0], rows[1])
        source_row = tl.minimum(tl.maximum(source_row, 0), source_height - 1)
        if wide:
            source_row, row = source_row.to(tl.int64), row.to(tl.int64)
        # See NOTE [The layout of loads].
        places = tl.max_contiguous(column[None, :] + (source_row * strides[2])[:, None], (1, 2))
        bits = tl.load(tl.multiple_of(places, (1, 1)))
        if filled:
            bits = _filled(bits, fill, len(fills), row_inside, col_inside, layout[1])
        number = _computed(bits, factor, summand, len(factors), arithmetic, layout[1]).to(out.dtype.element_ty)
        tl.store(target[None, :] + (row * length)[:, None], number, mask=row_there[:, None] & there[None, :])


@triton.jit
def _spread(value, many: tl.constexpr, channels_last: tl.constexpr, tile_rows: tl.constexpr, tile_cols: tl.constexpr):
    """Return a value of each channel, as ``_of_channel`` gives it, as a tile."""
    if channels_last and many > 1:
        value = value[None, :]
    return tl.broadcast_to(value, (tile_rows, tile_cols))


@triton.jit
def _within(value, least, most):
    """Return a number of pixels that was drawn: between bounds, so that nothing else is read or looped over."""
    return tl.minimum(tl.maximum(value, least), most).to(tl.int32)


@triton.jit
def _share(pixel, middle, length, narrow, cubic: tl.constexpr):
    """Return how much of a box's pixels is in the result's, but for the sum; see ``resampling.weights``."""
    distance = tl.abs((pixel - middle + 0.5) * narrow)
    if cubic:
        near = (1.5 * distance - 2.5) * distance * distance + 1.0
        far = ((distance - 5.0) * distance + 8.0) * distance * -0.5 + 2.0
        share = tl.where(distance < 1.0, near, tl.where(distance < 2.0, far, 0.0))
    else:
        share = tl.maximum(1.0 - distance, 0.0)
    return tl.where((pixel >= 0) & (pixel < length), share, 0.0)


@triton.jit
def _level(value):
    """Return the nearest level of uint8, halves upwards."""
    return tl.minimum(tl.maximum(tl.floor(value + 0.5), 0.0), 255.0)


@triton.jit
def _quotient(dividend, divisor):
    """Return a quotient rounded as torch rounds it: a plain one of float32 is up to two units off on a device."""
    zero = tl.full([], 0.0, tl.float32)
    dividend, divisor = tl.broadcast(zero + dividend, zero + divisor)
    return tl.div_rn(dividend, divisor)


@triton.jit
def _axis(length, size, index, cubic: tl.constexpr):
    """Return how an axis of a box is resized: its scale, how far a filter reaches, and the middles of positions."""
    scale = _quotient(length.to(tl.float32), size)
    spread = tl.maximum(scale, 1.0)
    reach: tl.constexpr = 2.0 if cubic else 1.0
    return scale, reach * spread, _quotient(1.0, spread), scale * (index.to(tl.float32) + 0.5)


@triton.jit
def _weighed(pixels, stride, first, taps, axis, length, wide: tl.constexpr, cubic: tl.constexpr):
    """Return the weighted sums along a row of the box, not divided by the sum of the weights."""
    total = tl.full(first.shape, 0.0, tl.float32)
    for tap in range(taps):
        share = _share(first + tap, axis[3], length, axis[2], cubic)
        pixel = tl.minimum(tl.maximum(first + tap, 0), length - 1)
        if wide:
            pixel = pixel.to(tl.int64)
        total += share * tl.load(pixels + pixel * stride).to(tl.int32).to(tl.float32)
    return total


@triton.jit
def resized(
    images,  # uint8
    out,
    boxes,  # tops, lefts, heights, widths: [N] each, int64
    flips,  # [N], uint8, or None
    shape,  # strides of the images (sample, channel, row, column); their height and width; those of the result
    per_channel,  # factors and summands: one, or one for each channel
    config: tl.constexpr,  # see fused.resized
):
    """Make tile_rows rows of the same tile_cols numbers: of each row of the box, weigh its columns, then the row.

    The sums along a row are rounded to levels, and belong to all rows of the tile.
    """
    line: tl.constexpr = config[0]
    cubic: tl.constexpr = config[1]
    layout: tl.constexpr = config[2]
    wide: tl.constexpr = config[3]
    tile_rows: tl.constexpr = config[4]
    tile_cols: tl.constexpr = config[5]
    strides, source_height, source_width, height, width = shape
    factors, summands = per_channel
    sample, channel, col, at, length, first_row, start = _tile(height, width, tile_rows, layout, tile_cols)
    row = first_row + tl.arange(0, tile_rows)
    top = _within(tl.load(boxes[0] + sample), 0, source_height - 1)
    left = _within(tl.load(boxes[1] + sample), 0, source_width - 1)
    box_height = _within(tl.load(boxes[2] + sample), 1, source_height - top)
    box_width = _within(tl.load(boxes[3] + sample), 1, source_width - left)
    # Rows and columns after the last are as the last, so that no sum is 0; they are not stored.
    col = tl.minimum(col, width - 1)
    if flips is not None:
        col = tl.where(tl.load(flips + sample) != 0, width - 1 - col, col)

    # The first pixel of the box in each column's sum, and how many may be.
    along = _axis(box_width, width, col, cubic)
    first = tl.floor(along[3] - along[1] + 0.5).to(tl.int32)
    taps = tl.ceil(2.0 * along[1]).to(tl.int32) + 1
    col_sum = tl.full((tile_cols,), 0.0, tl.float32)
    for tap in range(taps):
        col_sum += _share(first + tap, along[3], box_width, along[2], cubic)
    by_sum = _quotient(1.0, col_sum)

    # Likewise the rows; and which of the box are in any of the tile.
    down = _axis(box_height, height, tl.minimum(row, height - 1), cubic)
    begin = tl.floor(down[0] * (first_row + 0.5) - down[1]).to(tl.int32)
    end = tl.ceil(down[0] * (first_row + tile_rows - 0.5) + down[1]).to(tl.int32) + 1
    row_sum = tl.full((tile_rows,), 0.0, tl.float32)
    total = tl.full((tile_rows, tile_cols), 0.0, tl.float32)
    if wide:
        channel = channel.to(tl.int64)
    box = images + sample * strides[0] + left.to(tl.int64) * strides[3]
    for place in range(tl.maximum(begin, 0), tl.minimum(end, box_height)):
        pixels = box + (top + place).to(tl.int64) * strides[2] + channel * strides[1]
        levels = _level(_weighed(pixels, strides[3], first, taps, along, box_width, wide, cubic) * by_sum)
        share = _share(place, down[3], box_height, down[2], cubic)
        row_sum += share
        total += share[:, None] * levels[None, :]

    number = _level(total * _quotient(1.0, row_sum)[:, None])
    if line:
        by = _spread(_of_channel(factors, channel), len(factors), layout[1], tile_rows, tile_cols)
        more = _spread(_of_channel(summands, channel), len(summands), layout[1], tile_rows, tile_cols)
        number = tl.fma(number, by, more)
    elif out.dtype.element_ty == tl.uint8:
        number = number.to(tl.int32)
    target = out + start + at
    if wide:
        row = row.to(tl.int64)
    there = (row < height)[:, None] & (at < length)[None, :]
    tl.store(target[None, :] + (row * length)[:, None], number.to(out.dtype.element_ty), mask=there)
