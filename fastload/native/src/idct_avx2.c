/* The inverse transform of two blocks at once with AVX2. See idct_vector.h. */
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

#include "picture.h"

FASTLOAD_TARGET_AVX2 static inline void store_rows(__m256i x, uint8_t *first, uint8_t *second)
{
    const __m256i rows = _mm256_permute4x64_epi64(x, 0xD8);
    _mm_storeu_si128((__m128i *)first, _mm256_castsi256_si128(rows));
    _mm_storeu_si128((__m128i *)second, _mm256_extracti128_si256(rows, 1));
}

#include "idct_vector.h"

FASTLOAD_TARGET_AVX2 void idct_avx2(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride,
                                    enum extent extent)
{
    transform_group(group, quant, out, stride, extent);
}
#endif
