"""The kernel behind :mod:`fastload.transforms.fused`; the only module that imports Triton, and only where it is used.

::

    place in the result ─(steps of each axis, the last first)─> place in the source ─> load ─> arithmetic ─> store

A program makes a tile of one sample's result: some rows, and of each some consecutive numbers as they lie in memory.
What belongs to a row or to a column is computed once for the tile, so that hardly more than an addition, a load and the
arithmetic is left for each number, and a warp writes consecutive bytes.

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

from .recipe import Kind, Operation

STILL = tl.constexpr(int(Kind.STILL))
EDGE = tl.constexpr(int(Kind.EDGE))
REFLECT = tl.constexpr(int(Kind.REFLECT))
SYMMETRIC = tl.constexpr(int(Kind.SYMMETRIC))
FLIP = tl.constexpr(int(Kind.FLIP))
MAP = tl.constexpr(int(Kind.MAP))
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
            if kinds[step] != STILL:
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


@triton.jit(do_not_specialize=["strips"])  # it follows the number of samples, and the last batch may have fewer
def transformed(
    images,  # as integers of the same size: their bits
    out,
    row_values,  # a tensor for each step, or None
    row_numbers,  # two for each step
    col_values,
    col_numbers,
    strides,  # of the images: sample, channel, row, column
    source_height,
    source_width,
    height,
    width,
    fills,  # bits, too; one, or one for each channel, as the next two
    factors,
    summands,
    strips,
    row_kinds: tl.constexpr,
    col_kinds: tl.constexpr,
    filled: tl.constexpr,
    arithmetic: tl.constexpr,
    dtype: tl.constexpr,  # of the images
    via: tl.constexpr,  # floats are rounded to this dtype first
    channels: tl.constexpr,
    channels_last: tl.constexpr,  # of the result
    wide: tl.constexpr,  # a sample of the source or of the result spans 2**31 numbers or more
    tile_rows: tl.constexpr,
    tile_cols: tl.constexpr,
):
    """Make ``strips`` strips of tile_rows rows each, and of each row the same tile_cols numbers."""
    program = tl.program_id(0)
    # What lies in a row of the result: its pixels, each with all its channels or with one.
    if channels_last:
        length = width * channels
    else:
        length = width
    across = (length + tile_cols - 1) // tile_cols
    down = (height + tile_rows * strips - 1) // (tile_rows * strips)
    at = program % across * tile_cols + tl.arange(0, tile_cols)
    program = program // across
    top = program % down * tile_rows * strips
    program = program // down
    if channels_last:
        sample = program.to(tl.int64)
        channel = at % channels
        col = at // channels
        start = sample * height * length
    else:
        sample = (program // channels).to(tl.int64)
        channel = program % channels
        col = at
        start = program.to(tl.int64) * height * length
    there = at < length

    # Every place is made one of the source's, so that loads need no mask: it is cheaper to replace what was read for
    # nothing. And parameters that nobody drew, which may point anywhere, read no memory of others.
    source_col, col_inside = _source(col, there, sample, col_kinds, col_values, col_numbers)
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
        source_row, row_inside = _source(row, row_there, sample, row_kinds, row_values, row_numbers)
        source_row = tl.minimum(tl.maximum(source_row, 0), source_height - 1)
        if wide:
            source_row, row = source_row.to(tl.int64), row.to(tl.int64)
        # See NOTE [The layout of loads].
        places = tl.max_contiguous(column[None, :] + (source_row * strides[2])[:, None], (1, 2))
        bits = tl.load(tl.multiple_of(places, (1, 1)))
        if filled:
            # By bits, not by booleans, of which a thread has more than predicates: two instructions for each number.
            if bits.dtype != tl.int64:
                bits = bits.to(tl.int32)
            row_mask = tl.where(row_inside, -1, 0).to(bits.dtype)
            col_mask = tl.where(col_inside, -1, 0).to(bits.dtype)
            outside = _spread(fill, len(fills), channels_last, tile_rows, tile_cols).to(bits.dtype)
            bits = outside ^ ((bits ^ outside) & (row_mask[:, None] & col_mask[None, :]))
            bits = bits.to(images.dtype.element_ty)
        if arithmetic == COPY:
            number = bits
        else:
            if dtype == tl.uint8:
                number = bits.to(tl.int32).to(tl.float32)
            else:
                number = bits.to(dtype, bitcast=True).to(via).to(tl.float32)
            if arithmetic >= LINE:
                by = _spread(factor, len(factors), channels_last, tile_rows, tile_cols)
                more = _spread(summand, len(summands), channels_last, tile_rows, tile_cols)
                if arithmetic == LINE:
                    number = tl.fma(number, by, more)
                else:
                    number = tl.div_rn(number - more, by)
            number = number.to(out.dtype.element_ty)
        tl.store(target[None, :] + (row * length)[:, None], number, mask=row_there[:, None] & there[None, :])


@triton.jit
def _spread(value, many: tl.constexpr, channels_last: tl.constexpr, tile_rows: tl.constexpr, tile_cols: tl.constexpr):
    """Return a value of each channel, as :func:`_of_channel` gives it, as a tile."""
    if channels_last and many > 1:
        value = value[None, :]
    return tl.broadcast_to(value, (tile_rows, tile_cols))
