/* Samples to pixels of 3 bytes with SSE2. For colors.c, which has libjpeg's factors; (x * factor + half) >> 16 is made of the upper half of a product of 16 bits: that of
 * 2 * x, rounded. */
#include <emmintrin.h>

struct rgb_sse2 {
    __m128i channel[3];
};

/* 16 bits each: y from 0 to 255, cb and cr from -128 to 127. */
INLINE struct rgb_sse2 rgb_sse2(__m128i y, __m128i cb, __m128i cr)
{
    const __m128i one = _mm_set1_epi16(1), half = _mm_set1_epi32(1 << 15);
    const __m128i cb2 = _mm_add_epi16(cb, cb), cr2 = _mm_add_epi16(cr, cr);
    const __m128i red = _mm_srai_epi16(_mm_add_epi16(_mm_mulhi_epi16(cr2, _mm_set1_epi16(RED_CR)), one), 1);
    const __m128i blue = _mm_srai_epi16(_mm_add_epi16(_mm_mulhi_epi16(cb2, _mm_set1_epi16(BLUE_CB)), one), 1);
    const __m128i factors = _mm_set1_epi32((int)((uint32_t)(uint16_t)GREEN_CB | (uint32_t)GREEN_CR << 16));
    const __m128i low = _mm_madd_epi16(_mm_unpacklo_epi16(cb, cr), factors);
    const __m128i high = _mm_madd_epi16(_mm_unpackhi_epi16(cb, cr), factors);
    const __m128i green = _mm_packs_epi32(_mm_srai_epi32(_mm_add_epi32(low, half), 16),
                                          _mm_srai_epi32(_mm_add_epi32(high, half), 16));
    return (struct rgb_sse2){{_mm_add_epi16(_mm_add_epi16(y, cr), red),
                             _mm_add_epi16(_mm_sub_epi16(y, cr), green),
                             _mm_add_epi16(_mm_add_epi16(y, cb2), blue)}};
}

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

static void to_rgb_plain(const struct colors *from, uint8_t *out, int n)
{
    const __m128i zero = _mm_setzero_si128(), middle = _mm_set1_epi16(128);
    for (int i = 0; i < n; i += 16, out += 48) {
        const __m128i y = _mm_loadu_si128((const __m128i *)(from->y + i));
        const __m128i cb = _mm_loadu_si128((const __m128i *)(from->cb + i));
        const __m128i cr = _mm_loadu_si128((const __m128i *)(from->cr + i));
        const struct rgb_sse2 low = rgb_sse2(_mm_unpacklo_epi8(y, zero),
                                           _mm_sub_epi16(_mm_unpacklo_epi8(cb, zero), middle),
                                           _mm_sub_epi16(_mm_unpacklo_epi8(cr, zero), middle));
        const struct rgb_sse2 high = rgb_sse2(_mm_unpackhi_epi8(y, zero),
                                            _mm_sub_epi16(_mm_unpackhi_epi8(cb, zero), middle),
                                            _mm_sub_epi16(_mm_unpackhi_epi8(cr, zero), middle));
        __m128i channel[3];
        for (int c = 0; c < 3; c++)
            channel[c] = _mm_packus_epi16(low.channel[c], high.channel[c]);
        store_channels(channel, out);
    }
}

static void interleave_plain(const uint8_t *const from[3], uint8_t *out, int n)
{
    for (int i = 0; i < n; i += 16, out += 48) {
        __m128i channel[3];
        for (int c = 0; c < 3; c++)
            channel[c] = _mm_loadu_si128((const __m128i *)(from[c] + i));
        store_channels(channel, out);
    }
}
