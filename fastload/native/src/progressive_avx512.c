/* Decoding scans of progressive files, and their coefficients to samples, with AVX-512. See progressive.h. */
#include "progressive.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>

#define TARGET FASTLOAD_TARGET_AVX512
#define BIT_BELOW bit_below_bmi2
#define SPREAD _pdep_u64
#define CORRECT correct_avx512

#include "progressive_bmi2.h"

FASTLOAD_TARGET_AVX512 INLINE void correct_avx512(int16_t *levels, uint64_t which, int low)
{
    const __m512i bit = _mm512_set1_epi16((short)(1 << low));
    for (int half = 0; half < 2; half++) {
        const __mmask32 mask = (__mmask32)(which >> 32 * half);
        const __m512i old = _mm512_maskz_loadu_epi16(mask, levels + 32 * half);
        const __m512i more = _mm512_add_epi16(old, bit);
        const __m512i made = _mm512_mask_sub_epi16(more, _mm512_movepi16_mask(old), old, bit);
        _mm512_mask_storeu_epi16(levels + 32 * half, mask, made);
    }
}

#include "progressive_scan.h"

FASTLOAD_TARGET_AVX512 int decode_scan_avx512(struct pass *pass, const struct picture *p, const struct blocks *blocks)
{
    return decode_scan_by_kind(pass, p, blocks);
}

#undef TARGET
#include "idct_avx512.h"

/* Which coefficient of a block, in zigzag order from behind, comes where, row by row. */
static const uint8_t ORDER[64] = {
    63, 62, 58, 57, 49, 48, 36, 35, 61, 59, 56, 50, 47, 37, 34, 21, 60, 55, 51, 46, 38, 33,
    22, 20, 54, 52, 45, 39, 32, 23, 19, 10, 53, 44, 40, 31, 24, 18, 11, 9, 43, 41, 30, 25,
    17, 12, 8, 3, 42, 29, 26, 16, 13, 7, 4, 2, 28, 27, 15, 14, 6, 5, 1, 0};

FASTLOAD_TARGET_AVX512 void transform_blocks_avx512(const uint64_t *masks, const int16_t *dc, const int16_t *levels,
                                                    int num, const int16_t quant[64], uint8_t *out, size_t stride)
{
    const __m512i order[2] = {_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)ORDER)),
                              _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(ORDER + 32)))};
    __m512i blocks[4][2];
    uint64_t all = 0;
    for (int i = 0; i < GROUP; i++, levels += 64) {
        blocks[i][0] = blocks[i][1] = _mm512_setzero_si512();
        if (i >= num)
            continue;
        const uint64_t mask = masks[i];
        const __m512i last = _mm512_maskz_loadu_epi16((__mmask32)mask, levels);
        const __m512i first = _mm512_maskz_loadu_epi16((__mmask32)(mask >> 32), levels + 32);
        for (int half = 0; half < 2; half++)
            blocks[i][half] = _mm512_permutex2var_epi16(last, order[half], first);
        blocks[i][0] = _mm512_mask_set1_epi16(blocks[i][0], 1, dc[i]);
        all |= mask;
    }
    transform_separate(blocks, IS_LOW(all), quant, out, stride);
}
#endif
