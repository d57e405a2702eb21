/* Rows of samples to rows of pixels with NEON. For colors.c. */
#include <arm_neon.h>

static void h2v1_plain(const uint8_t *in, uint8_t *out, int n)
{
    const uint8x8_t one = vdup_n_u8(1), three = vdup_n_u8(3);
    for (int i = 0; i < n; i += 16, in += 16, out += 32) {
        const uint8x16_t x = vld1q_u8(in), before = vld1q_u8(in - 1), behind = vld1q_u8(in + 1);
        const uint16x8_t left[2] = {
            vmlal_u8(vaddl_u8(vget_low_u8(before), one), vget_low_u8(x), three),
            vmlal_high_u8(vaddl_high_u8(before, vcombine_u8(one, one)), x, vcombine_u8(three, three))};
        const uint16x8_t right[2] = {vmlal_u8(vmovl_u8(vget_low_u8(behind)), vget_low_u8(x), three),
                                     vmlal_high_u8(vmovl_high_u8(behind), x, vcombine_u8(three, three))};
        const uint8x16x2_t pairs = {{vshrn_high_n_u16(vshrn_n_u16(left[0], 2), left[1], 2),
                                     vrshrn_high_n_u16(vrshrn_n_u16(right[0], 2), right[1], 2)}};
        vst2q_u8(out, pairs);
    }
}

/* Eight samples of the row itself, three times, and of the one above or below. */
INLINE uint16x8_t weigh_rows(const uint8_t *near, const uint8_t *far)
{
    return vaddw_u8(vmull_u8(vld1_u8(near), vdup_n_u8(3)), vld1_u8(far));
}

static void h2v2_plain(const uint8_t *near, const uint8_t *far, uint16_t *sums, uint8_t *out, int n)
{
    (void)sums;
    const uint16x8_t three = vdupq_n_u16(3), seven = vdupq_n_u16(7);
    uint16x8_t sum[4] = {weigh_rows(near - 8, far - 8), weigh_rows(near, far)};
    for (int i = 0; i < n; i += 16, out += 32) {
        sum[2] = weigh_rows(near + i + 8, far + i + 8);
        sum[3] = weigh_rows(near + i + 16, far + i + 16);
        uint16x8_t left[2], right[2];
        for (int k = 0; k < 2; k++) {
            left[k] = vmlaq_u16(vextq_u16(sum[k], sum[k + 1], 7), sum[k + 1], three);
            right[k] = vaddq_u16(vmlaq_u16(vextq_u16(sum[k + 1], sum[k + 2], 1), sum[k + 1], three), seven);
        }
        const uint8x16x2_t pairs = {{vrshrn_high_n_u16(vrshrn_n_u16(left[0], 4), left[1], 4),
                                     vshrn_high_n_u16(vshrn_n_u16(right[0], 4), right[1], 4)}};
        vst2q_u8(out, pairs);
        sum[0] = sum[2];
        sum[1] = sum[3];
    }
}

static void h1v2_plain(const uint8_t *near, const uint8_t *far, int bias, uint8_t *out, int n)
{
    const uint8x16_t three = vdupq_n_u8(3), more = vdupq_n_u8((uint8_t)bias);
    for (int i = 0; i < n; i += 16) {
        const uint8x16_t a = vld1q_u8(near + i), b = vld1q_u8(far + i);
        const uint16x8_t low = vmlal_u8(vaddl_u8(vget_low_u8(b), vget_low_u8(more)), vget_low_u8(a),
                                        vget_low_u8(three));
        const uint16x8_t high = vmlal_high_u8(vaddl_high_u8(b, more), a, three);
        vst1q_u8(out + i, vshrn_high_n_u16(vshrn_n_u16(low, 2), high, 2));
    }
}

/* Factors of 2 * chroma in units of 2**-17, or 2**-16 where products are doubled and rounded to their upper half.
 * Rounding makes of all 256 levels what it makes with libjpeg's factors in units of 2**-16. */
enum { RED_CR_2 = 22971, BLUE_CB_2 = 29033, GREEN_CB_2 = GREEN_CB / 2, GREEN_CR_2 = (GREEN_CR - (1 << 16)) / 2 };

struct differences {
    uint16x8_t channel[3];
};

/* What is added to y; cb, cr: twice their values. */
INLINE struct differences differences(int16x8_t cb, int16x8_t cr)
{
    const int32x4_t low = vmlal_n_s16(vmull_n_s16(vget_low_s16(cb), GREEN_CB_2), vget_low_s16(cr), GREEN_CR_2);
    const int32x4_t high = vmlal_high_n_s16(vmull_high_n_s16(cb, GREEN_CB_2), cr, GREEN_CR_2);
    return (struct differences){{vreinterpretq_u16_s16(vqrdmulhq_n_s16(cr, RED_CR_2)),
                                 vreinterpretq_u16_s16(vrshrn_high_n_s32(vrshrn_n_s32(low, 16), high, 16)),
                                 vreinterpretq_u16_s16(vqrdmulhq_n_s16(cb, BLUE_CB_2))}};
}

static void to_rgb_plain(const struct colors *from, uint8_t *out, int n)
{
    for (int i = 0; i < n; i += 16, out += 48) {
        const uint8x16_t y = vld1q_u8(from->y + i), middle = vdupq_n_u8(128);
        const int8x16_t cb = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from->cb + i), middle));
        const int8x16_t cr = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from->cr + i), middle));
        const struct differences low = differences(vshll_n_s8(vget_low_s8(cb), 1), vshll_n_s8(vget_low_s8(cr), 1));
        const struct differences high = differences(vshll_high_n_s8(cb, 1), vshll_high_n_s8(cr, 1));
        uint8x16x3_t pixels;
        for (int c = 0; c < 3; c++)
            pixels.val[c] = vqmovun_high_s16(
                vqmovun_s16(vreinterpretq_s16_u16(vaddw_u8(low.channel[c], vget_low_u8(y)))),
                vreinterpretq_s16_u16(vaddw_high_u8(high.channel[c], y)));
        vst3q_u8(out, pixels);
    }
}

static void interleave_plain(const uint8_t *const from[3], uint8_t *out, int n)
{
    for (int i = 0; i < n; i += 16, out += 48) {
        const uint8x16x3_t pixels = {{vld1q_u8(from[0] + i), vld1q_u8(from[1] + i), vld1q_u8(from[2] + i)}};
        vst3q_u8(out, pixels);
    }
}
