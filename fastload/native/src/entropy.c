/* See entropy.h. */
#ifdef FASTLOAD_WITH_JPEG
#include "entropy.h"

#include <jerror.h>
#include <jpegint.h>
#include <string.h>

/* Zeros behind the data: an MCU of ten blocks cannot read further than this before the end is looked at. */
#define PADDING 4096

/* A word of struct codes.look. Zero in all: the code is longer than LOOK_BITS.
 *   bits 0..5: how many bits it is about: the code, and the value's where VALUE is set
 *   bits 6..9: the run of zeros before the value
 *   bits 10..13: the value's size in bits; of DC, up to 15
 *   bit 14: VALUE: the value's bits were among those looked at
 *   bit 15: LAST: the rest of the block is zero
 *   bits 16..31: the value */
#define LENGTH(word) ((int)((word) & 63))
#define RUN(word) ((int)((word) >> 6 & 15))
#define SIZE(word) ((int)((word) >> 10 & 15))
#define VALUE (1u << 14)
#define LAST (1u << 15)

static const uint8_t NATURAL[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* The value of `size` bits: those that begin with 0 are negative. */
static inline int32_t extend(uint32_t bits, int size)
{
    return (int32_t)bits - (int32_t)((1u << size) - 1) * (int32_t)(1 - (bits >> (size - 1)));
}

static uint32_t describe(int symbol, int length, int is_dc)
{
    const int run = is_dc ? 0 : symbol >> 4, size = is_dc ? symbol : symbol & 15;
    uint32_t word = (uint32_t)length | (uint32_t)run << 6 | (uint32_t)size << 10;
    if (!is_dc && size == 0)
        word |= run == 15 ? VALUE : LAST; /* sixteen zeros: a run of 15 and the value 0 */
    return word;
}

/* Makes tables from counts and symbols, whose sense libjpeg has checked. Returns 0 if they make none. */
static int make_codes(struct codes *codes, const JHUFF_TBL *from, int is_dc)
{
    if (codes->made && codes->is_dc == is_dc && !memcmp(codes->counts, from->bits, sizeof codes->counts) &&
        !memcmp(codes->symbols, from->huffval, sizeof codes->symbols))
        return 1;
    codes->made = 0;
    memcpy(codes->counts, from->bits, sizeof codes->counts);
    memcpy(codes->symbols, from->huffval, sizeof codes->symbols);
    memset(codes->look, 0, sizeof codes->look);
    uint32_t code = 0;
    int next = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        codes->offset[length] = next - (int32_t)code;
        for (int i = 0; i < codes->counts[length]; i++, code++, next++) {
            if (next > 255 || code >= 1u << length || (is_dc && codes->symbols[next] > 15))
                return 0;
            if (length > LOOK_BITS)
                continue;
            const uint32_t word = describe(codes->symbols[next], length, is_dc);
            const int size = SIZE(word), spare = LOOK_BITS - length;
            for (uint32_t rest = 0; rest < 1u << spare; rest++) {
                uint32_t *to = &codes->look[code << spare | rest];
                *to = word;
                if (size > 0 && size <= spare)
                    *to = ((word & ~63u) | VALUE | (uint32_t)(length + size)) +
                          ((uint32_t)extend(rest >> (spare - size), size) << 16);
            }
        }
        codes->limit[length] = code << (16 - length);
    }
    codes->limit[17] = UINT32_MAX;
    codes->is_dc = is_dc;
    codes->made = 1;
    return 1;
}

/* At least 56 bits. Reads up to 8 bytes ahead. */
static inline void refill(struct entropy *e)
{
    uint64_t next;
    memcpy(&next, e->at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    next = __builtin_bswap64(next);
#endif
    e->bits |= next >> e->num_bits;
    e->at += (63 - e->num_bits) >> 3;
    e->num_bits |= 56;
}

static inline void drop(struct entropy *e, int num)
{
    e->bits <<= num;
    e->num_bits -= num;
}

/* A code longer than LOOK_BITS: the word that describes it, or 0 if it is none. */
static __attribute__((noinline)) uint32_t long_code(const struct codes *codes, uint64_t bits)
{
    const uint32_t ahead = (uint32_t)(bits >> 48);
    int length = LOOK_BITS + 1;
    while (ahead >= codes->limit[length])
        length++;
    if (length > 16)
        return 0;
    const int32_t place = (int32_t)(ahead >> (16 - length)) + codes->offset[length];
    return place < 0 || place > 255 ? 0 : describe(codes->symbols[place], length, codes->is_dc);
}

/* Decodes a block; `block` is zero, or NULL where only the place behind it is wanted. Returns 0 for damage. */
static inline int decode_block(struct entropy *e, const struct codes *dc, const struct codes *ac, int32_t *previous,
                               JCOEF *block)
{
    refill(e);
    uint32_t word = dc->look[e->bits >> (64 - LOOK_BITS)];
    if (!word && !(word = long_code(dc, e->bits)))
        return 0;
    drop(e, LENGTH(word));
    int32_t value = (int16_t)(word >> 16);
    if (!(word & VALUE) && SIZE(word)) {
        value = extend((uint32_t)(e->bits >> (64 - SIZE(word))), SIZE(word));
        drop(e, SIZE(word));
    }
    *previous += value;
    if (*previous != (int16_t)*previous)
        return 0;
    if (block)
        block[0] = (JCOEF)*previous;
    for (int k = 1; k < 64; k++) {
        if (e->num_bits < 32)
            refill(e);
        word = ac->look[e->bits >> (64 - LOOK_BITS)];
        if (!word && !(word = long_code(ac, e->bits)))
            return 0;
        drop(e, LENGTH(word));
        if (word & LAST)
            break;
        k += RUN(word);
        value = (int16_t)(word >> 16);
        if (!(word & VALUE)) {
            value = extend((uint32_t)(e->bits >> (64 - SIZE(word))), SIZE(word));
            drop(e, SIZE(word));
        }
        if (k > 63)
            return 0;
        if (block)
            block[NATURAL[k]] = (JCOEF)value;
    }
    return 1;
}

/* Bytes of which all bits were used, or at least one. */
static const uint8_t *used(const struct entropy *e)
{
    return e->at - e->num_bits / 8;
}

static void start_interval(struct entropy *e, uint32_t restart)
{
    e->at = e->data + (restart ? e->restarts[restart - 1] : 0);
    e->end = e->data + e->restarts[restart];
    e->restart = restart;
    e->bits = 0;
    e->num_bits = 0;
    memset(e->previous, 0, sizeof e->previous);
}

/* What libjpeg calls for each MCU. */
static boolean decode_mcu(j_decompress_ptr cinfo, JBLOCKROW *blocks)
{
    struct entropy *shared = cinfo->client_data;
    if (cinfo->restart_interval && shared->left == 0) {
        /* Each interval has just the bytes that its MCUs need. */
        if (used(shared) != shared->end || shared->restart + 1 >= shared->num_restarts)
            ERREXIT(cinfo, JERR_BAD_STATE);
        start_interval(shared, shared->restart + 1);
        shared->left = cinfo->restart_interval;
    }
    struct entropy e = *shared;
    for (int i = 0; i < cinfo->blocks_in_MCU; i++) {
        const int c = cinfo->MCU_membership[i];
        if (!decode_block(&e, e.dc[c], e.ac[c], &e.previous[c], blocks ? blocks[i][0] : NULL))
            ERREXIT(cinfo, JERR_BAD_STATE);
    }
    if (used(&e) > e.end)
        ERREXIT(cinfo, JERR_BAD_STATE);
    e.left--;
    *shared = e;
    return TRUE;
}

/* Copies coded data without the zeros stuffed behind 0xFF, and notes where restart markers stood. */
static int unstuff(struct entropy *e, const uint8_t *from, size_t length, struct fastload_scratch *scratch)
{
    uint8_t *data = reserve(&scratch->entropy, length + PADDING);
    uint32_t *restarts = reserve(&scratch->restarts, (length / 2 + 1) * sizeof *restarts);
    if (!data || !restarts)
        return FASTLOAD_NO_MEMORY;
    const uint8_t *const end = from + length;
    uint8_t *to = data;
    uint32_t num = 0;
    for (;;) {
        const uint8_t *mark = memchr(from, 0xFF, (size_t)(end - from));
        if (!mark || end - mark < 2)
            return FASTLOAD_DAMAGED;
        memcpy(to, from, (size_t)(mark - from));
        to += mark - from;
        from = mark + 2;
        if (mark[1] == 0) {
            *to++ = 0xFF;
            continue;
        }
        restarts[num] = (uint32_t)(to - data);
        if (mark[1] == JPEG_EOI)
            break;
        if (mark[1] != (JPEG_RST0 | (num & 7)))
            return FASTLOAD_DAMAGED;
        num++;
    }
    memset(to, 0, PADDING);
    e->data = data;
    e->restarts = restarts;
    e->num_restarts = num + 1;
    return FASTLOAD_DONE;
}

int take_over_entropy(j_decompress_ptr cinfo, struct entropy *e, struct fastload_scratch *scratch)
{
    memset(e, 0, sizeof *e);
    if (cinfo->src->bytes_in_buffer > UINT32_MAX / 2)
        return FASTLOAD_TOO_LARGE;
    const int status = unstuff(e, cinfo->src->next_input_byte, cinfo->src->bytes_in_buffer, scratch);
    if (status != FASTLOAD_DONE)
        return status;
    if (!cinfo->restart_interval && e->num_restarts > 1)
        return FASTLOAD_DAMAGED;
    const int fresh = scratch->codes.data == NULL;
    struct codes *codes = reserve(&scratch->codes, 2 * NUM_HUFF_TBLS * sizeof *codes);
    if (!codes)
        return FASTLOAD_NO_MEMORY;
    if (fresh)
        memset(codes, 0, 2 * NUM_HUFF_TBLS * sizeof *codes);
    for (int c = 0; c < cinfo->comps_in_scan; c++) {
        const jpeg_component_info *component = cinfo->cur_comp_info[c];
        const int dc = component->dc_tbl_no, ac = component->ac_tbl_no;
        if (dc < 0 || dc >= NUM_HUFF_TBLS || ac < 0 || ac >= NUM_HUFF_TBLS || !cinfo->dc_huff_tbl_ptrs[dc] ||
            !cinfo->ac_huff_tbl_ptrs[ac] || !make_codes(&codes[dc], cinfo->dc_huff_tbl_ptrs[dc], 1) ||
            !make_codes(&codes[NUM_HUFF_TBLS + ac], cinfo->ac_huff_tbl_ptrs[ac], 0))
            return FASTLOAD_DAMAGED;
        e->dc[c] = &codes[dc];
        e->ac[c] = &codes[NUM_HUFF_TBLS + ac];
    }
    start_interval(e, 0);
    e->left = cinfo->restart_interval;
    cinfo->client_data = e;
    cinfo->entropy->decode_mcu = decode_mcu;
    return FASTLOAD_DONE;
}

#else
typedef int no_entropy_here; /* ISO C wants something in a file */
#endif
