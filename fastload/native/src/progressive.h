/* Huffman decoding of files of several scans, most of which are progressive.
 *
 * In: the coded data of all scans. Out: coefficients, a row of MCUs at a time, given to a picture. Each scan is decoded
 * down to the last row that is wanted. Of blocks beside the wanted part it is only kept which coefficients are not zero:
 * on that depends how the data of later scans are read. What libjpeg would warn of is an error here, as in entropy.h.
 */
#ifndef FASTLOAD_PROGRESSIVE_H
#define FASTLOAD_PROGRESSIVE_H

#include "picture.h"
#include "scans.h"

/* The coefficients of a component. In a block they stand in zigzag order from behind, so that what a scan's data have
 * first is in the highest bits of a mask: coefficient k is number 63 - k. */
struct blocks {
    int across;           /* blocks in a row of masks */
    int row, column;      /* the first that is wanted; the column begins a group */
    int wide;             /* blocks in a row that are wanted, in whole groups */
    uint64_t *masks;      /* of all blocks down to the last wanted row: which coefficients but the first are not zero */
    int16_t *dc, *levels; /* of the wanted blocks: the first coefficient; all others that are not zero */
};

/* Whether a mask has only what enum extent calls LOW. */
#define IS_LOW(mask) ((mask) << NUM_LOW == 0)

struct progressive {
    struct blocks blocks[3];
};

/* Decodes all scans, as far as the picture needs them. Returns enum fastload_status. */
int progressive_begin(struct progressive *progressive, struct fastload_scratch *scratch, const struct scans *scans,
                      const uint8_t *bytes, const struct picture *p);

/* Gives the picture the groups of a wanted row of MCUs. */
void progressive_row(const struct progressive *progressive, const struct picture *p, int mcu_row);

/* Of up to GROUP blocks side by side. */
void transform_blocks_avx512(const uint64_t *masks, const int16_t *dc, const int16_t *levels, int num,
                             const int16_t quant[64], uint8_t *out, size_t stride);

#endif
