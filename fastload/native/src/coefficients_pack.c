/* JPEG files to records, in one pass: groups of blocks are packed as they are decoded. See coefficients.h. */
#include "coefficients.h"
#include "entropy.h"

#include <string.h>

/* A segment has no more bytes. */
#define LARGEST_SEGMENT sizeof(struct parts)

/* Where a segment was put. */
struct put {
    size_t begin;
    uint32_t size;
};

struct packer {
    struct parts *parts;     /* [3][MOST_V] */
    struct put *puts;        /* of each segment, in the order of the index */
    size_t first[3];         /* of each component's, in this order */
    struct block *memory;    /* of segments: those of all components, in the order in which they were finished */
    size_t size;             /* of what is in it */
    int failed;              /* there is no memory for more */
};

static void set_small(uint8_t *to, size_t number)
{
    to[0] = (uint8_t)number;
    to[1] = (uint8_t)(number >> 8);
}

static void set_number(uint8_t *to, size_t number)
{
    set_small(to, number);
    set_small(to + 2, number >> 16);
}

static uint8_t *append(uint8_t *to, const void *bytes, size_t num)
{
    memcpy(to, bytes, num);
    return to + num;
}

static void finish_segment(struct packer *packer, const struct parts *parts, struct put *place)
{
    if (packer->memory->size - packer->size < LARGEST_SEGMENT && !grow(packer->memory, packer->size)) {
        packer->failed = 1;
        return;
    }
    uint8_t *const begin = (uint8_t *)packer->memory->data + packer->size, *to = begin + 6;
    set_small(begin, parts->num_masks);
    set_small(begin + 2, parts->num_levels);
    set_small(begin + 4, parts->num_escapes);
    to = append(to, parts->sizes, (size_t)(parts->num + 1) / 2);
    to = append(to, parts->masks, parts->num_masks);
    to = append(to, parts->dc, (size_t)2 * parts->num);
    to = append(to, parts->levels, parts->num_levels);
    to = append(to, parts->escapes, parts->num_escapes);
    to = append(to, parts->wide, parts->num_wide);
    *place = (struct put){packer->size, (uint32_t)(to - begin)};
    packer->size += place->size;
}

void pack_wide(struct parts *parts, const int16_t *block, uint64_t places, uint8_t *levels)
{
    for (; places; places &= places - 1) {
        const int k = __builtin_ctzll(places), level = block[GROUP_PLACES[k]];
        if (level > ESCAPE_WIDE && level < -ESCAPE_WIDE)
            continue;
        levels[k] = (uint8_t)ESCAPE_WIDE;
        set_small(parts->wide + parts->num_wide, (size_t)level);
        parts->num_wide += 2;
    }
}

static uint8_t nibble_of(struct parts *parts, int level)
{
    if (level > LEVEL_ESCAPE && level < -LEVEL_ESCAPE)
        return level & 15;
    const int is_wide = level <= ESCAPE_WIDE || level >= -ESCAPE_WIDE;
    parts->escapes[parts->num_escapes++] = (uint8_t)(is_wide ? ESCAPE_WIDE : level);
    if (is_wide) {
        set_small(parts->wide + parts->num_wide, (size_t)level);
        parts->num_wide += 2;
    }
    return LEVEL_ESCAPE & 15;
}

static void pack_plain(struct parts *parts, int num, int16_t *group, enum extent extent)
{
    for (int i = 0; i < num; i++) {
        const int16_t *const block = group + 8 * i;
        uint64_t mask = 0;
        for (int k = 1; k < (extent == LOW ? NUM_LOW : 64); k++)
            mask |= (uint64_t)(block[GROUP_PLACES[k]] != 0) << k;
        add_mask(parts, mask, (uint16_t)block[0]);
        uint8_t *to = parts->levels + parts->num_levels;
        while (mask) {
            uint8_t pair = nibble_of(parts, block[GROUP_PLACES[__builtin_ctzll(mask)]]);
            mask &= mask - 1;
            if (mask)
                pair = (uint8_t)(pair | nibble_of(parts, block[GROUP_PLACES[__builtin_ctzll(mask)]]) << 4);
            mask &= mask - 1;
            *to++ = pair;
        }
        parts->num_levels = (size_t)(to - parts->levels);
    }
    memset(group, 0, (extent == LOW ? GROUP_SIZE / 2 : GROUP_SIZE) * sizeof *group);
}

void pack_group(const struct picture *p, int component, int row, int column, int16_t *group, enum extent extent)
{
    struct packer *const packer = p->packer;
    struct parts *const parts = &packer->parts[component * MOST_V + row % p->plane[component].v];
    const int across = blocks_across(p, component), num = across - column < GROUP ? across - column : GROUP;
    if (column % SEGMENT == 0)
        parts->num_masks = parts->num_levels = parts->num_escapes = parts->num_wide = parts->num = 0;
    switch (p->level) {
#ifdef FASTLOAD_X86
    case FASTLOAD_AVX512:
        pack_avx512(parts, num, group);
        break;
    case FASTLOAD_AVX2:
        pack_avx2(parts, num, group);
        break;
#endif
    default:
        pack_plain(parts, num, group, extent);
    }
    if (parts->num == SEGMENT || column + num == across)
        finish_segment(packer, parts, &packer->puts[packer->first[component] +
                                                    (size_t)row * SEGMENTS(across) + (size_t)(column / SEGMENT)]);
}

/* Memory for what becomes of a file of `length` bytes. Returns enum fastload_status. */
static int packer_begin(struct packer *packer, struct fastload_scratch *scratch, const struct picture *p,
                        size_t length)
{
    size_t blocks = 0, segments = 0;
    for (int c = 0; c < p->num; c++) {
        packer->first[c] = segments;
        blocks += (size_t)blocks_across(p, c) * (size_t)blocks_down(p, c);
        segments += SEGMENTS((size_t)blocks_across(p, c)) * (size_t)blocks_down(p, c);
    }
    /* A block has two bits at least: a header alone shall not cost memory. */
    if (blocks / 4 > length)
        return FASTLOAD_DAMAGED;
    packer->parts = reserve(&scratch->parts, 3 * MOST_V * sizeof *packer->parts + segments * sizeof *packer->puts);
    packer->memory = &scratch->kept;
    if (!packer->parts || !reserve(packer->memory, 2 * length + LARGEST_SEGMENT))
        return FASTLOAD_NO_MEMORY;
    packer->puts = (struct put *)(void *)(packer->parts + 3 * MOST_V);
    packer->size = 0;
    packer->failed = 0;
    return FASTLOAD_DONE;
}

static void write_record(const struct packer *packer, size_t num, const uint8_t *bytes, size_t header_size, uint8_t *to)
{
    memcpy(to, RECORD_MAGIC, 4);
    set_number(to + 4, header_size);
    set_number(to + 8, 4 * num);
    set_number(to + 12, packer->size);
    uint8_t *index = append(to + RECORD_FIXED, bytes, header_size), *const segments = index + 4 * num;
    to = segments;
    for (size_t i = 0; i < num; i++, index += 4) {
        set_number(index, (size_t)(to - segments));
        to = append(to, (const uint8_t *)packer->memory->data + packer->puts[i].begin, packer->puts[i].size);
    }
    memset(to, 0, RECORD_PADDING);
}

/* From a JPEG file to a record. `size` becomes its bytes; where these are more than `capacity`, `out` holds anything.
 * Returns enum fastload_status: for what is no sequential file of a single scan, that of fastload_jpeg_row, or
 * FASTLOAD_CODING. */
FASTLOAD_EXPORT int fastload_record_of_jpeg(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                                            uint8_t *out, size_t capacity, size_t *size)
{
    struct jpeg_header header;
    if (read_jpeg_header(bytes, length, &header) != FASTLOAD_DONE)
        return header.status;
    if (!header.is_sequential)
        return FASTLOAD_CODING;
    struct picture p;
    struct entropy entropy;
    struct packer packer;
    const int whole[4] = {0, 0, header.height, header.width};
    int status = picture_begin(&p, scratch, &header, whole, fastload_level);
    if (status == FASTLOAD_DONE)
        status = entropy_begin(&entropy, scratch, &header, bytes, length);
    if (status == FASTLOAD_DONE)
        status = packer_begin(&packer, scratch, &p, length);
    if (status != FASTLOAD_DONE)
        return status;
    p.packer = &packer;
    for (int row = 0; row < p.mcu_rows && status == FASTLOAD_DONE; row++) {
        status = entropy_row(&entropy, &p, row, 1);
        if (packer.failed)
            status = FASTLOAD_NO_MEMORY;
    }
    if (status != FASTLOAD_DONE)
        return status;
    const size_t num = count_segments(&header);
    *size = RECORD_FIXED + header.scan + 4 * num + packer.size + RECORD_PADDING;
    if (*size > UINT32_MAX)
        return FASTLOAD_TOO_LARGE;
    if (*size <= capacity)
        write_record(&packer, num, bytes, header.scan, out);
    return FASTLOAD_DONE;
}
