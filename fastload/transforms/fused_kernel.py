"""The kernel behind ``fastload.transforms.fused``; the only module that imports Triton, and only where it is used.

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
def _spread(value, many: tl.constexpr, channels_last: tl.constexpr, tile_rows: tl.constexpr, tile_cols: tl.constexpr):
    """Return a value of each channel, as ``_of_channel`` gives it, as a tile."""
    if channels_last and many > 1:
        value = value[None, :]
    return tl.broadcast_to(value, (tile_rows, tile_cols))


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
    """Return a tile of values after the arithmetic: operation, and dtype of the images."""
    operation: tl.constexpr = arithmetic[0]
    if operation == COPY:
        number = bits
    else:
        if arithmetic[1] == tl.uint8:
            number = bits.to(tl.int32).to(tl.float32)
        else:
            number = bits.to(arithmetic[1], bitcast=True).to(tl.float32)
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
