/* Rows of samples to rows of pixels: upsampling and colours. See picture.h. */
#include "picture.h"

#include <string.h>

/* libjpeg's factors of chroma, in units of 2**-16, less the whole numbers nearest to them. */
#define RED_CR 26345   /* 1.402 - 1 */
#define BLUE_CB -14942 /* 1.772 - 2 */
#define GREEN_CB -22554
#define GREEN_CR 18734 /* 1 - 0.71414 */

#ifdef FASTLOAD_NEON
#include "colors_neon.h"
#else
/* Two bytes, the first at the lower address. */
INLINE uint16_t pair_of(unsigned first, unsigned second)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (uint16_t)(first | second << 8);
#else
    return (uint16_t)(first << 8 | second);
#endif
}

/* The loops below are compiled for each instruction set: compilers make vectors of them. Inner loops of a constant
 * length leave no rest, for which clang takes sample after sample; behind n is padding. */
#define AT_ONCE 32

INLINE void weigh_h2v1(const uint8_t *restrict in, uint16_t *restrict pairs, int n)
{
    for (int begin = 0; begin < n; begin += AT_ONCE)
        for (int i = begin; i < begin + AT_ONCE; i++) {
            const uint16_t left = (uint16_t)(3 * in[i] + in[i - 1] + 1);
            const uint16_t right = (uint16_t)(3 * in[i] + in[i + 1] + 2);
            pairs[i] = pair_of(left >> 2, right >> 2);
        }
}

INLINE void weigh_h2v2(const uint8_t *restrict near, const uint8_t *restrict far, uint16_t *restrict sums,
                       uint16_t *restrict pairs, int n)
{
    for (int begin = -1; begin <= n; begin += AT_ONCE)
        for (int i = begin; i < begin + AT_ONCE; i++)
            sums[i] = (uint16_t)(3 * near[i] + far[i]);
    for (int begin = 0; begin < n; begin += AT_ONCE)
        for (int i = begin; i < begin + AT_ONCE; i++) {
            const uint16_t left = (uint16_t)(3 * sums[i] + sums[i - 1] + 8);
            const uint16_t right = (uint16_t)(3 * sums[i] + sums[i + 1] + 7);
            pairs[i] = pair_of(left >> 4, right >> 4);
        }
}

INLINE void weigh_h1v2(const uint8_t *restrict near, const uint8_t *restrict far, int bias, uint8_t *restrict out,
                       int n)
{
    for (int begin = 0; begin < n; begin += AT_ONCE)
        for (int i = begin; i < begin + AT_ONCE; i++)
            out[i] = (uint8_t)((uint16_t)(3 * near[i] + far[i] + bias) >> 2);
}

#define LOOPS(suffix, target)                                                                                          \
    target static void h2v1_##suffix(const uint8_t *in, uint8_t *out, int n)                                           \
    {                                                                                                                  \
        weigh_h2v1(in, (uint16_t *)(void *)out, n);                                                                    \
    }                                                                                                                  \
    target static void h2v2_##suffix(const uint8_t *near, const uint8_t *far, uint16_t *sums, uint8_t *out, int n)     \
    {                                                                                                                  \
        weigh_h2v2(near, far, sums, (uint16_t *)(void *)out, n);                                                       \
    }                                                                                                                  \
    target static void h1v2_##suffix(const uint8_t *near, const uint8_t *far, int bias, uint8_t *out, int n)           \
    {                                                                                                                  \
        weigh_h1v2(near, far, bias, out, n);                                                                           \
    }

LOOPS(plain, )

#ifdef FASTLOAD_SSE2
#include "colors_sse2.h"
#else
static uint8_t clip(int x)
{
    return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

/* Channel by channel, so that compilers make vectors of the sums. */
static void to_rgb_plain(const struct colors *from, uint8_t *out, int n)
{
    const int half = 1 << 15;
    uint8_t channels[3][AT_ONCE];
    for (int begin = 0; begin < n; begin += AT_ONCE) {
        const uint8_t *const y = from->y + begin, *const blue = from->cb + begin, *const red = from->cr + begin;
        for (int i = 0; i < AT_ONCE; i++) {
            const int cb = blue[i] - 128, cr = red[i] - 128;
            channels[0][i] = clip(y[i] + cr + ((RED_CR * cr + half) >> 16));
            channels[1][i] = clip(y[i] - cr + ((GREEN_CB * cb + GREEN_CR * cr + half) >> 16));
            channels[2][i] = clip(y[i] + 2 * cb + ((BLUE_CB * cb + half) >> 16));
        }
        for (int i = 0; i < AT_ONCE && begin + i < n; i++, out += 3)
            for (int c = 0; c < 3; c++)
                out[c] = channels[c][i];
    }
}

static void interleave_plain(const uint8_t *const from[3], uint8_t *out, int n)
{
    for (int i = 0; i < n; i++, out += 3)
        for (int c = 0; c < 3; c++)
            out[c] = from[c][i];
}
#endif
#endif

#ifdef FASTLOAD_X86
#include <immintrin.h>

LOOPS(avx2, FASTLOAD_TARGET_AVX2)
LOOPS(avx512, FASTLOAD_TARGET_AVX512)

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

/* Two 16-bit factors, as vpmaddwd takes them. */
#define FACTORS(a, b) (int)((uint32_t)(uint16_t)(a) | (uint32_t)(uint16_t)(b) << 16)

struct rgb_avx2 {
    __m256i channel[3];
};

/* 16 bits each: y from 0 to 255, cb and cr from -128 to 127. (x * factor + half) >> 16 is made of the upper half of a
 * product of 16 bits: that of 2 * x, rounded. */
FASTLOAD_TARGET_AVX2 INLINE struct rgb_avx2 rgb_avx2(__m256i y, __m256i cb, __m256i cr)
{
    const __m256i one = _mm256_set1_epi16(1), half = _mm256_set1_epi32(1 << 15);
    const __m256i cb2 = _mm256_add_epi16(cb, cb), cr2 = _mm256_add_epi16(cr, cr);
    const __m256i red = _mm256_srai_epi16(
        _mm256_add_epi16(_mm256_mulhi_epi16(cr2, _mm256_set1_epi16(RED_CR)), one), 1);
    const __m256i blue = _mm256_srai_epi16(
        _mm256_add_epi16(_mm256_mulhi_epi16(cb2, _mm256_set1_epi16(BLUE_CB)), one), 1);
    const __m256i factors = _mm256_set1_epi32(FACTORS(GREEN_CB, GREEN_CR));
    const __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), factors);
    const __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), factors);
    const __m256i green = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(low, half), 16),
                                             _mm256_srai_epi32(_mm256_add_epi32(high, half), 16));
    return (struct rgb_avx2){{_mm256_add_epi16(_mm256_add_epi16(y, cr), red),
                              _mm256_add_epi16(_mm256_sub_epi16(y, cr), green),
                              _mm256_add_epi16(_mm256_add_epi16(y, cb2), blue)}};
}

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

FASTLOAD_TARGET_AVX2 static void to_rgb_avx2(const struct colors *from, uint8_t *out, int n)
{
    const __m256i zero = _mm256_setzero_si256(), middle = _mm256_set1_epi16(128);
    for (int i = 0; i < n; i += 32, out += 96) {
        const __m256i y = _mm256_loadu_si256((const __m256i *)(from->y + i));
        const __m256i cb = _mm256_loadu_si256((const __m256i *)(from->cb + i));
        const __m256i cr = _mm256_loadu_si256((const __m256i *)(from->cr + i));
        const struct rgb_avx2 low = rgb_avx2(_mm256_unpacklo_epi8(y, zero),
                                             _mm256_sub_epi16(_mm256_unpacklo_epi8(cb, zero), middle),
                                             _mm256_sub_epi16(_mm256_unpacklo_epi8(cr, zero), middle));
        const struct rgb_avx2 high = rgb_avx2(_mm256_unpackhi_epi8(y, zero),
                                              _mm256_sub_epi16(_mm256_unpackhi_epi8(cb, zero), middle),
                                              _mm256_sub_epi16(_mm256_unpackhi_epi8(cr, zero), middle));
        __m256i channel[3];
        for (int c = 0; c < 3; c++)
            channel[c] = _mm256_packus_epi16(low.channel[c], high.channel[c]);
        store_avx2(channel, out);
    }
}

FASTLOAD_TARGET_AVX2 static void interleave_avx2(const uint8_t *const from[3], uint8_t *out, int n)
{
    for (int i = 0; i < n; i += 32, out += 96) {
        __m256i channel[3];
        for (int c = 0; c < 3; c++)
            channel[c] = _mm256_loadu_si256((const __m256i *)(from[c] + i));
        store_avx2(channel, out);
    }
}

/* Which red or green (64 and more) each byte of 64 pixels is, and which blue. */
static const uint8_t PLACES[3][64] = {
    {0, 64, 0, 1, 65, 1, 2, 66, 2, 3, 67, 3, 4, 68, 4, 5, 69, 5, 6, 70, 6, 7, 71, 7, 8, 72, 8, 9, 73, 9, 10, 74, 10,
     11, 75, 11, 12, 76, 12, 13, 77, 13, 14, 78, 14, 15, 79, 15, 16, 80, 16, 17, 81, 17, 18, 82, 18, 19, 83, 19, 20,
     84, 20, 21},
    {85, 21, 22, 86, 22, 23, 87, 23, 24, 88, 24, 25, 89, 25, 26, 90, 26, 27, 91, 27, 28, 92, 28, 29, 93, 29, 30, 94,
     30, 31, 95, 31, 32, 96, 32, 33, 97, 33, 34, 98, 34, 35, 99, 35, 36, 100, 36, 37, 101, 37, 38, 102, 38, 39, 103,
     39, 40, 104, 40, 41, 105, 41, 42, 106},
    {42, 43, 107, 43, 44, 108, 44, 45, 109, 45, 46, 110, 46, 47, 111, 47, 48, 112, 48, 49, 113, 49, 50, 114, 50, 51,
     115, 51, 52, 116, 52, 53, 117, 53, 54, 118, 54, 55, 119, 55, 56, 120, 56, 57, 121, 57, 58, 122, 58, 59, 123, 59,
     60, 124, 60, 61, 125, 61, 62, 126, 62, 63, 127, 63},
};

struct rgb_avx512 {
    __m512i channel[3];
};

FASTLOAD_TARGET_AVX512 INLINE struct rgb_avx512 rgb_avx512(__m512i y, __m512i cb, __m512i cr)
{
    const __m512i one = _mm512_set1_epi16(1), half = _mm512_set1_epi32(1 << 15);
    const __m512i cb2 = _mm512_add_epi16(cb, cb), cr2 = _mm512_add_epi16(cr, cr);
    const __m512i red = _mm512_srai_epi16(
        _mm512_add_epi16(_mm512_mulhi_epi16(cr2, _mm512_set1_epi16(RED_CR)), one), 1);
    const __m512i blue = _mm512_srai_epi16(
        _mm512_add_epi16(_mm512_mulhi_epi16(cb2, _mm512_set1_epi16(BLUE_CB)), one), 1);
    const __m512i factors = _mm512_set1_epi32(FACTORS(GREEN_CB, GREEN_CR));
    const __m512i low = _mm512_dpwssd_epi32(half, _mm512_unpacklo_epi16(cb, cr), factors);
    const __m512i high = _mm512_dpwssd_epi32(half, _mm512_unpackhi_epi16(cb, cr), factors);
    const __m512i green = _mm512_packs_epi32(_mm512_srai_epi32(low, 16), _mm512_srai_epi32(high, 16));
    return (struct rgb_avx512){{_mm512_add_epi16(_mm512_add_epi16(y, cr), red),
                                _mm512_add_epi16(_mm512_sub_epi16(y, cr), green),
                                _mm512_add_epi16(_mm512_add_epi16(y, cb2), blue)}};
}

/* 64 pixels. */
FASTLOAD_TARGET_AVX512 INLINE void store_avx512(const __m512i channel[3], uint8_t *out)
{
    /* Of each 64 bytes, which are blue. */
    const __mmask64 blue[3] = {0x4924924924924924u, 0x2492492492492492u, 0x9249249249249249u};
    for (int third = 0; third < 3; third++) {
        const __m512i order = _mm512_loadu_si512(PLACES[third]);
        const __m512i pixels = _mm512_permutex2var_epi8(channel[0], order, channel[1]);
        _mm512_storeu_si512(out + 64 * third, _mm512_mask_permutexvar_epi8(pixels, blue[third], order, channel[2]));
    }
}

FASTLOAD_TARGET_AVX512 static void to_rgb_avx512(const struct colors *from, uint8_t *out, int n)
{
    const __m512i zero = _mm512_setzero_si512(), middle = _mm512_set1_epi16(128);
    for (int i = 0; i < n; i += 64, out += 192) {
        const __m512i y = _mm512_loadu_si512(from->y + i);
        const __m512i cb = _mm512_loadu_si512(from->cb + i);
        const __m512i cr = _mm512_loadu_si512(from->cr + i);
        const struct rgb_avx512 low = rgb_avx512(_mm512_unpacklo_epi8(y, zero),
                                                 _mm512_sub_epi16(_mm512_unpacklo_epi8(cb, zero), middle),
                                                 _mm512_sub_epi16(_mm512_unpacklo_epi8(cr, zero), middle));
        const struct rgb_avx512 high = rgb_avx512(_mm512_unpackhi_epi8(y, zero),
                                                  _mm512_sub_epi16(_mm512_unpackhi_epi8(cb, zero), middle),
                                                  _mm512_sub_epi16(_mm512_unpackhi_epi8(cr, zero), middle));
        __m512i channel[3];
        for (int c = 0; c < 3; c++)
            channel[c] = _mm512_packus_epi16(low.channel[c], high.channel[c]);
        store_avx512(channel, out);
    }
}

FASTLOAD_TARGET_AVX512 static void interleave_avx512(const uint8_t *const from[3], uint8_t *out, int n)
{
    for (int i = 0; i < n; i += 64, out += 192) {
        __m512i channel[3];
        for (int c = 0; c < 3; c++)
            channel[c] = _mm512_loadu_si512(from[c] + i);
        store_avx512(channel, out);
    }
}

#define CHOOSE(function, ...)                                                                                          \
    (level == FASTLOAD_AVX512   ? function##_avx512(__VA_ARGS__)                                                       \
     : level == FASTLOAD_AVX2 ? function##_avx2(__VA_ARGS__)                                                           \
                              : function##_plain(__VA_ARGS__))
#else
#define CHOOSE(function, ...) ((void)level, function##_plain(__VA_ARGS__))
#endif

void to_rgb(int level, const struct colors *from, uint8_t *out, int n)
{
    CHOOSE(to_rgb, from, out, n);
}

void interleave(int level, const uint8_t *const from[3], uint8_t *out, int n)
{
    CHOOSE(interleave, from, out, n);
}

void upsample_h2v1(int level, const uint8_t *in, uint8_t *out, int n)
{
    CHOOSE(h2v1, in, out, n);
}

void upsample_h2v2(int level, const uint8_t *near, const uint8_t *far, uint16_t *sums, uint8_t *out, int n)
{
    CHOOSE(h2v2, near, far, sums, out, n);
}

void upsample_h1v2(int level, const uint8_t *near, const uint8_t *far, int bias, uint8_t *out, int n)
{
    CHOOSE(h1v2, near, far, bias, out, n);
}
