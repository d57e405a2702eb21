/* See progressive.h. */
#include "progressive.h"
#include "coefficients.h"

#define TARGET
#define BIT_BELOW bit_below
#define SPREAD spread
#define CORRECT correct
#include "progressive_scan.h"

static void make_table(struct table *table, const uint8_t *from)
{
    make_symbols(&table->symbols, from);
    memset(table->look, 0, sizeof table->look);
    struct entry *to = table->look;
    const uint8_t *symbol = from + 16;
    for (int length = 1; length <= LOOK_BITS; length++)
        for (int i = 0; i < from[length - 1]; i++, symbol++) {
            const int size = *symbol & 15;
            const struct entry made = {(uint8_t)length, (uint8_t)(length + size), *symbol >> 4, (uint8_t)size};
            for (int k = 0; k < 1 << (LOOK_BITS - length); k++)
                *to++ = made;
        }
}

struct entry look_further(const struct table *table, uint64_t bits)
{
    int length;
    const int symbol = symbol_of(&table->symbols, bits, &length), size = symbol & 15;
    if (symbol < 0)
        return (struct entry){0, 0, 0, 0};
    return (struct entry){(uint8_t)length, (uint8_t)(length + size), (uint8_t)(symbol >> 4), (uint8_t)size};
}

int decode_scan_plain(struct pass *pass, const struct picture *p, const struct blocks *blocks)
{
    return decode_scan_by_kind(pass, p, blocks);
}

static int decode_pass(struct pass *pass, const struct picture *p, const struct blocks *blocks)
{
#ifdef FASTLOAD_X86
    if (p->level == FASTLOAD_AVX512)
        return decode_scan_avx512(pass, p, blocks);
    if (p->level == FASTLOAD_AVX2)
        return decode_scan_avx2(pass, p, blocks);
#endif
    return decode_scan_plain(pass, p, blocks);
}

static int begin_pass(struct pass *pass, struct fastload_scratch *scratch, const struct scan *scan,
                      const uint8_t *bytes)
{
    pass->scan = scan;
    pass->kind = scan->first ? scan->is_refining ? REFINE_AC : FIRST_AC
                 : scan->last ? SEQUENTIAL
                              : scan->is_refining ? REFINE_DC : FIRST_DC;
    for (int i = 0; i < scan->num; i++) {
        if (pass->kind == FIRST_DC || pass->kind == SEQUENTIAL)
            make_table(&pass->dc[i], scan->dc[i]);
        if (scan->last)
            make_table(&pass->ac[i], scan->ac[i]);
    }
    memset(pass->previous, 0, sizeof pass->previous);
    pass->ended = 0;
    return coded_begin(&pass->coded, scratch, bytes + scan->begin, scan->end + 2 - scan->begin, scan->interval);
}

/* Memory for the coefficients. Returns 0 where there is none. */
static int keep_blocks(struct progressive *progressive, struct fastload_scratch *scratch, const struct picture *p)
{
    size_t all = 0, wanted = 0;
    for (int c = 0; c < p->num; c++) {
        const struct plane *const plane = &p->plane[c];
        struct blocks *const b = &progressive->blocks[c];
        b->across = blocks_across(p, c);
        b->row = p->first_row * plane->v;
        b->column = plane->first;
        b->wide = (plane->last - plane->first) / GROUP * GROUP + GROUP;
        all += (size_t)b->across * ((p->last_row + 1) * plane->v);
        wanted += (size_t)b->wide * ((p->last_row - p->first_row + 1) * plane->v);
    }
    uint64_t *masks = reserve(&scratch->kept, all * sizeof *masks + wanted * 65 * sizeof(int16_t));
    if (!masks)
        return 0;
    memset(masks, 0, all * sizeof *masks);
    int16_t *levels = (int16_t *)(void *)(masks + all), *dc = levels + wanted * 64;
    memset(dc, 0, wanted * sizeof *dc); /* those behind a component's own edge need not come */
    for (int c = 0; c < p->num; c++) {
        struct blocks *const b = &progressive->blocks[c];
        const size_t rows = (size_t)(p->last_row - p->first_row + 1) * p->plane[c].v;
        b->masks = masks;
        b->levels = levels;
        b->dc = dc;
        masks += (size_t)b->across * ((p->last_row + 1) * p->plane[c].v);
        levels += rows * b->wide * 64;
        dc += rows * b->wide;
    }
    return 1;
}

int progressive_begin(struct progressive *progressive, struct fastload_scratch *scratch, const struct scans *scans,
                      const uint8_t *bytes, const struct picture *p)
{
    if (!keep_blocks(progressive, scratch, p))
        return FASTLOAD_NO_MEMORY;
    for (int i = 0; i < scans->num; i++) {
        struct pass pass;
        const int status = begin_pass(&pass, scratch, &scans->scan[i], bytes);
        if (status != FASTLOAD_DONE)
            return status;
        const int is_all = p->last_row == p->mcu_rows - 1;
        if (!decode_pass(&pass, p, progressive->blocks) || (is_all && !is_at_end(&pass.coded)))
            return FASTLOAD_DAMAGED;
    }
    return FASTLOAD_DONE;
}

/* Of `num` blocks side by side. Returns all that may not be zero. */
static uint64_t fill_group(const uint64_t *masks, const int16_t *dc, const int16_t *levels, int num, int16_t *group)
{
    uint64_t all = 0;
    for (int i = 0; i < num; i++, levels += 64, group += 8) {
        all |= masks[i];
        group[0] = dc[i];
        for (uint64_t left = masks[i]; left; left &= left - 1) {
            const int at = __builtin_ctzll(left);
            group[GROUP_PLACES[63 - at]] = levels[at];
        }
    }
    return all;
}

void progressive_row(const struct progressive *progressive, const struct picture *p, int mcu_row)
{
    for (int c = 0; c < p->num; c++) {
        const struct plane *const plane = &p->plane[c];
        const struct blocks *const b = &progressive->blocks[c];
        for (int row = mcu_row * plane->v; row < (mcu_row + 1) * plane->v; row++)
            for (int column = plane->first; column <= plane->last; column += GROUP) {
                const uint64_t *const masks = b->masks + (size_t)row * b->across + column;
                const size_t place = (size_t)(row - b->row) * b->wide + (column - b->column);
                const int num = smaller(GROUP, plane->last + 1 - column);
#ifdef FASTLOAD_X86
                if (p->level == FASTLOAD_AVX512) {
                    transform_blocks_avx512(masks, b->dc + place, b->levels + 64 * place, num, plane->quant,
                                            sample(plane, 8 * row, 8 * column), plane->stride);
                    continue;
                }
#endif
                int16_t *const group = group_of(p, c, row % plane->v, 0);
                const uint64_t all = fill_group(masks, b->dc + place, b->levels + 64 * place, num, group);
                finish_group(p, c, row, column, group, IS_LOW(all) ? LOW : ALL);
            }
    }
}
