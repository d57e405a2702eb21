/* The inverse transform with NEON. The numbers are those of idct_vector.h. No sum of products comes near to 2**31, even
 * of numbers that damaged files saturate: so it is rounded where it is narrowed. */
#include "fastload.h"

#ifdef FASTLOAD_NEON
#include "idct.h"
#include "picture.h"

#include <arm_neon.h>
#include <string.h>

/* Products take a factor from a lane: its table and its place there. */
static const int16_t FACTORS[2][8] = {
    {F_0_541 + F_0_765, F_0_541, F_0_541 - F_1_847, F_1_175, F_1_175 - F_1_961, F_1_175 - F_0_390},
    {-F_0_899, F_1_501 - F_0_899, -F_2_562, F_3_072 - F_2_562, F_2_053 - F_2_562, F_0_298 - F_0_899},
};
/* Where the last four inputs are zero. */
static const int16_t FACTORS_LOW[2][8] = {
    {F_0_541 + F_0_765, F_0_541, F_1_175, F_1_501 - F_0_899 + F_1_175 - F_0_390},
    {F_3_072 - F_2_562 + F_1_175 - F_1_961, F_1_175 - F_0_390, F_1_175 - F_2_562, F_1_175 - F_0_899,
     F_1_175 - F_1_961},
};

struct factors {
    int16x8_t a, b;
};

INLINE struct factors load_factors(const int16_t from[2][8])
{
    return (struct factors){vld1q_s16(from[0]), vld1q_s16(from[1])};
}

/* Eight numbers of 32 bits. */
struct wide {
    int32x4_t low, high;
};

#define TIMES(x, factors, at)                                                                                          \
    ((struct wide){vmull_laneq_s16(vget_low_s16(x), factors, at), vmull_high_laneq_s16(x, factors, at)})
#define ADD_TIMES(sum, x, factors, at)                                                                                 \
    ((struct wide){vmlal_laneq_s16((sum).low, vget_low_s16(x), factors, at),                                           \
                   vmlal_high_laneq_s16((sum).high, x, factors, at)})

INLINE struct wide shifted(int16x8_t x)
{
    return (struct wide){vshll_n_s16(vget_low_s16(x), CONST_BITS), vshll_high_n_s16(x, CONST_BITS)};
}

INLINE struct wide add(struct wide a, struct wide b)
{
    return (struct wide){vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)};
}

INLINE struct wide subtract(struct wide a, struct wide b)
{
    return (struct wide){vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)};
}

struct sums {
    struct wide even[4], odd[4];
};

/* Eight transforms; what is left to do is adding and subtracting them. */
INLINE struct sums sums_of(const int16x8_t x[8], struct factors f)
{
    const struct wide sum = shifted(vaddq_s16(x[0], x[4])), difference = shifted(vsubq_s16(x[0], x[4]));
    const struct wide a = ADD_TIMES(TIMES(x[2], f.a, 0), x[6], f.a, 1);
    const struct wide b = ADD_TIMES(TIMES(x[2], f.a, 1), x[6], f.a, 2);
    const int16x8_t y3 = vaddq_s16(x[7], x[3]), y4 = vaddq_s16(x[5], x[1]);
    const struct wide z3 = ADD_TIMES(TIMES(y3, f.a, 4), y4, f.a, 3);
    const struct wide z4 = ADD_TIMES(TIMES(y3, f.a, 3), y4, f.a, 5);
    return (struct sums){
        {add(sum, a), add(difference, b), subtract(difference, b), subtract(sum, a)},
        {ADD_TIMES(ADD_TIMES(z4, x[7], f.b, 0), x[1], f.b, 1), ADD_TIMES(ADD_TIMES(z3, x[5], f.b, 2), x[3], f.b, 3),
         ADD_TIMES(ADD_TIMES(z4, x[5], f.b, 4), x[3], f.b, 2), ADD_TIMES(ADD_TIMES(z3, x[7], f.b, 5), x[1], f.b, 0)}};
}

/* The same of four inputs. */
INLINE struct sums sums_of_four(const int16x8_t x[4], struct factors f)
{
    const struct wide sum = shifted(x[0]), a = TIMES(x[2], f.a, 0), b = TIMES(x[2], f.a, 1);
    return (struct sums){
        {add(sum, a), add(sum, b), subtract(sum, b), subtract(sum, a)},
        {ADD_TIMES(TIMES(x[1], f.a, 3), x[3], f.a, 2), ADD_TIMES(TIMES(x[1], f.a, 2), x[3], f.b, 0),
         ADD_TIMES(TIMES(x[1], f.b, 1), x[3], f.b, 2), ADD_TIMES(TIMES(x[1], f.b, 3), x[3], f.b, 4)}};
}

/* The first pass. */
INLINE void transform_columns(int16x8_t x[8], struct factors f)
{
    const struct sums s = sums_of(x, f);
    for (int i = 0; i < 4; i++) {
        const struct wide up = add(s.even[i], s.odd[i]), down = subtract(s.even[i], s.odd[i]);
        x[i] = vqrshrn_high_n_s32(vqrshrn_n_s32(up.low, SHIFT_1), up.high, SHIFT_1);
        x[7 - i] = vqrshrn_high_n_s32(vqrshrn_n_s32(down.low, SHIFT_1), down.high, SHIFT_1);
    }
}

/* Four transforms of four inputs. out: rows 0 and 4, 1 and 5, and so on, side by side. */
INLINE void transform_four_columns(const int16x4_t x[4], struct factors f, int16x8_t out[4])
{
    const int32x4_t sum = vshll_n_s16(x[0], CONST_BITS);
    const int32x4_t a = vmull_laneq_s16(x[2], f.a, 0), b = vmull_laneq_s16(x[2], f.a, 1);
    const int32x4_t even[4] = {vaddq_s32(sum, a), vaddq_s32(sum, b), vsubq_s32(sum, b), vsubq_s32(sum, a)};
    const int32x4_t odd[4] = {vmlal_laneq_s16(vmull_laneq_s16(x[1], f.a, 3), x[3], f.a, 2),
                              vmlal_laneq_s16(vmull_laneq_s16(x[1], f.a, 2), x[3], f.b, 0),
                              vmlal_laneq_s16(vmull_laneq_s16(x[1], f.b, 1), x[3], f.b, 2),
                              vmlal_laneq_s16(vmull_laneq_s16(x[1], f.b, 3), x[3], f.b, 4)};
    for (int i = 0; i < 4; i++)
        out[i] = vqrshrn_high_n_s32(vqrshrn_n_s32(vaddq_s32(even[i], odd[i]), SHIFT_1),
                                    vsubq_s32(even[3 - i], odd[3 - i]), SHIFT_1);
}

/* The second pass, up to a shift by SHIFT_2 - 16. */
INLINE void transform_rows(struct sums s, int16x8_t x[8])
{
    for (int i = 0; i < 4; i++) {
        x[i] = vaddhn_high_s32(vaddhn_s32(s.even[i].low, s.odd[i].low), s.even[i].high, s.odd[i].high);
        x[7 - i] = vsubhn_high_s32(vsubhn_s32(s.even[i].low, s.odd[i].low), s.even[i].high, s.odd[i].high);
    }
}

/* Of two vectors what stands at even places, or at odd ones: the first's, the second's, by turns. */
#define EVEN_16 vtrn1q_s16
#define ODD_16 vtrn2q_s16
#define AS(bits, function, a, b)                                                                                       \
    vreinterpretq_s16_s##bits(function##_s##bits(vreinterpretq_s##bits##_s16(a), vreinterpretq_s##bits##_s16(b)))
#define EVEN_32(a, b) AS(32, vtrn1q, a, b)
#define ODD_32(a, b) AS(32, vtrn2q, a, b)
#define EVEN_64(a, b) AS(64, vtrn1q, a, b)
#define ODD_64(a, b) AS(64, vtrn2q, a, b)
/* All of the first's, then all of the second's. */
#define EVENS_32(a, b) AS(32, vuzp1q, a, b)
#define ODDS_32(a, b) AS(32, vuzp2q, a, b)

INLINE void transpose(int16x8_t x[8])
{
    int16x8_t a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = EVEN_16(x[i], x[i + 1]);
        a[i + 1] = ODD_16(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i++)
        b[i] = i & 2 ? ODD_32(a[i - 2], a[i]) : EVEN_32(a[i], a[i + 2]);
    for (int i = 0; i < 4; i++) {
        x[i] = EVEN_64(b[i], b[i + 4]);
        x[i + 4] = ODD_64(b[i], b[i + 4]);
    }
}

/* In each half of the vectors. */
INLINE void transpose_four(int16x8_t x[4])
{
    const int16x8_t a[4] = {EVEN_16(x[0], x[1]), ODD_16(x[0], x[1]), EVEN_16(x[2], x[3]), ODD_16(x[2], x[3])};
    for (int i = 0; i < 2; i++) {
        x[i] = EVEN_32(a[i], a[i + 2]);
        x[i + 2] = ODD_32(a[i], a[i + 2]);
    }
}

/* A row, and the next. */
INLINE void store_rows(int16x8_t x, uint8_t *out, size_t stride)
{
    const uint8x16_t bytes = veorq_u8(vreinterpretq_u8_s16(x), vdupq_n_u8(128));
    vst1_u8(out, vget_low_u8(bytes));
    vst1_u8(out + stride, vget_high_u8(bytes));
}

/* Vector k has column k of a block. */
INLINE void store_columns(const int16x8_t x[8], uint8_t *out, size_t stride)
{
    int8x16_t a[4];
    for (int i = 0; i < 4; i++)
        a[i] = vqrshrn_high_n_s16(vqrshrn_n_s16(x[i], SHIFT_2 - 16), x[i + 4], SHIFT_2 - 16);
    const int16x8_t ab[2] = {vreinterpretq_s16_s8(vtrn1q_s8(a[0], a[1])), vreinterpretq_s16_s8(vtrn2q_s8(a[0], a[1]))};
    const int16x8_t cd[2] = {vreinterpretq_s16_s8(vtrn1q_s8(a[2], a[3])), vreinterpretq_s16_s8(vtrn2q_s8(a[2], a[3]))};
    /* Rows 0 and 4, 2 and 6, 1 and 5, 3 and 7: four bytes of each, and behind them the other four. */
    const int16x8_t r04 = EVEN_16(ab[0], cd[0]), r26 = ODD_16(ab[0], cd[0]);
    const int16x8_t r15 = EVEN_16(ab[1], cd[1]), r37 = ODD_16(ab[1], cd[1]);
    store_rows(EVENS_32(r04, r15), out, stride);
    store_rows(EVENS_32(r26, r37), out + 2 * stride, stride);
    store_rows(ODDS_32(r04, r15), out + 4 * stride, stride);
    store_rows(ODDS_32(r26, r37), out + 6 * stride, stride);
}

INLINE void transform_block(const int16_t *block, const int16_t *quant, struct factors f, uint8_t *out, size_t stride)
{
    int16x8_t x[8];
    for (int k = 0; k < 8; k++)
        x[k] = vmulq_s16(vld1q_s16(block + k * GROUP * 8), vld1q_s16(quant + 8 * k));
    transform_columns(x, f);
    transpose(x);
    transform_rows(sums_of(x, f), x);
    store_columns(x, out, stride);
}

/* Of which only the first four rows and columns may not be zero. */
INLINE void transform_low_block(const int16_t *block, const int16_t *quant, struct factors f, uint8_t *out,
                                size_t stride)
{
    int16x4_t in[4];
    int16x8_t x[8];
    for (int k = 0; k < 4; k++)
        in[k] = vmul_s16(vld1_s16(block + k * GROUP * 8), vld1_s16(quant + 8 * k));
    transform_four_columns(in, f, x);
    transpose_four(x);
    transform_rows(sums_of_four(x, f), x);
    store_columns(x, out, stride);
}

/* Whether one of the first row is so large, in damaged files, that libjpeg-turbo's result depends on whether it is
 * alone: more than 16 bits when shifted to the left by PASS1_BITS. */
INLINE int is_large(const int16_t *group, const int16_t *quant)
{
    const int most = 1 << (15 - PASS1_BITS);
    uint16x8_t found = vdupq_n_u16(0);
    for (int i = 0; i < GROUP; i++) {
        const int16x8_t x = vmulq_s16(vld1q_s16(group + 8 * i), vld1q_s16(quant));
        found = vmaxq_u16(found, vreinterpretq_u16_s16(vaddq_s16(x, vdupq_n_s16(most))));
    }
    return vmaxvq_u16(found) >= 2 * most;
}

void idct_neon(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride, enum extent extent)
{
    if (__builtin_expect(is_large(group, quant), 0)) {
        idct_plain(group, quant, out, stride);
        return;
    }
    const struct factors f = load_factors(extent == ALL ? FACTORS : FACTORS_LOW);
    for (int i = 0; i < GROUP; i++)
        if (extent == ALL)
            transform_block(group + 8 * i, quant, f, out + 8 * i, stride);
        else
            transform_low_block(group + 8 * i, quant, f, out + 8 * i, stride);
    memset(group, 0, (extent == ALL ? GROUP_SIZE : GROUP_SIZE / 2) * sizeof *group);
}
#endif
