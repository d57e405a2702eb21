/* See entropy.h. */
#ifdef FASTLOAD_WITH_JPEG
#include "entropy.h"

#include <jerror.h>
#include <string.h>

/* What every libjpeg begins its entropy decoders with. Its own header says so too, but is installed by few systems, and
 * the rest of that differs between versions: what is compiled for one may be run with another. */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr cinfo);
    boolean (*decode_mcu)(j_decompress_ptr cinfo, JBLOCKROW *blocks);
};

/* Zeros behind the data: an MCU of ten blocks cannot read further than this before the end is looked at. */
#define PADDING 4096

/* A word of struct codes.look. Zero in all: the code is longer than LOOK_BITS, or none. Two codes are in a word where
 * the second ends within the bits looked at; its value need not.
 *   bits 0..5: bits of all that the word is about: codes, and the values behind each
 *   bits 6..10, 11..14, 15..18: of the first code its bits, its value's bits, and the run of zeros before the value
 *   bit 19: LAST: the rest of the block is zero
 *   bits 20..25: bits of the first code and its value
 *   bits 26..30, 31..34, 35..38: the second's, as above; zero if there is none
 *   bit 39: whether there is a second, with a value */
#define LENGTH(word) ((int)((word) & 63))
#define CODE(word) ((int)((word) >> 6 & 31))
#define SIZE(word) ((int)((word) >> 11 & 15))
#define RUN(word) ((int)((word) >> 15 & 15))
#define LAST ((uint64_t)1 << 19)
#define FIRST_LENGTH(word) ((int)((word) >> 20 & 63))
#define SECOND_CODE(word) ((int)((word) >> 26 & 31))
#define SECOND_SIZE(word) ((int)((word) >> 31 & 15))
#define SECOND_RUN(word) ((int)((word) >> 35 & 15))
#define HAS_SECOND(word) ((int)((word) >> 39 & 1))
/* Of AC values, in files of 8 bits a sample. So two of them, with codes of 16 bits, fit the 56 bits of a refill;
 * and so do two words with two codes each. */
#define MOST_AC_BITS 10
#define MOST_DC_BITS 15

static const uint8_t NATURAL[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

static uint64_t describe(int symbol, int length, int is_dc)
{
    const int run = is_dc ? 0 : symbol >> 4, size = is_dc ? symbol : symbol & 15;
    if (size > (is_dc ? MOST_DC_BITS : MOST_AC_BITS))
        return 0;
    /* No value and a run of 15 are sixteen zeros: a run of 15, and the value 0. */
    const uint64_t last = !is_dc && size == 0 && run != 15 ? LAST : 0;
    const uint64_t bits = (uint64_t)(length + size);
    return bits | (uint64_t)length << 6 | (uint64_t)size << 11 | (uint64_t)(last ? 0 : run) << 15 | last | bits << 20;
}

/* Adds to each word the code that comes next, where enough of it is among the bits looked at. */
static void pair_up(struct codes *codes)
{
    const uint32_t mask = (1u << LOOK_BITS) - 1;
    uint64_t single[1 << LOOK_BITS];
    memcpy(single, codes->look, sizeof single);
    for (uint32_t bits = 0; bits <= mask; bits++) {
        const uint64_t first = single[bits];
        const int left = LOOK_BITS - LENGTH(first);
        if (!first || first & LAST || left <= 0)
            continue;
        const uint64_t second = single[bits << LENGTH(first) & mask];
        if (!second || CODE(second) > left)
            continue;
        codes->look[bits] = (first + (uint64_t)LENGTH(second)) | (second & LAST) | (uint64_t)CODE(second) << 26 |
                            (uint64_t)SIZE(second) << 31 | (uint64_t)RUN(second) << 35 |
                            (uint64_t)!(second & LAST) << 39;
    }
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
            if (next > 255 || code >= 1u << length)
                return 0;
            if (length > LOOK_BITS)
                continue;
            const uint64_t word = describe(codes->symbols[next], length, is_dc);
            const int spare = LOOK_BITS - length;
            for (uint32_t rest = 0; rest < 1u << spare; rest++)
                codes->look[code << spare | rest] = word;
        }
        codes->limit[length] = code << (16 - length);
    }
    codes->limit[17] = UINT32_MAX;
    if (!is_dc)
        pair_up(codes);
    codes->is_dc = is_dc;
    codes->made = 1;
    return 1;
}

/* At least 56 bits. Reads up to 8 bytes ahead. */
static inline __attribute__((always_inline)) void refill(struct reader *e)
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

/* A code longer than LOOK_BITS: the word that describes it, or 0 if it is none. */
static __attribute__((noinline)) uint64_t long_code(const struct codes *codes, uint64_t bits)
{
    const uint32_t ahead = (uint32_t)(bits >> 48);
    int length = LOOK_BITS + 1;
    if (ahead < codes->limit[LOOK_BITS])
        return 0; /* a short code, of a symbol that is none */
    while (ahead >= codes->limit[length])
        length++;
    if (length > 16)
        return 0;
    const int32_t place = (int32_t)(ahead >> (16 - length)) + codes->offset[length];
    return place < 0 || place > 255 ? 0 : describe(codes->symbols[place], length, codes->is_dc);
}

static inline __attribute__((always_inline)) uint64_t look_up(const struct reader *e, const struct codes *codes)
{
    const uint64_t word = codes->look[e->bits >> (64 - LOOK_BITS)];
    return __builtin_expect(!word, 0) ? long_code(codes, e->bits) : word;
}

static inline __attribute__((always_inline)) void drop(struct reader *e, int num)
{
    e->bits <<= num;
    e->num_bits -= num;
}

/* The value in the first `size` bits. Those that begin with 0 are negative. Without branches: which way they go is a
 * matter of chance. */
static inline __attribute__((always_inline)) int32_t value_of(uint64_t bits, int size)
{
    const uint64_t negative = (bits >> 63) - 1;
    return (int32_t)(bits >> 1 >> (63 - size)) - (int32_t)(negative & ((1u << size) - 1));
}

/* Decodes a block, which is zero; it is written only if `wanted`, a constant. Returns 0 for damage. */
static inline __attribute__((always_inline)) int decode_block(struct reader *e, const struct codes *dc,
                                                              const struct codes *ac, int32_t *previous, JCOEF *block,
                                                              int wanted)
{
    refill(e);
    uint64_t word = look_up(e, dc);
    if (!word)
        return 0;
    *previous += value_of(e->bits << CODE(word), SIZE(word));
    drop(e, LENGTH(word));
    if (*previous != (int16_t)*previous)
        return 0;
    if (wanted)
        block[0] = (JCOEF)*previous;
    for (int k = 1;;) {
        refill(e);
        for (int twice = 0; twice < 2; twice++) {
            word = look_up(e, ac);
            if (__builtin_expect(!word, 0))
                return 0;
            /* Where the block ends, and where there is no second code, a zero is written to a place that is zero. */
            k += RUN(word);
            if (__builtin_expect(k >= 63, 0)) {
                if (k > 63)
                    return 0;
                if (wanted)
                    block[63] = (JCOEF)value_of(e->bits << CODE(word), SIZE(word));
                /* A second code would be of the next block. */
                drop(e, FIRST_LENGTH(word));
                return 1;
            }
            if (wanted)
                block[NATURAL[k]] = (JCOEF)value_of(e->bits << CODE(word), SIZE(word));
            k += 1 + SECOND_RUN(word);
            if (__builtin_expect(k > 63, 0))
                return 0;
            if (wanted)
                block[NATURAL[k]] = (JCOEF)value_of(e->bits << FIRST_LENGTH(word) << SECOND_CODE(word),
                                                    SECOND_SIZE(word));
            drop(e, LENGTH(word));
            if (word & LAST)
                return 1;
            k += HAS_SECOND(word);
            if (__builtin_expect(k > 63, 0))
                return 1;
        }
    }
}

/* Behind the bytes of which at least one bit was used. */
static const uint8_t *used(const struct reader *e)
{
    return e->at - e->num_bits / 8;
}

static void start_interval(struct entropy *e, uint32_t restart)
{
    e->reader.at = e->data + (restart ? e->restarts[restart - 1] : 0);
    e->reader.bits = 0;
    e->reader.num_bits = 0;
    e->end = e->data + e->restarts[restart];
    e->restart = restart;
    memset(e->previous, 0, sizeof e->previous);
}

static void next_interval(j_decompress_ptr cinfo, struct entropy *e)
{
    /* Each interval has just the bytes that its MCUs need. */
    if (used(&e->reader) != e->end || e->restart + 1 >= e->num_restarts)
        ERREXIT(cinfo, JERR_BAD_STATE);
    start_interval(e, e->restart + 1);
    e->left = cinfo->restart_interval;
}

static inline __attribute__((always_inline)) void decode_blocks(j_decompress_ptr cinfo, struct entropy *e,
                                                                JBLOCKROW *blocks, int wanted)
{
    struct reader reader = e->reader;
    for (int i = 0; i < cinfo->blocks_in_MCU; i++) {
        const int c = cinfo->MCU_membership[i];
        if (!decode_block(&reader, e->dc[c], e->ac[c], &e->previous[c], wanted ? blocks[i][0] : NULL, wanted))
            ERREXIT(cinfo, JERR_BAD_STATE);
    }
    if (used(&reader) > e->end)
        ERREXIT(cinfo, JERR_BAD_STATE);
    e->reader = reader;
}

static inline __attribute__((always_inline)) boolean decode_mcu(j_decompress_ptr cinfo, JBLOCKROW *blocks)
{
    struct entropy *e = cinfo->client_data;
    if (cinfo->restart_interval && e->left-- == 0) {
        next_interval(cinfo, e);
        e->left--;
    }
    /* libjpeg asks for the coefficients of all columns, also where it uses those of some. */
    const JDIMENSION column = e->column;
    e->column = column + 1 == cinfo->MCUs_per_row ? 0 : column + 1;
    if (blocks && column >= e->first_column && column <= e->last_column)
        decode_blocks(cinfo, e, blocks, 1);
    else
        decode_blocks(cinfo, e, NULL, 0);
    return TRUE;
}

/* What libjpeg calls for each MCU; the same, for two levels of processor. */
static boolean decode_mcu_plain(j_decompress_ptr cinfo, JBLOCKROW *blocks)
{
    return decode_mcu(cinfo, blocks);
}

#ifdef FASTLOAD_X86
FASTLOAD_TARGET_AVX2 static boolean decode_mcu_avx2(j_decompress_ptr cinfo, JBLOCKROW *blocks)
{
    return decode_mcu(cinfo, blocks);
}
#else
#define decode_mcu_avx2 decode_mcu_plain
#endif

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

int take_over_entropy(j_decompress_ptr cinfo, struct entropy *e, struct fastload_scratch *scratch, int level)
{
    memset(e, 0, sizeof *e);
    if (cinfo->src->bytes_in_buffer > UINT32_MAX / 2)
        return FASTLOAD_TOO_LARGE;
    const int status = unstuff(e, cinfo->src->next_input_byte, cinfo->src->bytes_in_buffer, scratch);
    if (status != FASTLOAD_DONE)
        return status;
    if (!cinfo->restart_interval && e->num_restarts > 1)
        return FASTLOAD_DAMAGED;
    struct codes *codes = scratch->codes.data;
    if (!codes) {
        codes = reserve(&scratch->codes, 2 * NUM_HUFF_TBLS * sizeof *codes);
        if (!codes)
            return FASTLOAD_NO_MEMORY;
        memset(codes, 0, 2 * NUM_HUFF_TBLS * sizeof *codes);
    }
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
    e->last_column = cinfo->MCUs_per_row - 1;
    start_interval(e, 0);
    e->left = cinfo->restart_interval;
    cinfo->client_data = e;
    cinfo->entropy->decode_mcu = level == FASTLOAD_PLAIN ? decode_mcu_plain : decode_mcu_avx2;
    return FASTLOAD_DONE;
}

#else
typedef int no_entropy_here; /* ISO C wants something in a file */
#endif
