/* What decoding a scan needs, whatever the instruction set. See progressive.h. */
#ifndef FASTLOAD_PROGRESSIVE_PASS_H
#define FASTLOAD_PROGRESSIVE_PASS_H

#include "coded.h"
#include "progressive.h"

#define LOOK_BITS 10
/* What the next bits begin with. */
struct entry {
    uint8_t length; /* of the code; 0: it is longer, or there is none */
    uint8_t total;  /* with the bits of the value */
    uint8_t run, size;
};

struct table {
    struct symbols symbols;
    struct entry look[1 << LOOK_BITS];
};

enum kind { FIRST_DC, REFINE_DC, SEQUENTIAL, FIRST_AC, REFINE_AC };

/* A scan that is being decoded. */
struct pass {
    struct coded coded;
    const struct scan *scan;
    enum kind kind;
    struct table dc[3], ac[3];
    int32_t previous[3]; /* DC values */
    uint32_t ended;      /* blocks that follow of which nothing new comes */
};

/* The code that comes next where it is longer than LOOK_BITS; of length 0 where there is none. */
struct entry look_further(const struct table *table, uint64_t bits);

/* Returns 0 for damage. */
typedef int decode_scan(struct pass *pass, const struct picture *p, const struct blocks *blocks);
decode_scan decode_scan_plain, decode_scan_avx2, decode_scan_avx512;

static inline int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* The code that comes next; of length 0 where it is none. */
INLINE struct entry look_up(const struct table *table, const struct reader *r)
{
    const struct entry found = table->look[r->bits >> (64 - LOOK_BITS)];
    return __builtin_expect(found.length, 1) ? found : look_further(table, r->bits);
}

/* At most 32 bits, of which at least that many are there. */
INLINE uint32_t take(struct reader *r, int num)
{
    const uint32_t found = (uint32_t)(r->bits >> 1 >> (63 - num));
    drop(r, num);
    return found;
}

/* Up to 63 bits. */
INLINE uint64_t take_many(struct reader *r, int num)
{
    uint64_t found = 0;
    if (num > 32) {
        refill(r);
        found = take(r, 32);
        num -= 32;
        found <<= num;
    }
    if (num > r->num_bits)
        refill(r);
    return found | take(r, num);
}

/* Loops for what BMI2 has instructions for: see progressive_scan.h. */
INLINE uint64_t bit_below(uint64_t from, int num)
{
    for (; num && from; num--)
        from ^= (uint64_t)1 << (63 - __builtin_clzll(from));
    return from ? (uint64_t)1 << (63 - __builtin_clzll(from)) : 0;
}

INLINE uint64_t spread(uint64_t bits, uint64_t mask)
{
    uint64_t found = 0;
    for (; bits; bits >>= 1, mask &= mask - 1)
        if (bits & 1)
            found |= mask & -mask;
    return found;
}

INLINE void correct(int16_t *levels, uint64_t which, int low)
{
    for (const int bit = 1 << low; which; which &= which - 1) {
        int16_t *const level = &levels[__builtin_ctzll(which)];
        const int sign = -(*level < 0); /* no branch: which way it goes is a matter of chance */
        *level = (int16_t)(*level + (bit ^ sign) - sign);
    }
}

#endif
