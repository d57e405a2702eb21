/* The scans of a file that has several: a progressive file, or a sequential one whose components come one by one.
 *
 * In: the bytes behind a header. Out: what each scan has, and its tables; no coded data are decoded. What comes out is
 * complete: each coefficient is sent by one scan, and made exact, bit by bit, by those that follow.
 */
#ifndef FASTLOAD_SCANS_H
#define FASTLOAD_SCANS_H

#include "jpeg_header.h"

/* More scans are no image but an attempt to cost time. */
#define MOST_SCANS 256

struct scan {
    size_t begin, end; /* of its coded data, in the file; the next marker stands behind */
    int num;           /* of components */
    uint8_t component[3];
    uint8_t first, last;         /* coefficients, in zigzag order */
    uint8_t is_refining;         /* the coefficients are known, but for this bit and those below */
    uint8_t low;                 /* bits below those that it sends */
    const uint8_t *dc[3], *ac[3]; /* Huffman tables of each component, where they are used */
    unsigned interval;           /* MCUs between restart markers; 0: there are none */
};

struct scans {
    int num;
    size_t end; /* behind the end of the image */
    struct scan scan[MOST_SCANS];
};

/* Reads what stands between the coded data of a file whose header was read and is not is_sequential. `header` gets the
 * tables of the file's end; the quantisation tables are those of all scans. Returns enum fastload_status.
 *
 * FASTLOAD_DONE: libjpeg will not fail on this file, whatever its coded data are. FASTLOAD_INCOMPLETE: the bytes end
 * before the image does. FASTLOAD_DAMAGED: another decoder is to look at it; also where the coded data are too few for
 * the blocks that the header claims. */
int read_scans(const uint8_t *bytes, size_t length, struct jpeg_header *header, struct scans *scans);

#endif
