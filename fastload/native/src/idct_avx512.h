/* The inverse transform of four blocks at once with AVX-512. See idct_vector.h. */
#include <immintrin.h>
#include <string.h>

#define V __m512i
#define TARGET FASTLOAD_TARGET_AVX512
#define BLOCKS 4
#define LOAD(p) _mm512_loadu_si512(p)
#define STORE_ZERO(p) _mm512_storeu_si512(p, _mm512_setzero_si512())
#define ROW(p) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(p)))
#define ADD _mm512_add_epi16
#define SUB _mm512_sub_epi16
#define MUL _mm512_mullo_epi16
#define LOW8 _mm512_unpacklo_epi8
#define HIGH8 _mm512_unpackhi_epi8
#define LOW16 _mm512_unpacklo_epi16
#define HIGH16 _mm512_unpackhi_epi16
#define LOW32 _mm512_unpacklo_epi32
#define HIGH32 _mm512_unpackhi_epi32
#define LOW64 _mm512_unpacklo_epi64
#define HIGH64 _mm512_unpackhi_epi64
#define PAIR(a, b) _mm512_set1_epi32((int)((uint32_t)(uint16_t)(a) | (uint32_t)(uint16_t)(b) << 16))
#define DOT _mm512_dpwssd_epi32
#define ADD32 _mm512_add_epi32
#define SUB32 _mm512_sub_epi32
#define SHIFT32(x, n) _mm512_srai_epi32(x, (unsigned)(n))
#define ALL32 _mm512_set1_epi32
#define PACK32 _mm512_packs_epi32
#define PACK16 _mm512_packs_epi16
#define MIDDLE(x) _mm512_xor_si512(x, _mm512_set1_epi8(-128))
#define IS_LARGE(x) \
    (_mm512_cmpneq_epi16_mask(_mm512_srai_epi16(_mm512_slli_epi16(x, PASS1_BITS), PASS1_BITS), x) != 0)
#define STORE_ROWS store_rows

#include "picture.h"

FASTLOAD_TARGET_AVX512 static inline void store_rows(__m512i x, uint8_t *first, uint8_t *second)
{
    const __m512i rows = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), x);
    _mm256_storeu_si256((__m256i *)first, _mm512_castsi512_si256(rows));
    _mm256_storeu_si256((__m256i *)second, _mm512_extracti64x4_epi64(rows, 1));
}

#include "idct_vector.h"

/* The rows of four blocks: the 128-bit lanes of four vectors, transposed. */
FASTLOAD_TARGET_AVX512 INLINE void gather_rows(__m512i blocks[4][2], int half, __m512i *rows)
{
    const __m512i a = _mm512_shuffle_i64x2(blocks[0][half], blocks[1][half], 0x44);
    const __m512i b = _mm512_shuffle_i64x2(blocks[2][half], blocks[3][half], 0x44);
    const __m512i c = _mm512_shuffle_i64x2(blocks[0][half], blocks[1][half], 0xEE);
    const __m512i d = _mm512_shuffle_i64x2(blocks[2][half], blocks[3][half], 0xEE);
    rows[0] = _mm512_shuffle_i64x2(a, b, 0x88);
    rows[1] = _mm512_shuffle_i64x2(a, b, 0xDD);
    rows[2] = _mm512_shuffle_i64x2(c, d, 0x88);
    rows[3] = _mm512_shuffle_i64x2(c, d, 0xDD);
}

/* Transforms four blocks that were not interleaved: of each the rows from 0 on, and from 4 on. */
FASTLOAD_TARGET_AVX512 INLINE void transform_separate(__m512i blocks[4][2], int low, const int16_t quant[64],
                                                      uint8_t *out, size_t stride)
{
    __m512i x[8];
    gather_rows(blocks, 0, x);
    gather_rows(blocks, 1, x + 4);
    const __m512i first = MUL(x[0], ROW(quant));
    if (__builtin_expect(IS_LARGE(first), 0)) {
        int16_t group[GROUP_SIZE];
        memcpy(group, x, sizeof group);
        idct_plain(group, quant, out, stride);
        return;
    }
    x[0] = first;
    for (int k = 1; k < (low ? 4 : 8); k++)
        x[k] = MUL(x[k], ROW(quant + 8 * k));
    if (low)
        transform(x, out, stride, 1);
    else
        transform(x, out, stride, 0);
}
