/* Reading records. See coefficients.h. */
#include "coefficients.h"

#include <string.h>

static uint32_t number(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static size_t small_number(const uint8_t *from)
{
    return (size_t)(from[0] | from[1] << 8);
}

int is_record(const uint8_t *bytes, size_t length)
{
    return length >= RECORD_FIXED && !memcmp(bytes, RECORD_MAGIC, 4);
}

/* Blocks across and down in a component. */
static void count_blocks(const struct jpeg_header *header, int c, int *across, int *down)
{
    const struct jpeg_component *component = header->component; /* the first has the most blocks */
    const int wide = 8 * component->h, tall = 8 * component->v;
    *across = (header->width + wide - 1) / wide * component[c].h;
    *down = (header->height + tall - 1) / tall * component[c].v;
}

size_t count_segments(const struct jpeg_header *header)
{
    size_t num = 0;
    for (int c = 0, across, down; c < header->components; c++) {
        count_blocks(header, c, &across, &down);
        num += (size_t)SEGMENTS(across) * (size_t)down;
    }
    return num;
}

int read_record(const uint8_t *bytes, size_t length, struct record *record, struct jpeg_header *header)
{
    memset(record, 0, sizeof *record);
    memset(header, 0, sizeof *header);
    if (!is_record(bytes, length))
        return FASTLOAD_NOT_JPEG;
    const uint64_t header_size = number(bytes + 4), index = number(bytes + 8), size = number(bytes + 12);
    if (RECORD_FIXED + header_size + index + size + RECORD_PADDING != length)
        return FASTLOAD_DAMAGED;
    record->header = bytes + RECORD_FIXED;
    record->header_size = (size_t)header_size;
    record->index = record->header + header_size;
    record->segments = record->index + index;
    record->size = (uint32_t)size;
    if (read_jpeg_header(record->header, record->header_size, header) != FASTLOAD_DONE || !header->is_sequential ||
        header->scan != header_size)
        return FASTLOAD_DAMAGED;
    record->num_segments = count_segments(header);
    return record->num_segments * 4 == index ? FASTLOAD_DONE : FASTLOAD_DAMAGED;
}

/* Opens a segment of num blocks. Returns 0 for damage. */
static int open_segment(const struct record *record, size_t place, int num, struct streams *s)
{
    const uint32_t begin = number(record->index + 4 * place);
    const uint32_t end = place + 1 < record->num_segments ? number(record->index + 4 * place + 4) : record->size;
    const size_t sizes = (size_t)(num + 1) / 2;
    if (begin > end || end > record->size || end - begin < 6 + sizes + 2 * (size_t)num)
        return 0;
    const uint8_t *at = record->segments + begin, *const last = record->segments + end;
    const size_t masks = small_number(at), levels = small_number(at + 2), escapes = small_number(at + 4);
    if ((size_t)(last - at) < 6 + sizes + 2 * (size_t)num + masks + levels + escapes)
        return 0;
    s->sizes = at + 6;
    s->masks = s->sizes + sizes;
    s->dc = s->masks_end = s->masks + masks;
    s->levels = s->dc + 2 * num;
    s->escapes = s->levels_end = s->levels + levels;
    s->wide = s->escapes_end = s->escapes + escapes;
    s->wide_end = last;
    s->at = 0;
    return 1;
}

const uint8_t GROUP_PLACES[64] = {
    0,   1,   32,  64,  33,  2,   3,   34,  65,  96,  128, 97,  66,  35,  4,   5,   36,  67,  98,  129, 160, 192,
    161, 130, 99,  68,  37,  6,   7,   38,  69,  100, 131, 162, 193, 224, 225, 194, 163, 132, 101, 70,  39,  71,
    102, 133, 164, 195, 226, 227, 196, 165, 134, 103, 135, 166, 197, 228, 229, 198, 167, 199, 230, 231};

/* The next block. Returns its mask. */
static uint64_t next_block(struct streams *s, int16_t *block)
{
    const int16_t dc = (int16_t)(uint16_t)small_number(s->dc + 2 * s->at);
    const uint64_t mask = next_mask(s);
    const int num = mask == UNPACK_DAMAGED ? 0 : __builtin_popcountll(mask);
    if (mask == UNPACK_DAMAGED || s->levels_end - s->levels < (num + 1) / 2)
        return UNPACK_DAMAGED;
    int i = 0;
    for (uint64_t left = mask; left; left &= left - 1, i++) {
        int level = ((s->levels[i / 2] >> (i % 2 * 4) & 15) ^ 8) - 8;
        if (level == LEVEL_ESCAPE) {
            if (s->escapes == s->escapes_end)
                return UNPACK_DAMAGED;
            level = (int8_t)*s->escapes++;
            if (level == ESCAPE_WIDE) {
                if (s->wide_end - s->wide < 2)
                    return UNPACK_DAMAGED;
                level = (int16_t)(uint16_t)small_number(s->wide);
                s->wide += 2;
            }
        }
        if (block)
            block[GROUP_PLACES[__builtin_ctzll(left)]] = (int16_t)level;
    }
    s->levels += (num + 1) / 2;
    if (block)
        block[0] = dc;
    return mask;
}

static uint64_t unpack_plain(struct streams *s, int num, int16_t *group)
{
    uint64_t masks = 0;
    for (int i = 0; i < num && masks != UNPACK_DAMAGED; i++)
        masks |= next_block(s, group ? group + 8 * i : NULL);
    return masks;
}

#ifndef FASTLOAD_X86
#define unpack_avx2 unpack_plain
#endif

static int pass_over(struct streams *s, int num, int level)
{
#ifdef FASTLOAD_X86
    if (level == FASTLOAD_AVX512)
        return pass_over_avx512(s, num);
#endif
    return (level == FASTLOAD_PLAIN ? unpack_plain : unpack_avx2)(s, num, NULL) != UNPACK_DAMAGED;
}

static int unpack_group(struct streams *s, int num, const struct picture *p, int c, int row, int column)
{
    const struct plane *plane = &p->plane[c];
#ifdef FASTLOAD_X86
    if (p->level == FASTLOAD_AVX512 && !plane->kept)
        return unpack_group_avx512(s, num, plane->quant, sample(plane, 8 * row, 8 * column), plane->stride);
#endif
    int16_t *const group = group_of(p, c, row % plane->v, 0);
    const uint64_t masks = (p->level == FASTLOAD_PLAIN ? unpack_plain : unpack_avx2)(s, num, group);
    if (masks == UNPACK_DAMAGED)
        return 0;
    finish_group(p, c, row, column, group, masks < 1u << NUM_LOW ? LOW : ALL);
    return 1;
}

/* The wanted blocks of a row of them. Returns 0 for damage. */
static int unpack_row(const struct record *record, size_t segment, int blocks, const struct picture *p, int c, int row)
{
    const struct plane *plane = &p->plane[c];
    for (int first = plane->first / SEGMENT * SEGMENT; first <= plane->last; first += SEGMENT) {
        struct streams s;
        const int end = blocks < first + SEGMENT ? blocks : first + SEGMENT;
        if (!open_segment(record, segment + (size_t)(first / SEGMENT), end - first, &s))
            return 0;
        int column = plane->first > first ? plane->first : first;
        if (!pass_over(&s, column - first, p->level))
            return 0;
        for (; column < end && column <= plane->last; column += GROUP)
            if (!unpack_group(&s, end - column < GROUP ? end - column : GROUP, p, c, row, column))
                return 0;
    }
    return 1;
}

int record_row(const struct record *record, const struct picture *p, int mcu_row)
{
    size_t begin = 0;
    for (int c = 0; c < p->num; c++) {
        const struct plane *plane = &p->plane[c];
        const int blocks = blocks_across(p, c);
        const size_t segments = SEGMENTS(blocks);
        for (int v = 0; v < plane->v; v++) {
            const int row = mcu_row * plane->v + v;
            if (!unpack_row(record, begin + (size_t)row * segments, blocks, p, c, row))
                return FASTLOAD_DAMAGED;
        }
        begin += segments * (size_t)blocks_down(p, c);
    }
    return FASTLOAD_DONE;
}
