/* The inverse transform in plain C, for each block by itself. See idct.h. */
#include "idct.h"
#include "picture.h"

#include <string.h>

/* As libjpeg-turbo's vector code, which keeps 16 bits between its steps: those of damaged files wrap around. */
static int16_t wrap(int32_t x)
{
    return (int16_t)(uint16_t)(uint32_t)x;
}

static int32_t saturate(int32_t x, int32_t most)
{
    return x > most ? most : x < -most - 1 ? -most - 1 : x;
}

/* 32 bits, which wrap around too. */
static uint32_t times(int32_t x, int32_t factor)
{
    return (uint32_t)(x * factor);
}

static int16_t narrow(uint32_t sum, int shift)
{
    return (int16_t)saturate((int32_t)sum >> shift, INT16_MAX);
}

/* From every `step` numbers to as many. */
static void pass(const int16_t *in, int16_t *out, int step, int shift)
{
    int16_t x[8];
    for (int k = 0; k < 8; k++)
        x[k] = in[k * step];
    const uint32_t rounding = 1u << (shift - 1);
    const uint32_t sum = times(wrap(x[0] + x[4]), 1 << CONST_BITS) + rounding;
    const uint32_t difference = times(wrap(x[0] - x[4]), 1 << CONST_BITS) + rounding;
    const uint32_t a = times(x[2], F_0_541 + F_0_765) + times(x[6], F_0_541);
    const uint32_t b = times(x[2], F_0_541) + times(x[6], F_0_541 - F_1_847);
    const uint32_t even[4] = {sum + a, difference + b, difference - b, sum - a};
    const int16_t y3 = wrap(x[7] + x[3]), y4 = wrap(x[5] + x[1]);
    const uint32_t z3 = times(y3, F_1_175 - F_1_961) + times(y4, F_1_175);
    const uint32_t z4 = times(y3, F_1_175) + times(y4, F_1_175 - F_0_390);
    const uint32_t odd[4] = {z4 + times(x[7], -F_0_899) + times(x[1], F_1_501 - F_0_899),
                             z3 + times(x[5], -F_2_562) + times(x[3], F_3_072 - F_2_562),
                             z4 + times(x[5], F_2_053 - F_2_562) + times(x[3], -F_2_562),
                             z3 + times(x[7], F_0_298 - F_0_899) + times(x[1], -F_0_899)};
    for (int k = 0; k < 4; k++) {
        out[k * step] = narrow(even[k] + odd[k], shift);
        out[(7 - k) * step] = narrow(even[k] - odd[k], shift);
    }
}

static void transform(const int16_t *block, const int16_t quant[64], uint8_t *out, size_t stride)
{
    int16_t x[64];
    int below = 0;
    for (int y = 0; y < 8; y++)
        for (int i = 0; i < 8; i++) {
            x[8 * y + i] = wrap(block[y * GROUP * 8 + i] * quant[8 * y + i]);
            below |= y ? block[y * GROUP * 8 + i] : 0;
        }
    /* Where libjpeg-turbo's vector code finds the first row alone, it shifts: that wraps around where a sum would
     * saturate. */
    for (int i = 0; i < 8; i++)
        if (below)
            pass(x + i, x + i, 8, SHIFT_1);
        else
            for (int y = 7; y >= 0; y--)
                x[8 * y + i] = wrap((int32_t)((uint32_t)x[i] << PASS1_BITS));
    for (int y = 0; y < 8; y++) {
        pass(x + 8 * y, x + 8 * y, 1, SHIFT_2);
        for (int i = 0; i < 8; i++)
            out[y * stride + i] = (uint8_t)(saturate(x[8 * y + i], INT8_MAX) + 128);
    }
}

void idct_plain(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride)
{
    for (int i = 0; i < GROUP; i++)
        transform(group + 8 * i, quant, out + 8 * i, stride);
    memset(group, 0, GROUP_SIZE * sizeof *group);
}
