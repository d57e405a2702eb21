/* The coded data of a scan: bits, restart intervals, and the symbols that Huffman codes stand for. */
#ifndef FASTLOAD_CODED_H
#define FASTLOAD_CODED_H

#include "jpeg_header.h"
#include "scratch.h"

#include <string.h>

/* Zeros behind the data: an MCU of ten blocks cannot read further than this before the end is looked at. */
#define CODED_PADDING 4096

struct reader {
    const uint8_t *at; /* what comes after the bits */
    uint64_t bits;     /* the next bits, from the top */
    int num_bits;      /* how many of them are there */
};

struct coded {
    struct reader reader;
    const uint8_t *end;       /* of the restart interval */
    const uint8_t *data;      /* without stuffing */
    const uint32_t *restarts; /* where each restart interval ends */
    uint32_t num_restarts, restart;
    unsigned interval, left; /* MCUs from restart to restart, 0: there are none; until the next */
    int marker;              /* that follows the data */
};

/* A Huffman table. */
struct symbols {
    uint8_t table[16 + 256]; /* what it was made from: counts and symbols; zeros behind */
    uint32_t limit[18];      /* behind the last code of each length, left-aligned to 16 bits; of length 17: all */
    int32_t offset[17];      /* of the symbol of a code of each length */
};

/* Prepares for the data of a scan, which reach up to any marker but restarts, and lie within `length` bytes. Returns
 * enum fastload_status: FASTLOAD_DAMAGED where no marker follows, or restart markers are not as the interval wants. */
int coded_begin(struct coded *coded, struct fastload_scratch *scratch, const uint8_t *from, size_t length,
                unsigned interval);

/* To be called behind each interval, which must have had just the bytes that its MCUs need. Returns 0 if not. */
int next_interval(struct coded *coded);

/* Whether the last interval had just the bytes that its MCUs need. libjpeg warns of most files where it had more. */
int is_at_end(const struct coded *coded);

/* Makes a table of counts and symbols, which are valid. */
void make_symbols(struct symbols *symbols, const uint8_t *from);

/* Behind the bytes of which at least one bit was used. */
static inline const uint8_t *used(const struct reader *r)
{
    return r->at - r->num_bits / 8;
}

/* At least 56 bits. Reads up to 8 bytes ahead. */
INLINE void refill(struct reader *r)
{
    uint64_t next;
    memcpy(&next, r->at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    next = __builtin_bswap64(next);
#endif
    r->bits |= next >> r->num_bits;
    r->at += (63 - r->num_bits) >> 3;
    r->num_bits |= 56;
}

INLINE void drop(struct reader *r, int num)
{
    r->bits <<= num;
    r->num_bits -= num;
}

/* The value in the first `size` bits. Those that begin with 0 are negative. Without branches: which way they go is a
 * matter of chance. */
INLINE int32_t value_of(uint64_t bits, int size)
{
    const uint64_t negative = (bits >> 63) - 1;
    return (int32_t)(bits >> 1 >> (63 - size)) - (int32_t)(negative & ((1u << size) - 1));
}

/* The symbol of a code of any length, or -1 where it is none. */
static inline int symbol_of(const struct symbols *symbols, uint64_t bits, int *length)
{
    const uint32_t ahead = (uint32_t)(bits >> 48);
    int at = 1;
    while (ahead >= symbols->limit[at])
        at++;
    const int32_t place = at > 16 ? -1 : (int32_t)(ahead >> (16 - at)) + symbols->offset[at];
    *length = at;
    return place < 0 || place > 255 ? -1 : symbols->table[16 + place];
}

#endif
