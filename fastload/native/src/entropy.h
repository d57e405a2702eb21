/* Huffman decoding of baseline files, in place of libjpeg's own.
 *
 * In: the coded data behind the header of the only scan. Out: the same coefficients that libjpeg decodes, given to it
 * through its entropy decoder's interface, so that all that follows is libjpeg's. What libjpeg would warn of (a code
 * that is none, data that end early) is an error here: such files go to another decoder.
 */
#ifndef FASTLOAD_ENTROPY_H
#define FASTLOAD_ENTROPY_H

#include "scratch.h"

#include <stdio.h>

#include <jpeglib.h>

#define LOOK_BITS 10

/* One Huffman table. For the next LOOK_BITS bits, a word: the one or two codes that they are. See entropy.c. */
struct codes {
    uint8_t counts[17], symbols[256]; /* what it was made from */
    int is_dc, made;
    uint64_t look[1 << LOOK_BITS];
    uint32_t limit[18]; /* behind the last code of each length, left-aligned to 16 bits; of length 17: all */
    int32_t offset[17]; /* of the symbol of a code of each length */
};

struct reader {
    const uint8_t *at; /* what comes after the bits */
    uint64_t bits;     /* the next bits, from the top */
    int num_bits;      /* how many of them are there */
};

struct entropy {
    struct reader reader;
    const uint8_t *end; /* of the restart interval */
    int32_t previous[MAX_COMPS_IN_SCAN]; /* DC values */
    const struct codes *dc[MAX_COMPS_IN_SCAN], *ac[MAX_COMPS_IN_SCAN];
    const uint8_t *data;       /* coded data without stuffing */
    const uint32_t *restarts;  /* where each restart interval ends */
    uint32_t num_restarts, restart;
    unsigned left;             /* MCUs until the next restart; unused where there are none */
    JDIMENSION column;         /* of the next MCU */
    JDIMENSION first_column, last_column; /* of the MCUs whose coefficients are used; the caller sets them */
};

/* Takes over decoding from a started decompressor, whose next bytes are the scan's first. `entropy` must live until
 * decoding ends; cinfo->client_data points to it. `level`: one that fastload_level() gave. Returns enum
 * fastload_status: FASTLOAD_DAMAGED also for data that are not one complete scan with an end-of-image marker behind. */
int take_over_entropy(j_decompress_ptr cinfo, struct entropy *entropy, struct fastload_scratch *scratch,
                      int level);

#endif
