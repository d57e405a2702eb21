/* The inverse transform of two blocks at once, and colours, with AVX2. See idct_vector.h and colors_vector.h. */
#include "fastload.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>

#define V __m256i
#define TARGET FASTLOAD_TARGET_AVX2
#define BLOCKS 2
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define STORE_ZERO(p) _mm256_storeu_si256((__m256i *)(p), _mm256_setzero_si256())
#define ROW(p) _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(p)))
#define ADD _mm256_add_epi16
#define SUB _mm256_sub_epi16
#define MUL _mm256_mullo_epi16
#define LOW8 _mm256_unpacklo_epi8
#define HIGH8 _mm256_unpackhi_epi8
#define LOW16 _mm256_unpacklo_epi16
#define HIGH16 _mm256_unpackhi_epi16
#define LOW32 _mm256_unpacklo_epi32
#define HIGH32 _mm256_unpackhi_epi32
#define LOW64 _mm256_unpacklo_epi64
#define HIGH64 _mm256_unpackhi_epi64
#define PAIR(a, b) _mm256_set1_epi32((int)((uint32_t)(uint16_t)(a) | (uint32_t)(uint16_t)(b) << 16))
#define DOT(sum, x, pair) _mm256_add_epi32(sum, _mm256_madd_epi16(x, pair))
#define ADD32 _mm256_add_epi32
#define SUB32 _mm256_sub_epi32
#define SHIFT32 _mm256_srai_epi32
#define ALL32 _mm256_set1_epi32
#define PACK32 _mm256_packs_epi32
#define PACK16 _mm256_packs_epi16
#define MIDDLE(x) _mm256_xor_si256(x, _mm256_set1_epi8(-128))
#define IS_LARGE(x) \
    (_mm256_movemask_epi8( \
         _mm256_cmpeq_epi16(_mm256_srai_epi16(_mm256_slli_epi16(x, PASS1_BITS), PASS1_BITS), x)) != -1)
#define STORE_ROWS store_rows
#define ALL16(number) _mm256_set1_epi16((short)(number))
#define MULHI _mm256_mulhi_epi16
#define SHIFT16 _mm256_srai_epi16
#define PACK_UNSIGNED _mm256_packus_epi16
#define STORE_PIXELS store_avx2

#include "picture.h"

FASTLOAD_TARGET_AVX2 static inline void store_rows(__m256i x, uint8_t *first, uint8_t *second)
{
    const __m256i rows = _mm256_permute4x64_epi64(x, 0xD8);
    _mm_storeu_si128((__m128i *)first, _mm256_castsi256_si128(rows));
    _mm_storeu_si128((__m128i *)second, _mm256_extracti128_si256(rows, 1));
}

/* Where byte i of 16 pixels' bytes comes from, for each third of them and each channel; 0x80: from another channel. */
static const uint8_t THIRDS[3][3][16] = {
    {{0, 128, 128, 1, 128, 128, 2, 128, 128, 3, 128, 128, 4, 128, 128, 5},
     {128, 0, 128, 128, 1, 128, 128, 2, 128, 128, 3, 128, 128, 4, 128, 128},
     {128, 128, 0, 128, 128, 1, 128, 128, 2, 128, 128, 3, 128, 128, 4, 128}},
    {{128, 128, 6, 128, 128, 7, 128, 128, 8, 128, 128, 9, 128, 128, 10, 128},
     {5, 128, 128, 6, 128, 128, 7, 128, 128, 8, 128, 128, 9, 128, 128, 10},
     {128, 5, 128, 128, 6, 128, 128, 7, 128, 128, 8, 128, 128, 9, 128, 128}},
    {{128, 11, 128, 128, 12, 128, 128, 13, 128, 128, 14, 128, 128, 15, 128, 128},
     {128, 128, 11, 128, 128, 12, 128, 128, 13, 128, 128, 14, 128, 128, 15, 128},
     {10, 128, 128, 11, 128, 128, 12, 128, 128, 13, 128, 128, 14, 128, 128, 15}},
};

/* 32 pixels. */
FASTLOAD_TARGET_AVX2 INLINE void store_avx2(const __m256i channel[3], uint8_t *out)
{
    for (int third = 0; third < 3; third++) {
        __m256i bytes = _mm256_setzero_si256();
        for (int c = 0; c < 3; c++) {
            const __m256i order = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)THIRDS[third][c]));
            bytes = _mm256_or_si256(bytes, _mm256_shuffle_epi8(channel[c], order));
        }
        _mm_storeu_si128((__m128i *)(out + 16 * third), _mm256_castsi256_si128(bytes));
        _mm_storeu_si128((__m128i *)(out + 48 + 16 * third), _mm256_extracti128_si256(bytes, 1));
    }
}

#include "idct_vector.h"
#include "colors_vector.h"

FASTLOAD_TARGET_AVX2 void idct_avx2(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride,
                                    enum extent extent)
{
    transform_group(group, quant, out, stride, extent);
}

FASTLOAD_TARGET_AVX2 void to_rgb_avx2(const struct colors *from, uint8_t *out, int n)
{
    to_rgb_row(from, out, n);
}

FASTLOAD_TARGET_AVX2 void interleave_avx2(const uint8_t *const from[3], uint8_t *out, int n)
{
    interleave_row(from, out, n);
}
#endif
