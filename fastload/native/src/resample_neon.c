/* Resizing with NEON. Weights stay as they are: 32 bits of a sum take them whole. See resample.h. */
#include "resample.h"

#ifdef FASTLOAD_NEON
#include <arm_neon.h>

/* Where the lowest bytes of four numbers of 32 bits come from: every third, or every fourth, of 16 bytes. */
#define NO 255, 255, 255
static const uint8_t PIXELS[4][16] = {
    {0, NO, 1, NO, 2, NO, 255, NO}, {3, NO, 4, NO, 5, NO, 255, NO}, {6, NO, 7, NO, 8, NO, 255, NO},
    {9, NO, 10, NO, 11, NO, 255, NO}};
static const uint8_t FOURS[4][16] = {
    {0, NO, 1, NO, 2, NO, 3, NO}, {4, NO, 5, NO, 6, NO, 7, NO}, {8, NO, 9, NO, 10, NO, 11, NO},
    {12, NO, 13, NO, 14, NO, 15, NO}};

struct spread {
    uint8x16_t from[4];
};

INLINE struct spread load_spread(const uint8_t from[4][16])
{
    return (struct spread){{vld1q_u8(from[0]), vld1q_u8(from[1]), vld1q_u8(from[2]), vld1q_u8(from[3])}};
}

INLINE int32x4_t spread(uint8x16_t bytes, uint8x16_t from)
{
    return vreinterpretq_s32_u8(vqtbl1q_u8(bytes, from));
}

/* Sums of 32 bits to bytes that are clipped. */
INLINE uint8x16_t clip(const int32x4_t sum[4])
{
    const uint16x8_t low = vqshrun_high_n_s32(vqshrun_n_s32(sum[0], 16), sum[1], 16);
    const uint16x8_t high = vqshrun_high_n_s32(vqshrun_n_s32(sum[2], 16), sum[3], 16);
    return vqshrn_high_n_u16(vqshrn_n_u16(low, WEIGHT_BITS - 16), high, WEIGHT_BITS - 16);
}

/* `num`, a constant: 4 rows, or 1. Behind each pixel a byte is written that the next one replaces. */
INLINE void columns_of_rows(const struct resizer *r, const struct strip *strip, int first, int num)
{
    const struct axis *axis = &r->columns;
    const struct spread pixel = load_spread(PIXELS);
    const uint8_t *in = strip->in + first * strip->in_stride;
    uint8_t *out = strip->out + first * strip->out_stride;
    for (int x = 0; x < axis->out; x++, out += 3) {
        const uint8_t *from = in + 3 * (size_t)axis->start[x];
        const int32_t *weight = axis->weight + (size_t)x * axis->taps, *end = weight + axis->count[x];
        int32x4_t sum[4];
        for (int i = 0; i < 4; i++)
            sum[i] = vdupq_n_s32(1 << (WEIGHT_BITS - 1));
        for (; weight < end; weight += 4, from += 12) {
            const int32x4_t w = vld1q_s32(weight);
            for (int i = 0; i < num; i++) {
                const uint8x16_t bytes = vld1q_u8(from + i * strip->in_stride);
                sum[i] = vmlaq_laneq_s32(sum[i], spread(bytes, pixel.from[0]), w, 0);
                sum[i] = vmlaq_laneq_s32(sum[i], spread(bytes, pixel.from[1]), w, 1);
                sum[i] = vmlaq_laneq_s32(sum[i], spread(bytes, pixel.from[2]), w, 2);
                sum[i] = vmlaq_laneq_s32(sum[i], spread(bytes, pixel.from[3]), w, 3);
            }
        }
        const uint32x4_t pixels = vreinterpretq_u32_u8(clip(sum));
        vst1q_lane_u32((uint32_t *)(void *)out, pixels, 0);
        if (num == 4) {
            vst1q_lane_u32((uint32_t *)(void *)(out + strip->out_stride), pixels, 1);
            vst1q_lane_u32((uint32_t *)(void *)(out + 2 * strip->out_stride), pixels, 2);
            vst1q_lane_u32((uint32_t *)(void *)(out + 3 * strip->out_stride), pixels, 3);
        }
    }
}

void columns_neon(const struct resizer *r, const struct strip *strip)
{
    int i = 0;
    for (; i + 4 <= strip->num; i += 4)
        columns_of_rows(r, strip, i, 4);
    for (; i < strip->num; i++)
        columns_of_rows(r, strip, i, 1);
}

void rows_neon(const struct resizer *r, int y, uint8_t *out)
{
    const struct axis *axis = &r->rows;
    const struct spread four = load_spread(FOURS);
    const int32_t *weight = axis->weight + (size_t)y * axis->taps;
    const uint8_t *in = r->kept + (size_t)axis->start[y] * r->kept_stride;
    const int count = axis->count[y], n = 3 * r->kept_width;
    for (int x = 0; x < n; x += 32) {
        int32x4_t sum[8];
        for (int i = 0; i < 8; i++)
            sum[i] = vdupq_n_s32(1 << (WEIGHT_BITS - 1));
        const uint8_t *from = in + x;
        for (int t = 0; t < count; t++, from += r->kept_stride) {
            const int32x4_t w = vld1q_dup_s32(weight + t);
            const uint8x16_t low = vld1q_u8(from), high = vld1q_u8(from + 16);
            for (int i = 0; i < 4; i++) {
                sum[i] = vmlaq_s32(sum[i], spread(low, four.from[i]), w);
                sum[i + 4] = vmlaq_s32(sum[i + 4], spread(high, four.from[i]), w);
            }
        }
        vst1q_u8(out + x, clip(sum));
        vst1q_u8(out + x + 16, clip(sum + 4));
    }
}
#endif
