/* Rows of samples to rows of pixels: upsampling and colours. See picture.h. */
#include "picture.h"

#include <string.h>

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
#define to_rgb_plain to_rgb_sse2
#define interleave_plain interleave_sse2
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
LOOPS(avx2, FASTLOAD_TARGET_AVX2)
LOOPS(avx512, FASTLOAD_TARGET_AVX512)

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
