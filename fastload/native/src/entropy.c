/* See entropy.h. */
#include "entropy.h"

#include <string.h>

/* struct code.first, .second and .total: the end of the block, which leaves the place at 128 and more; and what the
 * table has no code for: one that is longer, or none. So decode_block() asks for all of it by a single comparison. */
#define END 128
#define UNKNOWN 255

/* Of AC values, in files of 8 bits a sample. So two of them, with codes of 16 bits, fit the 56 bits of a refill;
 * and so do two words with two codes each. */
#define MOST_AC_BITS 10
#define MOST_DC_BITS 15

/* Where coefficients of the zigzag order lie in a group of blocks; from 64 on: behind it, where nothing is looked at.
 * Once more beginning with the place before the first. */
#define NOWHERE GROUP_SIZE
#define NOWHERE_8 NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE
#define NOWHERE_64 NOWHERE_8, NOWHERE_8, NOWHERE_8, NOWHERE_8, NOWHERE_8, NOWHERE_8, NOWHERE_8, NOWHERE_8
static const uint16_t PLACE_BEFORE[1 + 5 * 64] = {
    NOWHERE, 0, 1, 32, 64, 33, 2, 3, 34, 65, 96, 128, 97, 66, 35, 4, 5, 36, 67, 98, 129, 160, 192, 161, 130, 99, 68,
    37, 6, 7, 38, 69, 100, 131, 162, 193, 224, 225, 194, 163, 132, 101, 70, 39, 71, 102, 133, 164, 195, 226, 227,
    196, 165, 134, 103, 135, 166, 197, 228, 229, 198, 167, 199, 230, 231,
    NOWHERE_64, NOWHERE_64, NOWHERE_64, NOWHERE_64};
#define PLACE (PLACE_BEFORE + 1)

static const struct code UNKNOWN_CODE = {.down = 1, .first = END, .total = UNKNOWN};

/* The code of a symbol, where the value behind it begins with the bit `first`, if that is known. */
static struct code describe(int symbol, int length, int is_dc, int first, int is_known)
{
    const int run = is_dc ? 0 : symbol >> 4, size = is_dc ? symbol : symbol & 15;
    /* The value's sign must be known. */
    if (size > (is_dc ? MOST_DC_BITS : MOST_AC_BITS) || (size && !is_known))
        return UNKNOWN_CODE;
    struct code code = {(uint8_t)(length + size), (uint8_t)length, (uint8_t)(64 - size), (uint8_t)(run + 1), 0,
                        0, (uint8_t)(run + 1)};
    if (size && !first)
        code.base = (int16_t)(1 - (1 << size));
    if (!size) {
        /* A run of 15 without a value is sixteen zeros. */
        code.down = 1;
        code.first = END;
        code.total = is_dc ? 1 : run == 15 ? 16 : END;
    }
    return code;
}

/* The value of a code whose bits are all among the first `num` of `bits`. */
static int value_in(const struct code *code, uint32_t bits, int num)
{
    return code->first == END ? 0 : code->base + (int)((uint64_t)bits << (64 - num) << code->shift >> code->down);
}

/* The last of several codes ends the block, or has a value that may reach beyond the bits looked at. A block that is
 * passed over consists of whole entries: no entry may reach beyond its end. More places than a block has would be taken
 * for its end. */
static void make_skips(const struct code look[1 << AC_BITS], struct skip skip[1 << AC_BITS])
{
    for (uint32_t bits = 0; bits < 1 << AC_BITS; bits++) {
        const struct code *code = &look[bits];
        int length = code->length, total = code->total;
        while (length < AC_BITS && total < END) {
            code = &look[bits << length & ((1 << AC_BITS) - 1)];
            if (code->total == UNKNOWN || code->shift > AC_BITS - length ||
                (code->total < END && total + code->total > 63))
                break;
            length += code->length;
            total += code->total;
        }
        skip[bits] = (struct skip){(uint8_t)length, (uint8_t)total};
    }
}

/* Adds to each code the one that comes next, where all of it is among the bits looked at. */
static void pair_up(struct code look[1 << AC_BITS])
{
    struct code single[1 << AC_BITS];
    memcpy(single, look, sizeof single);
    for (uint32_t bits = 0; bits < 1 << AC_BITS; bits++) {
        const struct code *first = &single[bits];
        if (first->total >= END || first->length >= AC_BITS)
            continue;
        const uint32_t rest = bits << first->length & ((1 << AC_BITS) - 1);
        const struct code *second = &single[rest];
        const int value = value_in(second, rest, AC_BITS);
        if (second->total == UNKNOWN || first->length + second->length > AC_BITS || value != (int8_t)value)
            continue;
        look[bits].length = first->length + second->length;
        look[bits].total = first->total + second->total;
        look[bits].second = (int8_t)value;
    }
}

/* Makes tables of a file's counts and symbols, which are valid. */
static void make_codes(struct codes *codes, const uint8_t *from, int is_dc)
{
    size_t size = 16;
    for (int length = 0; length < 16; length++)
        size += from[length];
    if (codes->made && codes->is_dc == is_dc && !memcmp(codes->symbols.table, from, size))
        return;
    memset(codes, 0, sizeof *codes);
    make_symbols(&codes->symbols, from);
    const int look_bits = is_dc ? DC_BITS : AC_BITS;
    for (int i = 0; i < 1 << look_bits; i++)
        codes->look[i] = UNKNOWN_CODE;
    uint32_t code = 0;
    int next = 0;
    for (int length = 1; length <= look_bits; length++, code <<= 1)
        for (int i = 0; i < from[length - 1]; i++, code++, next++) {
            const int spare = look_bits - length;
            /* The first bit of the value is its sign. */
            const int halves = spare ? 2 : 1, size = (1 << spare) / halves;
            for (int half = 0; half < halves; half++) {
                const struct code made = describe(from[16 + next], length, is_dc, half, spare);
                struct code *const to = codes->look + (code << spare) + half * size;
                for (int k = 0; k < size; k++)
                    to[k] = made;
            }
        }
    if (!is_dc) {
        make_skips(codes->look, codes->skip);
        pair_up(codes->look);
    }
    codes->is_dc = is_dc;
    codes->made = 1;
}

/* Decodes one code of any length at place k of a block; NULL: it is not wanted. Returns the next place, or -1 for
 * damage. */
static __attribute__((noinline)) int decode_step(struct reader *e, const struct codes *ac, int16_t *block, int k)
{
    int length;
    const int symbol = symbol_of(&ac->symbols, e->bits, &length), run = symbol >> 4, size = symbol & 15;
    if (symbol < 0 || size > MOST_AC_BITS)
        return -1;
    drop(e, length);
    if (!size && run != 15)
        return 64;
    if (k + run > 63)
        return -1;
    if (block)
        block[PLACE[k + run]] = (int16_t)value_of(e->bits, size);
    drop(e, size);
    return k + run + 1;
}

/* Decodes a difference of DC values. Returns 0 for damage. */
INLINE int decode_dc(struct reader *e, const struct codes *dc, int32_t *value)
{
    const struct code *code = &dc->look[e->bits >> (64 - DC_BITS)];
    if (__builtin_expect(code->total != UNKNOWN, 1)) {
        *value += code->first == END ? 0 : code->base + (int32_t)(e->bits << code->shift >> code->down);
        drop(e, code->length);
        return 1;
    }
    int length;
    const int size = symbol_of(&dc->symbols, e->bits, &length);
    if (size < 0)
        return 0;
    drop(e, length);
    *value += value_of(e->bits, size);
    drop(e, size);
    return 1;
}

/* The same as decode_step(). No other function knows where the reader is: so it stays in registers. */
INLINE int decode_rarely(struct reader *e, const struct codes *ac, int16_t *block, int k)
{
    struct reader there = *e;
    const int next = decode_step(&there, ac, block, k);
    *e = there;
    return next;
}

/* Decodes a block, which is zero. Returns the last place in zigzag order that may not be zero, or -1 for damage. */
INLINE int decode_block(struct reader *e, const struct codes *dc, const struct codes *ac, int32_t *previous,
                        int16_t *block)
{
    refill(e);
    if (!decode_dc(e, dc, previous) || *previous != (int16_t)*previous)
        return -1;
    block[0] = (int16_t)*previous;
    for (uint64_t k = 1;;) {
        refill(e);
        for (int twice = 0; twice < 2; twice++) {
            const struct code *const code = &ac->look[e->bits >> (64 - AC_BITS)];
            const uint64_t next = k + code->total;
            /* Where there is no second value, this writes a zero to the place of the first, or nowhere. */
            block[PLACE_BEFORE[next]] = code->second;
            block[PLACE_BEFORE[k + code->first]] = (int16_t)(code->base + (e->bits << code->shift >> code->down));
            if (next > 63) {
                if (next - END - 1 < 63) {
                    drop(e, code->length);
                    return (int)next - END - 1;
                }
                /* Long codes; and the last place: a second code would be of the next block. */
                const int after = decode_rarely(e, ac, block, (int)k);
                if (after < 0 || after > 63)
                    return after < 0 ? -1 : 63;
                k = (unsigned)after;
                break;
            }
            drop(e, code->length);
            k = next;
        }
    }
}

/* The same of a block that is not wanted. Returns 0 for damage. */
INLINE int pass_over_block(struct reader *e, const struct codes *dc, const struct codes *ac, int32_t *previous)
{
    refill(e);
    if (!decode_dc(e, dc, previous) || *previous != (int16_t)*previous)
        return 0;
    for (int k = 1;;) {
        refill(e);
        for (int twice = 0; twice < 2; twice++) {
            const struct skip *skip = &ac->skip[e->bits >> (64 - AC_BITS)];
            const int next = k + skip->total;
            if (next > 63) {
                if ((unsigned)(next - END - 1) < 63) {
                    drop(e, skip->length);
                    return 1;
                }
                k = decode_rarely(e, ac, NULL, k);
                if (k < 0 || k > 63)
                    return k > 63;
                break;
            }
            drop(e, skip->length);
            k = next;
        }
    }
}

/* A row of blocks that is being decoded. One group that is full is finished when the next one is: vectors that are read
 * from where single coefficients were just written wait until these are in the cache. So there are two. */
struct strip {
    const struct codes *dc, *ac;
    int32_t *previous;
    int16_t *block;      /* where the next one goes */
    int left, extent;    /* blocks until the group is full; its last place that may not be zero */
    int component, row, column; /* of the group */
    int16_t *group, *other;
};

struct strips {
    struct strip strip[3 * MOST_V];
    struct strip *order[MOST_BLOCKS]; /* of the blocks of a MCU */
    int blocks;
    struct {
        int16_t *group; /* NULL: none is full */
        int component, row, column;
        enum extent extent;
    } full;
};

static void begin_group(const struct picture *p, struct strip *strip, int16_t *group, int16_t *other, int column)
{
    const int first = column / GROUP * GROUP, rest = p->plane[strip->component].last + 1 - column;
    strip->group = group;
    strip->other = other;
    strip->block = group + 8 * (column - first);
    strip->left = rest < first + GROUP - column ? rest : first + GROUP - column;
    strip->extent = 0;
    strip->column = first;
}

static void begin_strips(struct strips *strips, struct entropy *e, const struct picture *p, int mcu_row)
{
    struct strip *strip = strips->strip;
    strips->blocks = 0;
    strips->full.group = NULL;
    for (int c = 0; c < p->num; c++)
        for (int v = 0; v < p->plane[c].v; v++, strip++) {
            strip->dc = e->dc[c];
            strip->ac = e->ac[c];
            strip->previous = &e->previous[c];
            strip->component = c;
            strip->row = mcu_row * p->plane[c].v + v;
            begin_group(p, strip, group_of(p, c, v, 0), group_of(p, c, v, 1), p->first_mcu * p->plane[c].h);
            for (int h = 0; h < p->plane[c].h; h++)
                strips->order[strips->blocks++] = strip;
        }
}

static void finish_full(const struct picture *p, const struct strips *strips)
{
    if (strips->full.group)
        finish_group(p, strips->full.component, strips->full.row, strips->full.column, strips->full.group,
                     strips->full.extent);
}

/* To be called when the last block of a group was decoded. */
static __attribute__((noinline)) void change_group(const struct picture *p, struct strips *strips, struct strip *strip)
{
    finish_full(p, strips);
    strips->full.group = strip->group;
    strips->full.component = strip->component;
    strips->full.row = strip->row;
    strips->full.column = strip->column;
    strips->full.extent = strip->extent < NUM_LOW ? LOW : ALL;
    begin_group(p, strip, strip->other, strip->group, strip->column + GROUP);
}

/* The blocks of one MCU. Returns 0 for damage. */
INLINE int decode_mcu(struct entropy *e, const struct picture *p, struct strips *strips)
{
    struct reader reader = e->coded.reader;
    for (int i = 0; i < strips->blocks; i++) {
        struct strip *strip = strips->order[i];
        const int last = decode_block(&reader, strip->dc, strip->ac, strip->previous, strip->block);
        if (last < 0)
            return 0;
        if (last > strip->extent)
            strip->extent = last;
        strip->block += 8;
        if (--strip->left == 0)
            change_group(p, strips, strip);
    }
    e->coded.reader = reader;
    return used(&reader) <= e->coded.end;
}

/* The same of one that is not wanted. */
INLINE int pass_over_mcu(struct entropy *e, const struct picture *p)
{
    struct reader reader = e->coded.reader;
    for (int c = 0; c < p->num; c++)
        for (int i = 0; i < p->plane[c].h * p->plane[c].v; i++)
            if (!pass_over_block(&reader, e->dc[c], e->ac[c], &e->previous[c]))
                return 0;
    e->coded.reader = reader;
    return used(&reader) <= e->coded.end;
}

INLINE int decode_row(struct entropy *e, const struct picture *p, int mcu_row, int wanted)
{
    struct strips strips;
    begin_strips(&strips, e, p, mcu_row);
    for (int mcu = 0; mcu < p->mcus; mcu++) {
        if (e->coded.left-- == 0) {
            if (!next_interval(&e->coded))
                return FASTLOAD_DAMAGED;
            e->coded.left--;
            memset(e->previous, 0, sizeof e->previous);
        }
        if (!(wanted && mcu >= p->first_mcu && mcu <= p->last_mcu ? decode_mcu(e, p, &strips)
                                                                  : pass_over_mcu(e, p)))
            return FASTLOAD_DAMAGED;
    }
    finish_full(p, &strips);
    return FASTLOAD_DONE;
}

static int decode_row_plain(struct entropy *e, const struct picture *p, int mcu_row, int wanted)
{
    return decode_row(e, p, mcu_row, wanted);
}

#ifdef FASTLOAD_X86
FASTLOAD_TARGET_AVX2 static int decode_row_avx2(struct entropy *e, const struct picture *p, int mcu_row, int wanted)
{
    return decode_row(e, p, mcu_row, wanted);
}
#else
#define decode_row_avx2 decode_row_plain
#endif

int entropy_row(struct entropy *e, const struct picture *p, int mcu_row, int wanted)
{
    const int status = (p->level == FASTLOAD_PLAIN ? decode_row_plain : decode_row_avx2)(e, p, mcu_row, wanted);
    return status == FASTLOAD_DONE && mcu_row == p->mcu_rows - 1 && !is_at_end(&e->coded) ? FASTLOAD_DAMAGED : status;
}

int entropy_begin(struct entropy *e, struct fastload_scratch *scratch, const struct jpeg_header *header,
                  const uint8_t *bytes, size_t length)
{
    memset(e, 0, sizeof *e);
    const int status = coded_begin(&e->coded, scratch, bytes + header->scan, length - header->scan,
                                   (unsigned)header->restart_interval);
    if (status != FASTLOAD_DONE)
        return status;
    if (e->coded.marker != JPEG_EOI)
        return FASTLOAD_DAMAGED;
    struct codes *codes = scratch->codes.data;
    if (!codes) {
        codes = reserve(&scratch->codes, 2 * JPEG_TABLES * sizeof *codes);
        if (!codes)
            return FASTLOAD_NO_MEMORY;
        memset(codes, 0, 2 * JPEG_TABLES * sizeof *codes);
    }
    for (int c = 0; c < header->components; c++) {
        const int dc = header->component[c].dc, ac = header->component[c].ac;
        make_codes(&codes[dc], header->huffman[0][dc], 1);
        make_codes(&codes[JPEG_TABLES + ac], header->huffman[1][ac], 0);
        e->dc[c] = &codes[dc];
        e->ac[c] = &codes[JPEG_TABLES + ac];
    }
    return FASTLOAD_DONE;
}
