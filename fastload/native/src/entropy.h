/* Huffman decoding of one scan that has all components of a sequential file.
 *
 * In: the coded data behind the header. Out: coefficients, a row of MCUs at a time, given to a picture. What libjpeg
 * would warn of (a code that is none, data that end early, bytes behind the last block) is an error here: such files go
 * to another decoder.
 */
#ifndef FASTLOAD_ENTROPY_H
#define FASTLOAD_ENTROPY_H

#include "coded.h"
#include "picture.h"

#define AC_BITS 10
#define DC_BITS 9

/* What the next AC_BITS (or DC_BITS) bits begin with: one code, or two. Eight bytes. */
struct code {
    uint8_t length; /* of both codes and their values, in bits */
    uint8_t shift, down; /* the bits of the first value: to the left, then to the right */
    uint8_t first;  /* where the first value goes, from before the place in the block on */
    int16_t base;   /* what is added to the bits of the first value */
    int8_t second;  /* the second value; zero where there is none */
    uint8_t total;  /* what is added to the place in the block; the second value goes before that */
};

/* The same, of as many codes as begin there, for blocks that are passed over. */
struct skip {
    uint8_t length, total;
};

/* One Huffman table. */
struct codes {
    struct code look[1 << AC_BITS];
    struct skip skip[1 << AC_BITS];
    struct symbols symbols;
    int is_dc, made;
};

struct entropy {
    struct coded coded;
    int32_t previous[3]; /* DC values */
    const struct codes *dc[3], *ac[3];
};

/* Prepares for the data behind the header, which is_sequential. `bytes`: of all of the file. Returns enum
 * fastload_status: FASTLOAD_DAMAGED also for data that are not one complete scan with an end-of-image marker behind. */
int entropy_begin(struct entropy *e, struct fastload_scratch *scratch, const struct jpeg_header *header,
                  const uint8_t *bytes, size_t length);

/* Decodes the next row of MCUs; if it is wanted, the picture gets the groups of its columns. Returns enum
 * fastload_status. */
int entropy_row(struct entropy *e, const struct picture *p, int mcu_row, int wanted);

#endif
