/* Unpacking and packing blocks with AVX-512 and VBMI2. See coefficients.h. */
#include "coefficients.h"

#ifdef FASTLOAD_X86
#include "idct_avx512.h"

#include <string.h>

/* Which place of the zigzag order each coefficient has, row by row. */
static const uint8_t ZIGZAG[64] = {
    0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42, 3,  8,  12, 17, 25, 30, 41, 43, 9,  11, 18, 24, 31,
    40, 44, 53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38, 46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61, 35, 36,
    48, 49, 57, 58, 62, 63};

/* What the next block has in each stream. */
struct next {
    uint64_t mask;
    uint64_t escaped; /* of its levels, those that are escapes */
    uint64_t wide;    /* and those that are wide */
    __m512i levels;   /* of 8 bits */
};

/* Moves on. Returns 0 for damage. Reads of whole vectors end within RECORD_PADDING behind the segments. */
FASTLOAD_TARGET_AVX512 INLINE int take(struct streams *s, struct next *next)
{
    const int at = s->at++, size = s->sizes[at / 2] >> (at % 2 ? 4 : 0) & 15;
    uint64_t mask;
    memcpy(&mask, s->masks, 8);
    mask = _bzhi_u64(mask, 8 * (unsigned)size);
    const int num = __builtin_popcountll(mask), bytes = (num + 1) / 2;
    const __m512i pairs = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)s->levels));
    const __m512i nibbles = _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4)), _mm512_set1_epi8(15));
    const __m512i eight = _mm512_set1_epi8(8), levels = _mm512_sub_epi8(_mm512_xor_si512(nibbles, eight), eight);
    next->mask = mask;
    next->escaped = _bzhi_u64(_mm512_cmpeq_epi8_mask(nibbles, eight), (unsigned)num);
    next->levels = _mm512_mask_expand_epi8(levels, next->escaped, _mm512_loadu_si512(s->escapes));
    next->wide = _mm512_mask_cmpeq_epi8_mask(next->escaped, next->levels, _mm512_set1_epi8(ESCAPE_WIDE));
    const int escapes = __builtin_popcountll(next->escaped);
    if (__builtin_expect(size > 8 || s->masks_end - s->masks < size || s->levels_end - s->levels < bytes || mask & 1 ||
                             s->escapes_end - s->escapes < escapes, 0))
        return 0;
    s->masks += size;
    s->levels += bytes;
    s->escapes += escapes;
    return 1;
}

/* The levels that 8 bits do not hold. Returns 0 for damage. */
FASTLOAD_TARGET_AVX512 static __attribute__((noinline)) int fill_wide(struct streams *s, const struct next *next,
                                                                      __m512i halves[2])
{
    int16_t block[64];
    memcpy(block, halves, sizeof block);
    uint64_t places = _pdep_u64(next->wide, next->mask);
    if (s->wide_end - s->wide < 2 * __builtin_popcountll(places))
        return 0;
    for (; places; places &= places - 1, s->wide += 2) {
        const int place = GROUP_PLACES[__builtin_ctzll(places)];
        memcpy(&block[place / (8 * GROUP) * 8 + place % 8], s->wide, 2);
    }
    memcpy(halves, block, sizeof block);
    return 1;
}

FASTLOAD_TARGET_AVX512 int unpack_group_avx512(struct streams *s, int num, const int16_t quant[64], uint8_t *out,
                                               size_t stride)
{
    const __m512i order = _mm512_loadu_si512(ZIGZAG);
    __m512i blocks[4][2];
    uint64_t masks = 0;
    for (int i = 0; i < GROUP; i++) {
        if (i >= num) {
            blocks[i][0] = blocks[i][1] = _mm512_setzero_si512();
            continue;
        }
        uint16_t dc;
        memcpy(&dc, s->dc + 2 * s->at, 2);
        struct next next;
        if (!take(s, &next))
            return 0;
        const __m512i natural = _mm512_permutexvar_epi8(order, _mm512_maskz_expand_epi8(next.mask, next.levels));
        blocks[i][0] = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(natural));
        blocks[i][1] = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(natural, 1));
        if (__builtin_expect(next.wide != 0, 0) && !fill_wide(s, &next, blocks[i]))
            return 0;
        blocks[i][0] = _mm512_mask_set1_epi16(blocks[i][0], 1, (short)dc);
        masks |= next.mask;
    }
    transform_separate(blocks, masks < 1u << NUM_LOW, quant, out, stride);
    return 1;
}

FASTLOAD_TARGET_AVX512 int pass_over_avx512(struct streams *s, int num)
{
    while (num--) {
        struct next next;
        if (!take(s, &next))
            return 0;
        const int wide = 2 * __builtin_popcountll(next.wide);
        if (s->wide_end - s->wide < wide)
            return 0;
        s->wide += wide;
    }
    return 1;
}

/* Adds a block, whose levels are here saturated to 8 bits, in zigzag order. */
FASTLOAD_TARGET_AVX512 INLINE void pack_block(struct parts *parts, const int16_t *block, __m512i levels)
{
    const __m512i magnitudes = _mm512_abs_epi8(levels);
    const uint64_t mask = _mm512_test_epi8_mask(levels, levels) & ~(uint64_t)1;
    const uint64_t edges = _mm512_mask_cmpge_epu8_mask(mask, magnitudes, _mm512_set1_epi8(-ESCAPE_WIDE - 1));
    if (__builtin_expect(edges != 0, 0)) {
        uint8_t bytes[64];
        memcpy(bytes, &levels, sizeof bytes);
        pack_wide(parts, block, edges, bytes);
        levels = _mm512_loadu_si512(bytes);
    }
    add_mask(parts, mask, (uint16_t)block[0]);
    const __m512i escape = _mm512_set1_epi8(LEVEL_ESCAPE & 15);
    const uint64_t escaped = _mm512_mask_cmpge_epu8_mask(mask, magnitudes, escape);
    const __m512i nibbles = _mm512_and_si512(_mm512_mask_mov_epi8(levels, escaped, escape), _mm512_set1_epi8(15));
    const __m512i packed = _mm512_maskz_compress_epi8(mask, nibbles);
    const __m512i pairs = _mm512_maddubs_epi16(packed, _mm512_set1_epi16(16 << 8 | 1));
    _mm256_storeu_si256((__m256i *)(parts->levels + parts->num_levels), _mm512_cvtepi16_epi8(pairs));
    _mm512_storeu_si512(parts->escapes + parts->num_escapes, _mm512_maskz_compress_epi8(escaped, levels));
    parts->num_levels += (size_t)(__builtin_popcountll(mask) + 1) / 2;
    parts->num_escapes += (size_t)__builtin_popcountll(escaped);
}

FASTLOAD_TARGET_AVX512 void pack_avx512(struct parts *parts, int num, int16_t *group)
{
    __m512i quarters[4], halves[4]; /* of 2 rows of all four blocks; of 4 rows of two blocks */
    for (int i = 0; i < 4; i++)
        quarters[i] = _mm512_packs_epi16(_mm512_loadu_si512(group + 64 * i), _mm512_loadu_si512(group + 64 * i + 32));
    for (int i = 0; i < 2; i++) {
        halves[i] = _mm512_shuffle_i32x4(quarters[2 * i], quarters[2 * i + 1], 0x44);
        halves[2 + i] = _mm512_shuffle_i32x4(quarters[2 * i], quarters[2 * i + 1], 0xEE);
    }
    const __m512i order = _mm512_loadu_si512(ZIGZAG_PLACES);
    for (int i = 0; i < num; i++) {
        const __m512i *const two = &halves[i / 2 * 2];
        const __m512i rows = i % 2 ? _mm512_shuffle_i32x4(two[0], two[1], 0xDD)
                                   : _mm512_shuffle_i32x4(two[0], two[1], 0x88);
        pack_block(parts, group + 8 * i, _mm512_permutexvar_epi8(order, rows));
    }
    for (int i = 0; i < 8; i++)
        _mm512_storeu_si512(group + 32 * i, _mm512_setzero_si512());
}
#endif
