/* A JPEG file with its coefficients in place of their Huffman codes: a record of a coefficient pack.
 *
 * Nothing is lost: the file's header stands in it as it was, and the coefficients are the file's, so that the same
 * pixels come out, and a JPEG file with the same coefficients can be made of it. Reading coefficients takes a tenth of
 * the time of decoding Huffman codes, and a part of the image is found without reading what comes before.
 *
 *   record    magic "FLC1", 3 numbers: bytes of the file's header, of the index, of the segments
 *             the file's header, up to the coded data
 *             index: for each component, row of blocks, and segment of it: where it begins, of the segments' bytes
 *             segments, and RECORD_PADDING zeros
 *   segment   SEGMENT blocks side by side, or what is left of a row of them
 *             3 numbers of 16 bits: bytes of masks, of levels, of escapes
 *             for each block, 4 bits: bytes of its mask
 *             masks: which coefficients are not zero, in zigzag order; bit 0, the DC coefficient's, is not set
 *             DC coefficients, 16 bits each
 *             levels: 4 bits for each bit of the masks, two's complement; each block begins with a whole byte;
 *                     LEVEL_ESCAPE: it is an escape
 *             escapes: 8 bits each; ESCAPE_WIDE: it is wide
 *             wide levels: 16 bits each
 *
 * All numbers are little-endian; those of the record and the index have 32 bits. The streams of a segment lie apart so
 * that unpacking a block need not wait for the one before. About 1.4 times the bytes of the JPEG file.
 */
#ifndef FASTLOAD_COEFFICIENTS_H
#define FASTLOAD_COEFFICIENTS_H

#include "picture.h"

#define RECORD_MAGIC "FLC1"
#define RECORD_FIXED 16 /* bytes before the file's header */
#define SEGMENT 32
#define SEGMENTS(blocks) (((blocks) + SEGMENT - 1) / SEGMENT)
#define RECORD_PADDING 64
#define LEVEL_ESCAPE (-8)
#define ESCAPE_WIDE (-128)

struct record {
    const uint8_t *header; /* the JPEG file's */
    size_t header_size;
    const uint8_t *index, *segments;
    size_t num_segments;
    uint32_t size; /* of all segments */
};

/* Of all components of an image. */
size_t count_segments(const struct jpeg_header *header);

int is_record(const uint8_t *bytes, size_t length);

/* Finds the parts of a record, and reads the header in it. Returns enum fastload_status: FASTLOAD_DAMAGED for a record
 * that cannot be one. Segments are looked at when they are read. */
int read_record(const uint8_t *bytes, size_t length, struct record *record, struct jpeg_header *header);

/* Gives a picture the groups of a row of MCUs. Returns enum fastload_status. */
int record_row(const struct record *record, const struct picture *p, int mcu_row);

#define UNPACK_DAMAGED UINT64_MAX

/* The streams of one segment, each from where the next block reads. */
struct streams {
    const uint8_t *masks, *masks_end;
    const uint8_t *dc;
    const uint8_t *levels, *levels_end;
    const uint8_t *escapes, *escapes_end;
    const uint8_t *wide, *wide_end;
    const uint8_t *sizes; /* of the masks: of the segment's first block */
    int at;               /* the next block */
};

/* The mask of the next block; UNPACK_DAMAGED where its bytes are not all there. Bit 0 of a mask is not set. */
static inline uint64_t next_mask(struct streams *s)
{
    const int size = s->sizes[s->at / 2] >> (s->at % 2 ? 4 : 0) & 15;
    if (size > 8 || s->masks_end - s->masks < size)
        return UNPACK_DAMAGED;
    uint64_t mask = 0;
    for (int i = 0; i < 8; i++) /* behind the segments is padding to read */
        mask |= (uint64_t)s->masks[i] << 8 * i;
    mask &= size == 8 ? UINT64_MAX : ((uint64_t)1 << 8 * size) - 1;
    s->masks += size;
    s->at++;
    return mask & 1 ? UNPACK_DAMAGED : mask;
}

/* The streams of a segment that is made. Kernels write whole vectors: each has room for one behind what it may hold. */
#define VECTOR 64
struct parts {
    uint8_t sizes[SEGMENT / 2], masks[SEGMENT * 8 + VECTOR], dc[SEGMENT * 2], levels[SEGMENT * 32 + VECTOR];
    uint8_t escapes[SEGMENT * 63 + VECTOR], wide[SEGMENT * 63 * 2];
    size_t num_masks, num_levels, num_escapes, num_wide; /* bytes in them */
    int num;                                             /* blocks */
};

/* Begins the next block. */
static inline void add_mask(struct parts *parts, uint64_t mask, uint16_t dc)
{
    const int at = parts->num++, size = mask ? 8 - __builtin_clzll(mask) / 8 : 0;
    uint8_t *const to = parts->masks + parts->num_masks;
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(mask >> 8 * i);
    parts->num_masks += (size_t)size;
    parts->sizes[at / 2] = (uint8_t)(at % 2 ? parts->sizes[at / 2] | size << 4 : size);
    parts->dc[2 * at] = (uint8_t)dc;
    parts->dc[2 * at + 1] = (uint8_t)(dc >> 8);
}

/* Of a block's levels of 8 bits, in zigzag order, makes those of `places` ESCAPE_WIDE that are wide, and adds them. */
void pack_wide(struct parts *parts, const int16_t *block, uint64_t places, uint8_t *levels);

/* Kernels. Add `num` blocks of a group, which is zeroed. */
void pack_avx2(struct parts *parts, int num, int16_t *group);
void pack_avx512(struct parts *parts, int num, int16_t *group);

/* Kernels. The next `num` blocks into a group of as many places; NULL: they are passed over, any number of them.
 * Returns the union of their masks, or UNPACK_DAMAGED. */
uint64_t unpack_avx2(struct streams *s, int num, int16_t *group);
/* To samples at `out`, or passed over. Return 0 for damage. */
int unpack_group_avx512(struct streams *s, int num, const int16_t quant[64], uint8_t *out, size_t stride);
int pass_over_avx512(struct streams *s, int num);

/* Where coefficients of the zigzag order lie in a group. */
extern const uint8_t GROUP_PLACES[64];

#endif
