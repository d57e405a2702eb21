/* Unpacking a block with AVX-512 and VBMI2. See coefficients.h. */
#include "coefficients.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>
#include <string.h>

/* Which place of the zigzag order each coefficient has, row by row. */
static const uint8_t ZIGZAG[64] = {
    0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42, 3,  8,  12, 17, 25, 30, 41, 43, 9,  11, 18, 24, 31,
    40, 44, 53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38, 46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61, 35, 36,
    48, 49, 57, 58, 62, 63};

FASTLOAD_TARGET_AVX512 uint64_t unpack_avx512(struct streams *s, int16_t *block)
{
    const int at = s->at, size = s->sizes[at / 2] >> (at % 2 ? 4 : 0) & 15;
    uint64_t mask;
    memcpy(&mask, s->masks, 8);
    mask = _bzhi_u64(mask, 8 * (unsigned)size);
    const int num = __builtin_popcountll(mask);
    const uint8_t *const levels = s->levels;
    if (__builtin_expect(size > 8 || s->masks_end - s->masks < size || s->levels_end - levels < (num + 1) / 2 ||
                             mask & 1, 0))
        return UNPACK_DAMAGED;
    /* Reads of whole vectors end within RECORD_PADDING behind the segments. */
    const __m512i pairs = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)levels));
    const __m512i eight = _mm512_set1_epi8(8);
    const __m512i nibbles = _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4)), _mm512_set1_epi8(15));
    __m512i packed = _mm512_sub_epi8(_mm512_xor_si512(nibbles, eight), eight);
    const uint64_t escaped = _bzhi_u64(_mm512_cmpeq_epi8_mask(nibbles, eight), (unsigned)num);
    const int num_escapes = __builtin_popcountll(escaped);
    if (__builtin_expect(s->escapes_end - s->escapes < num_escapes, 0))
        return UNPACK_DAMAGED;
    packed = _mm512_mask_expand_epi8(packed, escaped, _mm512_loadu_si512(s->escapes));
    const uint64_t wide = _mm512_mask_cmpeq_epi8_mask(escaped, packed, _mm512_set1_epi8(ESCAPE_WIDE));
    if (__builtin_expect(wide != 0, 0))
        return unpack_plain(s, block);
    const __m512i natural =
        _mm512_permutexvar_epi8(_mm512_loadu_si512(ZIGZAG), _mm512_maskz_expand_epi8(mask, packed));
    const __m512i halves[2] = {_mm512_cvtepi8_epi16(_mm512_castsi512_si256(natural)),
                               _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(natural, 1))};
    for (int i = 0; i < 2; i++, block += 4 * GROUP * 8) {
        _mm_storeu_si128((__m128i *)block, _mm512_castsi512_si128(halves[i]));
        _mm_storeu_si128((__m128i *)(block + GROUP * 8), _mm512_extracti32x4_epi32(halves[i], 1));
        _mm_storeu_si128((__m128i *)(block + 2 * GROUP * 8), _mm512_extracti32x4_epi32(halves[i], 2));
        _mm_storeu_si128((__m128i *)(block + 3 * GROUP * 8), _mm512_extracti32x4_epi32(halves[i], 3));
    }
    memcpy(block - GROUP_SIZE, s->dc + 2 * at, 2);
    s->masks += size;
    s->levels += (num + 1) / 2;
    s->escapes += num_escapes;
    s->at++;
    return mask;
}

#else
typedef int no_avx512_here; /* ISO C wants something in a file */
#endif
