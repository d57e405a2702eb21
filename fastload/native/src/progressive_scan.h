/* Decodes a scan of progressive.h, included by the file of each instruction set, which defines:
 *
 *   TARGET                    the function attribute
 *   BIT_BELOW(from, num)      the bit of a mask that has `num` others above it; 0: there are not so many
 *   SPREAD(bits, mask)        puts bits where a mask has them, from the lowest on
 *   CORRECT(levels, which, low)
 *                             adds bit `low` to the coefficients of a mask, away from zero
 */
#include "progressive_pass.h"

/* Decodes the part of a block that a scan sends first. Returns 0 for damage. */
TARGET INLINE int first_ac(struct reader *r, const struct table *table, const struct scan *scan, int16_t *levels,
                    uint64_t *mask, uint32_t *ended, int wanted)
{
    const int last = 63 - scan->last, low = scan->low;
    uint64_t found = 0;
    for (int at = 63 - (scan->first ? scan->first : 1); at >= last; at--) {
        refill(r);
        const struct entry code = look_up(table, r);
        if (code.size) {
            at -= code.run;
            if (at < last)
                return 0;
            found |= (uint64_t)1 << at;
            if (wanted)
                levels[at] = (int16_t)((uint32_t)value_of(r->bits << code.length, code.size) << low);
            drop(r, code.total);
            continue;
        }
        if (!code.length)
            return 0;
        drop(r, code.length);
        if (code.run < 15) {
            *ended = (1u << code.run) + take(r, code.run);
            break;
        }
        at -= 15;
        if (at <= last)
            return 0;
    }
    *mask |= found;
    return 1;
}

/* Decodes a bit of those coefficients of a block that are known, and those that are no longer zero with it. Returns 0
 * for damage. */
TARGET INLINE int refine_ac(struct reader *r, const struct table *table, uint64_t band, int low, int16_t *levels,
                     uint64_t *mask, uint32_t *ended, int wanted)
{
    const uint64_t old = *mask & band;
    uint64_t rest = band, passed, corrections = 0, added = 0;
    while (rest && !*ended) {
        refill(r);
        const struct entry code = look_up(table, r);
        if (!code.length || code.size > 1)
            return 0;
        const int is_negative = (int)((r->bits << code.length >> 63) ^ 1);
        drop(r, code.total);
        if (!code.size && code.run < 15) {
            *ended = (1u << code.run) + take(r, code.run);
            break;
        }
        const uint64_t bit = BIT_BELOW(rest & ~old, code.run);
        if (!bit)
            return 0;
        passed = rest & old & -bit;
        if (passed)
            corrections |= SPREAD(take_many(r, __builtin_popcountll(passed)), passed);
        if (code.size) {
            added |= bit;
            if (wanted)
                levels[__builtin_ctzll(bit)] = (int16_t)(is_negative ? -(1 << low) : 1 << low);
        }
        rest &= bit - 1;
    }
    passed = rest & old;
    if (passed) {
        refill(r);
        corrections |= SPREAD(take_many(r, __builtin_popcountll(passed)), passed);
    }
    *mask |= added;
    if (wanted && corrections)
        CORRECT(levels, corrections, low);
    return 1;
}

/* Decodes `num` blocks side by side of a scan that has no other component. Returns 0 for damage. */
TARGET INLINE int ac_blocks(struct pass *pass, uint64_t *masks, int16_t *levels, int num, int wanted)
{
    struct reader reader = pass->coded.reader;
    uint32_t ended = pass->ended;
    const struct scan *const scan = pass->scan;
    const int refines = pass->kind == REFINE_AC;
    const uint64_t band = ((uint64_t)1 << (64 - scan->first)) - ((uint64_t)1 << (63 - scan->last));
    for (int i = 0; i < num; pass->coded.left--, i++) {
        if (pass->coded.left == 0) {
            pass->coded.reader = reader;
            if (ended || !next_interval(&pass->coded))
                return 0;
            reader = pass->coded.reader;
        }
        if (ended && !refines) {
            const unsigned rest = (unsigned)(num - i), left = pass->coded.left;
            const unsigned skipped = (ended < rest ? ended : rest) < left ? (ended < rest ? ended : rest) : left;
            ended -= skipped;
            i += (int)skipped - 1;
            pass->coded.left -= skipped - 1;
            continue;
        }
        int16_t *const at = wanted ? levels + (size_t)64 * i : NULL;
        if (refines) {
            if (!refine_ac(&reader, &pass->ac[0], band, scan->low, at, &masks[i], &ended, wanted))
                return 0;
        } else if (!first_ac(&reader, &pass->ac[0], scan, at, &masks[i], &ended, wanted)) {
            return 0;
        }
        if (ended)
            ended--;
        if (used(&reader) > pass->coded.end)
            return 0;
    }
    pass->coded.reader = reader;
    pass->ended = ended;
    return 1;
}

TARGET INLINE int ac_scan(struct pass *pass, const struct picture *p, const struct blocks *blocks)
{
    const struct plane *const plane = &p->plane[pass->scan->component[0]];
    const int width = (plane->width + 7) / 8, height = (plane->height + 7) / 8;
    const int rows = smaller(height, (p->last_row + 1) * plane->v);
    const int first = smaller(plane->first, width), end = smaller(plane->last + 1, width);
    for (int row = 0; row < rows; row++) {
        uint64_t *const masks = blocks->masks + (size_t)row * blocks->across;
        if (row < blocks->row) {
            if (!ac_blocks(pass, masks, NULL, width, 0))
                return 0;
            continue;
        }
        int16_t *const levels = blocks->levels + (size_t)(row - blocks->row) * blocks->wide * 64;
        if (!ac_blocks(pass, masks, NULL, first, 0) ||
            !ac_blocks(pass, masks + first, levels, end - first, 1) ||
            !ac_blocks(pass, masks + end, NULL, width - end, 0))
            return 0;
    }
    return 1;
}

/* Decodes a block of a scan that has DC values. Returns 0 for damage. */
TARGET INLINE int dc_block(struct pass *pass, struct reader *r, int i, uint64_t *mask, int16_t *dc, int16_t *levels,
                    enum kind kind)
{
    const struct scan *const scan = pass->scan;
    refill(r);
    if (kind == REFINE_DC) {
        const uint32_t bit = take(r, 1);
        if (dc)
            *dc = (int16_t)(*dc | (int)(bit << scan->low));
        return 1;
    }
    const struct entry code = look_up(&pass->dc[i], r);
    if (!code.length)
        return 0;
    pass->previous[i] += value_of(r->bits << code.length, code.size);
    drop(r, code.total);
    if (dc) {
        const int64_t level = (int64_t)pass->previous[i] * (1 << scan->low);
        if (level != (int16_t)level)
            return 0;
        *dc = (int16_t)level;
    }
    if (kind == FIRST_DC)
        return 1;
    uint32_t ended = 1;
    return (levels ? first_ac(r, &pass->ac[i], scan, levels, mask, &ended, 1)
                   : first_ac(r, &pass->ac[i], scan, NULL, mask, &ended, 0)) &&
           ended == 1;
}

/* One MCU of a scan that has DC values. Returns 0 for damage. */
TARGET INLINE int dc_mcu(struct pass *pass, const struct picture *p, const struct blocks *blocks, int mcu_row, int mcu,
                  enum kind kind)
{
    struct reader reader = pass->coded.reader;
    const int alone = pass->scan->num == 1;
    for (int i = 0; i < pass->scan->num; i++) {
        const int c = pass->scan->component[i], h = alone ? 1 : p->plane[c].h, v = alone ? 1 : p->plane[c].v;
        const struct blocks *const b = &blocks[c];
        for (int k = 0; k < h * v; k++) {
            const int row = mcu_row * v + k / h, column = mcu * h + k % h;
            const int is_wanted = row >= b->row && column >= b->column && column <= p->plane[c].last;
            const size_t place = is_wanted ? (size_t)(row - b->row) * b->wide + (column - b->column) : 0;
            if (!dc_block(pass, &reader, i, b->masks + (size_t)row * b->across + column,
                          is_wanted ? b->dc + place : NULL, is_wanted ? b->levels + place * 64 : NULL, kind))
                return 0;
        }
    }
    pass->coded.reader = reader;
    return used(&reader) <= pass->coded.end;
}

TARGET INLINE int dc_scan(struct pass *pass, const struct picture *p, const struct blocks *blocks, enum kind kind)
{
    const struct plane *const plane = &p->plane[pass->scan->component[0]];
    const int alone = pass->scan->num == 1;
    const int across = alone ? (plane->width + 7) / 8 : p->mcus;
    const int rows = alone ? smaller((plane->height + 7) / 8, (p->last_row + 1) * plane->v) : p->last_row + 1;
    for (int row = 0; row < rows; row++)
        for (int mcu = 0; mcu < across; mcu++, pass->coded.left--) {
            if (pass->coded.left == 0) {
                if (!next_interval(&pass->coded))
                    return 0;
                memset(pass->previous, 0, sizeof pass->previous);
            }
            if (!dc_mcu(pass, p, blocks, row, mcu, kind))
                return 0;
        }
    return 1;
}

TARGET INLINE int decode_scan_by_kind(struct pass *pass, const struct picture *p, const struct blocks *blocks)
{
    switch (pass->kind) {
    case FIRST_DC:
        return dc_scan(pass, p, blocks, FIRST_DC);
    case REFINE_DC:
        return dc_scan(pass, p, blocks, REFINE_DC);
    case SEQUENTIAL:
        return dc_scan(pass, p, blocks, SEQUENTIAL);
    default:
        return ac_scan(pass, p, &blocks[pass->scan->component[0]]);
    }
}
