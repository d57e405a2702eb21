/* Samples to pixels of 3 bytes with the vectors that every x86-64 and every 64-bit ARM processor has. For colors.c,
 * which has libjpeg's factors; (x * factor + half) >> 16 is made of the upper half of a product of 16 bits: that of
 * 2 * x, rounded. */
#ifdef __SSE2__
#include <emmintrin.h>

struct rgb_128 {
    __m128i channel[3];
};

/* 16 bits each: y from 0 to 255, cb and cr from -128 to 127. */
INLINE struct rgb_128 rgb_128(__m128i y, __m128i cb, __m128i cr)
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
    return (struct rgb_128){{_mm_add_epi16(_mm_add_epi16(y, cr), red),
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

static void to_rgb_128(const struct colors *from, uint8_t *out, int n)
{
    const __m128i zero = _mm_setzero_si128(), middle = _mm_set1_epi16(128);
    for (int i = 0; i < n; i += 16, out += 48) {
        const __m128i y = _mm_loadu_si128((const __m128i *)(from->y + i));
        const __m128i cb = _mm_loadu_si128((const __m128i *)(from->cb + i));
        const __m128i cr = _mm_loadu_si128((const __m128i *)(from->cr + i));
        const struct rgb_128 low = rgb_128(_mm_unpacklo_epi8(y, zero),
                                           _mm_sub_epi16(_mm_unpacklo_epi8(cb, zero), middle),
                                           _mm_sub_epi16(_mm_unpacklo_epi8(cr, zero), middle));
        const struct rgb_128 high = rgb_128(_mm_unpackhi_epi8(y, zero),
                                            _mm_sub_epi16(_mm_unpackhi_epi8(cb, zero), middle),
                                            _mm_sub_epi16(_mm_unpackhi_epi8(cr, zero), middle));
        __m128i channel[3];
        for (int c = 0; c < 3; c++)
            channel[c] = _mm_packus_epi16(low.channel[c], high.channel[c]);
        const __m128i first[2] = {_mm_unpacklo_epi8(channel[0], channel[1]), _mm_unpackhi_epi8(channel[0], channel[1])};
        const __m128i last[2] = {_mm_unpacklo_epi8(channel[2], zero), _mm_unpackhi_epi8(channel[2], zero)};
        for (int k = 0; k < 2; k++) {
            store_pixels(_mm_unpacklo_epi16(first[k], last[k]), out + 24 * k);
            store_pixels(_mm_unpackhi_epi16(first[k], last[k]), out + 24 * k + 12);
        }
    }
}

#else
#include <arm_neon.h>

static void to_rgb_128(const struct colors *from, uint8_t *out, int n)
{
    const uint8x8_t middle = vdup_n_u8(128);
    for (int i = 0; i < n; i += 8, out += 24) {
        const int16x8_t y = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(from->y + i)));
        const int16x8_t cb = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(from->cb + i), middle));
        const int16x8_t cr = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(from->cr + i), middle));
        const int32x4_t low = vmlal_n_s16(vmull_n_s16(vget_low_s16(cb), GREEN_CB), vget_low_s16(cr), GREEN_CR);
        const int32x4_t high = vmlal_n_s16(vmull_n_s16(vget_high_s16(cb), GREEN_CB), vget_high_s16(cr), GREEN_CR);
        const int16x8_t green = vcombine_s16(vrshrn_n_s32(low, 16), vrshrn_n_s32(high, 16));
        const int16x8_t red = vrshrq_n_s16(vqdmulhq_n_s16(cr, RED_CR), 1);
        const int16x8_t blue = vrshrq_n_s16(vqdmulhq_n_s16(cb, BLUE_CB), 1);
        const uint8x8x3_t pixels = {{vqmovun_s16(vaddq_s16(vaddq_s16(y, cr), red)),
                                     vqmovun_s16(vaddq_s16(vsubq_s16(y, cr), green)),
                                     vqmovun_s16(vaddq_s16(vaddq_s16(y, vaddq_s16(cb, cb)), blue))}};
        vst3_u8(out, pixels);
    }
}
#endif
