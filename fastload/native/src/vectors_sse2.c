/* The inverse transform and colours with SSE2. See idct_vector.h and colors_vector.h. */
#include "fastload.h"

#ifdef FASTLOAD_SSE2
#define TARGET
#define BLOCKS 1

#include <emmintrin.h>

#define V __m128i
#define LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define STORE_ZERO(p) _mm_storeu_si128((__m128i *)(p), _mm_setzero_si128())
#define ADD _mm_add_epi16
#define SUB _mm_sub_epi16
#define MUL _mm_mullo_epi16
#define LOW8 _mm_unpacklo_epi8
#define HIGH8 _mm_unpackhi_epi8
#define LOW16 _mm_unpacklo_epi16
#define HIGH16 _mm_unpackhi_epi16
#define LOW32 _mm_unpacklo_epi32
#define HIGH32 _mm_unpackhi_epi32
#define LOW64 _mm_unpacklo_epi64
#define HIGH64 _mm_unpackhi_epi64
#define PAIR(a, b) _mm_set1_epi32((int)((uint32_t)(uint16_t)(a) | (uint32_t)(uint16_t)(b) << 16))
#define DOT(sum, x, pair) _mm_add_epi32(sum, _mm_madd_epi16(x, pair))
#define ADD32 _mm_add_epi32
#define SUB32 _mm_sub_epi32
#define SHIFT32 _mm_srai_epi32
#define ALL32 _mm_set1_epi32
#define PACK32 _mm_packs_epi32
#define PACK16 _mm_packs_epi16
#define MIDDLE(x) _mm_xor_si128(x, _mm_set1_epi8(-128))
#define IS_LARGE(x) \
    (_mm_movemask_epi8(_mm_cmpeq_epi16(_mm_srai_epi16(_mm_slli_epi16(x, PASS1_BITS), PASS1_BITS), x)) != 0xFFFF)
#define STORE_ROWS(x, first, second) \
    (_mm_storel_epi64((__m128i *)(first), x), _mm_storel_epi64((__m128i *)(second), _mm_unpackhi_epi64(x, x)))

#define ROW LOAD
#define ALL16(number) _mm_set1_epi16((short)(number))
#define MULHI _mm_mulhi_epi16
#define SHIFT16 _mm_srai_epi16
#define PACK_UNSIGNED _mm_packus_epi16
#define STORE_PIXELS store_channels

#include "idct_vector.h"

#include <string.h>

/* Four pixels: of 4 bytes each, the last of which the next pixel replaces. */
INLINE void store_pixels(__m128i pixels, uint8_t *out)
{
    for (int i = 0; i < 4; i++, out += 3, pixels = _mm_srli_si128(pixels, 4)) {
        const int pixel = _mm_cvtsi128_si32(pixels);
        memcpy(out, &pixel, 4);
    }
}

/* 16 pixels. */
INLINE void store_channels(const __m128i channel[3], uint8_t *out)
{
    const __m128i zero = _mm_setzero_si128();
    const __m128i first[2] = {_mm_unpacklo_epi8(channel[0], channel[1]), _mm_unpackhi_epi8(channel[0], channel[1])};
    const __m128i last[2] = {_mm_unpacklo_epi8(channel[2], zero), _mm_unpackhi_epi8(channel[2], zero)};
    for (int k = 0; k < 2; k++) {
        store_pixels(_mm_unpacklo_epi16(first[k], last[k]), out + 24 * k);
        store_pixels(_mm_unpackhi_epi16(first[k], last[k]), out + 24 * k + 12);
    }
}

#include "colors_vector.h"

void idct_sse2(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride, enum extent extent)
{
    transform_group(group, quant, out, stride, extent);
}

void to_rgb_sse2(const struct colors *from, uint8_t *out, int n)
{
    to_rgb_row(from, out, n);
}

void interleave_sse2(const uint8_t *const from[3], uint8_t *out, int n)
{
    interleave_row(from, out, n);
}
#endif
