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
static uint32_t times(int16_t x, int16_t factor)
{
    return (uint32_t)((int32_t)x * factor);
}

static int16_t narrow(uint32_t sum, int shift)
{
    return (int16_t)saturate((int32_t)sum >> shift, INT16_MAX);
}

/* Eight one-dimensional transforms: number i of each row is of transform i, so that compilers make vectors of them. */
static void pass(const int16_t in[8][8], int16_t out[8][8], int shift)
{
    const uint32_t rounding = 1u << (shift - 1);
    for (int i = 0; i < 8; i++) {
        const int16_t x1 = in[1][i], x2 = in[2][i], x3 = in[3][i], x5 = in[5][i], x6 = in[6][i], x7 = in[7][i];
        const uint32_t sum = times(wrap(in[0][i] + in[4][i]), 1 << CONST_BITS) + rounding;
        const uint32_t difference = times(wrap(in[0][i] - in[4][i]), 1 << CONST_BITS) + rounding;
        const uint32_t a = times(x2, F_0_541 + F_0_765) + times(x6, F_0_541);
        const uint32_t b = times(x2, F_0_541) + times(x6, F_0_541 - F_1_847);
        const int16_t y3 = wrap(x7 + x3), y4 = wrap(x5 + x1);
        const uint32_t z3 = times(y3, F_1_175 - F_1_961) + times(y4, F_1_175);
        const uint32_t z4 = times(y3, F_1_175) + times(y4, F_1_175 - F_0_390);
        const uint32_t odd0 = z4 + times(x7, -F_0_899) + times(x1, F_1_501 - F_0_899);
        const uint32_t odd1 = z3 + times(x5, -F_2_562) + times(x3, F_3_072 - F_2_562);
        const uint32_t odd2 = z4 + times(x5, F_2_053 - F_2_562) + times(x3, -F_2_562);
        const uint32_t odd3 = z3 + times(x7, F_0_298 - F_0_899) + times(x1, -F_0_899);
        out[0][i] = narrow(sum + a + odd0, shift);
        out[7][i] = narrow(sum + a - odd0, shift);
        out[1][i] = narrow(difference + b + odd1, shift);
        out[6][i] = narrow(difference + b - odd1, shift);
        out[2][i] = narrow(difference - b + odd2, shift);
        out[5][i] = narrow(difference - b - odd2, shift);
        out[3][i] = narrow(sum - a + odd3, shift);
        out[4][i] = narrow(sum - a - odd3, shift);
    }
}

static void transpose(int16_t x[8][8])
{
    for (int y = 0; y < 8; y++)
        for (int i = 0; i < y; i++) {
            const int16_t other = x[i][y];
            x[i][y] = x[y][i];
            x[y][i] = other;
        }
}

static void transform(const int16_t *block, const int16_t quant[64], uint8_t *out, size_t stride)
{
    int16_t x[8][8], result[8][8];
    int below = 0;
    for (int y = 0; y < 8; y++)
        for (int i = 0; i < 8; i++) {
            x[y][i] = wrap(block[y * GROUP * 8 + i] * quant[8 * y + i]);
            below |= y ? block[y * GROUP * 8 + i] : 0;
        }
    /* Where libjpeg-turbo's vector code finds the first row alone, it shifts: that wraps around where a sum would
     * saturate. */
    if (below)
        pass(x, result, SHIFT_1);
    for (int y = 0; !below && y < 8; y++)
        for (int i = 0; i < 8; i++)
            result[y][i] = wrap((int32_t)((uint32_t)x[0][i] << PASS1_BITS));
    transpose(result);
    pass(result, x, SHIFT_2);
    transpose(x);
    for (int y = 0; y < 8; y++)
        for (int i = 0; i < 8; i++)
            out[y * stride + i] = (uint8_t)(saturate(x[y][i], INT8_MAX) + 128);
}

void idct_plain(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride)
{
    for (int i = 0; i < GROUP; i++)
        transform(group + 8 * i, quant, out + 8 * i, stride);
    memset(group, 0, GROUP_SIZE * sizeof *group);
}
